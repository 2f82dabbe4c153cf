"""The embedded engine beside plain files, bare RocksDB and, over TCP, a real Fluss server.

``python -m benchmarks.embedded``; with ``--cluster`` also the server, which needs Java. Contenders
take turns; the best of some rounds counts, as other programs only ever add to a time.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
import unittest.mock
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import rocksdict
import typer
from rich.console import Console

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.files import sync_data
from fluss_df.engine.kv.kv_store import KvResources
from fluss_df.engine.log import tablet
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.layout.headers import scan_headers
from fluss_df.schema import Schema, TableDescriptor

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.float64()),
        ("b", pa.int32()),
        ("s", pa.string()),
        ("c", pa.int64()),
    ]
)
ROWS_SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("n", pa.int32())]
)
_BATCH = 20_000
# Fluss' default
_ZSTD_LEVEL = 3
# rows, about as many as in log batches
_FILE_BATCH = 1 << 16


def best(rounds: int, *contenders: Callable[[], Any]) -> list[float]:
    """Return the least seconds of each contender."""
    least = [float("inf")] * len(contenders)
    for _ in range(rounds):
        for i, contender in enumerate(contenders):
            began = time.perf_counter()
            contender()
            least[i] = min(least[i], time.perf_counter() - began)
    return least


def write_ipc(file: Path, data: pa.Table, codec: str) -> None:
    """Write a file for ``pl.scan_ipc``, compressed as Fluss does: Polars' own are less so."""
    if codec == "NONE":
        # in its own layout, which it maps
        pl.DataFrame(data).write_ipc(file)
        return
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=_ZSTD_LEVEL))
    with pa.ipc.new_file(file, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=_FILE_BATCH)


def log_data(rows: int) -> pa.Table:
    """Return the rows of a log table."""
    rng = np.random.default_rng(1)
    return pa.table(
        [
            np.arange(rows),
            rng.random(rows),
            rng.integers(0, 1000, rows).astype("int32"),
            pa.array(np.char.add("text ", (np.arange(rows) % 5000).astype(str))),
            rng.integers(0, 10**12, rows),
        ],
        schema=SCHEMA,
    )


def make_table(connection: fluss.FlussConnection, codec: str, buckets: int) -> fluss.TablePath:
    """Create a log table with a new name."""
    path = fluss.TablePath("fluss", f"{codec.lower()}_{uuid.uuid4().hex[:8]}")
    properties = {"table.log.arrow.compression.type": codec}
    descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=buckets, properties=properties)
    connection.get_admin().create_table(path, descriptor)
    return path


def append(connection: fluss.FlussConnection, path: fluss.TablePath, data: pa.Table) -> None:
    """Append rows, and wait until all of them are acknowledged."""
    with connection.get_table(path).new_append().create_writer() as writer:
        writer.write_arrow(data)
        writer.flush()


def appends(console: Console, folder: Path, rows: int, rounds: int) -> None:
    """Compare appends in this process, synced, with a file of the same IPC batches and syncs."""
    data = log_data(rows)
    syncs = 0

    def counted(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        sync_data(fd)

    with EmbeddedFluss(folder / "appends") as engine, engine.connection() as connection:
        for codec in ("NONE", "ZSTD"):
            path = make_table(connection, codec, 1)
            bytes_before = 0

            def ours(path: fluss.TablePath = path) -> None:
                nonlocal syncs
                syncs = 0
                append(connection, path, data)

            with unittest.mock.patch.object(tablet, "sync_data", counted):
                ours()
            batches = connection.get_table(path).get_table_info().table_id
            log = next((folder / "appends" / "data" / str(batches)).rglob("*.log"))
            sizes = scan_headers(log.read_bytes()).record_count.tolist()
            done, bytes_before = syncs, log.stat().st_size

            def theirs(codec: str = codec, sizes: list[int] = sizes, done: int = done) -> None:
                chosen = None if codec == "NONE" else pa.Codec("zstd", _ZSTD_LEVEL)
                options = pa.ipc.IpcWriteOptions(compression=chosen)
                every = max(1, len(sizes) // done)
                with (
                    open(folder / "plain.arrow", "wb") as file,
                    pa.ipc.new_stream(file, SCHEMA, options=options) as writer,
                ):
                    at = 0
                    for number, size in enumerate(sizes):
                        writer.write_table(data.slice(at, size))
                        at += size
                        if number % every == every - 1:
                            file.flush()
                            sync_data(file.fileno())
                    file.flush()
                    sync_data(file.fileno())

            least = best(rounds, ours, theirs)
            console.print(
                f"append {codec}: {bytes_before / least[0] / 1e6:,.0f} MB/s in {len(sizes)} batches"
                f" and {done} syncs, the same as a file {bytes_before / least[1] / 1e6:,.0f} MB/s:"
                f" {least[1] / least[0]:.2f} of its speed (aim 0.8)"
            )


@contextlib.contextmanager
def serving(folder: Path, durability: str) -> Iterator[str]:
    """Serve a folder in a process of its own, as users do; give its address."""
    code = "from fluss_df.cli.main import app; app()"
    command = [sys.executable, "-c", code, "serve", "--dir", str(folder), "--port", "0"]
    command += ["--durability", durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def served(console: Console, folder: Path, rows: int, rounds: int) -> None:
    """Compare the engine over TCP with a real server, by the same client."""
    data = log_data(rows)
    keyed = pa.table(
        [
            np.random.default_rng(1).permutation(rows // 4),
            [f"name {i}" for i in range(rows // 4)],
            np.arange(rows // 4) / 7,
            np.arange(rows // 4).astype("int32"),
        ],
        schema=ROWS_SCHEMA,
    )
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster())
        # a Fluss server acknowledges what is written, and leaves the disk to replication
        addresses = [
            *(stack.enter_context(serving(folder / name, name)) for name in ("commit", "interval")),
            cluster.bootstrap_servers,
        ]
        works = [
            _served_works(stack.enter_context(fluss.FlussConnection.create(address)), data, keyed)
            for address in addresses
        ]
        for name in works[0]:
            synced, written, theirs = best(rounds, *(work[name] for work in works))
            console.print(
                f"TCP {name}: {synced * 1000:.0f} ms synced, {written * 1000:.0f} ms written, Fluss"
                f" {cluster.server_version} {theirs * 1000:.0f} ms: {theirs / synced:.2f} and"
                f" {theirs / written:.2f} of its speed (aim 1)"
            )


def _served_works(
    connection: fluss.FlussConnection, data: pa.Table, keyed: pa.Table
) -> dict[str, Callable[[], Any]]:
    works: dict[str, Callable[[], Any]] = {}
    for codec in ("NONE", "ZSTD"):
        path = make_table(connection, codec, 2)
        append(connection, path, data)
        for name, columns in (("all columns", SCHEMA.names), ("one column", ["id"])):
            works[f"scan {codec} {name}"] = lambda p=path, c=columns: (  # type: ignore[misc]
                fluss.scan_fluss(p, connection=connection).select(c).collect()
            )
        other = make_table(connection, codec, 2)
        works[f"append {codec}"] = lambda p=other: append(  # type: ignore[misc]
            connection, p, data.slice(0, len(data) // 4)
        )
    path = fluss.TablePath("fluss", f"keyed_{uuid.uuid4().hex[:8]}")
    descriptor = TableDescriptor(Schema(ROWS_SCHEMA, ["id"]), bucket_count=2)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    lookuper = table.new_lookup().create_lookuper()

    def upsert() -> None:
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(keyed)

    works["upsert"] = upsert
    works["lookup"] = lambda: lookuper.lookup_arrow(keyed.select(["id"]).slice(0, 100_000))
    return works


def scans(console: Console, folder: Path, rows: int, rounds: int) -> None:
    """Compare scans of a log table in this process with ``pl.scan_ipc`` of a file."""
    folder = folder / f"scans {rows}"
    data = log_data(rows)
    whole = [pl.col(n).sum() for n in ("id", "a", "b", "c")] + [pl.col("s").str.len_bytes().sum()]
    with EmbeddedFluss(folder / "engine") as engine, engine.connection() as connection:
        for codec, aim in (("NONE", 0.5), ("ZSTD", 0.9)):
            path = make_table(connection, codec, 2)
            append(connection, path, data)
            file = folder / f"{codec}.arrow"
            write_ipc(file, data, codec)
            for name, wanted in (("all columns", whole), ("one column", whole[:1])):
                ours, theirs = best(
                    rounds,
                    lambda p=path, w=wanted: (
                        fluss.scan_fluss(p, connection=connection)  # type: ignore[misc]
                        .select(w)
                        .collect()
                    ),
                    lambda f=file, w=wanted: pl.scan_ipc(f).select(w).collect(),  # type: ignore[misc]
                )
                console.print(
                    f"scan {rows:,} rows, {codec}, {name}: {ours * 1000:.0f} ms, scan_ipc"
                    f" {theirs * 1000:.0f} ms: {theirs / ours:.2f} of its speed (aim {aim})"
                )


def changes(console: Console, folder: Path, rows: int) -> None:
    """Compare puts and lookups, without a client, with bare RocksDB doing the same."""
    engine = Engine(folder / "changes")
    descriptor = TableDescriptor(Schema(ROWS_SCHEMA, ["id"]), bucket_count=1)
    table = engine.catalog.create_table(TablePath("fluss", "t"), descriptor.to_json(), False)
    assert table is not None
    _, kv = engine.kv_bucket(TableBucket(table.id, 0))
    encoder = KvEncoder(1, table.descriptor.schema.columns, ["id"])
    rng = np.random.default_rng(1)

    def batches(ids: np.ndarray[Any, Any]) -> list[bytes]:
        made = []
        for at in range(0, len(ids), _BATCH):
            part = ids[at : at + _BATCH]
            names = [f"name {i}" for i in part.tolist()]
            frame = [part, names, rng.random(len(part)), part.astype("int32")]
            batch = encoder.encode(pa.table(frame, schema=ROWS_SCHEMA))
            batch.stamp(-1, -1)
            made.append(batch.to_bytes())
        return made

    ids = rng.permutation(rows)
    updated = np.concatenate(
        [rng.choice(rows, _BATCH, replace=False) for _ in range(max(1, rows // _BATCH // 2))]
    )
    bare = rocksdict.Rdict(str(folder / "bare"), KvResources().options())
    no_log = rocksdict.WriteOptions()
    no_log.disable_wal = True  # type: ignore[method-assign, assignment]
    for name, wanted, aim in (("insert", ids, 250_000), ("update", updated, 150_000)):
        made = batches(wanted)
        began, began_cpu = time.perf_counter(), time.process_time()
        for batch in made:
            kv.put(memoryview(batch))
            kv.log.sync()
            kv.apply()
        ours, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        encoded = encoder.keys(pa.table({"id": wanted}))
        keys = [encoded[i] for i in range(len(encoded))]
        value = random.Random(1).randbytes(len(made[0]) // _BATCH - 8)
        began = time.perf_counter()
        for at in range(0, len(keys), _BATCH):
            part = keys[at : at + _BATCH]
            bare.get(part)  # type: ignore[arg-type]
            write = rocksdict.WriteBatch(raw_mode=True)
            for key in part:
                write.put(key, value)
            bare.write(write, no_log)
        theirs = time.perf_counter() - began
        console.print(
            f"{name}: {len(wanted) / ours:,.0f} rows/s, {len(wanted) / cpu:,.0f} a second of a"
            f" processor; bare RocksDB {len(wanted) / theirs:,.0f} (aim {aim:,})"
        )
    encoded = encoder.keys(pa.table({"id": rng.choice(rows, min(rows, 200_000), replace=False)}))
    keys = [encoded[i] for i in range(len(encoded))]
    ours, theirs = best(3, lambda: kv.get(keys), lambda: bare.get(keys))  # type: ignore[arg-type]
    console.print(
        f"lookup: {len(keys) / ours:,.0f} keys/s; bare RocksDB {len(keys) / theirs:,.0f}"
        " (aim 200,000)"
    )
    engine.close()
    bare.close()


def main(
    rows: Annotated[int, typer.Option(help="Rows of each table.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each comparison.")] = 5,
    cluster: Annotated[bool, typer.Option(help="Beside a real server, too.")] = False,
    only: Annotated[str, typer.Option(help="One part: changes, appends, scans, served.")] = "",
) -> None:
    """Run all."""
    console = Console(highlight=False, width=200)
    with tempfile.TemporaryDirectory() as folder:
        if only in ("", "changes"):
            changes(console, Path(folder), rows)
        if only in ("", "appends"):
            appends(console, Path(folder), 4 * rows, rounds)
        if only in ("", "scans"):
            # a query costs some milliseconds, however few its rows are: a small table shows them
            scans(console, Path(folder), 4 * rows, rounds)
            scans(console, Path(folder), 16 * rows, rounds)
        if cluster or only == "served":
            served(console, Path(folder), 4 * rows, rounds)


if __name__ == "__main__":
    typer.run(main)

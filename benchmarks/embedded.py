"""The embedded engine beside plain files and bare RocksDB: ``python -m benchmarks.embedded``.

Contenders take turns; the best of some rounds counts, as other programs only ever add to a time.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
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
from fluss_df.embedded import EmbeddedFluss
from fluss_df.embedded.engine import Engine
from fluss_df.embedded.kv_store import KvResources
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv_batch import KvEncoder
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


def scans(console: Console, folder: Path, rows: int, rounds: int) -> None:
    """Compare scans of a log table in this process with ``pl.scan_ipc`` of a file."""
    rng = np.random.default_rng(1)
    data = pa.table(
        [
            np.arange(rows),
            rng.random(rows),
            rng.integers(0, 1000, rows).astype("int32"),
            pa.array(np.char.add("text ", (np.arange(rows) % 5000).astype(str))),
            rng.integers(0, 10**12, rows),
        ],
        schema=SCHEMA,
    )
    whole = [pl.col(n).sum() for n in ("id", "a", "b", "c")] + [pl.col("s").str.len_bytes().sum()]
    with EmbeddedFluss(folder / "scans") as engine, engine.connection() as connection:
        for codec, aim in (("NONE", 0.5), ("ZSTD", 0.9)):
            path = fluss.TablePath("fluss", codec.lower())
            properties = {"table.log.arrow.compression.type": codec}
            descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2, properties=properties)
            connection.get_admin().create_table(path, descriptor)
            with connection.get_table(path).new_append().create_writer() as writer:
                writer.write_arrow(data)
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
                    f"scan {codec} {name}: {ours * 1000:.0f} ms, scan_ipc {theirs * 1000:.0f} ms:"
                    f" {theirs / ours:.2f} of its speed (aim {aim})"
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
    rounds: Annotated[int, typer.Option(help="Rounds of each scan.")] = 5,
) -> None:
    """Run all."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        changes(console, Path(folder), rows)
        scans(console, Path(folder), 4 * rows, rounds)


if __name__ == "__main__":
    typer.run(main)

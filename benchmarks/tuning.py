"""What a setting changes: ``python -m benchmarks.tuning``.

Each line of docs/tuning.md is one measurement here. Contenders take turns, and the median of the
rounds is printed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss, EngineOptions

Contenders = dict[str, Callable[[], Any]]
_WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


def frame(rows: int) -> pl.DataFrame:
    at = pl.int_range(rows, eager=True)
    return pl.DataFrame({"id": at}).with_columns(
        day=(pl.col("id") % 20).cast(pl.String),
        value=(pl.col("id") * 7919 % 100_003) / 7.0,
        word=pl.Series(_WORDS).gather(at % 5),
        text=pl.format("row {} of many", pl.col("id") * 31 % 1_000_003),
    )


class Bench:
    """Contenders in turns, and what they took."""

    def __init__(self, rounds: int, console: Console) -> None:
        self.rounds = rounds
        self.table = Table("symptom", "contender", "median", "best", box=None)
        self.console = console

    def time(self, what: str, contenders: Contenders, unit: str = "ms") -> None:
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(self.rounds):
            for name, run in contenders.items():
                began = time.perf_counter()
                run()
                taken[name].append((time.perf_counter() - began) * 1000)
        for name, found in taken.items():
            median, best = statistics.median(found), min(found)
            self.table.add_row(what, name, f"{median:,.1f} {unit}", f"{best:,.1f} {unit}")
            self.console.print(f"{what} | {name} | {median:,.1f} {unit} | best {best:,.1f}")


def main(
    rows: Annotated[int, typer.Option(help="Rows of the larger tables.")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 5,
    engine: Annotated[str, typer.Option(help="embedded or cluster.")] = "embedded",
) -> None:
    """Measure what settings change."""
    console = Console(highlight=False, width=120)
    bench = Bench(rounds, console)
    if engine == "cluster":
        with LocalCluster(heap="1g") as cluster:
            measure(bench, cluster.bootstrap_servers, rows)
            close_all()
        return
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedFluss(folder)
        try:
            measure(bench, folder, rows)
        finally:
            close_all()
            server.close()
    durability(bench)


def measure(bench: Bench, where: object, rows: int) -> None:
    """Measure on one server."""
    latency(bench, where)
    small_writes(bench, where)
    layouts(bench, where, rows)
    lookups(bench, where, rows // 4)
    memory(bench, where)


_OPEN: list[fluss.FlussConnection] = []


def connected(where: object, **options: Any) -> fluss.FlussConnection:
    """Return a connection with options, which :func:`close_all` closes."""
    named = {key.replace("_", "-").replace("--", "."): value for key, value in options.items()}
    _OPEN.append(fluss.connect({"bootstrap.servers": str(where), **named}))
    return _OPEN[-1]


def close_all() -> None:
    """Close connections, before their folder goes."""
    while _OPEN:
        _OPEN.pop().close()


def latency(bench: Bench, where: object) -> None:
    """One row, acknowledged."""
    contenders: Contenders = {}
    for timeout in (100, 5, 0):
        connection = connected(where, writer__batch_timeout=timeout)
        _create(connection, "one_row", 1)
        writer = connection.get_table("one_row").new_append().create_writer()
        # a handle sends at once; without one a row waits for others

        def write(writer: Any = writer) -> None:
            before = sum(bucket.rows for bucket in writer.offsets())
            writer.append({"id": 1, "day": "1", "value": 0.5, "word": "a", "text": "b"})
            while sum(bucket.rows for bucket in writer.offsets()) == before:
                time.sleep(0.0005)

        contenders[f"writer.batch-timeout={timeout}"] = write
    bench.time("one row, until it is acknowledged", contenders)


def small_writes(bench: Bench, where: object) -> None:
    """A thousand rows, in three ways."""
    connection = connected(where)
    _create(connection, "small", 1)
    rows = frame(1000)
    dicts = rows.to_dicts()
    writer = connection.get_table("small").new_append().create_writer()

    def flushed_each(count: int = 50) -> None:
        for row in dicts[:count]:
            writer.append(row)
            writer.flush()

    def flushed_once() -> None:
        for row in dicts:
            writer.append(row)
        writer.flush()

    bench.time(
        "small writes",
        {
            "50 rows, a flush after each": flushed_each,
            "1,000 rows, one flush": flushed_once,
            "1,000 rows, one frame": lambda: fluss.write_fluss(
                rows, "small", connection=connection
            ),
        },
    )


def layouts(bench: Bench, where: object, rows: int) -> None:
    """Buckets, compression, connections, partitions: writing and scanning."""
    connection = connected(where)
    data = frame(rows)
    writes: Contenders = {}
    scans: Contenders = {}
    for name, buckets, codec in (
        ("1 bucket, ZSTD", 1, None),
        ("4 buckets, ZSTD", 4, None),
        ("16 buckets, ZSTD", 16, None),
        ("4 buckets, LZ4_FRAME", 4, "LZ4_FRAME"),
        ("4 buckets, NONE", 4, "NONE"),
    ):
        table = f"l_{buckets}_{(codec or 'zstd').lower()}"
        _create(connection, table, buckets, codec)

        def write(table: str = table) -> None:
            fluss.write_fluss(data.head(rows // 8), table, connection=connection)

        def scan(table: str = table) -> None:
            query = fluss.scan_fluss(table, connection=connection)
            query.select(pl.col("value").sum(), pl.col("text").max()).collect()

        fluss.write_fluss(data, table, connection=connection)
        scans[name] = scan
        writes[name] = write
    bench.time(f"scan of two columns of {rows:,} rows", scans)
    bench.time(f"write of {rows // 8:,} rows", writes)
    _create(connection, "by_day", 1, partitions=["day"])
    fluss.write_fluss(data, "by_day", connection=connection, create_partitions=True)
    total = pl.col("value").sum()
    bench.time(
        "rows of one day of 20",
        {
            "a table without partitions": lambda: (
                fluss.scan_fluss("l_4_zstd", connection=connection)
                .filter(pl.col("day") == "7")
                .select(total)
                .collect()
            ),
            "partitioned by day": lambda: (
                fluss.scan_fluss("by_day", connection=connection)
                .filter(pl.col("day") == "7")
                .select(total)
                .collect()
            ),
        },
    )
    fetches: Contenders = {}
    for count in (1, 2, 4):
        many = connected(where, scanner__fetch__connections=count)

        def fetch(many: fluss.FlussConnection = many) -> None:
            fluss.scan_fluss("l_16_zstd", connection=many).select(total).collect()

        fetches[f"scanner.fetch.connections={count}"] = fetch
    bench.time("scan of 16 buckets", fetches)
    whole = fluss.scan_fluss("l_4_zstd", connection=connection)
    bench.time(
        "one of five columns",
        {
            "collect(), then the sum": lambda: whole.collect()["value"].sum(),
            "select(sum), then collect()": lambda: whole.select(total).collect(),
        },
    )


def lookups(bench: Bench, where: object, rows: int) -> None:
    """Rows of a primary-key table by key, and not."""
    connection = connected(where)
    table = fluss.TablePath("fluss", "keyed")
    fluss.write_fluss(
        frame(rows),
        table,
        connection=connection,
        create_if_not_exists=True,
        primary_keys=["id"],
        bucket_count=4,
    )
    scan = fluss.scan_fluss(table, connection=connection)
    wanted = list(range(0, rows, rows // 1000))[:1000]
    bench.time(
        f"rows of a primary-key table of {rows:,}",
        {
            "one, by its key": lambda: scan.filter(pl.col("id") == 7).collect(),
            "one, by another column": lambda: scan.filter(pl.col("text") == "row 7").collect(),
            "1,000, by is_in of the key": lambda: scan.filter(pl.col("id").is_in(wanted)).collect(),
            "100, one by one": lambda: [
                scan.filter(pl.col("id") == key).collect() for key in wanted[:100]
            ],
        },
    )
    update = frame(rows).head(rows // 5).with_columns(value=pl.lit(1.0))
    columns = update.select("id", "value")
    bench.time(
        f"change of {rows // 5:,} rows",
        {
            "upsert of all five columns": lambda: fluss.write_fluss(
                update, table, connection=connection
            ),
            "partial_update of two": lambda: fluss.write_fluss(
                columns, table, mode="partial_update", connection=connection
            ),
        },
    )


_SCAN = """
import re, time
import polars as pl
import fluss_df as fluss
connection = fluss.connect({{"bootstrap.servers": {where!r}, **{options!r}}})
scan = fluss.scan_fluss("l_4_none", connection=connection)
began = time.perf_counter()
{query}
took = round((time.perf_counter() - began) * 1000)
# of this program alone: what resource says may be its parent's
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(took, peak)
"""


def memory(bench: Bench, where: object) -> None:
    """What a program takes that scans; each in a process of its own."""
    streamed = "for part in scan.collect_batches(): pass"
    # of a folder, this process is the server
    for name, options, query in (
        ("collect()", {}, "scan.collect()"),
        ("collect_batches()", {}, streamed),
        ("..., fetch.max-bytes=1mb", {"scanner.log.fetch.max-bytes": 1 << 20}, streamed),
        ("..., fetch.max-bytes=64mb", {"scanner.log.fetch.max-bytes": 64 << 20}, streamed),
    ):
        code = _SCAN.format(where=str(where), options=options, query=query)
        found = []
        for _ in range(max(1, bench.rounds // 2)):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            found.append(tuple(map(int, done.stdout.split())))
        took, peak = (statistics.median(values) for values in zip(*found, strict=True))
        bench.console.print(f"memory of a scan | {name} | {took:,.0f} ms | {peak:,.0f} MiB")


def durability(bench: Bench) -> None:
    """Small frames, written one after the other into a folder."""
    rows = frame(100)
    contenders: Contenders = {}
    engines: list[EmbeddedFluss] = []
    with tempfile.TemporaryDirectory() as folder:
        kinds: tuple[Any, ...] = ("commit", "interval", "none")
        for kind in kinds:
            options = EngineOptions(durability=kind)
            engine = EmbeddedFluss(Path(folder) / kind, port=0, options=options)
            connection = connected(engine.address)
            _create(connection, "small", 1)
            engines.append(engine)

            def write(connection: fluss.FlussConnection = connection) -> None:
                for _ in range(20):
                    fluss.write_fluss(rows, "small", connection=connection)

            contenders[f"--durability {kind}"] = write
        bench.time("20 frames of 100 rows, each acknowledged", contenders)
        close_all()
        for engine in engines:
            engine.close()


def _create(
    connection: fluss.FlussConnection,
    name: str,
    buckets: int,
    codec: str | None = None,
    partitions: list[str] | None = None,
) -> None:
    properties = {"table.log.arrow.compression.type": codec} if codec else None
    schema = fluss.Schema(frame(1).to_arrow().schema)
    connection.get_admin().create_table(
        fluss.TablePath("fluss", name),
        fluss.TableDescriptor(
            schema, bucket_count=buckets, partition_keys=partitions, properties=properties
        ),
        ignore_if_exists=True,
    )


if __name__ == "__main__":
    typer.run(main)

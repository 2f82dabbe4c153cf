"""``make bench``: start a server, fill tables, compare; see ``--help``.

Every contender begins with a connection and the table's name, as ``pl.scan_fluss`` does: to open a
table takes a server of 0.9.1 about 7 ms.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import typer
from rich.console import Console

import fluss_df as fluss
from benchmarks import data, harness
from benchmarks.limits import InMemory
from benchmarks.official import Official
from fluss_df.cluster import LocalCluster

SETTLE_S = 15.0


def scan(
    connection: fluss.FlussConnection, path: fluss.TablePath, columns: Sequence[str] | None = None
) -> pa.Table:
    builder = connection.get_table(path).new_scan()
    if columns is not None:
        builder = builder.project_by_name(columns)
    scanner = builder.create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(data.BUCKETS), fluss.EARLIEST_OFFSET))
    return scanner.to_arrow()


def check(expected: int, result: pa.Table | pl.DataFrame) -> None:
    rows = result.num_rows if isinstance(result, pa.Table) else result.height
    if rows != expected:
        raise SystemExit(f"read {rows} rows, expected {expected}")


def scan_cases(
    connection: fluss.FlussConnection,
    official: Official,
    source: pa.Table,
    mixed_table: fluss.FlussTable,
) -> list[harness.Case]:
    rows = source.num_rows
    small = source.slice(0, min(rows, 1_000_000))
    small_table = data.create(connection, "small", data.SCHEMA)
    data.fill(small_table, small, 1000)

    def case(
        title: str, table: fluss.FlussTable, columns: list[str] | None, aim: float
    ) -> harness.Case:
        name, path = data.name_of(table), table.get_table_path()
        expected = rows if table is mixed_table else small.num_rows
        return harness.Case(
            title,
            {
                "fluss_df": lambda: check(expected, scan(connection, path, columns)),
                "pyfluss": lambda: check(expected, official.scan(name, columns)),
            },
            expected,
            aims={"pyfluss": aim},
        )

    return [
        case("scan, all 5 columns", mixed_table, None, 2.0),
        case("scan, 2 columns", mixed_table, ["id", "score"], 1.3),
        case("scan, 1 column", mixed_table, ["quantity"], 1.1),
        case("scan, 1,000-row batches", small_table, None, 1.2),
        case("scan, 1,000-row batches, 1 column", small_table, ["quantity"], 1.2),
    ]


def polars_cases(
    connection: fluss.FlussConnection, source: pa.Table, table: fluss.FlussTable, folder: Path
) -> list[harness.Case]:
    rows = source.num_rows
    memory = InMemory(table, connection)
    path = table.get_table_path()
    frame = pl.DataFrame(pl.from_arrow(source))
    ipc, parquet = folder / "mixed.arrow", folder / "mixed.parquet"
    frame.write_ipc(ipc, compression="zstd")
    frame.write_parquet(parquet, compression="zstd")

    def lazy() -> pl.LazyFrame:
        return fluss.scan_fluss(path, connection=connection)

    return [
        harness.Case(
            "collect, all 5 columns",
            {
                "pl.scan_fluss": lambda: check(rows, lazy().collect()),
                "fluss_df to_arrow": lambda: check(rows, scan(connection, path)),
                "the same, to Polars": lambda: check(
                    rows, pl.DataFrame(scan(connection, path).to_reader())
                ),
                "decode from memory": lambda: check(rows, memory.decode()),
                "the same, as frames": lambda: check(rows, memory.frames()),
                "pl.scan_ipc (zstd)": lambda: check(rows, pl.scan_ipc(ipc).collect()),
                "pl.scan_parquet (zstd)": lambda: check(rows, pl.scan_parquet(parquet).collect()),
            },
            rows,
            ours="pl.scan_fluss",
            aims={"fluss_df to_arrow": 1 / 1.1},
        ),
        harness.Case(
            "sum of 1 column by another",
            {
                "pl.scan_fluss": lambda: check(1000, _grouped(lazy())),
                "pl.scan_ipc (zstd)": lambda: check(1000, _grouped(pl.scan_ipc(ipc))),
                "pl.scan_parquet (zstd)": lambda: check(1000, _grouped(pl.scan_parquet(parquet))),
            },
            rows,
            ours="pl.scan_fluss",
        ),
    ]


def _grouped(frame: pl.LazyFrame) -> pl.DataFrame:
    return frame.group_by("quantity").agg(pl.col("score").sum()).collect()


def append_cases(
    connection: fluss.FlussConnection, official: Official, source: pa.Table
) -> list[harness.Case]:
    count = 1_000_000
    rows = [{"a": i, "b": f"name-{i % 1000}", "c": i * 0.5, "d": i % 1000} for i in range(count)]
    awaited = rows[:50]
    typed = data.typed_rows(count // 10)

    def append_arrow() -> float:
        table = data.create(connection, "append_ours", data.SCHEMA)
        with table.new_append().create_writer() as writer:
            began = time.perf_counter()
            writer.write_arrow(source)
            writer.flush()
            return time.perf_counter() - began

    def append_rows(schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> float:
        table = data.create(connection, "rows_ours", schema)
        with table.new_append().create_writer() as writer:
            began = time.perf_counter()
            for row in rows:
                writer.append(row)
            writer.flush()
            return time.perf_counter() - began

    def append_awaited() -> float:
        table = data.create(connection, "awaited_ours", data.ROW_SCHEMA)
        with table.new_append().create_writer() as writer:
            writer.append(rows[0]).wait()
            began = time.perf_counter()
            for row in awaited:
                writer.append(row).wait()
            return time.perf_counter() - began

    def official_append(name: str, schema: pa.Schema, method: str, what: Any) -> float:
        table = data.create(connection, name, schema)
        seconds: float = getattr(official, method)(data.name_of(table), what)
        return seconds

    return [
        harness.Case(
            "append, Arrow table",
            {
                "fluss_df": append_arrow,
                "pyfluss": lambda: official_append(
                    "append_theirs", data.SCHEMA, "append_arrow", source
                ),
            },
            source.num_rows,
            aims={"pyfluss": 1.3},
        ),
        *(
            harness.Case(
                title,
                {
                    "fluss_df": partial(append_rows, schema, given),
                    "pyfluss": partial(
                        official_append, "rows_theirs", schema, "append_rows", given
                    ),
                },
                len(given),
                aims={"pyfluss": aim},
            )
            for title, schema, given, aim in (
                ("append, dicts one by one", data.ROW_SCHEMA, rows, 1.2),
                ("append, dicts of dates, decimals, lists", data.TYPED_SCHEMA, typed, 1.0),
            )
        ),
        harness.Case(
            "append, each awaited",
            {
                "fluss_df": append_awaited,
                "pyfluss": lambda: official_append(
                    "awaited_theirs", data.ROW_SCHEMA, "append_awaited", awaited
                ),
            },
            len(awaited),
            aims={"pyfluss": 20.0},
        ),
    ]


def main(
    rows: Annotated[int, typer.Option(help="Rows of the large table.")] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds that count, after some that do not.")] = 7,
    connection: Annotated[str, typer.Option(help="host:port; else a server is started.")] = "",
    only: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
) -> None:
    """Compare fluss_df with the official client, with files, and with decoding from memory."""
    # a file has no width
    console = Console(width=None if sys.stdout.isatty() else 400)
    cluster = None
    if not connection:
        console.print("starting a Fluss server ...")
        cluster = LocalCluster(heap="2g").start()
    address = connection or (cluster.bootstrap_servers if cluster else "")
    server = cluster.server_version if cluster else address
    try:
        with fluss.connect(address) as ours, tempfile.TemporaryDirectory() as folder:
            official = Official(address)
            source = data.mixed_table(rows)
            mixed = data.create(ours, "mixed", data.SCHEMA)
            data.fill(mixed, source, 65_536)
            cases = scan_cases(ours, official, source, mixed)
            cases += polars_cases(ours, source, mixed, Path(folder))
            cases += append_cases(ours, official, source)
            # the server has just written what is read now: let it come to rest
            os.sync()
            time.sleep(SETTLE_S)
            results = harness.run([case for case in cases if only in case.name], rounds, console)
            official.close()
    finally:
        if cluster is not None:
            cluster.stop()
    about = {
        "fluss_df": fluss.__version__,
        "server": server,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rows": rows,
        "rounds": rounds,
    }
    if not harness.report(results, console, about):
        sys.exit("an aim was missed")


if __name__ == "__main__":
    typer.run(main)

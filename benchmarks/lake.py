"""Tiered tables beside their own Parquet files: ``python -m benchmarks.lake``; see ``--help``.

On the embedded engine: a full scan and a range of a tiered log, and a primary-key table of which
one row in a hundred changed since it was tiered. The machine may have other work, so that least
times count, and processor time is shown beside them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from rich.console import Console
from rich.table import Table

import fluss_df as fluss
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.rounds.tasks import InThreads
from fluss_df.lake.tiering.table_round import TableRound

#: Properties of a table that is tiered when :func:`tier_now` says so.
LAKE: Final = {"table.datalake.enabled": "true", "table.datalake.freshness": "1000h"}
_SCAN_AIM, _RANGE_AIM, _KEYS_AIM = 1.1, 0.03, 2.0
_PART = 2_000_000


def tier_now(connection: fluss.FlussConnection, path: fluss.TablePath) -> None:
    """Tier a table up to its end."""
    while True:
        info = connection.get_admin().get_table_info(path)
        sizes = {"max_rows": 1 << 40, "max_changes": 1 << 40}
        done = TableRound(connection, info, run_tasks=InThreads(2), **sizes).run(lambda: None)
        if done.complete:
            return


@dataclass(frozen=True)
class Times:
    """Least seconds of a query, by the clock and of processors, and its median by the clock."""

    wall: float
    cpu: float
    median: float


def taken(rounds: int, work: Mapping[str, Callable[[], object]]) -> dict[str, Times]:
    """Run each in turn, ``rounds`` times after one that does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for at in range(rounds + 1):
        for name, run in work.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            if at:
                found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: Times(
            min(wall for wall, _ in pairs),
            min(cpu for _, cpu in pairs),
            sorted(wall for wall, _ in pairs)[len(pairs) // 2],
        )
        for name, pairs in found.items()
    }


class Report:
    """What was measured, and whether an aim was missed."""

    def __init__(self, rounds: int) -> None:
        self.missed = False
        self._rounds = rounds
        self._table = Table(title=f"least times of {rounds} rounds; ratios to the files alone")
        for heading in ("query", "engine", "files s", "union s", "ratio", "cpu ratio", "median"):
            self._table.add_column(heading, justify="right")

    def compare(
        self,
        name: str,
        files: Callable[[], pl.LazyFrame],
        union: Callable[[], pl.LazyFrame],
        aim: float | None = None,
    ) -> None:
        """Compare a query on files with the same on a tiered table, by both engines of Polars."""
        for engine in ("in-memory", "streaming"):
            times = taken(
                self._rounds,
                {
                    "files": lambda engine=engine: files().collect(engine=engine),  # type: ignore[misc]
                    "union": lambda engine=engine: union().collect(engine=engine),  # type: ignore[misc]
                },
            )
            ours, theirs = times["union"], times["files"]
            ratio = ours.wall / theirs.wall
            self.missed |= aim is not None and ratio > aim
            self._table.add_row(
                name,
                engine,
                f"{theirs.wall:.3f}",
                f"{ours.wall:.3f}",
                f"{ratio:.2f}" + ("" if aim is None else f" (aim {aim:g})"),
                f"{ours.cpu / theirs.cpu:.2f}",
                f"{ours.median / theirs.median:.2f}",
            )

    def show(self, console: Console) -> None:
        """Print the table."""
        console.print(self._table)


def parts(count: int) -> Iterator[pl.DataFrame]:
    """Yield rows in the order of their numbers and times."""
    chance = np.random.default_rng(count)
    for start in range(0, count, _PART):
        stop = min(start + _PART, count)
        many = stop - start
        yield pl.DataFrame(
            {
                "id": np.arange(start, stop),
                "at": np.arange(start, stop) + chance.integers(0, 1000, many),
                "amount": chance.integers(0, 100_000, many),
                "kind": chance.integers(0, 50, many).astype(np.int16),
            }
        ).with_columns(pl.from_epoch("at", time_unit="ms"))


def files_of(connection: fluss.FlussConnection, path: fluss.TablePath) -> list[str]:
    """Return the Parquet files of a tiered table."""
    table = open_table(connection.get_admin().get_table_info(path))
    return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]


def create(
    connection: fluss.FlussConnection, name: str, keys: list[str] | None, buckets: int
) -> fluss.TablePath:
    """Create a table with a lake."""
    path = fluss.TablePath("fluss", name)
    schema = fluss.Schema(next(parts(1)).to_arrow().schema, keys)
    connection.get_admin().create_table(
        path, fluss.TableDescriptor(schema, bucket_count=buckets, properties=LAKE)
    )
    return path


def logs(
    connection: fluss.FlussConnection, rows: int, buckets: int, report: Report, console: Console
) -> None:
    """Compare scans of a log that is in the lake as a whole, and show what a range reads."""
    path = create(connection, "history", None, buckets)
    began = time.perf_counter()
    for part in parts(rows):
        fluss.write_fluss(part, path, connection=connection)
        # in small steps: rows do not have to be there twice
        tier_now(connection, path)
    console.print(f"{rows:,} rows written and tiered in {time.perf_counter() - began:.0f} s")
    files = files_of(connection, path)
    total = sum(Path(file).stat().st_size for file in files)
    console.print(f"{len(files)} files, {total:,} bytes")

    def on_files() -> pl.LazyFrame:
        return pl.scan_parquet(files)

    def on_lake() -> pl.LazyFrame:
        return fluss.scan_fluss(path, connection=connection)

    names = next(parts(1)).columns
    whole = (pl.all().hash().sum(), pl.len().alias("rows"))
    report.compare(
        "log, full scan",
        lambda: on_files().select(names).select(*whole),
        lambda: on_lake().select(*whole),
        _SCAN_AIM,
    )
    report.compare(
        "log, sum of a column",
        lambda: on_files().select(pl.col("amount").sum()),
        lambda: on_lake().select(pl.col("amount").sum()),
    )
    middle = rows // 2
    wanted = pl.col("id").is_between(middle, middle + rows // 1000 - 1)
    report.compare(
        "log, 1 row of 1,000",
        lambda: on_files().select(names).filter(wanted),
        lambda: on_lake().filter(wanted),
    )
    read = read_bytes(lambda: on_lake().filter(wanted).collect())
    report.missed |= read > _RANGE_AIM * total
    console.print(
        f"a range of {rows // 1000:,} of {rows:,} rows read {read:,} bytes of {total:,}:"
        f" {read / total:.2%} (aim {_RANGE_AIM:.0%})"
    )


def read_bytes(query: Callable[[], pl.DataFrame]) -> int:
    """Return how many bytes this process asked files for while a query ran.

    By the kernel's own count, of reads from its memory, too; Polars maps no file for it.
    """

    def so_far() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    # what a first query reads beside, as of the catalog, is not of the second
    query()
    before = so_far()
    query()
    return so_far() - before


def keyed(
    connection: fluss.FlussConnection, rows: int, buckets: int, report: Report, console: Console
) -> None:
    """Compare scans of a primary-key table of which one row in a hundred changed since."""
    path = create(connection, "current", ["id"], buckets)
    began = time.perf_counter()
    for part in parts(rows):
        fluss.write_fluss(part, path, connection=connection)
    tier_now(connection, path)
    console.print(f"{rows:,} keys written and tiered in {time.perf_counter() - began:.0f} s")
    files = files_of(connection, path)
    changed = np.random.default_rng(1).permutation(rows)[: rows // 100]
    for part in parts(rows):
        fluss.write_fluss(
            part.filter(pl.col("id").is_in(changed)).with_columns(pl.col("amount") + 1),
            path,
            connection=connection,
        )

    def on_files() -> pl.LazyFrame:
        return pl.scan_parquet(files)

    def on_lake() -> pl.LazyFrame:
        return fluss.scan_fluss(path, connection=connection)

    names = next(parts(1)).columns
    count = on_lake().select(pl.len(), pl.col("id").n_unique()).collect().row(0)
    assert count == (rows, rows), count
    whole = (pl.all().hash().sum(), pl.len().alias("rows"))
    report.compare(
        "keys, full scan",
        lambda: on_files().select(names).select(*whole),
        lambda: on_lake().select(*whole),
        _KEYS_AIM,
    )
    report.compare("keys, all rows", lambda: on_files().select(names), on_lake, _KEYS_AIM)
    report.compare(
        "keys, sum of a column",
        lambda: on_files().select(pl.col("amount").sum()),
        lambda: on_lake().select(pl.col("amount").sum()),
    )
    middle = rows // 2
    wanted = pl.col("id").is_between(middle, middle + rows // 1000 - 1)
    report.compare(
        "keys, 1 row of 1,000",
        lambda: on_files().select(names).filter(wanted),
        lambda: on_lake().filter(wanted),
    )


def main(
    part: Annotated[str, typer.Option(help="log, keys, or both.")] = "both",
    rows: Annotated[int, typer.Option(help="Of the log.")] = 100_000_000,
    keys: Annotated[int, typer.Option(help="Of the primary-key table.")] = 10_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds that count.")] = 5,
    buckets: Annotated[int, typer.Option(help="Of each table.")] = 2,
    folder: Annotated[str, typer.Option(help="Where to put the data; a temporary one else.")] = "",
) -> None:
    """Compare queries on tiered tables with the same on their Parquet files."""
    console = Console(highlight=False, width=120)
    place = Path(tempfile.mkdtemp(dir=folder or None))
    report = Report(rounds)
    try:
        with fluss.connect(place / "fluss") as connection:
            if part in ("log", "both"):
                logs(connection, rows, buckets, report, console)
            if part in ("keys", "both"):
                keyed(connection, keys, buckets, report, console)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report.show(console)
    if report.missed:
        console.print("an aim was missed")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

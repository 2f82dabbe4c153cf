"""A table through Flight SQL beside the same table by a scan: ``python -m benchmarks.flight_sql``.

One server holds the rows, speaks Fluss's protocol and Flight SQL, and runs in a process of its own.
Both clients take all rows as one Arrow table, in turns. Then, for each statement, a server that has
just started streams the rows once, and the most memory that it took is compared with what it had.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import adbc_driver_flightsql.dbapi as adbc
import numpy as np
import polars as pl
import typer
from rich.console import Console

import fluss_df as fluss
from benchmarks.encrypted import processor_s

_TABLE = fluss.TablePath("fluss", "t")
_STATEMENTS = {"all rows": "SELECT * FROM t", "a condition": "SELECT * FROM t WHERE w >= 0"}
_PIECE = 1_000_000
_AIM = 0.8
_AIM_MB = 64


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the addresses of Fluss and of Flight SQL, and the process id of their server."""
    command = [sys.executable, "-m", "fluss_df", "serve", "--dir", str(folder), "--port", "0"]
    command += ["--flight-sql", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().split()[-1] for _ in range(2)]
            url = next(line for line in lines if "grpc" in line)
            yield next(line for line in lines if "grpc" not in line), url, process.pid
        finally:
            process.terminate()


def _write(folder: Path, rows: int, compression: str) -> None:
    with _served(folder) as (address, _, _), fluss.connect(address) as connection:
        kinds = {"id": pl.Int64, "w": pl.Int64, "x": pl.Float64, "name": pl.String}
        descriptor = fluss.TableDescriptor(
            fluss.Schema(pl.DataFrame(schema=kinds).to_arrow().schema),
            bucket_count=4,
            properties={"table.log.arrow.compression.type": compression},
        )
        connection.get_admin().create_table(_TABLE, descriptor)
        rng = np.random.default_rng(1)
        for first in range(0, rows, _PIECE):
            number = np.arange(first, min(rows, first + _PIECE))
            frame = pl.DataFrame(
                {"id": number, "w": number % 1000, "x": rng.random(len(number))}
            ).with_columns(name=pl.format("customer {}", "id"))
            fluss.write_fluss(frame, "t", connection=connection)


class _Most:
    """The most memory of its own that a process had in the block, in MB (Linux).

    Pages of files that are mapped are not counted: the system takes them back when it wants them.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.mb = self.now()

    def now(self) -> float:
        return int(self._status.read_text().split("RssAnon:")[1].split()[0]) * 1024 / 1e6

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.mb = max(self.mb, self.now())

    def __enter__(self) -> _Most:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _fetched(client: Any, statement: str) -> int:
    with client.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetch_arrow_table().num_rows)


def _streamed(client: Any, statement: str) -> int:
    with client.cursor() as cursor:
        cursor.execute(statement)
        return sum(batch.num_rows for batch in cursor.fetch_record_batch())


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table, of about 46 bytes.")] = 20_000_000,
    rounds: Annotated[int, typer.Option(help="Reads of each.")] = 9,
    compression: Annotated[str, typer.Option(help="ZSTD, LZ4_FRAME or NONE.")] = "ZSTD",
) -> None:
    """Compare them."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        _write(folder, rows, compression)
        for name, statement in _STATEMENTS.items():
            _speed(console, folder, name, statement, rows, rounds)
        for name, statement in _STATEMENTS.items():
            _memory(console, folder, name, statement, rows)


def _speed(
    console: Console, folder: Path, name: str, statement: str, rows: int, rounds: int
) -> None:
    with contextlib.ExitStack() as stack:
        address, url, pid = stack.enter_context(_served(folder))
        connection = stack.enter_context(fluss.connect(address))
        client = stack.enter_context(adbc.connect(url, autocommit=True))
        lazy = fluss.scan_fluss("t", connection=connection)
        if "WHERE" in statement:
            lazy = lazy.filter(pl.col("w") >= 0)
        contenders: dict[str, Callable[[], int]] = {
            "scan_fluss": lambda: lazy.collect().to_arrow().num_rows,
            "Flight SQL": lambda: _fetched(client, statement),
        }
        walls: dict[str, list[float]] = {each: [] for each in contenders}
        used: dict[str, list[float]] = {each: [] for each in contenders}
        for number in range(rounds + 1):
            for each in sorted(contenders, reverse=bool(number % 2)):
                began, before = time.perf_counter(), processor_s(pid)
                assert contenders[each]() == rows
                if number:
                    walls[each].append(time.perf_counter() - began)
                    used[each].append(processor_s(pid) - before)
    for each, times in walls.items():
        console.print(
            f"{name}, {each}: {min(times):.2f} s (median {statistics.median(times):.2f}),"
            f" processors {min(used[each]):.2f} s"
        )
    least = min(walls["scan_fluss"]) / min(walls["Flight SQL"])
    median = statistics.median(walls["scan_fluss"]) / statistics.median(walls["Flight SQL"])
    console.print(
        f"{name}: throughput of Flight SQL {least:.2f} of scan_fluss by least times,"
        f" {median:.2f} by medians (aim {_AIM})"
    )


def _memory(console: Console, folder: Path, name: str, statement: str, rows: int) -> None:
    with _served(folder) as (_, url, pid), adbc.connect(url, autocommit=True) as client:
        found = []
        with _Most(pid) as most:
            before = most.now()
            for _ in range(3):
                assert _streamed(client, statement) == rows
                found.append(most.mb - before)
    console.print(
        f"{name}: memory beyond a server that started: {found[0]:.0f} MB with the first stream,"
        f" {found[-1]:.0f} MB with two more (aim {_AIM_MB})"
    )


if __name__ == "__main__":
    typer.run(main)

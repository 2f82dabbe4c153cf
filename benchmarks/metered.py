"""Scans and appends with metrics for Prometheus, and without: ``python -m benchmarks.metered``.

Two servers in processes of their own hold the same rows; one of them serves metrics. In its turns
this process serves its own metrics as well, and both are scraped each ten seconds. Wall time is
that of a machine that others use, too: so the processor time of both sides is shown as well.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

import fluss_df as fluss
from benchmarks.encrypted import frame, processor_s, served
from fluss_df.metrics import start_http_server

_TABLE: Final = fluss.TablePath("fluss", "t")
_APPENDED: Final = fluss.TablePath("fluss", "appended")
# By the time that turns take, a page is read each ten seconds; Prometheus reads it each 15.
_SCRAPED: Final = 24


def scrape(pages: list[str]) -> int:
    """Read pages of metrics, and return their bytes."""
    size = 0
    for page in pages:
        with urllib.request.urlopen(page, timeout=10) as answer:
            size += len(answer.read())
    return size


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table, of 24 bytes.")] = 8_000_000,
    appended: Annotated[int, typer.Option(help="Rows of each append.")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="Scans and appends of each.")] = 40,
) -> None:
    """Compare them."""
    console = Console(highlight=False)
    data = frame(rows)
    more = data.head(appended)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = {}
        for name, arguments in (("off", []), ("on", ["--metrics-port", "0"])):
            address, pid, page = stack.enter_context(served(folder / name, *arguments))
            connection = stack.enter_context(fluss.connect(address))
            admin = connection.get_admin()
            descriptor = fluss.TableDescriptor(
                fluss.Schema(data.head(0).to_arrow().schema), bucket_count=4
            )
            admin.create_table(_TABLE, descriptor)
            fluss.write_fluss(data, "t", connection=connection)
            places[name] = connection, page, pid, descriptor

        def scan(connection: fluss.FlussConnection) -> None:
            assert fluss.read_fluss("t", connection=connection).height == rows

        def append(connection: fluss.FlussConnection) -> None:
            fluss.write_fluss(more, _APPENDED, connection=connection)

        works: dict[str, Callable[[fluss.FlussConnection], None]] = {"scan": scan, "append": append}
        for work, act in works.items():
            walls: dict[str, list[float]] = {name: [] for name in places}
            used: dict[str, list[float]] = {name: [] for name in places}
            size = 0
            for number in range(rounds + 2):
                # each is the first one in turn
                for name in sorted(places, reverse=bool(number % 2)):
                    connection, page, pid, descriptor = places[name]
                    admin = connection.get_admin()
                    admin.drop_table(_APPENDED, ignore_if_not_exists=True)
                    admin.create_table(_APPENDED, descriptor)
                    with contextlib.ExitStack() as turn:
                        pages = []
                        if page:
                            pages = [page, turn.enter_context(start_http_server()).url]
                        began, before = time.perf_counter(), processor_s(pid)
                        scraper = None
                        if pages and not number % _SCRAPED:
                            scraper = threading.Thread(target=scrape, args=(pages,))
                            scraper.start()
                        act(connection)
                        wall, processor = time.perf_counter() - began, processor_s(pid) - before
                        if scraper is not None:
                            scraper.join()
                            size = scrape(pages)
                    if number > 1:
                        walls[name].append(wall)
                        used[name].append(processor)
            by_wall = statistics.median(
                on / off for on, off in zip(walls["on"], walls["off"], strict=True)
            )
            ratios = [on / off for on, off in zip(used["on"], used["off"], strict=True)]
            error = statistics.stdev(ratios) / len(ratios) ** 0.5
            console.print(
                f"{work}: {statistics.median(walls['off']):.3f} s without,"
                f" {statistics.median(walls['on']):.3f} s with metrics; by the clock {by_wall:.3f},"
                f" by processor time {statistics.fmean(ratios):.3f} (+-{error:.3f}) of that"
                f" without; {size:,} bytes of metrics"
            )


if __name__ == "__main__":
    typer.run(main)

"""Progress of a command, with its rate and the time that is left; shown on terminals only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from fluss_df.cli.base.console import err
from fluss_df.client.connection import FlussConnection

# seconds until the bar appears
_AFTER_S = 1.0
_EVERY_S = 0.2
# the name of the thread that watches
THREAD = "fluss-df-progress"

#: Called with (amount done, total or None).
Report = Callable[[int, int | None], None]


class _Rows(ProgressColumn):
    """Rows that are done, of how many."""

    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f" of {int(task.total):,}"
        return Text(f"{int(task.completed):,}{total} rows")


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s")


@contextlib.contextmanager
def progress(
    title: str,
    *,
    total: int | None = None,
    unit: str = "rows",
    poll: Callable[[], int] | None = None,
) -> Iterator[Report]:
    """Show on standard error how far something is, when it takes more than a second.

    Where that is no terminal nothing is written. ``total`` is how much there is to do, None where
    that is not known yet. ``unit`` is ``"rows"`` or ``"bytes"``. ``poll`` is for work that does not
    report itself: it returns how much is done, and is called five times a second.
    """
    if not err.is_terminal:
        yield lambda done, of: None
        return
    columns = (_Rows(), _Rate()) if unit == "rows" else (DownloadColumn(), TransferSpeedColumn())
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
    task = bar.add_task(title, total=total)
    ended = threading.Event()

    def report(done: int, of: int | None) -> None:
        bar.update(task, completed=done, total=of)  # None leaves the total as it is

    def watch() -> None:
        if ended.wait(_AFTER_S):
            return
        bar.start()
        while poll is not None and not ended.wait(_EVERY_S):
            # poll may fail, as before a file exists
            with contextlib.suppress(Exception):
                report(poll(), None)

    watcher = threading.Thread(target=watch, name=THREAD, daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        ended.set()
        watcher.join()
        bar.stop()


def reading(
    title: str, opened: FlussConnection, total: int | None = None
) -> contextlib.AbstractContextManager[Report]:
    """Show how many rows were read by a connection, when it takes more than a second."""
    before = opened.metrics.rows
    return progress(title, total=total, poll=lambda: opened.metrics.rows - before)


def bytes_in(folder: Path, ending: str = "") -> int:
    """Return how many bytes the files in a folder have, those with an ending."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob(f"*{ending}"):
            with contextlib.suppress(OSError):
                total += path.stat().st_size if path.is_file() else 0
    return total

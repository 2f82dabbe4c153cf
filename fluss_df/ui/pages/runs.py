"""Queries that run batch by batch, and how far each is behind the table that it reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from starlette.requests import Request
from starlette.responses import Response

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.checkpoint import Checkpoint
from fluss_df.io.runs.runner import LEDGER_DATABASE
from fluss_df.io.scan import read_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo
from fluss_df.ui.state import State, asks

_MOST: Final = 500
# how long the page asks for lags
_LONGEST_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Parameters
    ----------
    name
        Its checkpoint folder, or the id under which its target knows it.
    source, target
        The table that it reads, and where it writes, where that is known.
    batch
        The number of its newest batch.
    lag
        How many rows it is behind in the buckets that it reads; None where that is not known.
    problem
        Why the lag is not known.
    unread
        How many rows partitions have that came after those that it has read. It may leave them out.
    """

    name: str
    source: TablePath | None
    target: str
    batch: int | None
    lag: int | None
    problem: str = ""
    unread: int = 0


@asks
def runs(state: State, request: Request) -> Response:
    """Return the page."""
    lags = _Lags(state)
    folders, more_folders = _of_folders(state, lags)
    ledger, more = _of_ledger(state, lags)
    found = [*folders, *ledger]
    # runs with an unknown lag first, then those that are furthest behind
    found.sort(key=lambda run: (run.lag is not None, -(run.lag or 0) - run.unread))
    return state.page(
        request,
        "runs.html",
        runs=found[:_MOST],
        of=len(found) + more_folders + more,
        folders=[str(folder) for folder in state.settings.runs],
        ledger=f"{LEDGER_DATABASE}.runs",
    )


class _Lags:
    """Asks how far runs are behind, for as long as a visitor waits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._end = time.monotonic() + _LONGEST_S

    def of(self, info: TableInfo, read: Mapping[tuple[str | None, int], int]) -> tuple[int, int]:
        """Return how many rows a run is behind that has read up to some offsets.

        Beside it, how many rows there are in partitions of which it is not known whether it will
        read them. Once it has begun it knows the other buckets that it reads: those of a partition
        that was there with one that it read, or of a table without partitions, are not its own.
        """
        path = info.table_path
        partitions = self._state.admin.list_partition_infos(path) if info.is_partitioned() else []
        offsets = self._state.watch.offsets(info, self._state.watch.buckets(info, partitions))
        names = {partition for partition, _ in read}
        # ids rise in the order in which partitions are made
        newest = max((p.partition_id for p in partitions if p.partition_name in names), default=-1)
        lag = unread = 0
        for bucket, (first, last) in offsets.items():
            at = read.get((bucket.partition_name, bucket.bucket_id), None if read else first)
            if at is not None:
                lag += max(0, last - at)
            elif bucket.partition_id is not None and bucket.partition_id > newest:
                unread += last - first
        return lag, unread

    def table(self, path: TablePath) -> TableInfo:
        """Return the description of a table; raise FlussError where the time is over."""
        if time.monotonic() > self._end:
            raise FlussError(f"not asked: the page took {_LONGEST_S:g} s for the runs before it")
        return self._state.admin.get_table_info(path)


def _of_folders(state: State, lags: _Lags) -> tuple[list[Run], int]:
    """Return runs by their checkpoint folders, and how many more there are."""
    found: list[Run] = []
    left_out = 0
    for folder in state.settings.runs:
        try:
            if (folder / "metadata.json").exists():
                inner = [folder]
            else:
                # folders of another user may not be readable
                below = sorted(folder.iterdir()) if folder.is_dir() else []
                inner = [one for one in below if (one / "metadata.json").exists()]
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
            found.append(Run(str(folder), None, "", None, None, problem))
            continue
        shown = inner[: max(0, _MOST - len(found))]
        left_out += len(inner) - len(shown)
        found += [_of_folder(lags, one) for one in shown]
    return found, left_out


def _of_folder(lags: _Lags, folder: Path) -> Run:
    name = str(folder)
    try:
        path, batch, read = Checkpoint.progress(folder)
    except FlussError as error:
        return Run(name, None, "", None, None, error.message)
    # -1 is where the first batch begins
    newest = batch.number if batch is not None and batch.number >= 0 else None
    try:
        info = lags.table(path)
        if batch is not None and not batch.is_of(info):
            raise _made_again()
        lag, unread = lags.of(info, read)
        return Run(name, path, "", newest, lag, unread=unread)
    except FlussError as error:
        return Run(name, path, "", newest, None, error.message)


def _made_again() -> FlussError:
    return FlussError("its table was dropped and made again: the run cannot go on with it")


def _of_ledger(state: State, lags: _Lags) -> tuple[list[Run], int]:
    """Return runs that write into tables of this cluster, and how many more there are."""
    path = TablePath(LEDGER_DATABASE, "runs")
    if path not in _tables(state):
        return [], 0
    rows = read_fluss(path, connection=state.connection)
    shown = rows.sort("run_id").head(_MOST)
    return list(_runs_of(lags, shown)), rows.height - shown.height


def _runs_of(lags: _Lags, rows: pl.DataFrame) -> Iterator[Run]:
    for row in rows.iter_rows(named=True):
        name = str(row["run_id"])
        try:
            source = TablePath.parse(str(row["source"]))
            read = _read_of(json.loads(row["about"] or "{}"))
            lag, unread = None, 0
            if read is not None:
                info = lags.table(source)
                if row["source_id"] not in (None, info.table_id):
                    raise _made_again()
                lag, unread = lags.of(info, read)
            problem = "its checkpoint folder tells how far it is" if lag is None else ""
            yield Run(name, source, str(row["target"]), row["batch"], lag, problem, unread)
        except (FlussError, ValueError, TypeError, AttributeError) as error:
            text = error.message if isinstance(error, FlussError) else "its note cannot be read"
            yield Run(name, None, str(row["target"]), row["batch"], None, text)


def _tables(state: State) -> list[TablePath]:
    try:
        return state.watch.tables(LEDGER_DATABASE)
    except FlussError as error:
        if error.error_code == ErrorCode.DATABASE_NOT_EXIST:
            return []
        raise


def _read_of(about: Mapping[str, Any]) -> dict[tuple[str | None, int], int] | None:
    """Return the next offset that a run reads of each bucket; None where its note has none."""
    positions = about.get("positions")
    if not positions:
        return None
    return {(partition, int(bucket)): int(stop) for partition, bucket, _, stop in positions}

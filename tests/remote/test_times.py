"""Moments within segments that are in remote storage, of which servers say an earlier offset."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.client.fetch.batch_headers import offsets_from_time
from fluss_df.errors import FlussError
from fluss_df.io.runs.losses import Losses, not_put_back
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.metadata import TableBucket
from fluss_df.pushdown.plan import Bucket
from tests.remote.tiered import ROWS_PER_SEGMENT, Tiered, rows

_BATCH = 3_000
_ROWS = 4 * ROWS_PER_SEGMENT


class _Timed:
    """A table of four segments, of whose batches each was committed at a moment of its own."""

    def __init__(self, tiered: Tiered) -> None:
        self.connection = tiered.connection
        self.table = tiered.create()
        self.info = self.table.get_table_info()
        self.path = self.table.get_table_path()
        # all before these offsets was committed before the moment, and all behind them later
        self.moments: list[tuple[int, int]] = []
        with self.table.new_append().create_writer() as writer:
            for part in rows(0, _ROWS).to_batches(_BATCH):
                writer.write_arrow(part)
                writer.flush()
                time.sleep(0.003)
                before = self.moments[-1][1] if self.moments else 0
                self.moments.append((int(time.time() * 1000), before + part.num_rows))
                time.sleep(0.003)
        tiered.wait(self.table, 2)

    def told(self, moment: int) -> int:
        """Return what the server says of a moment."""
        bucket = TableBucket(self.info.table_id, 0)
        found = self.connection.get_admin().get_offsets_by_clock(self.info, [bucket], moment)
        return found[bucket] or 0

    def inexact(self) -> tuple[int, int]:
        """Return a moment of which the server says an earlier offset, and the right one."""
        return next((m, at) for m, at in self.moments if self.told(m) < at)

    def scan(self, **options: object) -> pl.LazyFrame:
        return fluss.scan_fluss(self.path, connection=self.connection, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def timed(tiered: Tiered) -> _Timed:
    return _Timed(tiered)


def _time(moment: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(moment / 1000, dt.UTC)


def test_starts_and_stops_are_exact(timed: _Timed) -> None:
    assert any(timed.told(moment) < at for moment, at in timed.moments)
    for moment, at in timed.moments[:: len(timed.moments) // 8]:
        behind = timed.scan(start=_time(moment)).select("id").collect()
        before = timed.scan(stop=_time(moment)).select("id").collect()
        assert behind["id"].to_list() == list(range(at, _ROWS))
        assert before["id"].to_list() == list(range(at))


def test_a_frame_that_is_run_again(timed: _Timed) -> None:
    moment, at = timed.inexact()
    lazy = timed.scan(start=_time(moment)).select(pl.len())
    for _ in range(2):
        assert lazy.collect().item() == _ROWS - at
        time.sleep(0.3)


def test_what_was_read_is_not_taken_for_other_rows(timed: _Timed) -> None:
    bucket, losses = Bucket(None, None, 0), Losses("fail")
    asked = timed.connection, timed.info
    for moment, at in timed.moments:
        kept = not_put_back(losses, *asked, {bucket: at}, moment, {bucket: _ROWS})
        assert kept == {bucket: at}
    moment, at = timed.inexact()
    with pytest.raises(FlussError, match=f"has new rows from {at} on"):
        not_put_back(losses, *asked, {bucket: at + 1}, moment, {bucket: _ROWS})
    ignoring = Losses("ignore")
    kept = not_put_back(ignoring, *asked, {bucket: at + 1}, moment, {bucket: _ROWS})
    assert kept == {bucket: at}


def test_a_run_goes_on_amid_a_segment_that_moved(tiered: Tiered, tmp_path: Path) -> None:
    table = tiered.create()
    tiered.write(table, rows(0, 5 * _BATCH))
    seen: list[int] = []

    def run() -> None:
        with MicroBatches(tiered.lazy(table).select("id"), tmp_path / "run") as batches:
            for batch in batches:
                seen.extend(batch.frame.collect()["id"].to_list())
                batch.commit()

    run()
    time.sleep(0.01)
    tiered.write(table, rows(5 * _BATCH, _ROWS - 5 * _BATCH))
    tiered.wait(table, 2)
    run()
    assert seen == list(range(_ROWS))


def test_an_answer_that_is_right_costs_one_fetch(timed: _Timed) -> None:
    moment, at = timed.moments[-3]
    assert timed.told(moment) == at
    bucket = TableBucket(timed.info.table_id, 0)
    asked = timed.connection, timed.info
    assert offsets_from_time(*asked, {bucket: (at, _ROWS)}, moment) == {bucket: at}
    before = timed.connection.metrics.requests
    assert offsets_from_time(*asked, {bucket: (at, _ROWS)}, moment) == {bucket: at}
    assert timed.connection.metrics.requests == before + 1
    assert offsets_from_time(*asked, {bucket: (at, at)}, moment) == {bucket: at}
    assert timed.connection.metrics.requests == before + 1

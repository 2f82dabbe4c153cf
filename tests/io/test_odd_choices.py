"""Choices made by accident: no partition, a name with a typo, half a millisecond."""

from __future__ import annotations

import datetime as dt
import threading

import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.follow import BoundedFollow
from fluss_df.io.runs.micro_batches import share_rows
from fluss_df.io.scan import scan_node
from fluss_df.io.source import parse_offset
from fluss_df.pushdown.plan import Split

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(scope="module")
def memory() -> FlussConnection:
    return fluss.connect(":memory:")


def test_no_partition_has_no_row_whatever_the_filter_names(memory: FlussConnection) -> None:
    rows = pl.DataFrame({"p": ["a", "b"], "k": [1, 2], "v": [1, 2]})
    fluss.write_fluss(
        rows, "parts", connection=memory, create_if_not_exists=True, create_partitions=True,
        primary_keys=["p", "k"], partition_keys=["p"],
    )  # fmt: skip
    scan = fluss.scan_fluss("parts", connection=memory, partitions=[])
    assert scan.collect().height == 0
    assert scan.filter(pl.col("p") == "a", pl.col("k") == 1).collect().height == 0


def test_a_sink_that_fails_by_a_typo_changes_no_table(memory: FlussConnection) -> None:
    rows = pl.DataFrame({"k": [1], "v": [1]})
    fluss.write_fluss(
        rows, "typo", connection=memory, create_if_not_exists=True, primary_keys=["k"]
    )
    changes = rows.with_columns(extra=1, op=pl.lit("+I")).lazy()
    for wrong in (changes, changes.with_columns(op=pl.lit(1.5))):
        name = "opp" if wrong is changes else "op"
        with pytest.raises(FlussError, match=f"'{name}'"):
            fluss.sink_fluss(
                wrong, "typo", connection=memory, schema_mode="merge", change_type_column=name
            )
        assert fluss.read_fluss("typo", connection=memory).columns == ["k", "v"]
    with pytest.raises(FlussError, match="'opp'"):
        fluss.sink_fluss(
            changes, "never", connection=memory, create_if_not_exists=True, primary_keys=["k"],
            change_type_column="opp",
        )  # fmt: skip
    assert "never" not in memory.get_admin().list_tables("fluss")


def test_a_scan_without_end_is_no_other_that_ends(memory: FlussConnection) -> None:
    rows = pl.DataFrame({"n": range(10)})
    fluss.write_fluss(rows, "tail", connection=memory, create_if_not_exists=True)
    bounded = fluss.scan_fluss("tail", connection=memory, follow=True, max_rows=11)
    assert isinstance(scan_node("tail", connection=memory, follow=True, max_rows=3), BoundedFollow)
    thread = threading.Thread(target=bounded.collect)
    thread.start()
    found: list[pl.DataFrame] = []

    def take(frame: pl.DataFrame) -> bool:
        found.append(frame)
        return True

    fluss.scan_fluss("tail", connection=memory, follow=True).sink_batches(take)
    assert thread.is_alive()
    assert found[0].height > 0
    fluss.write_fluss(rows.head(1), "tail", connection=memory)
    thread.join(20)
    assert not thread.is_alive()


def test_moments_are_of_the_next_whole_millisecond(memory: FlussConnection) -> None:
    fluss.write_fluss(
        pl.DataFrame({"n": [1]}), "moment", connection=memory, create_if_not_exists=True
    )
    info = memory.get_admin().get_table_info(fluss.TablePath("fluss", "moment"))
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    whole = int(at.timestamp()) * 1000
    for micros, more in ((0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)):
        moment = at + dt.timedelta(microseconds=micros)
        assert parse_offset(info, "start", moment) == (whole + more,)
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=dt.UTC)
    assert parse_offset(info, "start", before) == (0,)


def test_the_fullest_bucket_has_its_turn_where_not_all_have_one() -> None:
    def split(bucket: int, rows: int) -> Split:
        return Split(None, None, bucket, 0, rows)

    assert [s.rows for s in share_rows([split(0, 1), split(1, 1000)], 1)] == [0, 1]
    assert [s.rows for s in share_rows([split(0, 1), split(1, 1000)], 10)] == [1, 9]
    assert [s.rows for s in share_rows([split(0, 0), split(1, 5), split(2, 7)], 2)] == [0, 1, 1]

"""What the steps of pushdown read: bytes, requests and rows, as the reports say."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.io import count, scan_fluss, track_scans
from tests.io.conftest import MakeTable

SCHEMA = pa.schema({"id": pa.int64(), "kind": pa.string()})
ROWS = pl.DataFrame({"id": range(900)}).with_columns(kind=pl.format("k{}", pl.col("id") % 3))


@pytest.fixture(scope="module")
def scan(make_table: MakeTable, connection: FlussConnection) -> pl.LazyFrame:
    path = make_table(SCHEMA, ROWS, partition_keys=["kind"], bucket_keys=["id"], bucket_count=2)
    return scan_fluss(path, connection=connection, include_metadata=True)


@pytest.mark.parametrize(
    "condition",
    [
        pl.lit(True),
        pl.col("kind") == "k1",
        pl.col("kind").str.ends_with("2") | (pl.col("_bucket") == 0),
        pl.col("kind").str.slice(1, 1).str.to_integer(strict=False) > 0,
        pl.col("_log_offset").is_between(3, 70),
    ],
)
def test_counts_need_no_batch(
    scan: pl.LazyFrame, connection: FlussConnection, condition: pl.Expr
) -> None:
    rows = scan.collect()
    before = connection.metrics.as_dict()["record_bytes"]
    with track_scans() as scans:
        found = count(scan.filter(condition))
    assert found == rows.filter(condition).height
    assert len(scans) == 0
    assert connection.metrics.as_dict()["record_bytes"] == before


def test_other_counts_are_read(scan: pl.LazyFrame) -> None:
    rows = scan.collect()
    for query, expected in (
        (scan.filter(pl.col("id") < 7), 7),
        (scan.filter(pl.col("kind") == "k1", pl.col("id") < 7), 2),
        (scan.head(5), 5),
        # Polars keeps to itself what may fail
        (scan.filter(pl.col("kind").str.slice(1, 1).cast(pl.Int64) > 0), 600),
        (scan.unique("kind"), 3),
        (scan.group_by("kind").len(), 3),
        (scan.tail(7).filter(pl.col("_bucket") == 1), None),
        (pl.concat([scan, scan]), 1800),
        (scan.join(scan, on="id"), 900),
        (scan.select("id"), 900),
        (scan.with_columns(x=1), 900),
        (rows.lazy(), 900),
    ):
        whole = query.collect().height
        assert count(query) == whole == (whole if expected is None else expected)


def test_no_rows_are_not_read(scan: pl.LazyFrame) -> None:
    with track_scans() as scans:
        assert scan.limit(0).collect().height == 0
        assert scan.filter(pl.lit(False)).collect().height == 0
    assert not any(report.requests for report in scans)


def test_gap_a_count_of_polars_reads_a_column(scan: pl.LazyFrame) -> None:
    # see test_gap_a_count_asks_for_a_column: lf.fluss.count() is the way
    with track_scans() as scans:
        assert scan.select(pl.len()).collect().item() == 900
    assert scans[0].columns == ("id",)
    assert scans[0].bytes > 0


def test_ends_are_read_as_offsets(scan: pl.LazyFrame) -> None:
    for query in (scan.head(5), scan.tail(5), scan.slice(300, 5)):
        with track_scans() as scans:
            assert query.collect().height == 5
        assert scans[0].rows == 5
        assert scans[0].buckets <= 2


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (lambda f: f.join(pl.LazyFrame({"id": [7]}), on="id"), 900),
        (lambda f: f.top_k(3, by="id"), 900),
        (lambda f: f.sort("id").head(3), 900),
        (lambda f: f.unique("kind"), 900),
        (lambda f: f.filter(pl.col("id") >= 0).head(1), 900),
    ],
)
def test_gap_joins_orders_and_distinct_read_all(
    scan: pl.LazyFrame, query: object, rows: int
) -> None:
    """Polars gives a scan neither the other side's keys nor an order; lookup_join has the keys."""
    assert callable(query)
    with track_scans() as scans:
        query(scan).collect()
    # a limit behind a filter may end the scan before all of it is decoded
    assert 0 < scans[0].rows <= rows
    assert scans[0].plan.limit is None
    assert scans[0].plan.rows == rows

"""What is told of scans: of current rows, lookups, streams and lookup joins, on both engines."""

from __future__ import annotations

import time
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import (
    explain,
    fetched,
    last_scan,
    lookup_join,
    scan_fluss,
    track_scans,
    write_fluss,
)
from fluss_df.io.scans import known
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import Place

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "score": pa.float64()})
ROWS = pl.DataFrame({"id": range(1000)}).with_columns(
    name=pl.format("name {}", "id"), score=pl.col("id") / 4
)


@pytest.fixture(scope="module")
def users(place: Place) -> TablePath:
    path = place.make_table(SCHEMA, primary_keys=["id"], bucket_count=3)
    write_fluss(ROWS, path, connection=place.connection)
    return path


def sent(place: Place) -> float:
    return place.connection.metrics.as_dict()["requests"]


def test_a_scan_of_current_rows(place: Place, users: TablePath) -> None:
    query = scan_fluss(users, connection=place.connection).filter(pl.col("score") > 200)
    query = query.select("id")
    assert explain(query).splitlines() == [
        f"FLUSS SCAN {users}",
        "  columns    2 of 3: id, score",
        "  reads      scan of the current rows",
        "  buckets    3 of 3",
        "  pushed     none",
        "  residual   score > 200.0",
    ]
    assert fetched(query) == []
    with track_scans() as scans:
        assert query.collect().height == 199
    (report,) = scans
    assert fetched(query) == [report] == [last_scan()]
    assert report.columns == ("id", "score")
    assert (report.rows, report.buckets, report.lookups) == (1000, 3, 0)
    assert report.requests > 0
    assert report.bytes > 0
    assert "1,000 rows" in str(report)
    assert "0 lookups" not in str(report)


@pytest.mark.usefixtures("no_scans")
def test_a_lookup_is_one_request(place: Place, users: TablePath) -> None:
    query = scan_fluss(users, connection=place.connection).filter(
        pl.col("id") == 7, pl.col("score") < 5
    )
    assert "lookup of 1 keys" in query.explain()
    assert "pushed     id == 7" in explain(query)
    assert "residual   score < 5.0" in explain(query)
    query.collect()
    before = sent(place)
    assert query.collect().rows() == [(7, "name 7", 1.75)]
    # neither the table nor its leader is asked for again
    assert sent(place) - before == 1
    (report,) = fetched(query)
    assert (report.lookups, report.requests, report.rows) == (1, 1, 1)
    assert 0 < report.bytes < 100
    assert "1 lookups, 1 requests" in str(report)


@pytest.mark.usefixtures("no_scans")
def test_lookups_of_many_keys(place: Place, users: TablePath) -> None:
    query = scan_fluss(users, connection=place.connection).filter(
        pl.col("id").is_in([*range(100), 5000])
    )
    assert query.collect().height == 100
    (report,) = fetched(query)
    assert (report.lookups, report.rows) == (101, 100)
    # of three buckets, which one server has or several
    assert 1 <= report.requests <= 3
    missing = scan_fluss(users, connection=place.connection).filter(pl.col("id") == -1)
    assert missing.collect().is_empty()
    (report,) = fetched(missing)
    assert (report.lookups, report.rows, report.bytes) == (1, 0, 0)


def test_lookups_of_prefixes(place: Place) -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.float64()})
    path = place.make_table(schema, primary_keys=["a", "b"], bucket_keys=["a"], bucket_count=3)
    rows = pl.DataFrame({"a": ["x", "y", "z"] * 20, "b": range(60)}).with_columns(v=pl.col("b") / 2)
    write_fluss(rows, path, connection=place.connection)
    query = scan_fluss(path, connection=place.connection).filter(
        pl.col("a") == "x", pl.col("b") > 30
    )
    text = explain(query)
    assert "reads      lookup of 1 key prefixes" in text
    assert "pushed     a == 'x'" in text
    assert "residual   b > 30" in text
    assert query.collect().height == 9
    (report,) = fetched(query)
    # all rows of the prefix come, and Polars filters them
    assert (report.lookups, report.requests, report.rows) == (1, 1, 20)


def test_current_rows_of_partitions(place: Place) -> None:
    schema = pa.schema({"day": pa.string(), "id": pa.int32()})
    path = place.make_table(
        schema, primary_keys=["day", "id"], partition_keys=["day"], bucket_count=2
    )
    rows = pl.DataFrame({"day": ["mon", "tue"] * 50, "id": range(100)}).cast({"id": pl.Int32})
    write_fluss(rows, path, create_partitions=True, connection=place.connection)
    query = scan_fluss(path, connection=place.connection).filter(pl.col("day") == "mon")
    text = explain(query)
    assert "partitions 1 of 2: mon" in text
    assert "buckets    2 of 4" in text
    assert "pushed     day == 'mon'" in text
    assert query.collect().height == 50
    (report,) = fetched(query)
    assert (report.partitions, report.buckets, report.rows) == (("mon",), 2, 50)


def test_a_scan_that_follows(place: Place) -> None:
    path = place.make_table(SCHEMA, ROWS.head(50), ROWS.slice(50, 50), bucket_count=1)
    query = (
        scan_fluss(path, connection=place.connection, follow=True, max_rows=100)
        .filter(pl.col("score") >= 0)
        .select("id")
    )
    text = explain(query)
    assert "reads      what comes, after 100 rows" in text
    assert "columns    2 of 3: id, score" in text
    assert "residual   score >= 0.0" in text
    assert sum(batch.height for batch in query.collect_batches()) == 100
    (report,) = fetched(query)
    assert report.columns == ("id", "score")
    assert (report.rows, report.batches, report.buckets) == (100, 2, 1)
    assert report.requests > 0
    assert report.bytes > 0


@pytest.mark.usefixtures("no_scans")
def test_a_lookup_join(place: Place, users: TablePath) -> None:
    left = pl.DataFrame({"user": [5, 3, None, 5, 5000]}, schema={"user": pl.Int64}).lazy()
    options: dict[str, Any] = {"on": {"user": "id"}, "connection": place.connection}
    query = lookup_join(left, users, columns=["score"], **options)
    assert explain(query).splitlines() == [
        f"FLUSS SCAN {users}",
        "  columns    2 of 3: id, score",
        "  reads      lookup of the keys of each batch",
        "  pushed     id = user",
        "  residual   none",
    ]
    assert fetched(query) == []
    with track_scans() as scans:
        found = query.collect()
    assert found["score"].to_list() == [1.25, 0.75, None, 1.25, None]
    # Polars may cut a frame into batches, and each is a scan
    reports = list(scans)
    assert fetched(query) == [last_scan()]
    assert last_scan() in reports
    assert 3 <= sum(report.lookups for report in reports) <= 4
    assert 2 <= sum(report.rows for report in reports) <= 3
    assert all(1 <= report.requests <= 3 for report in reports)
    log = place.make_table(pa.schema({"user": pa.int64()}), bucket_count=1)
    for i in range(3):
        write_fluss(pl.DataFrame({"user": [i]}), log, connection=place.connection)
    stream = scan_fluss(log, connection=place.connection, follow=True, max_rows=3)
    joined = lookup_join(stream, users, **options)
    with track_scans() as scans:
        rows = pl.concat(list(joined.collect_batches()))
    assert_frame_equal(
        rows.select("user", "name").sort("user"), ROWS.head(3).select(user="id", name="name")
    )
    assert sum(scan.lookups for scan in scans) == 3
    assert [scan.plan.table for scan in fetched(joined)] == [log, users]


def test_a_table_that_is_gone_is_not_remembered(place: Place) -> None:
    path = place.make_table(SCHEMA, primary_keys=["id"], bucket_count=1)
    write_fluss(ROWS.head(10), path, connection=place.connection)
    query = scan_fluss(path, connection=place.connection).filter(pl.col("id") == 7)
    assert query.collect().height == 1
    place.connection.get_admin().drop_table(path)
    with pytest.raises(FlussError, match=path.table_name) as caught:
        query.collect()
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST


@pytest.mark.parametrize("by_another", [False, True])
def test_a_table_that_is_made_anew_is_looked_up_in(
    place: Place, by_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_another:
        # this process does not know of it then
        monkeypatch.setattr(known, "changes", lambda: 0)
    connection = place.connection
    path = place.make_table(SCHEMA, primary_keys=["id"], bucket_count=1)
    write_fluss(ROWS.head(10), path, connection=connection)
    query = scan_fluss(path, connection=connection).filter(pl.col("id") == 7)
    assert query.collect().rows() == [(7, "name 7", 1.75)]
    connection.get_admin().drop_table(path)
    other = TableDescriptor(Schema(SCHEMA, ["id"]), bucket_count=2)
    connection.get_admin().create_table(path, other)
    if not by_another:
        # however soon: nothing of the old table is found
        assert query.collect().is_empty()
    write_fluss(ROWS.with_columns(name=pl.lit("new")), path, connection=connection)
    if by_another:
        # servers may answer for the old one as long as what is known of a table is believed
        time.sleep(known._KNOWN_S)
    assert query.collect().rows() == [(7, "new", 1.75)]


def test_a_table_that_was_altered_is_looked_up_in(place: Place) -> None:
    path = place.make_table(SCHEMA, primary_keys=["id"], bucket_count=1)
    write_fluss(ROWS.head(10), path, connection=place.connection)
    query = scan_fluss(path, connection=place.connection).filter(pl.col("id") == 7)
    assert query.collect().height == 1
    place.connection.get_admin().alter_table(path, add_columns=pa.schema({"more": pa.int64()}))
    # the frame keeps its columns, also for rows of the new schema
    write_fluss(
        ROWS.with_columns(more=pl.lit(1), name=pl.lit("new")), path, connection=place.connection
    )
    assert query.collect().rows() == [(7, "new", 1.75)]

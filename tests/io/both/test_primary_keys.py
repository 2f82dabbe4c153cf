"""Primary-key tables in Polars: every way to write them, and reading what is there now."""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io import read_fluss, scan_fluss, sink_fluss, write_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "score": pa.float64()})
ROWS = pl.DataFrame({"id": range(1000)}).with_columns(
    name=pl.format("name {}", "id"), score=pl.col("id") / 4
)


@pytest.fixture
def users(make_table: MakeTable, connection: FlussConnection) -> TablePath:
    path = make_table(SCHEMA, primary_keys=["id"], bucket_count=3)
    write_fluss(ROWS, path, connection=connection)
    return path


def current(path: TablePath, connection: FlussConnection) -> pl.DataFrame:
    return read_fluss(path, connection=connection).sort("id")


def test_auto_upserts(users: TablePath, connection: FlussConnection) -> None:
    assert_frame_equal(current(users, connection), ROWS)
    changed = pl.DataFrame({"id": [5, 5, 2000], "name": ["x", "y", "z"], "score": [1.0, 2.0, 3.0]})
    result = sink_fluss(changed.lazy(), users, connection=connection)
    assert result.rows == 3
    found = current(users, connection)
    assert found.height == 1001
    assert found.filter(pl.col("id") == 5).rows() == [(5, "y", 2.0)]  # the last one wins


def test_modes(users: TablePath, connection: FlussConnection) -> None:
    write_fluss(pl.DataFrame({"id": [1, 2]}), users, mode="delete", connection=connection)
    part = pl.DataFrame({"score": [-1.0, -2.0], "id": [3, 5000]})
    write_fluss(part, users, mode="partial_update", connection=connection)
    found = current(users, connection)
    assert found["id"].to_list() == [0, *range(3, 1000), 5000]
    assert found.filter(pl.col("id").is_in([3, 5000])).rows() == [
        (3, "name 3", -1.0),
        (5000, None, -2.0),
    ]
    for frame, mode, message in (
        (part.select("score"), "partial_update", "primary key"),
        (part, "delete", "score"),
        (part.rename({"score": "scoer"}), "partial_update", "scoer"),
        (ROWS.drop("name"), "upsert", "name"),
    ):
        with pytest.raises(FlussError, match=message):
            write_fluss(frame, users, mode=mode, connection=connection)
        with pytest.raises(FlussError, match=message):
            sink_fluss(frame.lazy(), users, mode=mode, connection=connection)
    assert_frame_equal(current(users, connection), found)


def test_a_column_of_change_types(users: TablePath, connection: FlussConnection) -> None:
    changes = pl.DataFrame(
        {
            "what": ["-D", "+I", "-U", "+U", "+I", "-D"],
            "id": [0, 2000, 1, 1, 3000, 3000],
            "name": [None, "new", "name 1", "one", "gone", None],
            "score": [None, 1.0, 0.25, 2.0, 0.0, None],
        }
    )
    sink_fluss(changes.lazy(), users, change_type_column="what", connection=connection)
    found = current(users, connection)
    assert found["id"].to_list() == [*range(1, 1000), 2000]
    assert found.row(0) == (1, "one", 2.0)
    with pytest.raises(FlussError, match="'\\?'"):
        write_fluss(
            changes.with_columns(what=pl.lit("?")), users, change_type_column="what",
            connection=connection,
        )  # fmt: skip


def test_a_table_is_created(connection: FlussConnection) -> None:
    options: dict[str, Any] = {"connection": connection, "bucket_count": 2}
    result = write_fluss(
        ROWS, "io.made_keyed", create_if_not_exists=True, primary_keys=["id"], **options
    )
    assert result.table_created
    write_fluss(ROWS.head(10), "io.made_keyed", connection=connection)
    assert read_fluss("io.made_keyed", connection=connection).height == 1000


def test_queries(users: TablePath, connection: FlussConnection) -> None:
    scan = scan_fluss(users, connection=connection)
    assert scan.select(pl.len()).collect().item() == 1000
    assert scan.head(7).collect().height == 7
    assert scan.head(0).collect().height == 0
    assert scan.select("score").collect().columns == ["score"]
    assert scan.filter(pl.col("score") > 200).select(pl.col("id").min()).collect().item() == 801
    for engine in ("streaming", "in-memory"):
        grouped = scan.group_by(pl.col("id") % 3).agg(pl.len()).collect(engine=engine)
        assert sorted(grouped["len"]) == [333, 333, 334]
    twice = scan.join(scan, on="id").collect()
    assert twice.height == 1000
    assert pickle.loads(pickle.dumps(scan.select(pl.len()))).collect().item() == 1000


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        (pl.col("id") == 7, 1),
        (pl.col("id").is_in([1, 5, 5, 99_999]), 3),
        ((pl.col("id") == 3) & (pl.col("score") > 5), 1),
        ((pl.col("id") == 3) | (pl.col("id") == 4), 2),
    ],
)
def test_filters_on_the_key_are_lookups(
    users: TablePath, connection: FlussConnection, condition: pl.Expr, keys: int
) -> None:
    query = scan_fluss(users, connection=connection).filter(condition)
    assert f"lookup of {keys} keys" in query.explain()
    assert_frame_equal(query.collect().sort("id"), ROWS.filter(condition))
    assert_frame_equal(
        query.select("name").collect().sort("name"), ROWS.filter(condition).select("name")
    )


def test_other_filters_are_scans(users: TablePath, connection: FlussConnection) -> None:
    query = scan_fluss(users, connection=connection).filter(pl.col("id") < 3)
    assert "scan of the current rows" in query.explain()
    assert query.collect()["id"].sort().to_list() == [0, 1, 2]


def test_partitions(make_table: MakeTable, connection: FlussConnection) -> None:
    schema = pa.schema({"day": pa.string(), "id": pa.int32(), "value": pa.string()})
    path = make_table(schema, primary_keys=["day", "id"], partition_keys=["day"], bucket_count=2)
    rows = pl.DataFrame(
        {"day": ["mon", "tue"] * 50, "id": [i // 2 for i in range(100)], "value": ["v"] * 100},
        schema_overrides={"id": pl.Int32},
    )
    result = write_fluss(rows, path, create_partitions=True, connection=connection)
    assert result.partitions_created == ("mon", "tue")
    scan = scan_fluss(path, connection=connection)
    monday = scan.filter(pl.col("day") == "mon")
    assert "mon" in monday.explain()
    assert "tue" not in monday.explain().split("partitions")[1].split("\n")[0]
    assert monday.collect().height == 50
    assert scan.collect().height == 100
    one = scan.filter(pl.col("day") == "tue", pl.col("id") == 9)
    assert "lookup of 1 keys" in one.explain()
    assert one.collect().rows() == [("tue", 9, "v")]
    chosen = scan_fluss(path, connection=connection, partitions="mon")
    assert chosen.collect().height == 50
    assert chosen.filter(pl.col("day") == "tue", pl.col("id") == 9).collect().height == 0
    gone = scan.filter(pl.col("day") == "sun", pl.col("id") == 9)
    assert gone.collect().height == 0


def test_what_means_nothing_here(users: TablePath, connection: FlussConnection) -> None:
    options: list[dict[str, Any]] = [
        {"start": "latest"},
        {"stop": 5},
        {"buckets": 1},
        {"include_metadata": True},
        {"follow": True},
    ]
    for option in options:
        with pytest.raises(FlussError, match="has a primary key, and scan_fluss") as caught:
            scan_fluss(users, connection=connection, **option)
        assert caught.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_a_null_key_is_refused(users: TablePath, connection: FlussConnection) -> None:
    frame = ROWS.with_columns(id=pl.when(pl.col("id") != 3).then("id"))
    with pytest.raises(SchemaMismatchError, match=r"'id'.*null in row 3"):
        write_fluss(frame, users, connection=connection)
    assert_frame_equal(current(users, connection), ROWS)

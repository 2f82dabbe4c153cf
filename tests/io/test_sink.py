import datetime as dt
import re
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.client.send.batch import BucketResult
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io import SinkResult, read_fluss, scan_fluss, sink_fluss, write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import MakeTable, sorted_rows

SCHEMA = pa.schema([pa.field("origin", pa.string()), pa.field("x", pa.int64(), nullable=False)])
ROWS = pl.DataFrame({"origin": ["EWR", "JFK", "LGA"] * 200, "x": range(600)})


def rows_of(path: TablePath, connection: FlussConnection) -> pl.DataFrame:
    return read_fluss(path, connection=connection)


def count(path: TablePath, connection: FlussConnection) -> int:
    return rows_of(path, connection).height


@pytest.fixture
def new_path(connection: FlussConnection, request: pytest.FixtureRequest) -> TablePath:
    path = TablePath("io", f"new_{abs(hash(request.node.nodeid)) % 10**9}")
    connection.get_admin().drop_table(path, ignore_if_not_exists=True)
    return path


def test_a_frame_is_appended(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(SCHEMA)
    told: list[int] = []
    for _ in range(2):
        result = write_fluss(ROWS, path, connection=connection, progress=told.append)
    assert result.table == path
    assert result.rows == 600
    assert result.buckets == (BucketResult(None, 0, 600, 1200, 600),)
    assert result.partitions_created == ()
    assert not result.table_created
    assert told[-1] == 600
    assert rows_of(path, connection).equals(pl.concat([ROWS, ROWS]))


def test_a_query_is_appended(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(SCHEMA)
    told: list[int] = []
    query = ROWS.lazy().filter(pl.col("origin") == "JFK")
    result = sink_fluss(query, path, connection=connection, progress=told.append)
    assert result.rows == told[-1] == 200
    assert rows_of(path, connection).equals(query.collect())


def test_a_table_is_copied_lazily(make_table: MakeTable, connection: FlussConnection) -> None:
    source, target = make_table(SCHEMA, ROWS), make_table(SCHEMA)
    scan = scan_fluss(source, connection=connection)
    result = sink_fluss(scan.filter(pl.col("x") >= 100), target, connection=connection)
    assert result.rows == 500
    assert rows_of(target, connection).equals(ROWS.filter(pl.col("x") >= 100))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_lazy_sinks_write_when_they_are_collected(
    make_table: MakeTable, connection: FlussConnection, engine: Literal["in-memory", "streaming"]
) -> None:
    """More of them than there are cores, beside another query of the same source."""
    scan = scan_fluss(make_table(SCHEMA, ROWS), connection=connection)
    targets = [make_table(SCHEMA) for _ in range(5)]
    parts = [scan.filter(pl.col("x") % 5 == i) for i in range(5)]
    sinks = [
        sink_fluss(part, target, connection=connection, lazy=True)
        for part, target in zip(parts, targets, strict=True)
    ]
    assert all(count(target, connection) == 0 for target in targets)
    *written, counted = pl.collect_all([*sinks, scan.group_by("origin").len()], engine=engine)
    assert counted["len"].to_list() == [200] * 3
    for frame, part, target in zip(written, parts, targets, strict=True):
        assert frame.rows() == [(None, 0, 0, 120, 120)]
        assert rows_of(target, connection).equals(part.collect())


def test_a_lazy_sink_is_checked_at_once(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(SCHEMA)
    with pytest.raises(SchemaMismatchError, match="'zz'"):
        sink_fluss(ROWS.lazy().with_columns(zz=1), path, connection=connection, lazy=True)
    query = ROWS.lazy().with_columns(x=pl.when(pl.col("x") != 7).then("x"))
    sink = sink_fluss(query, path, connection=connection, lazy=True)
    with pytest.raises(SchemaMismatchError, match=r"column 'x' .*null in row 7"):
        sink.collect()
    assert count(path, connection) == 0


def test_a_frame_is_split_over_partitions(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    path = make_table(SCHEMA, partition_keys=["origin"], bucket_count=2)
    connection.get_admin().create_partition(path, {"origin": "JFK"})
    for write in (write_fluss, lambda frame, *args, **kw: sink_fluss(frame.lazy(), *args, **kw)):
        with pytest.raises(FlussError, match=r"no partition 'EWR', 'LGA'") as caught:
            write(ROWS, path, connection=connection)
        assert caught.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
        assert count(path, connection) == 0
    result = write_fluss(ROWS, path, connection=connection, create_partitions=True)
    assert result.partitions_created == ("EWR", "LGA")
    assert {bucket.partition_name for bucket in result.buckets} == {"EWR", "JFK", "LGA"}
    frame = result.to_frame()
    assert frame["rows"].sum() == 600
    assert frame.columns == ["partition_name", "bucket_id", "base_offset", "end_offset", "rows"]
    assert sorted_rows(rows_of(path, connection)).equals(sorted_rows(ROWS))
    again = sink_fluss(ROWS.lazy(), path, connection=connection)
    assert again.partitions_created == ()
    assert "600 rows; 3 buckets;" in repr(again)


def test_a_table_is_made_in_the_image_of_the_frame(
    new_path: TablePath, connection: FlussConnection
) -> None:
    frame = pl.DataFrame(
        {
            "origin": pl.Series(["JFK", "LGA"], dtype=pl.Categorical),
            "u8": pl.Series([1, 255], dtype=pl.UInt8),
            "at": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None],
            "list": [["a"], None],
            "row": [{"a": 1}, {"a": None}],
        }
    )
    with pytest.raises(FlussError, match="create_if_not_exists=True") as caught:
        write_fluss(frame, new_path, connection=connection)
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
    layout: dict[str, Any] = {
        "partition_keys": ["origin"],
        "bucket_keys": ["u8"],
        "bucket_count": 3,
        "properties": {"table.log.ttl": "1d"},
    }
    for attempt in range(2):
        result = write_fluss(
            frame,
            new_path,
            connection=connection,
            create_if_not_exists=True,
            create_partitions=True,
            **layout,
        )
        assert result.table_created is (attempt == 0)
        assert result.partitions_created == (("JFK", "LGA") if attempt == 0 else ())
    info = connection.get_table(new_path).get_table_info()
    assert info.get_schema().get_column_types() == [
        "string", "smallint", "timestamp_ltz", "array<string>", "row<a: bigint>",
    ]  # fmt: skip
    assert (info.get_partition_keys(), info.get_bucket_keys()) == (["origin"], ["u8"])
    assert info.num_buckets == 3
    assert count(new_path, connection) == 4


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"partition_keys": ["origin"]}, r"partition_keys=\[\], not \['origin'\]"),
        ({"bucket_keys": ["x"]}, r"bucket_keys=\[\], not \['x'\]"),
        ({"primary_keys": ["x"]}, r"primary_keys=\[\], not \['x'\]"),
        ({"bucket_count": 9}, "bucket_count=1, not 9"),
        ({"properties": {"table.log.ttl": "3d"}}, "table.log.ttl.*not '3d'"),
    ],
)
def test_a_table_with_another_layout_is_refused(
    make_table: MakeTable, connection: FlussConnection, layout: dict[str, Any], message: str
) -> None:
    path = make_table(SCHEMA)
    with pytest.raises(FlussError, match=message) as caught:
        write_fluss(ROWS, path, connection=connection, create_if_not_exists=True, **layout)
    assert caught.value.error_code == ErrorCode.TABLE_ALREADY_EXIST


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (ROWS.drop("x"), "column 'x' .* is missing in the data: it is NOT NULL"),
        (ROWS.with_columns(y=1), "column 'y' is none of"),
        (ROWS.cast({"x": pl.String}), "column 'x': .*string.* does not go into bigint"),
        (ROWS.cast({"x": pl.Float64}), "column 'x': double does not go into bigint"),
    ],
)
def test_types_that_do_not_fit_are_refused_before_anything_is_sent(
    make_table: MakeTable, connection: FlussConnection, frame: pl.DataFrame, message: str
) -> None:
    path = make_table(SCHEMA)
    for write in (write_fluss, lambda frame, *args, **kw: sink_fluss(frame.lazy(), *args, **kw)):
        with pytest.raises(SchemaMismatchError, match=message):
            write(frame, path, connection=connection)
    assert count(path, connection) == 0


def test_a_frame_that_lacks_a_column_of_rows_that_are_there_says_what_an_upsert_does(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    path = make_table(pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_keys=["k"])
    write_fluss(pl.DataFrame({"k": [1], "v": ["a"]}), path, connection=connection)
    keys = pl.DataFrame({"k": [1]})
    every = "'v' .* is missing in the data: an upsert replaces whole rows: .*mode='partial_update'"
    for write in (write_fluss, lambda frame, *args, **kw: sink_fluss(frame.lazy(), *args, **kw)):
        with pytest.raises(SchemaMismatchError, match=every):
            write(keys, path, connection=connection)
    with (
        connection.get_table(path).new_upsert().create_writer() as writer,
        pytest.raises(SchemaMismatchError, match=every),
    ):
        writer.write_arrow(keys.to_arrow())
    assert read_fluss(path, connection=connection).rows() == [(1, "a")]


BAD_VALUES = [
    (ROWS.with_columns(x=pl.when(pl.col("x") == 599).then(None).otherwise("x")), "null in row 599"),
    (ROWS.with_columns(x=pl.col("x").cast(pl.UInt64) + 2**63), "row 0: 9223372036854775808"),
]


@pytest.mark.parametrize(("frame", "message"), BAD_VALUES)
def test_values_of_a_frame_are_checked_before_anything_is_sent(
    make_table: MakeTable, connection: FlussConnection, frame: pl.DataFrame, message: str
) -> None:
    path = make_table(SCHEMA)
    with pytest.raises(SchemaMismatchError, match=message):
        write_fluss(frame, path, connection=connection)
    assert count(path, connection) == 0


def test_a_value_that_cannot_name_a_partition(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    path = make_table(SCHEMA, partition_keys=["origin"])
    for bad, message in ((None, "null in row 3"), ("a b", "row 3: 'a b' cannot name a partition")):
        frame = pl.DataFrame({"origin": ["a", "a", "a", bad], "x": range(4)})
        with pytest.raises(SchemaMismatchError, match=message):
            write_fluss(frame, path, connection=connection, create_partitions=True)
    assert connection.get_admin().list_partition_infos(path) == []


def test_a_frame_without_columns(new_path: TablePath, connection: FlussConnection) -> None:
    with pytest.raises(SchemaMismatchError, match="no columns"):
        write_fluss(pl.DataFrame(), new_path, connection=connection, create_if_not_exists=True)
    admin = connection.get_admin()
    assert not admin.table_exists(new_path)
    # which servers do create
    admin.create_table(new_path, TableDescriptor(Schema(pa.schema([]))))
    with pytest.raises(FlussError, match="no columns: there is nothing to write"):
        connection.get_table(new_path).new_append().create_writer()
    admin.drop_table(new_path)


def test_an_error_amid_a_query_says_what_was_written(
    make_table: MakeTable, connection: FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_table(SCHEMA)
    slice_bytes = 100 * ROWS.estimated_size() // 600
    monkeypatch.setattr("fluss_df.io.sinks.writing._SLICE_BYTES", slice_bytes)
    frame = ROWS.with_columns(x=pl.when(pl.col("x") == 599).then(None).otherwise("x"))
    with pytest.raises(SchemaMismatchError, match="null in row") as caught:
        sink_fluss(frame.lazy(), path, connection=connection)
    written = count(path, connection)
    assert 0 < written < 600
    assert f"{written} rows were written to {path} before: 0[0:{written}]" in str(caught.value)
    assert f"rows count from row {written} of the frame" in str(caught.value)
    assert rows_of(path, connection).equals(ROWS.head(written))


def test_an_error_of_the_query_is_raised_as_it_is(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    path = make_table(SCHEMA)
    query = ROWS.lazy().with_columns(x=(pl.col("origin") + "!").cast(pl.Int64))
    with pytest.raises(pl.exceptions.InvalidOperationError) as caught:
        sink_fluss(query, path, connection=connection)
    assert any("nothing was written" in note for note in caught.value.__notes__)
    assert count(path, connection) == 0


def test_modes(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(SCHEMA)
    keyed = make_table(SCHEMA, primary_keys=["x"])
    for table, mode, code, message in (
        (path, "overwrite", ErrorCode.CLIENT_ERROR, "cannot be overwritten"),
        (path, "upsert", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION, "use mode='append'"),
        (path, "delete", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION, "no primary key"),
        (path, "partial_update", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION, "no primary key"),
        (path, "apend", ErrorCode.CLIENT_ERROR, "did you mean 'append'"),
        (keyed, "append", ErrorCode.INVALID_TABLE_EXCEPTION, r"has a primary key \(x\)"),
        (keyed, "overwrite", ErrorCode.CLIENT_ERROR, "cannot be overwritten"),
    ):
        sinks: list[tuple[Any, Any]] = [(ROWS, write_fluss), (ROWS.lazy(), sink_fluss)]
        for frame, write in sinks:
            with pytest.raises(FlussError, match=message) as caught:
                write(frame, table, mode=mode, connection=connection)
            assert caught.value.error_code == code
    assert write_fluss(ROWS, path, mode="append", connection=connection).rows == 600


def test_a_frame_without_rows(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(SCHEMA, partition_keys=["origin"])
    for result in (
        write_fluss(ROWS.clear(), path, connection=connection),
        sink_fluss(ROWS.lazy().filter(pl.col("x") < 0), path, connection=connection),
    ):
        assert (result.rows, result.buckets) == (0, ())
    assert connection.get_admin().list_partition_infos(path) == []


def test_a_type_without_a_column_type_is_named(
    new_path: TablePath, connection: FlussConnection
) -> None:
    for values, message in (
        (pl.Series([dt.timedelta(1)]), r"column 'd' \(Duration.*cast it to int64"),
        (pl.Series([object()]), r"column 'd' \(Object"),
        (pl.Series([None]), "give the column a type"),
    ):
        frame = pl.DataFrame({"d": values})
        with pytest.raises(SchemaMismatchError, match=message):
            write_fluss(frame, new_path, connection=connection, create_if_not_exists=True)
    assert not connection.get_admin().table_exists(new_path)


def test_a_result_is_short() -> None:
    bucket = BucketResult("JFK", 0, 5, 9, 4)
    result = SinkResult(TablePath("db", "t"), 4, (bucket,), True, ("JFK",), 0.5)
    expected = "SinkResult(db.t: 4 rows; 1 buckets; table created; partitions created: JFK; 0.50 s)"
    assert repr(result) == expected
    assert str(bucket) == "JFK/0[5:9]"


def test_one_key_may_be_given_as_it_is(connection: FlussConnection, new_path: TablePath) -> None:
    for _ in range(2):
        write_fluss(
            ROWS.with_columns(origin=pl.lit("JFK")),
            new_path,
            connection=connection,
            create_if_not_exists=True,
            primary_keys=["x", "origin"],
            partition_keys="origin",
            bucket_keys="x",
            create_partitions=True,
        )
    info = connection.get_table(new_path).get_table_info()
    assert info.get_partition_keys() == ["origin"]
    assert info.get_bucket_keys() == ["x"]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pl.Series("a", [object()], dtype=pl.Object), "'a' (Object) holds Python objects"),
        (pl.Series("a", [2**100], dtype=pl.Int128), "'a' (Int128) has no Arrow type: cast it"),
        (pl.Series("a", [1], dtype=pl.UInt128), "'a' (UInt128) has no Arrow type: cast it"),
        (pl.Series("a", [1], dtype=pl.UInt64), "cast it to int64 (BIGINT) where it fits"),
        (pl.Series("a", [dt.timedelta(1)]), "cast it to int64 (BIGINT) in the unit you choose"),
        (pl.Series("a", [None]), "give the column a type"),
    ],
)
def test_a_type_that_no_table_has_is_refused_with_the_way_out(
    new_path: TablePath, connection: FlussConnection, column: pl.Series, text: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=re.escape(text)):
        write_fluss(column.to_frame(), new_path, connection=connection, create_if_not_exists=True)
    assert not connection.get_admin().table_exists(new_path)

import datetime as dt
import decimal
import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection, set_default_connection
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io import explain, fetched, last_scan, read_fluss, scan_fluss, track_scans
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable, sorted_rows, write

Engine = Literal["streaming", "in-memory"]
both_engines = pytest.mark.parametrize("engine", ["streaming", "in-memory"])

SCHEMA = pa.schema(
    {"origin": pa.string(), "x": pa.int64(), "name": pa.string(), "ratio": pa.float64()}
)
BATCHES = [
    pl.DataFrame(
        {
            "origin": [("EWR", "JFK", "LGA")[i % 3] for i in range(low, low + 300)],
            "x": list(range(low, low + 300)),
            "name": [f"name {i % 50}" if i % 7 else None for i in range(low, low + 300)],
            "ratio": [i / 4 for i in range(low, low + 300)],
        }
    )
    for low in range(0, 1500, 300)
]
FLIGHTS = pl.concat(BATCHES)


@pytest.fixture(scope="module")
def flights(make_table: MakeTable) -> TablePath:
    """A table of three partitions, with two buckets that rows are spread over by x."""
    layout = {"partition_keys": ["origin"], "bucket_keys": ["x"], "bucket_count": 2}
    return make_table(SCHEMA, *BATCHES, **layout)


@pytest.fixture
def scan(flights: TablePath, connection: FlussConnection) -> pl.LazyFrame:
    return scan_fluss(flights, connection=connection)


def last() -> Any:
    report = last_scan()
    assert report is not None
    return report


@both_engines
def test_a_scan_returns_what_was_written(scan: pl.LazyFrame, engine: Engine) -> None:
    found = scan.collect(engine=engine)
    assert found.schema == FLIGHTS.schema
    assert sorted_rows(found).equals(sorted_rows(FLIGHTS))


@both_engines
def test_rows_come_by_partition_bucket_and_offset(
    flights: TablePath, connection: FlussConnection, engine: Engine
) -> None:
    scan = scan_fluss(flights, connection=connection, include_metadata=True)
    found = scan.collect(engine=engine)
    place = ["_partition", "_bucket", "_log_offset"]
    assert found.equals(found.sort(place))
    assert found.select(place).is_unique().all()
    assert found["_partition"].to_list() == found["origin"].to_list()
    buckets = found.group_by("_partition", "_bucket").agg(pl.col("_log_offset"))
    for offsets in buckets["_log_offset"]:
        assert offsets.to_list() == list(range(len(offsets)))
    assert len(buckets) == 6
    # within a bucket, rows keep the order in which they were written
    assert found.equals(found.sort("_partition", "_bucket", "x"))


@pytest.mark.parametrize(
    "query",
    [
        lambda f: f.select("name"),
        lambda f: f.select("ratio", "x"),
        lambda f: f.filter(pl.col("origin") == "JFK"),
        lambda f: f.filter(pl.col("origin") == "JFK").select("x"),
        lambda f: f.filter(pl.col("origin") != "JFK", pl.col("x") > 700),
        lambda f: f.filter((pl.col("origin") == "JFK") | (pl.col("x") < 100)),
        lambda f: f.filter(pl.col("origin").is_in(["LGA", "nowhere"])).select(pl.col("x").sum()),
        lambda f: f.filter(pl.col("origin") == "nowhere"),
        lambda f: f.filter(pl.col("name").is_null(), pl.col("x").is_between(3, 900)),
        lambda f: f.filter(pl.col("x") == 77),
        lambda f: f.filter(pl.col("x").is_in([1, 77, 1400])).select("name"),
        lambda f: f.filter(pl.lit(False)),
        lambda f: f.head(7),
        lambda f: f.head(450).select("x"),
        lambda f: f.head(450).filter(pl.col("origin") == "JFK"),
        lambda f: f.filter(pl.col("origin") == "JFK").head(3),
        lambda f: f.tail(9),
        lambda f: f.slice(240, 20),
        lambda f: f.slice(-20, 5),
        lambda f: f.limit(0),
        lambda f: f.select(pl.len()),
        lambda f: f.filter(pl.col("origin") > "F").select(pl.len()),
        lambda f: f.with_row_index().filter(pl.col("index") > 1490),
        lambda f: f.group_by("origin").agg(pl.col("ratio").sum()).sort("origin"),
        lambda f: f.join(f.select("x", other="name"), on="x", maintain_order="left"),
        lambda f: pl.concat([f.filter(pl.col("x") < 5), f.filter(pl.col("x") > 1490)]),
        lambda f: f.select(pl.col("x").cast(pl.String).str.len_chars().max()),
        lambda f: f.sort("x", descending=True).head(4),
    ],
)
@both_engines
def test_queries_answer_as_plain_polars(scan: pl.LazyFrame, engine: Engine, query: Any) -> None:
    rows = scan.collect()
    expected = query(rows.lazy()).collect()
    found = query(scan).collect(engine=engine)
    assert found.equals(expected)
    assert found.schema == expected.schema


def test_only_needed_columns_partitions_and_buckets_are_fetched(scan: pl.LazyFrame) -> None:
    scan.collect()
    everything = last()
    assert everything.columns == ("origin", "x", "name", "ratio")
    assert everything.partitions == ("EWR", "JFK", "LGA")
    assert everything.buckets == 6
    assert everything.rows == 1500
    assert everything.requests >= 1
    scan.filter(pl.col("origin") == "JFK").select("x").collect()
    some = last()
    assert some.columns == ("origin", "x")
    assert some.partitions == ("JFK",)
    assert some.buckets == 2
    assert some.rows == 500
    assert 0 < some.bytes < everything.bytes / 3
    assert some.plan.pushed == ("origin == 'JFK'",)
    scan.filter(pl.col("origin") == "JFK", pl.col("x") == 100).collect()
    assert last().buckets == 1


def test_a_limit_is_pushed_as_offsets(scan: pl.LazyFrame) -> None:
    assert scan.head(3).collect().height == 3
    assert last().rows == 3
    assert last().plan.limit == 3
    assert [split.rows for split in last().plan.splits] == [3]
    assert scan.tail(3).collect().height == 3
    assert last().rows == 3


def test_metadata_that_is_known_is_not_fetched(
    flights: TablePath, connection: FlussConnection
) -> None:
    scan = scan_fluss(flights, connection=connection, include_metadata=True)
    place = ["_partition", "_bucket", "_log_offset"]
    found = scan.select(place).collect()
    assert last().requests == 0
    assert found.equals(scan.collect().select(place))
    found = scan.filter(
        pl.col("_partition") == "LGA", pl.col("_bucket") == 1, pl.col("_log_offset") < 5
    ).collect()
    assert last().rows == found.height == 5
    times = scan.select(pl.col("_commit_timestamp").n_unique()).collect().item()
    assert times >= 1


@both_engines
def test_own_columns_may_have_the_names_of_metadata(
    make_table: MakeTable, connection: FlussConnection, engine: Engine
) -> None:
    own = pl.DataFrame({"_bucket": [70, 80, 90], "_partition": ["a", "b", "a"]})
    schema = pa.schema({"_bucket": pa.int64(), "_partition": pa.string()})
    path = make_table(schema, own, bucket_count=1)
    scan = scan_fluss(path, connection=connection)
    for name in own.columns:
        assert_frame_equal(scan.select(name).collect(engine=engine), own.select(name))
    assert_frame_equal(scan.collect(engine=engine), own)
    for condition in (pl.col("_bucket") == 80, pl.col("_partition") == "a"):
        found = scan.filter(condition).collect(engine=engine)
        assert_frame_equal(found, own.filter(condition))
    assert scan.select(pl.len()).collect(engine=engine).item() == 3


@pytest.mark.parametrize("own", ["_bucket", "_partition"])
def test_an_own_column_beside_metadata(
    make_table: MakeTable, connection: FlussConnection, own: str
) -> None:
    rows = pl.DataFrame({own: ["70", "80"], "p": ["a", "b"]})
    schema = pa.schema({own: pa.string(), "p": pa.string()})
    path = make_table(schema, rows, partition_keys=["p"], bucket_count=1)
    other = "_bucket" if own == "_partition" else "_partition"
    scan = scan_fluss(path, include_metadata=[other], connection=connection)
    found = scan.select(own, other).collect()
    places = ["a", "b"] if other == "_partition" else [0, 0]
    assert found.rows() == list(zip(["70", "80"], places, strict=True))
    assert scan.filter(pl.col(own) == "80").select(own).collect().rows() == [("80",)]
    assert scan.select(other).collect().height == 2


@pytest.mark.parametrize("metadata", [["_log_offset"], ["_bucket", "_partition"], "_bucket"])
def test_metadata_columns_by_name(
    flights: TablePath, connection: FlussConnection, metadata: Any
) -> None:
    scan = scan_fluss(flights, connection=connection, include_metadata=metadata)
    names = [metadata] if isinstance(metadata, str) else metadata
    assert sorted(scan.collect_schema().names()[4:]) == sorted(names)
    assert sorted(scan.collect().columns[4:]) == sorted(names)


def test_columns_partitions_and_buckets_can_be_chosen(
    flights: TablePath, connection: FlussConnection
) -> None:
    def read(**options: Any) -> pl.DataFrame:
        return read_fluss(flights, connection=connection, include_metadata=True, **options)

    rows = read()
    assert read(columns=["ratio", "x"]).columns[:2] == ["ratio", "x"]
    for chosen in ("JFK", ["JFK"], {"origin": "JFK"}, [{"origin": "JFK"}, "JFK"]):
        assert read(partitions=chosen).equals(rows.filter(pl.col("origin") == "JFK"))
    both = read(partitions=["LGA", "EWR"])
    assert both.equals(rows.filter(pl.col("origin") != "JFK"))
    assert read(buckets=1).equals(rows.filter(pl.col("_bucket") == 1))
    assert read(buckets=[1, 0], partitions="LGA").equals(rows.filter(pl.col("origin") == "LGA"))


def test_offsets_can_be_chosen(make_table: MakeTable, connection: FlussConnection) -> None:
    schema = pa.schema({"x": pa.int64()})
    frames = [pl.DataFrame({"x": range(i * 10, i * 10 + 10)}) for i in range(4)]
    path = make_table(schema, *frames)

    def xs(**options: Any) -> list[int]:
        return read_fluss(path, connection=connection, **options)["x"].to_list()

    assert xs(start=25) == list(range(25, 40))
    assert xs(start=0, stop=7) == list(range(7))
    assert xs(start=5, stop={0: 8}) == [5, 6, 7]
    assert xs(start={0: 38}) == [38, 39]
    assert xs(stop=1000) == list(range(40))
    assert xs(start="latest") == []
    assert xs(stop="earliest") == []
    assert xs(start=30, stop=20) == []
    times = read_fluss(path, connection=connection, include_metadata=["_commit_timestamp"])
    third = times["_commit_timestamp"][20]
    before = times.filter(pl.col("_commit_timestamp") < third).height
    assert xs(start=third) == list(range(before, 40))
    assert xs(stop=third) == list(range(before))
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    assert xs(stop=tomorrow) == list(range(40))
    assert xs(start=tomorrow) == []


def test_offsets_of_partitions_can_be_chosen(
    flights: TablePath, connection: FlussConnection
) -> None:
    rows = read_fluss(flights, connection=connection, include_metadata=True)
    found = read_fluss(
        flights, connection=connection, include_metadata=True, start={("JFK", 0): 10, ("LGA", 1): 3}
    )
    skipped = {("JFK", 0): 10, ("LGA", 1): 3}
    low = pl.struct("_partition", "_bucket").map_elements(
        lambda place: skipped.get((place["_partition"], place["_bucket"]), 0), pl.Int64
    )
    assert found.equals(rows.filter(pl.col("_log_offset") >= low))


def test_stop_offsets_are_pinned_when_a_query_starts(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    rows = pl.DataFrame({"x": range(100)})
    path = make_table(pa.schema({"x": pa.int64()}), rows)
    scan = scan_fluss(path, connection=connection)
    batches = scan.collect_batches(chunk_size=10, maintain_order=True)
    first = next(iter(batches))
    write(connection, path, rows)
    assert first.height + sum(batch.height for batch in batches) == 100
    # and again for every query
    assert scan.collect().height == 200


def test_one_query_reads_equal_scans_once(scan: pl.LazyFrame) -> None:
    with track_scans() as scans:
        joined = scan.join(scan.select("x", twin="ratio"), on="x").collect()
    assert joined.height == 1500
    assert [report.rows for report in scans] == [1500]


def test_the_schema_of_a_frame_stays(make_table: MakeTable, connection: FlussConnection) -> None:
    schema = pa.schema({"x": pa.int64(), "y": pa.string()})
    path = make_table(schema, pl.DataFrame({"x": [1], "y": ["a"]}))
    scan = scan_fluss(path, connection=connection)
    admin = connection.get_admin()
    admin.drop_table(path)
    with pytest.raises(FlussError) as caught:
        scan.collect()
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
    wider = pa.schema({"z": pa.int32(), "y": pa.string(), "x": pa.int64()})
    recreate(connection, path, wider)
    write(connection, path, pl.DataFrame({"z": [1], "y": ["b"], "x": [2]}))
    assert scan.collect().rows() == [(2, "b")]
    admin.drop_table(path)
    recreate(connection, path, pa.schema({"x": pa.string(), "y": pa.string()}))
    with pytest.raises(SchemaMismatchError, match=r"'x' \(int64\) is string now"):
        scan.collect()


def recreate(connection: FlussConnection, path: TablePath, schema: pa.Schema) -> None:
    from fluss_df.schema import Schema, TableDescriptor

    connection.get_admin().create_table(path, TableDescriptor(Schema(schema), bucket_count=1))


def test_many_small_buckets_are_few_requests(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    rows = pl.DataFrame({"p": [f"p{i:02}" for i in range(30)] * 4, "x": range(120)})
    layout = {"partition_keys": ["p"], "bucket_keys": ["x"], "bucket_count": 4}
    path = make_table(pa.schema({"p": pa.string(), "x": pa.int64()}), rows, **layout)
    found = read_fluss(path, connection=connection)
    assert sorted_rows(found).equals(sorted_rows(rows))
    assert last().requests <= 5
    assert last().buckets > 30


@both_engines
def test_every_type_comes_as_polars_reads_it(
    make_table: MakeTable, connection: FlussConnection, engine: Engine
) -> None:
    table = pa.table(
        {
            "bool": [True, None],
            "i8": pa.array([-128, None], pa.int8()),
            "i16": pa.array([-32768, None], pa.int16()),
            "i32": pa.array([-(2**31), None], pa.int32()),
            "i64": pa.array([-(2**63), None], pa.int64()),
            "f32": pa.array([float("nan"), None], pa.float32()),
            "f64": pa.array([-0.0, None], pa.float64()),
            "s": ["\U0001f600 and more than twelve bytes", None],
            "bin": pa.array([b"\x00\xff" * 10, None], pa.binary()),
            "fixed": pa.array([b"abc", None], pa.binary(3)),
            "dec": pa.array([decimal.Decimal("-1.50"), None], pa.decimal128(38, 2)),
            "day": pa.array([dt.date(2024, 2, 29), None], pa.date32()),
            "t_s": pa.array([dt.time(1, 2, 3), None], pa.time32("s")),
            "t_us": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
            "ts_s": pa.array([0, None], pa.timestamp("s")),
            "ts_ns": pa.array([1, None], pa.timestamp("ns")),
            "ltz": pa.array([1, None], pa.timestamp("us", "UTC")),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "names": pa.array([["a", None], None], pa.list_(pa.string())),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "row": pa.array(
                [{"a": 1, "b": "x"}, None], pa.struct({"a": pa.int8(), "b": pa.string()})
            ),
        }
    )
    expected = pl.from_arrow(table)
    assert isinstance(expected, pl.DataFrame)
    path = make_table(table.schema, expected)
    scan = scan_fluss(path, connection=connection)
    assert scan.collect_schema() == expected.schema
    found = scan.collect(engine=engine)
    assert found.schema == expected.schema
    assert found.equals(expected)


def test_explain_tells_what_would_be_read(flights: TablePath, scan: pl.LazyFrame) -> None:
    query = scan.filter(pl.col("origin") == "JFK", pl.col("ratio") > 1).select("x")
    text = explain(query)
    assert text.startswith(f"FLUSS SCAN {flights}\n")
    for line in (
        "  columns    3 of 4: origin, x, ratio\n",
        "  partitions 1 of 3: JFK\n",
        "  buckets    2 of 6\n",
        "  offsets    500 rows: JFK/0[0:",
        "  pushed     origin == 'JFK'\n",
        "  residual   ratio > 1.0",
    ):
        assert line in text
    assert "pushed: origin == 'JFK'" in query.explain()
    assert "limit      5" in explain(scan.head(5))
    assert explain(pl.LazyFrame({"x": [1]})) == ""
    two = pl.concat([scan.filter(pl.col("x") < 5), scan.filter(pl.col("x") > 9)])
    assert explain(two).count("FLUSS SCAN") == 2


def test_what_a_query_fetched_can_be_asked_of_it(scan: pl.LazyFrame) -> None:
    one = scan.filter(pl.col("origin") == "JFK").select("x")
    two = scan.select("x", "name")
    assert fetched(one) == []
    one.collect()
    two.collect()
    assert [report.rows for report in fetched(one)] == [500]
    assert [report.rows for report in fetched(two)] == [1500]
    text = str(fetched(one)[0])
    assert "2 of 4 columns, 1 of 3 partitions, 2 of 6 buckets" in text


def test_scans_of_a_block_are_tracked(scan: pl.LazyFrame) -> None:
    with track_scans() as scans:
        pl.collect_all([scan.select("x"), scan.filter(pl.col("origin") == "JFK")])
        scan.head(1).collect()
    scan.collect()
    assert len(scans) in (2, 3)
    assert scans[-1].rows == 1
    assert repr(scans).count("fetched of") == len(scans)
    with track_scans() as none:
        pass
    assert repr(none) == "no scans"


def test_a_default_connection_serves(
    flights: TablePath, connection: FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(FlussError, match="set_default_connection"):
        scan_fluss(flights)
    set_default_connection(connection)
    try:
        assert scan_fluss(flights).head(2).collect().height == 2
    finally:
        set_default_connection(None)
    address = connection.config.bootstrap_servers
    url = f"fluss://{address}/{flights.database_name}"
    assert scan_fluss(flights.table_name, connection=url).head(2).collect().height == 2
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", address)
    assert scan_fluss(str(flights)).head(2).collect().height == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"columns": ["nam"]}, ErrorCode.CLIENT_ERROR, "'nam' does not exist.*did you mean 'name'"),
        ({"columns": "name"}, ErrorCode.CLIENT_ERROR, "expected a list of names"),
        ({"partitions": "BOS"}, ErrorCode.PARTITION_NOT_EXISTS, "BOS' .*EWR, JFK, LGA"),
        ({"partitions": {"origin": "BOS"}}, ErrorCode.PARTITION_NOT_EXISTS, "BOS"),
        ({"partitions": {"from": "JFK"}}, ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION, "'from'"),
        ({"partitions": 3}, ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION, "3 names no partition"),
        ({"buckets": 2}, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, "buckets are 0 to 1"),
        ({"buckets": ["a"]}, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, "no bucket 'a'"),
        ({"start": -5}, ErrorCode.CLIENT_ERROR, "start=-5: expected 'earliest'"),
        ({"stop": "now"}, ErrorCode.CLIENT_ERROR, "stop='now': expected 'earliest'"),
        ({"start": dt.datetime(2024, 1, 1)}, ErrorCode.CLIENT_ERROR, "needs a time zone"),
        ({"start": {0: 1}}, ErrorCode.CLIENT_ERROR, r"expected \(partition name, bucket\)"),
        ({"start": {("JFK", 7): 1}}, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, "no bucket 7"),
        ({"start": {("BOS", 0): 1}}, ErrorCode.PARTITION_NOT_EXISTS, "start: .*'BOS'"),
        ({"start": {("JFK", 0): -1}}, ErrorCode.CLIENT_ERROR, "offset -1"),
        ({"include_metadata": ["offset"]}, ErrorCode.CLIENT_ERROR, "no metadata column"),
    ],
)
def test_arguments_that_cannot_be_met_are_named(
    flights: TablePath,
    connection: FlussConnection,
    options: dict[str, Any],
    code: int,
    message: str,
) -> None:
    with pytest.raises(FlussError, match=message) as caught:
        scan_fluss(flights, connection=connection, **options)
    assert caught.value.error_code == code


def test_an_offset_out_of_range_is_named(flights: TablePath, connection: FlussConnection) -> None:
    scan = scan_fluss(flights, connection=connection, start={("JFK", 0): 10_000})
    with pytest.raises(FlussError, match="offset 10000 of bucket JFK/0") as caught:
        scan.collect()
    assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_tables_that_cannot_be_scanned_are_named(connection: FlussConnection) -> None:
    for name, code in (
        ("io.missing", ErrorCode.TABLE_NOT_EXIST),
        ("nowhere.missing", ErrorCode.DATABASE_NOT_EXIST),
        ("io.no spaces", ErrorCode.INVALID_TABLE_EXCEPTION),
        (3, ErrorCode.INVALID_TABLE_EXCEPTION),
    ):
        with pytest.raises(FlussError) as caught:
            scan_fluss(name, connection=connection)  # type: ignore[arg-type]
        assert caught.value.error_code == code
    with pytest.raises(FlussError) as caught:
        scan_fluss("io.t", connection="127.0.0.1:1")
    assert caught.value.error_code == ErrorCode.NETWORK_EXCEPTION


def test_partitions_of_a_table_without(make_table: MakeTable, connection: FlussConnection) -> None:
    path = make_table(pa.schema({"x": pa.int64()}))
    with pytest.raises(FlussError, match="has no partitions") as caught:
        scan_fluss(path, connection=connection, partitions="a")
    assert caught.value.error_code == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


def test_an_empty_table(make_table: MakeTable, connection: FlussConnection) -> None:
    layout = {"partition_keys": ["p"]}
    for path in (
        make_table(pa.schema({"p": pa.string()})),
        make_table(pa.schema({"p": pa.string()}), **layout),
    ):
        found = scan_fluss(path, connection=connection, include_metadata=True).collect()
        assert found.height == 0
        assert last().rows == 0


def test_partition_values_of_any_type(make_table: MakeTable, connection: FlussConnection) -> None:
    days = [dt.date(2024, 1, 31), dt.date(2024, 2, 1)]
    rows = pl.DataFrame(
        [(day, number, x) for x, (day, number) in enumerate(itertools.product(days, [7, -7]))],
        schema={"day": pl.Date, "number": pl.Int32, "x": pl.Int64},
        orient="row",
    )
    schema = pa.schema({"day": pa.date32(), "number": pa.int32(), "x": pa.int64()})
    path = make_table(schema, rows, partition_keys=["day", "number"])
    scan = scan_fluss(path, connection=connection)
    found = scan.filter(pl.col("day").dt.month() == 2, pl.col("number") > 0).collect()
    assert found["x"].to_list() == [2]
    assert last().partitions == ("2024-02-01$7",)
    chosen = {"day": dt.date(2024, 1, 31)}
    assert sorted(read_fluss(path, connection=connection, partitions=chosen)["x"]) == [0, 1]


def test_a_filter_on_the_commit_timestamp_reads_only_what_came_since(
    connection: FlussConnection, make_table: MakeTable
) -> None:
    schema = pa.schema({"x": pa.int64()})
    path = make_table(schema, bucket_count=2)
    for start in (0, 1000, 2000):
        write(connection, path, pl.DataFrame({"x": range(start, start + 1000)}))
        time.sleep(0.05)
    scan = scan_fluss(path, connection=connection, include_metadata=["_commit_timestamp"])
    everything = scan.collect()
    moments = everything["_commit_timestamp"].unique().sort()
    assert len(moments) >= 3
    for condition in (
        pl.col("_commit_timestamp") > moments[0],
        pl.col("_commit_timestamp") >= moments[-1],
        pl.col("_commit_timestamp").is_between(moments[1], moments[1]),
        pl.col("_commit_timestamp") == moments[0],
        pl.col("_commit_timestamp") > dt.datetime(2100, 1, 1, tzinfo=dt.UTC),
    ):
        query = scan.filter(condition)
        assert query.collect().equals(everything.filter(condition))
    last = scan.filter(pl.col("_commit_timestamp") >= moments[-1])
    last.collect()
    (report,) = fetched(last)
    assert report.rows == everything.filter(pl.col("_commit_timestamp") >= moments[-1]).height
    assert report.rows < 3000
    assert "_commit_timestamp from" in explain(last)


def test_several_offsets_are_a_window(connection: FlussConnection, make_table: MakeTable) -> None:
    path = make_table(pa.schema({"x": pa.int64()}), pl.DataFrame({"x": range(1000)}))
    scan = scan_fluss(path, connection=connection, include_metadata=["_log_offset"])
    some = scan.filter(pl.col("_log_offset").is_in([10, 14]))
    assert some.collect()["x"].to_list() == [10, 14]
    assert fetched(some)[0].rows == 5
    part = scan.filter(pl.col("_log_offset").is_between(20, 29))
    assert part.collect()["x"].to_list() == list(range(20, 30))
    assert fetched(part)[0].rows == 10
    assert "residual   none" in explain(part)


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_window_functions_over_some_columns(scan: pl.LazyFrame, engine: Any) -> None:
    """Polars' streaming engine, left alone, takes the columns of a scan for more than it reads."""
    whole = scan.collect()
    queries: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda frame: frame.select("origin", "x").with_columns(n=pl.len().over("origin")),
        lambda frame: frame.select(pl.col("x").rank("ordinal").over("origin")),
        lambda frame: frame.filter(pl.col("x") > 1).select(s=pl.col("x").sum().over("origin")),
        lambda frame: frame.with_columns(s=pl.col("x").cum_sum().over("origin")).select("s", "x"),
    ]
    for query in queries:
        found = query(scan).collect(engine=engine)
        assert_frame_equal(found, query(whole.lazy()).collect(engine="in-memory"))
        batches = list(query(scan).collect_batches())
        assert sum(batch.height for batch in batches) == found.height

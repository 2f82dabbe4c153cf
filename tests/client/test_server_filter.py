"""Filters that servers judge log batches by: the same rows with them, and fewer batches (1.0)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.layout.headers import scan_headers
from tests.client.support import Tables
from tests.embedded.raw import RawClient

N, BATCH = 4_000, 200
STATISTICS = "table.statistics.columns"
UTC = dt.UTC


def data() -> pa.Table:
    ids = range(N)
    start = dt.datetime(1969, 12, 31, 23)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([i // 20 % 128 for i in ids], pa.int8()),
            "text": [f"key {i // 100:05}" if i % 50 else None for i in ids],
            "short": [chr(65 + i // 200) for i in ids],
            "x": [i / 7 - 100 if i % 1000 else float("nan") for i in ids],
            "zero": pa.array([-0.0 if i < N // 2 else 0.0 for i in ids], pa.float32()),
            "price": pa.array([Decimal(i - 100) / 100 for i in ids], pa.decimal128(10, 2)),
            "large": pa.array([Decimal(i * 10**15) for i in ids], pa.decimal128(25, 0)),
            "at": pa.array([start + dt.timedelta(microseconds=i) for i in ids], pa.timestamp("us")),
            "day": pa.array([dt.date(1969, 12, 1) + dt.timedelta(i // 100) for i in ids]),
            "flag": [i >= N // 2 for i in ids],
            "half": pa.array([None if i < N // 2 else i for i in ids], pa.int32()),
        }
    )


@pytest.fixture(scope="module")
def table(tables: Tables) -> fluss.FlussTable:
    """A table with statistics where the server knows them, of batches of BATCH rows."""
    try:
        made = tables(data().schema, properties={STATISTICS: "*"})
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_CONFIG_EXCEPTION:
            raise
        made = tables(data().schema)
    with made.new_append().create_writer() as writer:
        for start in range(0, N, BATCH):
            writer.write_arrow(data().slice(start, BATCH))
            writer.flush()
    return made


c = pl.col
#: conditions, and how many of the 20 batches have to be read for them where there are statistics
CASES: list[tuple[pl.Expr, int]] = [
    (c("id") == 7, 1),
    (c("id") > 3_900, 1),
    (c("id") == -5, 0),
    (c("id") != 5, 20),
    (~c("id").is_between(100, 3_900), 2),
    ((c("id") == 7) | (c("id") == 3_900), 2),
    ((c("id") < 300) & (c("x") * 2 > 0), 2),
    (c("small") == 5, 3),  # one batch has the smallest and the largest value
    (c("text") == "key 00007", 1),
    (c("text").is_null(), 20),
    (c("text").str.starts_with("key 0003"), 5),
    (c("short").is_in(["A", "C", "z"]), 2),
    (c("x") < -99, 1),
    (c("x") > 450, 5),  # NaN is larger than any number
    (c("x").is_nan(), 20),
    (c("zero") == 0, 20),
    (c("price") == Decimal("-0.50"), 1),
    (c("price") > Decimal("38.99"), 0),
    (c("large") >= Decimal(3_999 * 10**15), 1),
    (c("at") < dt.datetime(1969, 12, 31, 23, 0, 0, 150), 1),
    (c("day") == dt.date(1970, 1, 5), 1),
    (c("flag"), 10),
    (~c("flag"), 10),
    (c("half").is_null(), 10),
    (c("half").is_not_null(), 10),
]


@pytest.mark.parametrize(("condition", "batches"), CASES, ids=lambda v: str(v)[:50])
def test_rows_are_the_same_and_batches_fewer(
    tables: Tables, table: fluss.FlussTable, condition: pl.Expr, batches: int
) -> None:
    frame = fluss.scan_fluss(table.get_table_path(), connection=tables.connection)
    got = frame.filter(condition).collect()
    assert got.equals(pl.DataFrame(data()).filter(condition))
    report = fluss.last_scan()
    assert report is not None
    has_statistics = STATISTICS in table.get_table_info().get_properties()
    assert report.batches == (batches if has_statistics else N // BATCH)


def test_the_client_filters_too(table: fluss.FlussTable) -> None:
    scan = table.new_scan().filter(fluss.col("id") >= N - 3)
    scanner = scan.create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert scanner.to_arrow().column("id").to_pylist() == [N - 3, N - 2, N - 1]
    records = scan.create_log_scanner()
    records.subscribe(0, fluss.EARLIEST_OFFSET)
    found: list[int] = []
    while len(found) < 3:
        found += [record.offset for record in records.poll(1_000)]
    assert found == [N - 3, N - 2, N - 1]


def test_slices_count_rows_before_the_filter(tables: Tables, table: fluss.FlussTable) -> None:
    frame = fluss.scan_fluss(table.get_table_path(), connection=tables.connection)
    plain = pl.DataFrame(data()).lazy()
    queries: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda f: f.slice(150, 300).filter(c("id") % 2 == 0).select("id"),
        lambda f: f.filter(c("id") >= 3_990).head(3),
        lambda f: f.tail(250).filter(c("id") < 3_800),
        lambda f: f.with_row_index().filter(c("id") == 3_000),
    ]
    for query in queries:
        assert query(frame).collect().equals(query(plain).collect())


def test_what_is_asked_is_shown(tables: Tables, table: fluss.FlussTable) -> None:
    frame = fluss.scan_fluss(table.get_table_path(), connection=tables.connection)
    text = fluss.explain(frame.filter(c("id") > 7, c("x").is_nan()))
    asked = STATISTICS in table.get_table_info().get_properties()
    assert ("skipped by statistics unless id > 7" in text) == asked


def number(value: int | None, kind: int = 4) -> pb.LiteralValue:
    if value is None:
        return pb.LiteralValue(literal_type=kind, is_null=True)
    return pb.LiteralValue(literal_type=kind, is_null=False, bigint_value=value, int_value=value)


def leaf(function: int, *literals: pb.LiteralValue, field: int = 0) -> pb.Predicate:
    asked = pb.LeafPredicate(function=function, field_id=field, literals=literals)
    return pb.Predicate(type=0, leaf=asked)


def compound(function: int, *children: pb.Predicate) -> pb.Predicate:
    asked = pb.CompoundPredicate(function=function, children=children)
    return pb.Predicate(type=1, compound=asked)


ALL = list(range(0, N, BATCH))
HALF = ALL[:10]
NEVER, UNKNOWN = leaf(2, number(-1)), leaf(0, number(7), field=99)
#: filter, schema, first offset, columns: where the batches begin, and how far they were looked at
ANSWERS: list[tuple[pb.Predicate, int, int, list[int], list[int], int | None]] = [
    (leaf(0, number(7)), 1, 0, [], [0], N),
    (leaf(0, number(7)), 1, 150, [], [0], N),
    (leaf(0, number(7)), 1, 200, [], [], N),
    (leaf(0, number(3_999)), 1, 0, [], [3_800], None),
    (leaf(0, number(3_999)), 1, 0, [0, 3], [3_800], None),
    (leaf(0, number(7)), 1, N, [], [], None),
    (NEVER, 1, 0, [], [], N),
    (leaf(0, number(None)), 1, 0, [], [], N),
    (leaf(11, number(7), number(3_000), number(None)), 1, 0, [], [0, 3_000], N),
    (leaf(11), 1, 0, [], [], N),
    (leaf(12, number(7)), 1, 0, [], ALL, None),
    (leaf(12, number(None)), 1, 0, [], [], N),
    (leaf(6), 1, 0, [], [], N),
    (leaf(7), 1, 0, [], ALL, None),
    (leaf(6, field=11), 1, 0, [], HALF, N),
    # what cannot be judged is returned, what need not be judged is not
    (leaf(0), 1, 0, [], ALL, None),
    (leaf(0, number(7), field=3), 1, 0, [], ALL, None),
    (leaf(0, number(7, 3)), 1, 0, [], ALL, None),
    (leaf(77, number(7)), 1, 0, [], ALL, None),
    (compound(0, NEVER, leaf(0)), 1, 0, [], [], N),
    (compound(0, leaf(0), NEVER), 1, 0, [], ALL, None),
    (compound(0, NEVER, UNKNOWN), 1, 0, [], ALL, None),
    (compound(1), 1, 0, [], [], N),
    (compound(0), 1, 0, [], ALL, None),
    (compound(7, NEVER), 1, 0, [], ALL, None),
    (pb.Predicate(type=5), 1, 0, [], ALL, None),
    (NEVER, 9, 0, [], ALL, None),
]


def fetched(address: str, request: pb.FetchLogRequest) -> tuple[int, list[int], int | None]:
    with RawClient(address) as client:
        node = client.call(api.GET_METADATA, pb.MetadataRequest()).tablet_servers[0]
    with RawClient(f"{node.host}:{node.port}") as client:
        client.hello()
        answer = client.ask(api.FETCH_LOG, request)
    if answer.type:
        return answer.error[0], [], None
    bucket = pb.FetchLogResponse.FromString(answer.body).tables_resp[0].buckets_resp[0]
    end = bucket.filtered_end_offset if bucket.HasField("filtered_end_offset") else None
    headers = scan_headers(bucket.records, require_progress=False)
    return bucket.error_code, headers.base_offset.tolist(), end


def fetch(table: fluss.FlussTable, offset: int = 0, columns: list[int] | None = None) -> Any:
    part = pb.FetchLogRequestForBucket(bucket_id=0, fetch_offset=offset, max_fetch_bytes=1 << 24)
    asked = pb.FetchLogRequestForTable(
        table_id=table.get_table_info().table_id,
        projection_pushdown_enabled=bool(columns),
        projected_fields=columns or [],
        buckets_req=[part],
    )
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=1 << 24, max_wait_ms=0, tables_req=[asked]
    )


@pytest.mark.parametrize("case", range(len(ANSWERS)))
def test_what_servers_answer(address: str, table: fluss.FlussTable, case: int) -> None:
    predicate, schema_id, offset, columns, begins, end = ANSWERS[case]
    request = fetch(table, offset, columns)
    request.tables_req[0].filter_predicate.CopyFrom(predicate)
    request.tables_req[0].filter_schema_id = schema_id
    if STATISTICS not in table.get_table_info().get_properties():
        begins, end = [begin for begin in ALL if begin + BATCH > offset], None
    assert fetched(address, request) == (0, begins, end)


def test_a_filter_names_its_schema(address: str, table: fluss.FlussTable) -> None:
    request = fetch(table)
    request.tables_req[0].filter_predicate.CopyFrom(NEVER)
    knows = STATISTICS in table.get_table_info().get_properties()
    assert fetched(address, request)[0] == (-1 if knows else 0)
    request.tables_req[0].filter_schema_id = -1
    assert fetched(address, request)[0] == (-1 if knows else 0)


@pytest.mark.parametrize("wanted", ["nope", " ", "a,b", "raw"])
def test_columns_that_have_no_statistics_are_refused(tables: Tables, wanted: str) -> None:
    schema = pa.schema([("a", pa.int32()), ("raw", pa.binary())])
    with pytest.raises(FlussError) as caught:
        tables(schema, properties={STATISTICS: wanted})
    assert caught.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    with pytest.raises(FlussError) as caught:
        tables(schema, ["a"], properties={STATISTICS: "a"})
    assert caught.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


@pytest.mark.parametrize("beginning", ["\U0001f600", "\ufffd", "a\ue000", "\u4e2d", "\ud7ff", ""])
def test_beginnings_that_utf_16_puts_in_another_order(tables: Tables, beginning: str) -> None:
    texts = pa.table(
        {"text": ["\ufffdx", "\U0001f600 hello", "a\ue000b", "\u4e2d\U0001f600", "\ud7ff"]}
    )
    try:
        made = tables(texts.schema, properties={STATISTICS: "*"})
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_CONFIG_EXCEPTION:
            raise
        made = tables(texts.schema)
    with made.new_append().create_writer() as writer:
        writer.write_arrow(texts)
    info = made.get_table_info()
    scan = fluss.scan_fluss(info.table_path, connection=tables.connection)
    wanted = pl.DataFrame(texts).filter(c("text").str.starts_with(beginning))
    assert_frame_equal(scan.filter(c("text").str.starts_with(beginning)).collect(), wanted)

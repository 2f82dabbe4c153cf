"""Filters as clients send them, and as servers judge batches by them: no row is lost between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import fluss_df as fluss
from fluss_df.errors import FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.pushdown.batch_filter import BatchFilter
from fluss_df.pushdown.column import col
from fluss_df.pushdown.evaluate import bind, evaluate
from fluss_df.pushdown.from_polars import from_polars
from fluss_df.pushdown.predicate import Predicate, UnsupportedExpression
from fluss_df.pushdown.server_filter import ServerFilter, server_filter
from fluss_df.record.log.statistics import encode_statistics, statistics_columns
from fluss_df.schema import Schema, TableInfo
from tests.pushdown.expressions import EXPRESSIONS, ROWS, SCHEMA

IS_NULL, IS_NOT_NULL, STARTS_WITH, CONTAINS, ENDS_WITH, IN, NOT_IN = 6, 7, 8, 9, 10, 11, 12
BIGINT, STRING = 4, 8
BINARY, BYTES = 14, 15


def table_info(schema: pa.Schema, statistics: str | None = "*", **described: Any) -> TableInfo:
    # with the ids that a server gives to columns
    keys = described.pop("primary_key", None)
    made = fluss.Schema(schema, primary_keys=keys) if keys else fluss.Schema(schema)
    properties = {} if statistics is None else {"table.statistics.columns": statistics}
    descriptor = fluss.TableDescriptor(
        fluss.Schema.from_json(made.to_json()), bucket_count=1, properties=properties, **described
    )
    return TableInfo(fluss.TablePath("db", "t"), 7, 1, descriptor, 0, 0)


def keeps(info: TableInfo, made: ServerFilter | pb.Predicate, batch: pa.RecordBatch) -> bool:
    """Whether a server sends a batch that this client has written."""
    predicate = made.predicate if isinstance(made, ServerFilter) else made
    statistics = encode_statistics(batch, statistics_columns(info))
    judge = BatchFilter(predicate, 1, {1: info.schema})
    return judge.keeps(1, batch.num_rows, memoryview(statistics))


INFO = table_info(SCHEMA)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(expression=EXPRESSIONS, rows=ROWS)
def test_a_batch_with_a_row_that_passes_is_kept(
    expression: pl.Expr, rows: dict[str, list[Any]]
) -> None:
    batch = pa.record_batch(rows, schema=SCHEMA)
    try:
        predicate = from_polars(expression, SCHEMA)
    except UnsupportedExpression:
        assume(False)
    made = server_filter(INFO, [predicate])
    if made is not None and pc.any(evaluate(predicate, batch)).as_py():
        assert keeps(INFO, made, batch), made.text


# ---- exactly which batches are kept, by a plain model of minimum, maximum and nulls

X = pa.schema({"x": pa.int64()})
BUCKET_OF_X = table_info(X)


def number(value: int | None) -> pb.LiteralValue:
    if value is None:
        return pb.LiteralValue(literal_type=BIGINT, is_null=True)
    return pb.LiteralValue(literal_type=BIGINT, is_null=False, bigint_value=value)


def text(value: str) -> pb.LiteralValue:
    return pb.LiteralValue(literal_type=STRING, is_null=False, string_value=value)


def leaf(function: int, *literals: pb.LiteralValue, field: int = 0) -> pb.Predicate:
    found = pb.LeafPredicate(function=function, field_id=field, literals=literals)
    return pb.Predicate(type=0, leaf=found)


def compound(function: int, *children: pb.Predicate) -> pb.Predicate:
    return pb.Predicate(type=1, compound=pb.CompoundPredicate(function=function, children=children))


def modelled(function: int, literals: list[int | None], values: list[int | None]) -> bool:
    """Whether some rows with this minimum, maximum and number of nulls can pass."""
    known = [value for value in values if value is not None]
    if function == IS_NULL:
        return len(known) < len(values)
    if function == IS_NOT_NULL:
        return bool(known)
    if not known:
        return False
    low, high = min(known), max(known)
    if function == IN:
        return any(x is not None and low <= x <= high for x in literals)
    if function == NOT_IN:
        return None not in literals and not (low == high and low in literals)
    x = literals[0]
    if x is None:
        return False
    return [low <= x <= high, not low == high == x, low < x, low <= x, high > x, high >= x][
        function
    ]


SMALL = st.integers(-3, 3)
FUNCTIONS = [*range(8), IN, NOT_IN]


@settings(max_examples=200, deadline=None)
@given(
    function=st.sampled_from(FUNCTIONS),
    literals=st.lists(st.none() | SMALL, min_size=1, max_size=3),
    values=st.lists(st.none() | SMALL, min_size=1, max_size=4),
)
@example(IN, [1, 3], [2, 2])
@example(IN, [3], [1, 2])
@example(NOT_IN, [2, 3], [2, 3])
def test_numbers_are_judged_by_their_smallest_and_largest(
    function: int, literals: list[int | None], values: list[int | None]
) -> None:
    batch = pa.record_batch({"x": values}, schema=X)
    made = leaf(function, *map(number, literals))
    assert keeps(BUCKET_OF_X, made, batch) == modelled(function, literals, values)


TEXTS = pa.schema({"x": pa.string()})
BUCKET_OF_TEXTS = table_info(TEXTS)


@pytest.mark.parametrize(
    ("function", "pattern", "kept"),
    [
        (STARTS_WITH, "b", True),
        (STARTS_WITH, "bb", True),
        (STARTS_WITH, "d", True),
        (STARTS_WITH, "da", True),
        (STARTS_WITH, "c", True),
        (STARTS_WITH, "a", False),
        (STARTS_WITH, "dc", False),
        (STARTS_WITH, "e", False),
        # minimum and maximum say nothing of the middle and the end of a text
        (CONTAINS, "zzz", True),
        (ENDS_WITH, "zzz", True),
        (0, "bbb", True),
        (0, "bba", False),
        (0, "db", True),
        (0, "dbb", False),
    ],
)
def test_texts_are_judged_by_their_beginning(function: int, pattern: str, kept: bool) -> None:
    batch = pa.record_batch({"x": ["bbb", "db", None]}, schema=TEXTS)
    assert keeps(BUCKET_OF_TEXTS, leaf(function, text(pattern)), batch) is kept


@pytest.mark.parametrize("shown", ["", "seven77", "eight888", "a longer text" * 9])
def test_texts_of_any_length_stand_in_statistics(shown: str) -> None:
    batch = pa.record_batch({"x": [shown]}, schema=TEXTS)
    assert keeps(BUCKET_OF_TEXTS, leaf(0, text(shown)), batch)
    assert not keeps(BUCKET_OF_TEXTS, leaf(1, text(shown)), batch)
    assert not keeps(BUCKET_OF_TEXTS, leaf(0, text(shown + "\0")), batch)


def test_conjunctions_need_all_of_their_parts_and_disjunctions_one() -> None:
    batch = pa.record_batch({"x": [1, 2]}, schema=X)
    yes, no = leaf(0, number(1)), leaf(0, number(9))
    for first, second in [(yes, yes), (yes, no), (no, yes), (no, no)]:
        both = first is yes and second is yes
        either = first is yes or second is yes
        assert keeps(BUCKET_OF_X, compound(0, first, second), batch) == both
        assert keeps(BUCKET_OF_X, compound(1, first, second), batch) == either


def test_a_part_that_cannot_be_judged_matters_only_where_it_is_reached() -> None:
    # the beginning of a number: a server fails on it, and keeps the batch
    batch = pa.record_batch({"x": [1, 2]}, schema=X)
    broken, no, yes = leaf(STARTS_WITH, number(1)), leaf(0, number(9)), leaf(0, number(1))
    assert keeps(BUCKET_OF_X, compound(0, broken, no), batch)
    assert not keeps(BUCKET_OF_X, compound(0, no, broken), batch)
    assert keeps(BUCKET_OF_X, compound(1, yes, broken), batch)


@pytest.mark.parametrize(
    "predicate",
    [
        pb.Predicate(type=2),
        leaf(13, number(1)),
        leaf(-1, number(1)),
        leaf(0, number(1), field=1),
        leaf(0, text("a")),
        leaf(0, pb.LiteralValue(literal_type=-1, is_null=False)),
        leaf(0, pb.LiteralValue(literal_type=16, is_null=False)),
        compound(2, leaf(0, number(1))),
    ],
    ids=["type", "function", "negative", "column", "literal", "below", "above", "compound"],
)
def test_a_filter_that_makes_no_sense_is_refused(predicate: pb.Predicate) -> None:
    with pytest.raises(FlussError, match="a filter that cannot be read"):
        BatchFilter(predicate, 1, {1: BUCKET_OF_X.schema})


def test_a_filter_on_an_unknown_schema_is_refused() -> None:
    with pytest.raises(FlussError, match="schema 2, which the table has not"):
        BatchFilter(leaf(0, number(1)), 2, {1: BUCKET_OF_X.schema})


def test_a_leaf_without_the_literal_it_needs_keeps_every_batch() -> None:
    batch = pa.record_batch({"x": [1, 2]}, schema=X)
    assert keeps(BUCKET_OF_X, leaf(0), batch)


def test_batches_of_other_schemas_are_judged_by_the_columns_they_have() -> None:
    wide = Schema.from_json(Schema(pa.schema({"x": pa.int64(), "y": pa.int64()})).to_json())
    schemas = {1: BUCKET_OF_X.schema, 2: wide}
    info = table_info(pa.schema({"x": pa.int64(), "y": pa.int64()}))
    new = pa.record_batch({"x": [1], "y": [5]}, schema=wide.arrow_schema)
    old = pa.record_batch({"x": [1]}, schema=X)
    of_new = memoryview(encode_statistics(new, statistics_columns(info)))
    of_old = memoryview(encode_statistics(old, statistics_columns(BUCKET_OF_X)))
    on_y = BatchFilter(leaf(0, number(9), field=1), 2, schemas)
    assert not on_y.keeps(2, 1, of_new)
    # the column that the older batch has not may be anything
    assert on_y.keeps(1, 1, of_old)
    assert on_y.keeps(3, 1, of_new)
    on_x = BatchFilter(leaf(0, number(9), field=0), 1, schemas)
    assert not on_x.keeps(2, 1, of_new)


def test_a_column_without_statistics_keeps_every_batch() -> None:
    schema = pa.schema({"x": pa.int64(), "y": pa.int64()})
    info = table_info(schema, "y")
    batch = pa.record_batch({"x": [1], "y": [5]}, schema=schema)
    assert keeps(info, leaf(0, number(9), field=0), batch)
    assert not keeps(info, leaf(0, number(9), field=1), batch)


# ---- which conditions become filters


def sent(info: TableInfo, *predicates: Predicate) -> str | None:
    """Return the text of what a server is given."""
    schema = info.schema.arrow_schema
    made = server_filter(info, [bind(p, schema) for p in predicates])
    return None if made is None else made.text


MIXED = table_info(
    pa.schema({"x": pa.int64(), "s": pa.string(), "f": pa.float64(), "t": pa.time32("ms")})
)


@pytest.mark.parametrize(
    ("predicates", "given"),
    [
        ([col("x") > 1, col("s") == "a"], "x > 1 and s == 'a'"),
        ([col("x") > 1, col("f") == 0.0], "x > 1"),
        ([col("f") > float("nan")], None),
        ([col("f") > 1.5], "f > 1.5"),
        ([col("x").is_in(range(200))], "x in (0, 1, 2, 3, 4, 5, 6, 7, ... 192 more)"),
        ([col("x").is_in(range(201))], None),
        ([col("x").not_in([1])], None),
        ([(col("x") == 1) | col("x").not_in([1])], None),
        ([~(col("x") > 1)], "x <= 1"),
        ([col("x").is_null() | col("s").starts_with("a")], "x is null or s starts_with 'a'"),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_what_servers_understand_is_sent(
    predicates: Iterable[Predicate], given: str | None
) -> None:
    assert sent(MIXED, *predicates) == given


def test_of_a_conjunction_the_part_that_can_be_sent_is_sent() -> None:
    schema = MIXED.schema.arrow_schema
    either = (col("x") > 5) & col("x").not_in([7]) | (col("x") < 0)
    made = server_filter(MIXED, [bind(either, schema)])
    assert made is not None
    children = made.predicate.compound.children
    assert [child.leaf.function for child in children] == [4, 2]
    batch = pa.record_batch({"x": [3], "s": ["a"], "f": [1.0], "t": [0]}, schema=schema)
    assert not keeps(MIXED, made, batch)


def test_tables_without_such_statistics_have_no_filter() -> None:
    assert sent(table_info(X, None), col("x") > 1) is None
    assert sent(table_info(X, "y"), col("x") > 1) is None
    assert sent(table_info(X, " x , y "), col("x") > 1) == "x > 1"
    timed = pa.schema({"x": pa.time32("ms")})
    assert sent(table_info(timed), col("x").is_null()) is None
    # rows before and after an update belong together
    keyed = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    assert sent(table_info(keyed, primary_key=["x"]), col("x") > 1) is None


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_are_judged_by_all_of_their_digits(unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    schema = pa.schema({"x": kind})
    info = table_info(schema)
    batch = pa.record_batch({"x": pa.array([-7, None, 1_000_001], kind)})
    for number, kept in [(-8, False), (-7, True), (0, True), (1_000_001, True), (1_000_002, False)]:
        predicate = bind(col("x") == pa.scalar(number, kind), schema)
        made = server_filter(info, [predicate])
        assert made is not None
        assert keeps(info, made, batch) is kept, number


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(3)], ids=str)
def test_bytes_have_no_statistics_and_keep_every_batch(kind: pa.DataType) -> None:
    """Clients send no such condition; a server that is asked all the same leaves nothing out."""
    info = table_info(pa.schema({"n": pa.int64(), "x": kind}))
    batch = pa.record_batch({"n": [1], "x": pa.array([b"abc"], kind)})
    for code in (BINARY, BYTES):
        literal = pb.LiteralValue(literal_type=code, is_null=False, binary_value=b"zzz")
        assert keeps(info, leaf(0, literal, field=1), batch)
        with pytest.raises(FlussError, match=r"a literal of type .* for a column of type bigint"):
            keeps(info, leaf(0, literal, field=0), batch)

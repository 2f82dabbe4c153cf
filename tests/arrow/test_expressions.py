"""What is pushed of Arrow's expressions means for each row what Arrow means by them."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import math
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.arrow.expressions import Call, Field, Literal, columns_of, nodes_of, pushed
from fluss_df.pushdown.predicate import UnsupportedExpression

NAN = math.nan
UTC = dt.UTC
MOMENT = dt.datetime(2024, 5, 1, 12, 30, 0, 123456)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [1, 2, 3, None, -(2**63), 2**63 - 1]),
    "n": (pa.int32(), [1, 2, None, 0, -(2**31), 2**31 - 1]),
    "f": (pa.float64(), [1.5, NAN, None, -0.0, 0.0, math.inf]),
    "g": (pa.float32(), [1.5, NAN, None, -0.0, -math.inf, 0.25]),
    "s": (pa.string(), ["a", "ab", "", None, "ä", "a%b'\n"]),
    "b": (pa.bool_(), [True, False, None, True, False, None]),
    "t": (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC), None] * 3),
    "m": (
        pa.timestamp("ms"),
        [MOMENT.replace(microsecond=5000), None, dt.datetime(1969, 1, 1)] * 2,
    ),
    "d": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), None, decimal.Decimal("-7.25")] * 2),
    "day": (pa.date32(), [dt.date(2024, 5, 1), None, dt.date(1969, 12, 31)] * 2),
    "at": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), None, dt.time(0)] * 2),
    "raw": (pa.binary(), [b"a", b"", None, b"\xff", b"ab", b"\x00"]),
    "r": (pa.struct({"a": pa.int64()}), [{"a": 1}, None, {"a": None}] * 2),
    "*": (pa.int64(), [1, 2, 3, None, 5, 6]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = pa.table(
    {name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()}, SCHEMA
).combine_chunks()
FRAME = pl.DataFrame(ROWS)
OTHER_TYPES = {
    "i": [pa.int8(), pa.uint64(), pa.float64()],
    "n": [pa.int64(), pa.int8()],
    "f": [pa.float32(), pa.int64()],
    "g": [pa.float64()],
    "s": [pa.large_string()],
    "t": [pa.timestamp("ns", "UTC"), pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Berlin")],
    "m": [pa.timestamp("us"), pa.timestamp("ns"), pa.date32()],
    "d": [pa.decimal128(20, 4), pa.decimal128(5, 1), pa.int64()],
    "day": [pa.timestamp("us"), pa.date64()],
    "at": [pa.time64("us")],
    "raw": [pa.large_binary()],
}


def field(*path: str) -> pc.Expression:
    return pc.field(*path)


def values_of(expression: pc.Expression) -> list[bool | None]:
    """What Arrow makes of each row."""
    found = pads.InMemoryDataset(ROWS).to_table(columns={"v": expression})
    values: list[bool | None] = found["v"].to_pylist()
    return values


def polars_values(expression: pc.Expression) -> list[list[bool | None]]:
    conditions = pushed(nodes_of(expression, SCHEMA), SCHEMA)
    return [FRAME.select("i", v=condition)["v"].to_list() for condition in conditions]


@st.composite
def literals(draw: st.DrawFn, name: str) -> pa.Scalar:
    kind, values = COLUMNS[name]
    value = draw(st.sampled_from(values))
    if name in ("i", "n", "*"):
        value = draw(st.sampled_from([value, 0, 2, 2**40]))
    if name in ("f", "g"):
        value = draw(st.sampled_from([value, 0.1, 1.0]))
    found = pa.scalar(value, kind) if name != "n" or value is None else pa.scalar(value, pa.int64())
    other = draw(st.sampled_from([kind, *OTHER_TYPES.get(name, [])]))
    # Arrow 26 ends the process where it compares text with a null of large text
    if value is not None:
        with contextlib.suppress(pa.ArrowException):
            found = found.cast(other)
    return found


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from([n for n in COLUMNS if n != "r"]))
    column = field(name)
    kind = COLUMNS[name][0]
    forms = ["compare", "compare", "mirrored", "null", "valid", "in", "in_or_null"]
    if pa.types.is_floating(kind):
        forms += ["nan", "null_or_nan"]
    if pa.types.is_string(kind):
        forms += ["starts", "ends", "contains", "any_case"]
    if pa.types.is_boolean(kind):
        forms += ["self"]
    form = draw(st.sampled_from(forms))
    compare = draw(
        st.sampled_from(
            [pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal]
        )
    )
    if form in ("compare", "mirrored"):
        literal = pc.scalar(draw(literals(name)))
        return compare(column, literal) if form == "compare" else compare(literal, column)
    if form in ("in", "in_or_null"):
        values = draw(st.lists(literals(name), max_size=3))
        array = pa.array([value.as_py() for value in values if value.type == kind], kind)
        found = pc.is_in(column, array, skip_nulls=draw(st.booleans()))
        if form == "in":
            return found
        return pc.if_else(column.is_valid(), found, pa.scalar(None, pa.bool_()))
    text = draw(st.sampled_from(["a", "", "b", "ä", "%", "a.", "^a"]))
    made: dict[str, Any] = {
        "null": lambda: column.is_null(),
        "null_or_nan": lambda: column.is_null(nan_is_null=True),
        "valid": lambda: column.is_valid(),
        "nan": lambda: pc.is_nan(column),
        "starts": lambda: pc.starts_with(column, text),
        "ends": lambda: pc.ends_with(column, text),
        "contains": lambda: pc.match_substring(column, text),
        "any_case": lambda: pc.starts_with(column, text, ignore_case=True),
        "self": lambda: column,
    }
    expression: pc.Expression = made[form]()
    return expression


conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(pc.and_not_kleene, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=600, deadline=None)
@given(conditions)
def test_what_is_pushed_means_what_arrow_means(expression: pc.Expression) -> None:
    try:
        wanted = values_of(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Arrow has no such comparison
        return
    node = nodes_of(expression, SCHEMA)
    found = polars_values(expression)
    for values in found:
        assert all(value is True for value, want in zip(values, wanted, strict=True) if want)
    if found and not (isinstance(node, Call) and node.name == "and_kleene"):
        assert found == [wanted]


PUSHED = {
    "a comparison": field("i") == 1,
    "one of another width": field("n") > pa.scalar(1, pa.int64()),
    "the value first": pc.less(pc.scalar(1), field("i")),
    "text": field("s") == "a",
    "a number that is not NaN": field("f") >= 1.5,
    "a decimal": field("d") > pa.scalar(decimal.Decimal("1.5")),
    "a moment of a zone": field("t") <= pa.scalar(MOMENT, pa.timestamp("us", "Europe/Berlin")),
    "a day": field("day") < dt.date(2024, 5, 1),
    "a time": field("at") > pa.scalar(dt.time(1), pa.time64("us")),
    "bytes": field("raw") != b"a",
    "a list": field("s").isin(["a", "b"]),
    "a list of DuckDB's": pc.if_else(
        field("i").is_valid(), field("i").isin([1, 2]), pa.scalar(None, pa.bool_())
    ),
    "null": field("r").is_null(),
    "not null": field("f").is_valid(),
    "or": (field("i") == 1) | (field("s") == "b"),
    "not": ~(field("i") == 1),
    "the begin of a text": pc.starts_with(field("s"), "a"),
    "a boolean": field("b"),
    "a name that is a pattern": field("*") == 1,
}
LEFT = {
    "another function": field("i") + 1 == 2,
    "two columns": field("i") == field("n"),
    "a field of a struct": field("r", "a") == 1,
    "NaN": field("f") == NAN,
    "a null": field("i") == pa.scalar(None, pa.int64()),
    "a fraction for whole numbers": field("i") > 1.5,
    "a value that the column has not": field("n") == 2**40,
    "numbers of a list": field("f").isin([0.0]),
    "NaN as null": field("f").is_null(nan_is_null=True),
    "text in any case": pc.starts_with(field("s"), "a", ignore_case=True),
    "a cast": field("i").cast(pa.string()) == "1",
    "a moment finer than the column": field("m")
    == pa.scalar(MOMENT, pa.timestamp("us")),
}  # fmt: skip


@pytest.mark.parametrize("what", PUSHED)
def test_what_is_pushed(what: str) -> None:
    assert polars_values(PUSHED[what]) == [values_of(PUSHED[what])]


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_to_arrow(what: str) -> None:
    assert pushed(nodes_of(LEFT[what], SCHEMA), SCHEMA) == []


def test_of_a_conjunction_each_part_is_looked_at() -> None:
    expression = (field("i") == 1) & (field("i") + 1 == 2) & (field("s") == "a")
    found = pushed(nodes_of(expression, SCHEMA), SCHEMA)
    assert [str(condition) for condition in found] == [
        str(pl.col("i") == pl.lit(1, pl.Int64)),
        str(pl.col("s") == pl.lit("a", pl.String)),
    ]


def test_which_columns_an_expression_looks_at() -> None:
    expression = (field("i") + field("n") > 1) & (field("r", "a") == 1) & pc.is_nan(field("f"))
    assert columns_of(nodes_of(expression, SCHEMA)) == {"i", "n", "r", "f"}


def test_the_inside_of_an_expression() -> None:
    assert nodes_of(field("r", "a") > 1, SCHEMA) == Call(
        "greater", (Field(("r", "a")), Literal(pa.scalar(1))), None
    )
    call = nodes_of(field("i").is_null(), SCHEMA)
    assert isinstance(call, Call)
    assert call.options == {"nan_is_null": pa.scalar(False)}


def test_names_that_look_like_parts_of_expressions() -> None:
    for name in ("end: 'equal'", "call: 'equal'", "'", "a'b", "-- schema metadata --", ""):
        schema = pa.schema([(name, pa.int64())])
        assert nodes_of(field(name) == 1, schema) == Call(
            "equal", (Field((name,)), Literal(pa.scalar(1))), None
        )
    name = "x'\nliteral: '0'\nend: 'equal"
    for kind in (pa.int64(), pa.struct({name: pa.int64()})):
        schema = pa.schema([(name if kind == pa.int64() else "r", kind)])
        with pytest.raises(UnsupportedExpression, match="line break"):
            nodes_of(field(*schema.names) == 1, schema)


def test_a_deep_expression_is_left_to_arrow() -> None:
    expression = field("i") == 0
    for number in range(5000):
        expression = expression | (field("i") == number)
    with pytest.raises(UnsupportedExpression, match="deep"):
        nodes_of(expression, SCHEMA)


def test_a_long_list_is_pushed() -> None:
    expression = field("i").isin(range(100_000))
    assert polars_values(expression) == [values_of(expression)]

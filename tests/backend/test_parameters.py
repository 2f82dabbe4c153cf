"""Values in the places of parameters: literals in the tree of a statement, never its text."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluss_df
from fluss_df.backend import Backend
from fluss_df.backend.parameters import bind, literal, numbered, parameter_types, placeholders
from fluss_df.backend.query_run import QueryRun
from fluss_df.backend.sql.statements import parsed_statement
from fluss_df.errors import FlussError


@pytest.fixture(scope="module")
def memory() -> Backend:
    made: Backend = Backend().connect(fluss_df.connect(":memory:"))
    return made


def value_of(backend: Backend, value: Any) -> Any:
    found = QueryRun(backend, "SELECT ? AS v", parameters=[value]).read_all()
    return found.column(0)[0].as_py()


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_text_comes_back(memory: Backend, text: str) -> None:
    assert value_of(memory, text) == text


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.integers(-(2**63) + 1, 2**63 - 1),
        st.booleans(),
        st.floats(allow_nan=False),
        st.binary(max_size=20),
        st.dates(dt.date(1, 1, 1)),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)),
        st.none(),
    )
)
def test_any_value_comes_back(memory: Backend, value: object) -> None:
    assert value_of(memory, value) == value


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_zero_keeps_its_sign(memory: Backend, kind: pa.DataType) -> None:
    assert str(value_of(memory, pa.scalar(-0.0, kind))) == "-0.0"
    assert str(value_of(memory, pa.scalar(0.0, kind))) == "0.0"


def test_a_decimal_and_a_dictionary_keep_their_types(memory: Backend) -> None:
    assert value_of(memory, Decimal("-7.250")) == Decimal("-7.250")
    coded = pa.array(["a", "b"]).dictionary_encode()
    assert value_of(memory, coded[1]) == "b"


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**11), 10**11)),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from([None, "UTC", "Europe/Berlin"]),
)
def test_any_moment_has_its_text_or_is_refused(value: int, unit: str, zone: str | None) -> None:
    scalar = pa.scalar(value, pa.timestamp(unit, zone))
    per_day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    if not dt.date.min.toordinal() <= value // per_day + 719_163 <= dt.date.max.toordinal():
        with pytest.raises(FlussError, match=r"parameter 3: the day .* years are 1 to 9999"):
            literal(scalar, 3)
        return
    text = literal(scalar, 3).this.name
    assert text.endswith("+00:00") == (zone is not None)
    read = np.datetime64(text.removesuffix("+00:00"))
    assert read.astype(f"datetime64[{unit}]").astype(int) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pa.scalar(1_000_123_456_789, pa.time64("ns")), "time 00:16:40.123456789 has no literal"),
        (pa.scalar(-1, pa.time32("s")), "-1 seconds are no time of a day"),
        (pa.scalar(86_400_000, pa.time32("ms")), "86,400 seconds are no time of a day"),
        (pa.scalar(2_932_897, pa.date32()), "the day 2,932,897 days from 1970-01-01 has no"),
        (pa.scalar(-719_163, pa.date32()), "the day -719,163 days from 1970-01-01 has no"),
        (pa.scalar(2**62, pa.date64()), "days from 1970-01-01 has no literal in SQL"),
        (pa.scalar(2**62, pa.duration("s")), r"type duration\[s\] has no literal"),
    ],
)
def test_moments_beyond_those_of_sql_are_refused(
    memory: Backend, value: pa.Scalar, message: str
) -> None:
    with pytest.raises(FlussError, match=f"parameter 1: .*{message}"):
        QueryRun(memory, "SELECT ? AS v", parameters=[value])


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(86_399_999_999, pa.time64("us")),
        pa.scalar(3_600_000_000_000, pa.time64("ns")),
        pa.scalar(10, pa.time32("ms")),
        pa.scalar(2_932_896, pa.date32()),
        pa.scalar(-719_162, pa.date32()),
        pa.scalar(86_400_000, pa.date64()),
    ],
)
def test_times_and_days_come_back(memory: Backend, value: pa.Scalar) -> None:
    assert value_of(memory, value) == value.as_py()


def test_marks_in_texts_names_and_comments_are_none() -> None:
    statement = "SELECT '?', \"a?\", `?` /* ? */ FROM t -- ?\nWHERE a = ? AND b = ?"
    made = numbered(statement)
    assert made.count("$1") == made.count("$2") == 1
    assert "$3" not in made
    tree = parsed_statement(made)
    assert tree is not None
    assert sorted(placeholders(tree)) == [1, 2]


def test_values_stand_in_the_order_of_the_text(memory: Backend) -> None:
    run = QueryRun(
        memory,
        "SELECT ? AS a, (SELECT ?) AS b, ? AS c WHERE ? = 4 LIMIT ?",
        parameters=[1, 2, 3, 4, 5],
    )
    assert run.read_all().to_pylist() == [{"a": 1, "b": 2, "c": 3}]


def test_a_number_may_stand_twice(memory: Backend) -> None:
    run = QueryRun(memory, "SELECT $2 AS a, $1 AS b, $2 AS c", parameters=["x", "y"])
    assert run.read_all().to_pylist() == [{"a": "y", "b": "x", "c": "y"}]


@pytest.mark.parametrize(
    ("statement", "values", "message"),
    [
        ("SELECT ?", [], "has 1 parameters, and 0 values came"),
        ("SELECT 1", [1], "has 0 parameters, and 1 values came"),
        ("SELECT $2", [1], r"a parameter \$2 and no \$1"),
        ("SELECT ?, $1", [1], "this statement has both"),
        ("SELECT ?", [{"a": 1}], "has no literal"),
        ("SELECT ?", [object()], "is no value of SQL"),
        ("SELECT ?", ["a\0"], "the character NUL"),
        ("SHOW TABLES", [1], "has no parameters"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    memory: Backend, statement: str, values: list[Any], message: str
) -> None:
    with pytest.raises(FlussError, match=message):
        QueryRun(memory, statement, parameters=values)


def test_the_statement_that_is_bound_stays_as_it_is() -> None:
    tree = parsed_statement("SELECT $1 AS a")
    assert tree is not None
    before = tree.sql()
    assert bind(tree, [1]).sql() != before
    assert tree.sql() == before


def test_types_are_those_of_what_stands_beside() -> None:
    tree = parsed_statement(numbered("SELECT ?, CAST(? AS DATE) FROM t WHERE n > ? LIMIT ?"))
    assert tree is not None
    kinds = parameter_types(tree, lambda _, name: pa.int16() if name == "n" else None)
    assert kinds == [pa.string(), pa.date32(), pa.int16(), pa.int64()]

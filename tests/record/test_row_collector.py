"""Rows of Python, gathered: what fits is taken as it is, what does not is refused by name."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python import row_collector
from fluss_df.record.python.row_collector import Gathered, RowCollector, RowGate
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.types import Column, DataType, TypeRoot, from_arrow

R = TypeRoot
COLUMNS = [Column("id", DataType(R.BIGINT, nullable=False)), Column("name", DataType(R.STRING))]

EDGES: dict[TypeRoot, list[Any]] = {
    R.BOOLEAN: [True, 1, "true"],
    R.TINYINT: [127, 128, -128, -129, True, np.int8(3), 1.0],
    R.SMALLINT: [32_767, 32_768, -32_768, -32_769],
    R.INTEGER: [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 1.5, "1"],
    R.BIGINT: [2**63 - 1, 2**63, -(2**63), -(2**63) - 1],
    R.FLOAT: [1.5, 3.4028234e38, 3.5e38, -3.5e38, float("inf"), float("nan"), 1],
    R.DOUBLE: [1.5, 1e308, float("inf"), 1, 2**53 + 1],
    R.STRING: ["a", "é", "\ud800", b"a", 1],
    R.BYTES: [b"a", "a", bytearray(b"a")],
    R.DATE: [dt.date(2024, 1, 1), "2024-01-01", 1],
}


def converted(row: Any, columns: list[Column]) -> tuple[pa.RecordBatch | None, str]:
    """Return a row as a batch, or why it is none."""
    try:
        return rows_to_batch([row], columns, "db.t"), ""
    except SchemaMismatchError as error:
        return None, str(error)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("root", EDGES)
def test_a_row_is_taken_exactly_where_its_conversion_succeeds(
    root: TypeRoot, nullable: bool
) -> None:
    columns = [Column("c", DataType(root, nullable=nullable))]
    collector = RowCollector(columns, "db.t")
    for value in [*EDGES[root], None]:
        for row in ({"c": value}, (value,), [value]):
            expected, refusal = converted(row, columns)
            if expected is None:
                with pytest.raises(SchemaMismatchError) as caught:
                    collector.values(row)
                assert str(caught.value) == refusal
                continue
            values = collector.values(row)
            assert len(values) == 1
            # what can be changed later is copied
            assert values[0] is value or (isinstance(value, bytearray) and values[0] == value)
            found = collector.batch(list(values))
            assert str(found.to_pylist()) == str(expected.to_pylist())
            assert found.schema.equals(expected.schema)


@pytest.mark.parametrize(
    "row",
    [
        {"name": "a"},
        {"id": 1, "name": "a", "more": 2},
        {"id": 1, "nam": "a"},
        (1,),
        (1, "a", 2),
        [],
        7,
    ],
    ids=str,
)
def test_rows_of_another_form_are_refused(row: Any) -> None:
    with pytest.raises(SchemaMismatchError, match=r"db\.t"):
        RowCollector(COLUMNS, "db.t").values(row)


def test_other_mappings_are_read_by_name() -> None:
    collector = RowCollector(COLUMNS, "db.t")
    assert collector.values(OrderedDict(name="a", id=1)) == (1, "a")
    assert collector.values({"name": "a", "id": 1}) == (1, "a")
    # what is not named is null
    assert collector.values({"id": 1}) == (1, None)


ROWS = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=4)), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_what_was_gathered_becomes_the_rows(rows: list[tuple[int, str | None]]) -> None:
    collector = RowCollector(COLUMNS, "db.t")
    values = [value for row in rows for value in collector.values(row)]
    assert [tuple(row.values()) for row in collector.batch(values).to_pylist()] == rows


def test_nested_values_are_tried_one_by_one() -> None:
    columns = [Column("tags", from_arrow(pa.list_(pa.int8()))), *COLUMNS]
    collector = RowCollector(columns, "db.t")
    assert collector.values(([1, None], 1, "a")) == ([1, None], 1, "a")
    with pytest.raises(SchemaMismatchError, match=r"'tags\[\]'.*300"):
        collector.values(([300], 1, "a"))
    batch = collector.batch([[1], 1, "a", None, 2, None])
    assert batch.to_pylist() == [
        {"tags": [1], "id": 1, "name": "a"},
        {"tags": None, "id": 2, "name": None},
    ]


class Taken:
    """What a taker has called."""

    def __init__(self, limit: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.gate = RowGate()
        self.gate.limit = limit
        self.gate.open = Gathered()
        self.gate.open.handle = "joined"
        self.take = RowCollector(COLUMNS, "db.t").taker(
            self.gate,
            lambda: self.calls.append(("full",)),
            lambda gathered, values, row: self.note("late", values, row),
            lambda row: self.note("otherwise", row),
        )

    def note(self, *call: Any) -> str:
        self.calls.append(call)
        return str(call[0])


def test_a_row_joins_what_the_gate_shows() -> None:
    taken = Taken(limit=4)
    gathered = taken.gate.open
    assert gathered is not None
    assert taken.take({"id": 1, "name": "a"}) == "joined"
    assert taken.calls == []
    assert taken.take({"name": None, "id": 2}) == "joined"
    assert taken.calls == [("full",)]
    assert gathered.values == [1, "a", 2, None]
    assert gathered.rows(2) == 2


@pytest.mark.parametrize(
    "row",
    [(1, "a"), {"id": 1}, {"id": None, "name": "a"}, {"id": 1, "name": 2}, {"id": 1, "x": "a"}],
    ids=str,
)
def test_a_row_that_does_not_surely_fit_is_looked_at_by_itself(row: Any) -> None:
    taken = Taken(limit=99)
    assert taken.take(row) == "otherwise"
    assert taken.calls == [("otherwise", row)]
    assert taken.gate.open is not None
    assert taken.gate.open.values == []


def test_a_closed_gate_takes_no_row() -> None:
    taken = Taken(limit=99)
    taken.gate.open = None
    assert taken.take({"id": 1, "name": "a"}) == "otherwise"


def test_a_row_that_came_while_the_gate_closed_is_told() -> None:
    taken = Taken(limit=99)

    gathered = taken.gate.open
    assert gathered is not None

    def extend(values: Any) -> None:
        gathered.values.extend(values)
        taken.gate.open = None

    gathered.extend = extend
    row = {"id": 1, "name": "a"}
    assert taken.take(row) == "late"
    assert taken.calls == [("late", (1, "a"), row)]


def test_rows_that_came_too_late_are_taken_back() -> None:
    gathered = Gathered()
    early, late, other = (1000, "early"), (2000, "late"), (3000, "other")
    gathered.extend(early)
    gathered.deletes.append((1, (7,)))
    assert gathered.rows(2) == 2
    assert gathered.take() == [1000, "early"]
    gathered.extend(other)
    gathered.extend(late)
    # what came behind does not count
    assert gathered.rows(2) == 2
    assert not gathered.take_back(early)
    assert gathered.take_back(late)
    assert not gathered.take_back(late)
    # the same values, of other objects, are another row
    assert not gathered.take_back((int("3000"), "other"))
    assert gathered.take_back(other)
    assert gathered.values == [1000, "early"]


def test_rows_that_fit_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = RowCollector(COLUMNS, "db.t")

    def convert(*_: object) -> None:
        raise AssertionError("converted")

    monkeypatch.setattr(row_collector, "rows_to_batch", convert)
    for row in ({"id": 1, "name": "a"}, (1, "a"), [1, "a"]):
        assert collector.values(row) == (1, "a")


def test_values_that_are_changed_behind_a_row_are_as_they_were() -> None:
    columns = [
        Column("l", DataType(R.ARRAY, element=DataType(R.ARRAY, element=DataType(R.INTEGER)))),
        Column(
            "m", DataType(R.MAP, key=DataType(R.STRING, nullable=False), value=DataType(R.BYTES))
        ),
        Column("b", DataType(R.BYTES)),
        Column("a", DataType(R.ARRAY, element=DataType(R.DOUBLE))),
    ]
    rows = RowCollector(columns, "db.t")
    inner, entries, data, array = [1, 2], {"k": b"v"}, bytearray(b"xy"), np.array([1.5])
    given = {"l": [inner, None], "m": entries, "b": data, "a": array}
    expected = rows_to_batch([given], columns, "db.t")
    given_rows: list[Any] = [dict(given), [[inner, None], entries, data, array]]
    for row in given_rows:
        inner[:], data[:], array[:] = [1, 2], b"xy", 1.5
        entries.clear()
        entries["k"] = b"v"
        values = rows.values(row)
        inner.append(3)
        entries["k"] = b"w"
        data[:] = b"zz"
        array[:] = 9
        assert rows.batch(list(values)).equals(expected)
    inner[:], array[:] = [1, 2], 1.5
    entries["k"] = b"v"
    gate, gathered = RowGate(), Gathered()
    gate.open, gate.limit = gathered, 100
    take = rows.taker(gate, lambda: None, lambda *_: None, lambda row: rows.values(row))
    take({**given, "b": b"xy"})
    inner.append(3)
    entries["k"] = b"w"
    assert rows.batch(gathered.values).equals(expected)

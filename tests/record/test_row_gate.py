"""The gate through which rows of Python that surely fit join what is gathered, without a lock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.row_collector import Gathered, RowCollector, RowGate
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.types import Column, DataType, TypeRoot

R = TypeRoot
COLUMNS = [Column("id", DataType(R.BIGINT, nullable=False)), Column("name", DataType(R.STRING))]


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


@pytest.mark.parametrize("row", [{"name": "a"}, {"nam": "a"}, {"id": 1, "nam": "a"}, {}], ids=str)
def test_a_row_that_leaves_out_too_much_is_refused(row: dict[str, Any]) -> None:
    collector = RowCollector(COLUMNS, "db.t")
    with pytest.raises(SchemaMismatchError, match=r"db\.t"):
        collector.values(row)
    taken = Taken(limit=99)
    assert taken.take(row) == "otherwise"


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
    [(1, "a"), {"name": "a"}, {"id": None, "name": "a"}, {"id": 1, "name": 2}, {"id": 1, "x": "a"}],
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

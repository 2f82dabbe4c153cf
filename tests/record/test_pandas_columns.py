"""Data frames of pandas: what goes into which column, and what is refused instead of changed."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.pandas_columns import frame_to_arrow
from fluss_df.types import Column, DataType, TypeRoot, from_arrow

NOON = pd.Timestamp("2026-01-02 12:00")
DAY = pd.Timestamp("2026-01-02")
ZONED = NOON.tz_localize("Europe/Berlin")
UTC_NOON = NOON.to_pydatetime().replace(tzinfo=dt.UTC)
US = pa.timestamp("us")
LTZ = pa.timestamp("us", "UTC")
OBJECT = np.dtype(object)


def into(values: Any, t: pa.DataType) -> list[Any]:
    columns = [Column("c", from_arrow(t))]
    made = coerce(frame_to_arrow(pd.DataFrame({"c": values}), columns, "d.t"), columns, table="d.t")
    made.validate(full=True)
    found: list[Any] = made.column(0).to_pylist()
    return found


def objects(*values: Any) -> pd.Series:
    return pd.Series(values, dtype=OBJECT)


TAKEN: list[tuple[str, Any, pa.DataType, list[Any]]] = [
    ("integers with a hole", pd.Series([1.0, np.nan]), pa.int32(), [1, None]),
    ("nullable integers", pd.array([1, None], dtype="Int64"), pa.int16(), [1, None]),
    ("floats of 64 bits", pd.Series([0.1, np.nan, np.inf]), pa.float32(),
     [float(np.float32(0.1)), None, np.inf]),
    ("NaN is null", pd.Series([0.5, np.nan]), pa.float64(), [0.5, None]),
    ("whole days", pd.Series([DAY, pd.NaT]), pa.date32(), [DAY.date(), None]),
    ("dates", objects(DAY.date(), None), pa.date32(), [DAY.date(), None]),
    ("an instant without a zone", pd.Series([NOON]), LTZ, [UTC_NOON]),
    ("an instant", pd.Series([ZONED]), LTZ, [ZONED.to_pydatetime()]),
    ("objects of instants", objects(ZONED, NOON), LTZ, [ZONED.to_pydatetime(), UTC_NOON]),
    ("missing objects", objects("a", np.nan, None, pd.NA, pd.NaT), pa.string(),
     ["a", None, None, None, None]),
    ("categories", pd.Categorical(["a", "b", "a"]), pa.string(), ["a", "b", "a"]),
    ("decimals", objects(Decimal("1.5"), 2), pa.decimal128(5, 2), [Decimal("1.50"), Decimal(2)]),
    ("bools with a hole", objects(True, None), pa.bool_(), [True, None]),
    ("lists", objects([1, None], np.array([2]), None), pa.list_(pa.int8()),
     [[1, None], [2], None]),
    ("dicts", objects({"x": 1}, None), pa.struct([("x", pa.int64())]), [{"x": 1}, None]),
    ("no rows", objects(), pa.int64(), []),
]  # fmt: skip

#: What Arrow's own conversion into a given type changed without a word.
REFUSED: list[tuple[str, Any, pa.DataType]] = [
    ("the memory of integers", pd.Series([1]), pa.binary()),
    ("the memory of floats", pd.Series([0.5]), pa.binary()),
    ("text as bytes", pd.Series(["a"]), pa.binary()),
    ("bytes as text", objects(b"a"), pa.string()),
    ("digits of a decimal", objects(Decimal("1.25")), pa.int64()),
    ("a decimal as days", objects(Decimal("1.25")), pa.date32()),
    ("a fraction", pd.Series([1.5]), pa.int64()),
    ("floats beyond integers", pd.Series([1e300]), pa.int64()),
    ("floats beyond those of 32 bits", pd.Series([1e300]), pa.float32()),
    ("infinity", pd.Series([np.inf]), pa.int64()),
    ("a float as truth", pd.Series([0.5]), pa.bool_()),
    ("a number as truth", pd.Series([2]), pa.bool_()),
    ("truth as a number", pd.Series([True]), pa.int64()),
    ("text as a number", pd.Series(["7"]), pa.int64()),
    ("the hours of a day", pd.Series([NOON]), pa.date32()),
    ("the hours of an object", objects(NOON.to_pydatetime()), pa.date32()),
    ("the day of a time", pd.Series([NOON]), pa.time64("us")),
    ("digits of a time", objects(dt.time(1, 2, 3, 4)), pa.time32("s")),
    ("an integer as a time", pd.Series([2**62]), pa.time64("us")),
    ("the unit of a time", pd.Series([NOON]), pa.int64()),
    ("the unit of a duration", pd.Series([pd.Timedelta("1s")]), pa.int64()),
    ("the zone", pd.Series([ZONED]), US),
    ("the zone of an object", objects(ZONED), US),
    ("nanoseconds", pd.Series([NOON + pd.Timedelta(1, "ns")]), US),
    ("objects of any kind", objects(uuid.UUID(int=1)), pa.string()),
    ("complex numbers", pd.Series([1j]), pa.float64()),
    ("sparse arrays", pd.arrays.SparseArray([0, 1]), pa.int64()),
]


@pytest.mark.parametrize(("what", "values", "t", "expected"), TAKEN, ids=[c[0] for c in TAKEN])
def test_taken(what: str, values: Any, t: pa.DataType, expected: list[Any]) -> None:
    assert into(values, t) == expected


@pytest.mark.parametrize(("what", "values", "t"), REFUSED, ids=[c[0] for c in REFUSED])
def test_refused(what: str, values: Any, t: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"table d\.t, column 'c': "):
        into(values, t)


def test_names() -> None:
    columns = [Column("c", from_arrow(pa.int64()))]
    for frame, match in (
        (pd.DataFrame([[1, 2]], columns=["c", "c"]), "'c' is in the data twice"),
        (pd.DataFrame([[1, object()]], columns=["c", 0]), "'0' is none of c"),
        (pd.DataFrame({"c": [1]}).set_index("c"), r"'c' is the index .* reset_index\(\)"),
    ):
        with pytest.raises(SchemaMismatchError, match=match):
            coerce(frame_to_arrow(frame, columns, "d.t"), columns, table="d.t")
    kept = pd.DataFrame({"c": [1]}).set_index("c", drop=False)
    assert frame_to_arrow(kept, columns, "d.t").to_pydict() == {"c": [1]}


def test_a_frame_that_is_changed_later_is_written_as_it_was() -> None:
    frame = pd.DataFrame({"id": [1, 2], "x": [0.5, 1.5]})
    columns = [Column("id", DataType(TypeRoot.BIGINT)), Column("x", DataType(TypeRoot.DOUBLE))]
    table = frame_to_arrow(frame, columns, "db.t")
    for name in ("id", "x"):
        values = frame[name].array._ndarray
        values.flags.writeable = True
        values[:] = 7
    assert table.to_pydict() == {"id": [1, 2], "x": [0.5, 1.5]}

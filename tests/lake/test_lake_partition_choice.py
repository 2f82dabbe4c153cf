"""Partitions chosen by name, of rows of a lake whose partition columns are no texts."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.io.base.names import exact
from fluss_df.io.scans.union import _is_named
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.schema import Schema

UTC = dt.UTC
CASES = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [5, -7]),
    (pa.int64(), [2**63 - 1, -(2**63)]),
    (pa.float64(), [1.5, float("nan"), float("inf"), -2.0]),
    (pa.binary(), [b"ab", b"\x00"]),
    (pa.date32(), [dt.date(2026, 11, 21), dt.date(1969, 1, 2)]),
    (pa.time32("ms"), [dt.time(1, 2, 3, 4000), dt.time(0)]),
    (pa.time64("us"), [dt.time(1, 2, 3, 4567), dt.time(23, 59, 59, 999999)]),
    (pa.timestamp("us"), [dt.datetime(2026, 11, 21, 12, 34, 56, 789012), dt.datetime(1969, 1, 1)]),
    (pa.timestamp("ms", "UTC"), [dt.datetime(2026, 11, 21, 12, tzinfo=UTC)]),
    (pa.string(), ["a", "a-b"]),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda item: str(item)[:20])
def test_a_name_chooses_its_rows(kind: pa.DataType, values: list[object]) -> None:
    array = pa.array(values, kind)
    (column,) = Schema(pa.schema([("p.x", kind)])).columns
    frame = pl.DataFrame(pa.table({"p.x": array})).with_row_index("row")
    names = partition_names([array], [column.type]).to_pylist()
    assert len(set(names)) == len(values)
    for row, name in enumerate(names):
        chosen = _is_named(exact("p.x"), column, name, frame.schema["p.x"])
        assert frame.filter(chosen)["row"].to_list() == [row]

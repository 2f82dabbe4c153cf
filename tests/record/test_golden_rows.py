"""Rows of every type, in both row formats, against Fluss's own Java code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.record.rows.row_formats import decoder_of, encoder_of
from fluss_df.types import Column, DataType, TypeRoot, to_arrow, type_from_json

from .test_golden_keys import GOLDEN, value_array

JAVA = json.loads((GOLDEN / "java_rows.json").read_text())
COLUMNS = [Column(f"c{i}", type_from_json(t)) for i, t in enumerate(JAVA["types"])]


def value(t: DataType, shown: Any) -> Any:
    """Return the value that GoldenRows.java wrote, as Arrow takes it."""
    if shown is None:
        return None
    if t.root is TypeRoot.ARRAY:
        assert t.element is not None
        return [value(t.element, item) for item in shown]
    if t.root is TypeRoot.MAP:
        assert t.key is not None
        assert t.value is not None
        return [(value(t.key, k), value(t.value, v)) for k, v in shown]
    if t.root is TypeRoot.ROW:
        pairs = zip(t.fields, shown, strict=True)
        return {field.name: value(field.type, item) for field, item in pairs}
    return value_array(t, shown)[0].as_py()


def rows() -> pa.Table:
    arrays = [
        pa.array([value(c.type, row["values"][i]) for row in JAVA["rows"]], to_arrow(c.type))
        for i, c in enumerate(COLUMNS)
    ]
    return pa.table(arrays, names=[column.name for column in COLUMNS])


@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
def test_rows_are_those_of_java(row_format: str) -> None:
    table = rows()
    java = [bytes.fromhex(row[row_format]) for row in JAVA["rows"]]
    encoded = encoder_of(row_format)(COLUMNS).encode(table)
    assert [encoded[i].hex() for i in range(len(encoded))] == [row.hex() for row in java]
    ends = np.cumsum([len(row) for row in java])
    starts = np.concatenate([[0], ends[:-1]])
    decoded = decoder_of(row_format)(COLUMNS).decode(b"".join(java), starts, ends)
    assert decoded.equals(table)
    assert all(column.null_count for column in table.columns)

"""Rows that are no Polars frames: what gives Arrow data is written, the rest is named."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError

TABLE = pa.table({"a": [1, None], "b": ["x", "y"]})
FRAME = pl.DataFrame({"a": [1, None], "b": ["x", "y"]})


class OnlyArrow:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


ROWS: list[Callable[[], Any]] = [
    lambda: TABLE,
    lambda: TABLE.to_batches()[0],
    lambda: TABLE.to_reader(),
    lambda: pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": ["x", "y"]}, index=[7, 8]),
    OnlyArrow,
    lambda: FRAME,
]


@pytest.mark.parametrize("write", [fluss_df.write_fluss, fluss_df.sink_fluss])
@pytest.mark.parametrize("rows", ROWS)
def test_arrow_data_is_written(
    connection: FlussConnection, write: Callable[..., Any], rows: Callable[[], Any]
) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    write(rows(), name, connection=connection, create_if_not_exists=True)
    assert fluss_df.read_fluss(name, connection=connection).sort("b").equals(FRAME)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1], "a table of PyArrow, .* not as builtins.list"),
        ({"a": [1]}, "not as builtins.dict"),
        (pl.Series([1]), "not as polars.*Series"),
        (pa.chunked_array([[1]]), "ChunkedArray cannot be read as a frame"),
        (pd.DataFrame({"a": [object()]}), "DataFrame cannot be read as a frame"),
        (pl.LazyFrame({"a": [1]}), "sink_fluss runs and writes it"),
    ],
)
def test_what_is_no_frame_is_named(rows: Any, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        fluss_df.write_fluss(rows, "t", connection=":memory:", create_if_not_exists=True)

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
from fluss_df.io.base.arrow import to_table

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


CHUNKS = pl.concat([pl.DataFrame({"a": [i, i]}) for i in range(200)], rechunk=False)


@pytest.mark.parametrize("write", [fluss_df.write_fluss, fluss_df.sink_fluss])
@pytest.mark.parametrize("keys", [None, ["a"]])
def test_rows_of_many_chunks_are_counted_from_the_first(
    connection: FlussConnection, write: Callable[..., Any], keys: list[str] | None
) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    given = {"connection": connection, "create_if_not_exists": True, "primary_keys": keys}
    write(CHUNKS.head(2).cast(pl.Int8), name, **given)
    with pytest.raises(FlussError, match=r"column 'a': row 256: 128 "):
        write(CHUNKS, name, **given | {"create_if_not_exists": False, "primary_keys": None})
    write(CHUNKS.head(250), name, connection=connection)
    found = fluss_df.read_fluss(name, connection=connection)["a"].sort()
    rows = CHUNKS.head(250)["a"].cast(pl.Int8)
    assert found.equals(rows.unique().sort() if keys else pl.concat([rows.head(2), rows]).sort())


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


def test_chunks_of_a_frame() -> None:
    part = pl.DataFrame(
        {
            "n": [1, None],
            "text": ["a", None],
            "words": [["x"], None],
            "kind": pl.Series(["u", "v"], dtype=pl.Categorical),
            "of": pl.Series(["u", "v"], dtype=pl.Enum(["v", "u"])),
        }
    )
    frame = pl.concat([part] * 10_000, rechunk=False)
    made = to_table(frame)
    assert made.column("n").num_chunks == 2
    expected = frame.rechunk().to_arrow()
    assert made.schema == expected.schema
    assert made.to_pylist() == expected.to_pylist()
    # one chunk, and none, are as Polars has them
    assert to_table(part).equals(part.to_arrow())
    assert to_table(pl.DataFrame()).num_rows == 0
    assert to_table(frame.clear()).schema == expected.schema

"""Small chunks of columns that are put together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.layout import chunks
from fluss_df.record.layout.chunks import joined
from fluss_df.record.python.coerce import coerce
from fluss_df.types import Column, from_arrow

WORDS = ["a", None, "bc", ""]
ARRAYS = [
    pa.array([1, None, 3, 4]),
    pa.array(WORDS),
    pa.array(WORDS, pa.large_string()),
    pa.array(WORDS, pa.string_view()),
    pa.array([b"a", None], pa.binary()),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array([True, None, False]),
    pa.array([None, None], pa.null()),
    pa.array(WORDS).dictionary_encode(),
    pa.array([[1], None, [], [2, 3]]),
    pa.array([{"a": "x"}, None, {"a": None}]),
    pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_small_chunks_become_one(array: pa.Array) -> None:
    column = pa.chunked_array([array, array[:0], array[1:], array[:1]] * 5)
    made = joined(column)
    assert made.num_chunks == 1
    assert made.type == column.type
    assert made.to_pylist() == column.to_pylist()
    made.validate(full=True)


def test_large_chunks_stay_what_they_are() -> None:
    column = pa.chunked_array([list(range(1000)), list(range(1000))])
    assert joined(column) is column
    one = pa.chunked_array([[1]])
    assert joined(one) is one
    empty = pa.chunked_array([], pa.int64())
    assert joined(empty) is empty


def test_only_some_rows_are_put_together_at_a_time() -> None:
    column = pa.chunked_array([list(range(i, i + 500)) for i in range(0, 40_000, 500)])
    made = joined(column)
    assert [len(chunk) for chunk in made.chunks] == [1 << 14, 1 << 14, 40_000 - (2 << 14)]
    assert made.equals(column)


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int64()), pa.binary(16)])
def test_chunks_of_many_bytes_are_not_copied(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(chunks, "_JOINED_BYTES", 100)
    value = [1, 2] if pa.types.is_list(kind) else "sixteen letters."
    column = pa.chunked_array([pa.array([value] * 10, kind)] * 3)
    made = joined(column)
    addresses = [chunk.buffers()[-1].address for chunk in column.chunks]
    assert [chunk.buffers()[-1].address for chunk in made.chunks] == addresses


def test_chunks_that_arrow_does_not_put_together_stay_apart() -> None:
    # together the words are more than 8 bits can count
    parts = [
        pa.DictionaryArray.from_arrays(
            pa.array(range(100), pa.int8()), [f"{part} {i}" for i in range(100)]
        )
        for part in range(3)
    ]
    column = pa.chunked_array(parts)
    assert joined(column).to_pylist() == column.to_pylist()


def test_rows_are_counted_over_chunks_that_are_put_together() -> None:
    column = pa.chunked_array([[i] for i in range(300)])
    columns = [Column("c", from_arrow(pa.int8()))]
    with pytest.raises(SchemaMismatchError, match="row 128: 128 "):
        coerce(pa.table({"c": column}), columns, table="d.t")
    made = coerce(pa.table({"c": column[:128]}), columns, table="d.t")
    assert made.column(0).num_chunks == 1


def test_large_dictionaries_are_not_put_together() -> None:
    texts = [pa.array([f"{number}-{i}" for i in range(2000)]) for number in range(20)]
    chunks = [pa.DictionaryArray.from_arrays(pa.array([1, 7], pa.int32()), of) for of in texts]
    column = pa.chunked_array(chunks)
    assert joined(column) is column

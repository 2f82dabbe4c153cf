from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from fluss_df.types import DataType, TypeRoot, from_arrow

INT = from_arrow(pa.int32(), nullable=False)
TEXT = from_arrow(pa.string(), nullable=False)


def test_nulls_are_refused_by_column_and_row() -> None:
    column = pa.chunked_array([[1, 2], [3, None]], pa.int32())
    with pytest.raises(SchemaMismatchError, match=r"table d\.t, key column 'id' is null in row 3"):
        encode_keys([column], [INT], names=["id"], table="d.t")


def test_other_types_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="'id' is int64, not int32"):
        encode_keys([pa.array([1])], [INT], names=["id"])


@pytest.mark.parametrize(
    ("kind", "lake"),
    [
        (pa.list_(pa.int32()), None),
        (pa.map_(pa.string(), pa.int32()), None),
        (pa.struct([("a", pa.int32())]), None),
        (pa.list_(pa.int32()), "paimon"),
        (pa.list_(pa.int32()), "iceberg"),
        (pa.bool_(), "iceberg"),
        (pa.timestamp("us", "UTC"), "iceberg"),
    ],
    ids=str,
)
def test_types_that_are_no_keys(kind: pa.DataType, lake: str | None) -> None:
    with pytest.raises(FlussError, match="cannot be"):
        encode_keys([pa.array([], kind)], [from_arrow(kind)], lake)


def test_types_that_iceberg_has_no_buckets_of_are_named() -> None:
    tiny = from_arrow(pa.int8(), nullable=False)
    said = r"table d\.t, column 'k' of type tinyint cannot be the bucket key.*choose a column"
    with pytest.raises(FlussError, match=said):
        encode_keys([pa.array([1], pa.int8())], [tiny], "iceberg", names=["k"], table="d.t")


def test_keys_need_columns_and_known_lakes() -> None:
    with pytest.raises(FlussError, match="at least one column"):
        encode_keys([], [])
    keys = encode_keys([pa.array([1], pa.int32())], [INT])
    for call in (
        lambda: encode_keys([pa.array([1], pa.int32())], [INT], "hudi"),
        lambda: bucket_ids(keys, 4, "hudi"),
    ):
        with pytest.raises(FlussError, match="not supported"):
            call()
    with pytest.raises(FlussError, match="exactly one"):
        encode_keys([pa.array([1], pa.int32())] * 2, [INT] * 2, "iceberg")
    with pytest.raises(FlussError, match="at least one bucket"):
        bucket_ids(keys, 0)


@pytest.mark.parametrize("lake", [None, "lance", "paimon", "iceberg"])
def test_no_rows(lake: str | None) -> None:
    for kind in (pa.int32(), pa.string(), pa.decimal128(38, 2), pa.timestamp("us")):
        keys = encode_keys([pa.array([], kind)], [from_arrow(kind, nullable=False)], lake)
        assert len(keys) == 0
        assert bucket_ids(keys, 4, lake).tolist() == []


def test_an_empty_iceberg_key_has_no_bucket() -> None:
    keys = encode_keys([pa.array(["a", ""])], [TEXT], "iceberg")
    with pytest.raises(FlussError, match=r"table d\.t: an empty key has no bucket.*leave out"):
        bucket_ids(keys, 4, "iceberg", of="table d.t")
    # Fluss's own keys hold the length, so an empty string is no empty key
    assert len(bucket_ids(encode_keys([pa.array([""])], [TEXT]), 4)) == 1


def test_slices_and_chunks_are_the_same_rows() -> None:
    values = [str(i) * (i % 40) + "x" for i in range(500)]
    whole = encode_keys([pa.array(values)], [TEXT])
    sliced = encode_keys([pa.array(["pad", *values])[1:]], [TEXT])
    chunked = encode_keys([pa.chunked_array([values[:100], values[100:]])], [TEXT])
    assert whole.data.tobytes() == sliced.data.tobytes() == chunked.data.tobytes()
    assert [whole[i] for i in range(3)] == [b"\x01x", b"\x021x", b"\x0322x"]
    with pytest.raises(IndexError):
        whole[500]
    buckets = bucket_ids(whole, 7)
    assert buckets.dtype == np.int32
    assert set(buckets.tolist()) == set(range(7))


def test_a_prefix_of_the_key_is_a_prefix_of_its_bytes() -> None:
    ids = pa.array([1, -5, 300], pa.int32())
    names = pa.array(["a", "bb", ""])
    both, first = encode_keys([ids, names], [INT, TEXT]), encode_keys([ids], [INT])
    for i in range(3):
        assert both[i].startswith(first[i])


def test_fixed_binary_in_a_slice() -> None:
    t = DataType(TypeRoot.BINARY, nullable=False, length=2)
    array = pa.array([b"aa", b"bb", b"cc"], pa.binary(2))[1:]
    keys = encode_keys([array], [t])
    assert [keys[0], keys[1]] == [b"\x02bb", b"\x02cc"]


def test_a_table_has_at_least_one_bucket() -> None:
    keys = encode_keys([pa.chunked_array([pa.array([1, 2], pa.int32())])], [INT], None)
    assert bucket_ids(keys, 1).tolist() == [0, 0]
    for count in (0, -1):
        with pytest.raises(FlussError, match=f"at least one bucket, not {count}"):
            bucket_ids(keys, count)

"""Whatever the types and values: what goes in comes out."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.layout.headers import scan_headers, verify_crcs
from fluss_df.record.log.log_decode import LogDecoder
from fluss_df.record.python.coerce import coerce
from fluss_df.types import Column, DataField, DataType, TypeRoot, arrow_schema, to_arrow

from .batches import stored

R = TypeRoot
INTS = {R.TINYINT: 8, R.SMALLINT: 16, R.INTEGER: 32, R.BIGINT: 64, R.DATE: 32}
TIMES = {0: 86_400, 3: 86_400_000, 6: 86_400 * 10**6, 9: 86_400 * 10**9}


def leaf_types() -> st.SearchStrategy[DataType]:
    return st.one_of(
        st.sampled_from(
            [DataType(r) for r in (R.STRING, R.BOOLEAN, R.BYTES, R.FLOAT, R.DOUBLE, *INTS)]
        ),
        st.builds(lambda n: DataType(R.BINARY, length=n), st.integers(1, 5)),
        st.builds(lambda n: DataType(R.CHAR, length=n), st.integers(1, 5)),
        st.builds(
            lambda p, s: DataType(R.DECIMAL, precision=p, scale=min(p, s)),
            st.integers(1, 38), st.integers(0, 38),
        ),
        st.builds(
            lambda r, p: DataType(r, precision=p),
            st.sampled_from([R.TIME_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITHOUT_TIME_ZONE,
                             R.TIMESTAMP_WITH_LOCAL_TIME_ZONE]),
            st.sampled_from([0, 3, 6, 9]),
        ),
    )  # fmt: skip


def all_types() -> st.SearchStrategy[DataType]:
    def extend(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
        any_null = st.tuples(inner, st.booleans()).map(lambda x: x[0].with_nullable(x[1]))
        return st.one_of(
            any_null.map(lambda e: DataType(R.ARRAY, element=e)),
            st.tuples(leaf_types(), any_null).map(
                lambda kv: DataType(R.MAP, key=kv[0].with_nullable(False), value=kv[1])
            ),
            st.lists(any_null, min_size=1, max_size=3).map(
                lambda ts: DataType(
                    R.ROW, fields=tuple(DataField(f"f{i}", t) for i, t in enumerate(ts))
                )
            ),
        )

    return st.recursive(leaf_types(), extend, max_leaves=4)


def values_of(t: DataType) -> st.SearchStrategy[Any]:
    made = plain_values(t)
    return st.none() | made if t.nullable else made


def plain_values(t: DataType) -> st.SearchStrategy[Any]:
    root = t.root
    if root in INTS:
        bits = INTS[root]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if root is R.BOOLEAN:
        return st.booleans()
    if root is R.STRING:
        return st.text(max_size=8)
    if root is R.CHAR:
        return st.text(max_size=t.length)
    if root is R.BYTES:
        return st.binary(max_size=8)
    if root is R.BINARY:
        return st.binary(min_size=t.length or 0, max_size=t.length)
    if root is R.FLOAT:
        return st.floats(width=32, allow_nan=False)
    if root is R.DOUBLE:
        return st.floats(allow_nan=False)
    if root is R.DECIMAL:
        top = 10 ** (t.precision or 0) - 1
        exact = decimal.Context(prec=60)
        return st.integers(-top, top).map(
            lambda v: decimal.Decimal(v).scaleb(-(t.scale or 0), exact)
        )
    if root is R.TIME_WITHOUT_TIME_ZONE:
        return st.integers(0, TIMES[t.precision or 0] - 1)
    if t.element is not None:
        return st.lists(values_of(t.element), max_size=3)
    if t.key is not None and t.value is not None:
        return st.lists(st.tuples(values_of(t.key), values_of(t.value)), max_size=3)
    if root is R.ROW:
        return st.fixed_dictionaries({f.name: values_of(f.type) for f in t.fields})
    return st.integers(-(2**63), 2**63 - 1)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], pa.RecordBatch]:
    types = draw(st.lists(all_types(), min_size=1, max_size=4))
    types = [t.with_nullable(draw(st.booleans())) for t in types]
    count = draw(st.integers(1, 12))
    columns = [Column(f"c{i}", t) for i, t in enumerate(types)]
    arrays = [
        pa.array(draw(st.lists(values_of(t), min_size=count, max_size=count)), to_arrow(t))
        for t in types
    ]
    return columns, pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


@settings(max_examples=200, deadline=None)
@given(tables(), st.sampled_from(["none", "lz4_frame", "zstd"]), st.data())
def test_batches_come_back(
    made: tuple[list[Column], pa.RecordBatch], codec: str, data: st.DataObject
) -> None:
    columns, batch = made
    first = coerce(batch, columns, table="t")
    assert first.equals(batch)
    raw = stored(first, 7, codec=codec) + stored(first, 7 + batch.num_rows, codec=codec)
    headers = scan_headers(raw)
    verify_crcs(raw, headers)
    decoder = LogDecoder({1: arrow_schema(columns)}, arrow_schema(columns))
    table = decoder.decode_table(raw, headers)
    assert table.equals(pa.Table.from_batches([batch, batch]))
    start = data.draw(st.integers(0, 7 + 2 * batch.num_rows))
    stop = data.draw(st.integers(start, 8 + 2 * batch.num_rows))
    part = decoder.decode_table(raw, headers, start_offset=start, stop_offset=stop)
    lo, hi = max(start - 7, 0), min(max(stop - 7, 0), 2 * batch.num_rows)
    assert part.equals(table.slice(lo, max(hi - lo, 0)))


WIDER: dict[str, Callable[[pa.DataType], pa.DataType | None]] = {
    "string": lambda t: pa.large_string() if t == pa.string() else None,
    "view": lambda t: pa.string_view() if t == pa.string() else None,
    "binary": lambda t: pa.large_binary() if t == pa.binary() else None,
    "int": lambda t: pa.int64() if pa.types.is_integer(t) else None,
    "float": lambda t: pa.float64() if t == pa.float32() else None,
    "decimal": lambda t: pa.decimal256(60, t.scale) if pa.types.is_decimal(t) else None,
    "dictionary": lambda t: pa.dictionary(pa.int32(), t) if pa.types.is_primitive(t) else None,
}


def loosened(t: pa.DataType, rule: Callable[[pa.DataType], pa.DataType | None]) -> pa.DataType:
    """Return a type with its leaves as another frame would have them."""
    if pa.types.is_list(t):
        return pa.large_list(loosened(t.value_type, rule))
    if pa.types.is_map(t):
        return pa.map_(loosened(t.key_type, rule), loosened(t.item_type, rule))
    if pa.types.is_struct(t):
        return pa.struct([(f.name, loosened(f.type, rule)) for f in t])
    return rule(t) or t


@settings(max_examples=150, deadline=None)
@given(tables(), st.sampled_from(sorted(set(WIDER) - {"dictionary"})), st.integers(0, 3))
def test_looser_frames_become_the_table(
    made: tuple[list[Column], pa.RecordBatch], rule: str, skip: int
) -> None:
    columns, batch = made
    loose = []
    for array in batch.columns:
        values = array.to_pylist() if not _has_time(array.type) else None
        kind = loosened(array.type, WIDER[rule])
        loose.append(array if values is None else pa.array(values, kind))
    frame = pa.RecordBatch.from_arrays(loose, names=batch.schema.names).slice(skip)
    back = coerce(frame, columns, table="t")
    assert back.schema.equals(batch.schema)
    assert back.equals(batch.slice(skip))


def _has_time(t: pa.DataType) -> bool:
    text = str(t)
    return "timestamp" in text or "time" in text or "date" in text


@settings(max_examples=100, deadline=None)
@given(all_types(), st.data())
def test_a_null_in_not_null_is_always_found(t: DataType, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    row = data.draw(st.integers(0, count - 1))
    strict = t.with_nullable(False)
    values = data.draw(st.lists(plain_values(strict), min_size=count, max_size=count))
    values[row] = None
    array = pa.array(values, to_arrow(t))
    with pytest.raises(SchemaMismatchError, match=f"null in row {row}"):
        coerce(pa.record_batch({"c": array}), [Column("c", strict)], table="t")
    # the same one level down
    holder = DataType(R.ROW, fields=(DataField("x", strict),))
    nested = pa.StructArray.from_arrays([array], names=["x"])
    with pytest.raises(SchemaMismatchError, match=rf"'c\.x'.*null in row {row}"):
        coerce(pa.record_batch({"c": nested}), [Column("c", holder)], table="t")

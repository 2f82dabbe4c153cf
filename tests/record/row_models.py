"""Slow decoders of rows, value by value, and generated schemas and rows."""

from __future__ import annotations

import struct
from decimal import Context
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from fluss_df.types import Column, DataField, DataType, TypeRoot, arrow_schema, to_arrow

R = TypeRoot
# the default context would round more than 28 digits
WIDE = Context(prec=60)


class BadRowError(Exception):
    """The bytes are no such row."""


def varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    for i in range(10 if bits == 64 else 5):
        if at >= len(data):
            raise BadRowError("end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >= 1 << bits:
                raise BadRowError("overflow")
            return value, at
        if i == (9 if bits == 64 else 4):
            break
    raise BadRowError("too long")


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def compacted_row(data: bytes, columns: list[Column]) -> list[Any]:
    """Decode one compacted row of columns that are not nested, to integers, floats and bytes."""
    width = (len(columns) + 7) // 8
    if len(data) < width:
        raise BadRowError("head")
    at = width
    row: list[Any] = []
    value: Any
    for i, column in enumerate(columns):
        t = column.type
        if data[i >> 3] >> (i & 7) & 1:
            if not t.nullable:
                raise BadRowError("null")
            row.append(None)
            continue
        if t.root in (R.INTEGER, R.DATE, R.TIME_WITHOUT_TIME_ZONE):
            value, at = varint(data, at, 32)
            value = signed(value, 32)
            if t.root is R.TIME_WITHOUT_TIME_ZONE and not 0 <= value < 86_400_000:
                raise BadRowError("time")
        elif t.root is R.BIGINT or (t.root is R.DECIMAL and (t.precision or 0) <= 18):
            value, at = varint(data, at, 64)
            value = signed(value, 64)
            if t.root is R.DECIMAL and abs(value) >= 10 ** (t.precision or 0):
                raise BadRowError("precision")
        elif t.root in (R.TIMESTAMP_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
            millis, at = varint(data, at, 64)
            millis = signed(millis, 64)
            nanos = 0
            if (t.precision or 0) > 3:
                nanos, at = varint(data, at, 32)
                if nanos > 999_999:
                    raise BadRowError("nanos")
            unit = to_arrow(t).unit
            per = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
            value = (millis * 10**6 + nanos) // per
            if unit in ("us", "ns") and not -(2**63) <= value < 2**63:
                raise BadRowError("range")
        elif t.root in (R.STRING, R.CHAR, R.BYTES, R.BINARY, R.DECIMAL):
            length, at = varint(data, at, 32)
            value = data[at : at + length]
            if len(value) != length:
                raise BadRowError("end")
            at += length
            if t.root in (R.STRING, R.CHAR):
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    raise BadRowError("utf-8") from None
            elif t.root is R.BINARY and length != t.length:
                raise BadRowError("length")
            elif t.root is R.DECIMAL:
                if not 1 <= length <= 16:
                    raise BadRowError("length")
                value = int.from_bytes(value, "big", signed=True)
                if abs(value) >= 10 ** (t.precision or 0):
                    raise BadRowError("precision")
        else:
            code = {R.BOOLEAN: "B", R.TINYINT: "b", R.SMALLINT: "h", R.FLOAT: "f", R.DOUBLE: "d"}
            size = struct.calcsize(code[t.root])
            if at + size > len(data):
                raise BadRowError("end")
            (value,) = struct.unpack_from("<" + code[t.root], data, at)
            at += size
            if t.root is R.BOOLEAN and value > 1:
                raise BadRowError("boolean")
        row.append(value)
    if at != len(data):
        raise BadRowError("rest")
    return row


def plain(table: pa.Table, columns: list[Column]) -> list[list[Any]]:
    """Return the rows of a table as :func:`compacted_row` gives them."""
    lists = []
    for column in columns:
        array = table.column(column.name).combine_chunks()
        root = column.type.root
        if root is R.DECIMAL:
            scale = column.type.scale or 0
            values = [None if v is None else int(v.scaleb(scale, WIDE)) for v in array.to_pylist()]
        elif root is R.DATE or (root is R.TIME_WITHOUT_TIME_ZONE and array.type.bit_width == 32):
            values = array.view(pa.int32()).to_pylist()
            if root is R.TIME_WITHOUT_TIME_ZONE and array.type.unit == "s":
                values = [None if v is None else v * 1000 for v in values]
        elif root is R.TIME_WITHOUT_TIME_ZONE:
            per = 1000 if array.type.unit == "us" else 10**6
            values = [None if v is None else v // per for v in array.view(pa.int64()).to_pylist()]
        elif root in (R.TIMESTAMP_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
            values = array.view(pa.int64()).to_pylist()
        else:
            values = array.to_pylist()
        lists.append(values)
    return [list(row) for row in zip(*lists, strict=True)]


def simple_types() -> st.SearchStrategy[DataType]:
    flag = st.booleans()
    roots = [R.BOOLEAN, R.TINYINT, R.SMALLINT, R.INTEGER, R.BIGINT, R.FLOAT, R.DOUBLE]
    roots += [R.STRING, R.BYTES, R.DATE]
    decimals = st.integers(1, 38).flatmap(
        lambda p: st.builds(
            DataType, st.just(R.DECIMAL), flag, precision=st.just(p), scale=st.integers(0, p)
        )
    )
    timed = [R.TIME_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITHOUT_TIME_ZONE]
    timed += [R.TIMESTAMP_WITH_LOCAL_TIME_ZONE]
    return st.one_of(
        st.builds(DataType, st.sampled_from(roots), flag),
        decimals,
        st.builds(DataType, st.sampled_from(timed), flag, precision=st.integers(0, 9)),
        st.builds(DataType, st.sampled_from([R.CHAR, R.BINARY]), flag, length=st.integers(1, 12)),
    )


def types() -> st.SearchStrategy[DataType]:
    flag = st.booleans()
    return st.recursive(
        simple_types(),
        lambda inner: st.one_of(
            st.builds(DataType, st.just(R.ARRAY), flag, element=inner),
            st.builds(
                DataType,
                st.just(R.MAP),
                flag,
                key=simple_types().map(lambda t: t.with_nullable(False)),
                value=inner,
            ),
            st.lists(inner, min_size=1, max_size=10).flatmap(
                lambda kinds: st.builds(
                    DataType,
                    st.just(R.ROW),
                    flag,
                    fields=st.just(tuple(DataField(f"f{i}", t) for i, t in enumerate(kinds))),
                )
            ),
        ),
        max_leaves=6,
    )


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    near = [n for b in range(0, 64, 7) for n in (2**b - 1, 2**b, -(2**b)) if low <= n <= high]
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, *near]))


def values(t: DataType) -> st.SearchStrategy[Any]:
    """Values as ``pa.array`` takes them with the raw type of :func:`raw_type`."""
    made: st.SearchStrategy[Any]
    root = t.root
    widths = {R.TINYINT: 8, R.SMALLINT: 16, R.INTEGER: 32, R.BIGINT: 64, R.DATE: 32}
    if root in widths:
        bits = widths[root] - 1
        made = integers(-(2**bits), 2**bits - 1)
    elif root is R.BOOLEAN:
        made = st.booleans()
    elif root in (R.FLOAT, R.DOUBLE):
        made = st.floats(width=32 if root is R.FLOAT else 64, allow_nan=False)
    elif root is R.DECIMAL:
        most = 10 ** (t.precision or 0) - 1
        made = integers(-most, most)
    elif root is R.TIME_WITHOUT_TIME_ZONE:
        per = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[to_arrow(t).unit]
        step = max(1, per // 1000)
        made = st.integers(0, 86_400 * min(per, 1000) - 1).map(lambda v: v * step)
    elif root in (R.TIMESTAMP_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        most = 2**62 // (1000 if to_arrow(t).unit == "s" else 1)
        made = integers(-most, most)
    elif root is R.STRING:
        made = st.text(max_size=40)
    elif root is R.CHAR:
        made = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=t.length)
    elif root is R.BYTES:
        made = st.binary(max_size=40)
    elif root is R.BINARY:
        # indexed rows hold none that ends with a zero byte
        length = (t.length or 1) - 1
        ends = st.integers(1, 255).map(lambda last: bytes([last]))
        made = st.tuples(st.binary(min_size=length, max_size=length), ends).map(b"".join)
    elif t.element is not None:
        made = st.lists(values(t.element), max_size=35)
    elif t.key is not None and t.value is not None:
        made = st.lists(st.tuples(values(t.key), values(t.value)), max_size=9)
    else:
        made = st.fixed_dictionaries({f.name: values(f.type) for f in t.fields})
    return st.one_of(st.none(), made) if t.nullable else made


def array(items: list[Any], t: DataType) -> pa.Array:
    """Return an Arrow array of values that :func:`values` drew."""
    root = t.root
    kind = to_arrow(t)
    mask = pa.array([v is None for v in items], pa.bool_())
    present = [v for v in items if v is not None]
    if t.element is not None:
        flat = array([x for v in present for x in v], t.element)
    elif t.key is not None and t.value is not None:
        keys = array([k for v in present for k, _ in v], t.key)
        vals = array([x for v in present for _, x in v], t.value)
        # before 26 PyArrow ends the process over keys with a bitmap whose nulls are not counted yet
        assert keys.null_count == 0
        flat = pa.StructArray.from_arrays([keys, vals], fields=[kind.key_field, kind.item_field])
    elif root is R.ROW:
        default = [present[0] if v is None and present else v for v in items]
        if not present:
            return pa.nulls(len(items), kind)
        children = [array([v[f.name] for v in default], f.type) for f in t.fields]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    elif root is R.DECIMAL:
        raw = b"".join((v or 0).to_bytes(16, "little", signed=True) for v in items)
        valid = pa.array([v is not None for v in items], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, len(items), [valid, pa.py_buffer(raw)])
    elif root in (R.DATE, R.TIME_WITHOUT_TIME_ZONE):
        return pa.array(items, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    elif root in (R.TIMESTAMP_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        return pa.array(items, pa.int64()).view(kind)
    else:
        return pa.array(items, kind)
    offsets = [0]
    for v in items:
        offsets.append(offsets[-1] + (0 if v is None else len(v)))
    valid = pa.array([v is not None for v in items], pa.bool_()).buffers()[1]
    places = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(kind, len(items), [valid, places], children=[flat])


@st.composite
def tables(
    draw: st.DrawFn, kinds: st.SearchStrategy[DataType] | None = None
) -> tuple[list[Column], pa.Table]:
    chosen = draw(st.lists(types() if kinds is None else kinds, min_size=1, max_size=11))
    columns = [Column(f"c{i}", t) for i, t in enumerate(chosen)]
    n = draw(st.integers(0, 6))
    arrays = [array([draw(values(t)) for _ in range(n)], t) for t in chosen]
    return columns, pa.Table.from_arrays(arrays, schema=arrow_schema(columns))

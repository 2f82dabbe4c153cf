"""Arrays and maps within rows, all of a column at once, level by level.

An array is its count (int32), null bits in words of four bytes, and its elements; numbers stand
as they are, a text of up to 7 bytes in its 8 bytes with 0x80 | length in the last one, all else
behind, in words of 8 bytes, with offset << 32 | length in its place (for timestamps: nanoseconds).
A map is the length of its array of keys (int32), that array, and the array of its values. A row
has the format of the row it stands in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.unaligned import (
    SLACK,
    Blobs,
    Bools,
    Int64s,
    UInt8s,
    copy_blobs,
    padded,
    word_view,
)
from fluss_df.record.rows import row_values as rv
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_INLINE: Final = 7
_MILLI_BYTES: Final = 8
_DECIMAL_ROOM: Final = 16


class Encoder(Protocol):
    """Encodes rows of a format."""

    def encode(self, table: pa.Table) -> EncodedRows:
        """Return the rows as bytes."""


class Decoder(Protocol):
    """Decodes rows of a format."""

    def decode_padded(self, data: UInt8s, starts: Int64s, ends: Int64s) -> pa.Table:
        """Return the rows in bytes with slack."""


MakeEncoder = Callable[[list[Column]], Encoder]
MakeDecoder = Callable[[list[Column]], Decoder]


def _columns(t: DataType) -> list[Column]:
    return [Column(field.name, field.type) for field in t.fields]


def encode_nested(array: pa.Array, t: DataType, path: str, rows: MakeEncoder) -> Blobs:
    """Encode ARRAYs, MAPs or ROWs; nulls become empty."""
    valid = rv.validity(array)
    present = array if valid is None else array.drop_null()
    if t.element is not None:
        made = _encode_lists(present, t.element, path + "[]", rows)
    elif t.key is not None and t.value is not None:
        made = _encode_maps(present, t, path, rows)
    else:
        # a field of a struct knows nothing of the struct's own nulls, of which none are left
        arrays = [present.field(i) for i in range(len(t.fields))]
        columns = [Column(f"{path}.{field.name}", field.type) for field in t.fields]
        names = [column.name for column in columns]
        made = rows(columns).encode(pa.Table.from_arrays(arrays, names=names))
    lengths = np.diff(made.offsets)
    if valid is None:
        return Blobs(padded(made.data), made.offsets[:-1], lengths)
    all_starts = np.zeros(len(array), np.int64)
    all_lengths = np.zeros(len(array), np.int64)
    all_starts[valid], all_lengths[valid] = made.offsets[:-1], lengths
    return Blobs(padded(made.data), all_starts, all_lengths)


def _encode_lists(array: pa.Array, t: DataType, path: str, rows: MakeEncoder) -> EncodedRows:
    if array.type.equals(pa.null()):
        raise SchemaMismatchError(f"column '{path}' has no type")
    offsets = np.asarray(array.offsets).astype(np.int64)
    elements = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return _encode_elements(elements, offsets - offsets[0], t, path, rows)


def _encode_maps(array: pa.Array, t: DataType, path: str, rows: MakeEncoder) -> EncodedRows:
    assert t.key is not None
    assert t.value is not None
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    bounds = offsets - first
    keys = array.keys.slice(first, count)
    keys_made = _encode_elements(keys, bounds, t.key, path + ".key", rows)
    items = array.items.slice(first, count)
    items_made = _encode_elements(items, bounds, t.value, path + ".value", rows)
    key_sizes, item_sizes = np.diff(keys_made.offsets), np.diff(items_made.offsets)
    result = np.zeros(len(array) + 1, np.int64)
    np.cumsum(4 + key_sizes + item_sizes, out=result[1:])
    out = np.zeros(int(result[-1]) + SLACK, np.uint8)
    at = result[:-1]
    word_view(out, 4)[at] = key_sizes
    copy_blobs(padded(keys_made.data), keys_made.offsets[:-1], key_sizes, out, at + 4, exact=True)
    copy_blobs(
        padded(items_made.data),
        items_made.offsets[:-1],
        item_sizes,
        out,
        at + 4 + key_sizes,
        exact=True,
    )
    return EncodedRows(out[: int(result[-1])], result)


def element_width(t: DataType) -> int:
    """Return the bytes that an element takes in the fixed part of an array."""
    return rv.width_of(t) if rv.is_number(t) else 8


def _encode_elements(
    elements: pa.Array, bounds: Int64s, t: DataType, path: str, rows: MakeEncoder
) -> EncodedRows:
    """Encode arrays: array i has the elements from ``bounds[i]`` to ``bounds[i + 1]``."""
    n, total = len(bounds) - 1, int(bounds[-1])
    counts = np.diff(bounds)
    header = 4 + (counts + 31) // 32 * 4
    width = element_width(t)
    fixed = (header + counts * width + 7) // 8 * 8
    valid = rv.validity(elements)
    if valid is not None and not t.nullable:
        raise SchemaMismatchError(f"column '{path}' ({t}): null among the elements")
    values = rv.extract(
        elements, t, path, lambda array, kind, at: encode_nested(array, kind, at, rows)
    )
    room = np.zeros(total, np.int64)
    if isinstance(values, Blobs):
        if t.root in rv.BYTES:
            long = values.lengths > _INLINE
            room = np.where(long, (values.lengths + 7) // 8 * 8, 0)
        elif t.root is _R.DECIMAL:
            room = np.full(total, _DECIMAL_ROOM, np.int64)
        else:
            room = (values.lengths + 7) // 8 * 8
    elif isinstance(values, rv.Stamps) and rv.has_nanos(t):
        room = np.full(total, _MILLI_BYTES, np.int64)
    if valid is not None:
        room = np.where(valid, room, 0)
    before = np.zeros(total + 1, np.int64)
    np.cumsum(room, out=before[1:])
    sizes = fixed + before[bounds[1:]] - before[bounds[:-1]]
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if len(sizes) and int(sizes.max()) >= 2**31:
        raise FlussError(f"column '{path}': an array of more than 2 GiB")
    out = np.zeros(int(offsets[-1]) + SLACK, np.uint8)
    begin = offsets[:-1]
    word_view(out, 4)[begin] = counts
    owner = np.repeat(np.arange(n), counts)
    index = np.arange(total) - bounds[:-1][owner]
    if valid is not None:
        null = np.flatnonzero(~valid)
        byte = begin[owner[null]] + 4 + (index[null] >> 3)
        np.bitwise_or.at(out, byte, (1 << (index[null] & 7)).astype(np.uint8))
    at = begin[owner] + header[owner] + index * width
    behind = fixed[owner] + before[:-1] - before[bounds[:-1]][owner]
    kept = np.arange(total) if valid is None else np.flatnonzero(valid)
    at, behind, base = at[kept], behind[kept], begin[owner][kept]
    if isinstance(values, rv.Numbers):
        word_view(out, width)[at] = values.values[kept]
    elif isinstance(values, rv.Stamps):
        millis = values.millis[kept]
        if rv.has_nanos(t):
            word_view(out)[at] = ((behind << 32) | values.nanos[kept]).view(np.uint64)
            word_view(out)[base + behind] = millis.view(np.uint64)
        else:
            word_view(out)[at] = millis.view(np.uint64)
    else:
        lengths, starts = values.lengths[kept], values.starts[kept]
        place = ((behind << 32) | lengths).view(np.uint64)
        if t.root in rv.BYTES:
            short = lengths <= _INLINE
            mark = (0x80 | lengths).astype(np.uint64) << np.uint64(56)
            place = np.where(short, mark, place)
            word_view(out)[at] = place
            where = np.where(short, at, base + behind)
            # copied in the order of addresses within an array, the long ones apart
            for part in (np.flatnonzero(short), np.flatnonzero(~short)):
                copy_blobs(values.data, starts[part], lengths[part], out, where[part], exact=True)
        else:
            word_view(out)[at] = place
            copy_blobs(values.data, starts, lengths, out, base + behind, exact=True)
    return EncodedRows(out[: int(offsets[-1])], offsets)


def decode_nested(
    blobs: Blobs, t: DataType, valid: Bools | None, path: str, rows: MakeDecoder
) -> pa.Array:
    """Decode ARRAYs, MAPs or ROWs; those that are not ``valid`` are empty.

    Raises ProtocolError for bytes that are none of the type.
    """
    n = len(blobs.starts)
    kept = np.arange(n) if valid is None else np.flatnonzero(valid)
    starts, lengths = blobs.starts[kept], blobs.lengths[kept]
    kind = to_arrow(t)
    if t.root is _R.ROW:
        columns = [Column(f"{path}.{field.name}", field.type) for field in t.fields]
        table = rows(columns).decode_padded(blobs.data, starts, starts + lengths)
        place = np.zeros(n, np.int64)
        place[kept] = np.arange(len(kept))
        take = None if valid is None else pa.array(place, mask=~valid)
        fields = []
        for column in table.columns:
            one = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            fields.append(one if take is None else one.take(take))
        mask = None if valid is None else pa.array(~valid)
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if t.element is not None:
        elements, counts = _decode_elements(
            blobs.data, starts, lengths, t.element, path + "[]", rows
        )
        children = [elements]
    else:
        assert t.key is not None
        assert t.value is not None
        _require(lengths >= 4, path, "a map shorter than its head")
        key_sizes = word_view(blobs.data, 4)[starts].view(np.int32).astype(np.int64)
        fits = (key_sizes >= 0) & (key_sizes <= lengths - 4)
        _require(fits, path, "a map whose keys are longer than it is")
        key_type = t.key.with_nullable(False)
        keys, counts = _decode_elements(
            blobs.data, starts + 4, key_sizes, key_type, path + ".key", rows
        )
        items, item_counts = _decode_elements(
            blobs.data,
            starts + 4 + key_sizes,
            lengths - 4 - key_sizes,
            t.value,
            path + ".value",
            rows,
        )
        _require(counts == item_counts, path, "a map of as many keys as it has not values")
        fields = [kind.key_field, kind.item_field]
        children = [pa.StructArray.from_arrays([keys, items], fields=fields)]
    all_counts = np.zeros(n, np.int64)
    all_counts[kept] = counts
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(all_counts, out=offsets[1:])
    if int(offsets[-1]) >= 2**31:
        raise ProtocolError(f"column '{path}': more elements than one block can hold")
    buffers = [rv.bitmap(valid), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, n, buffers, children=children)


def _require(good: Bools, path: str, why: str) -> None:
    if not good.all():
        index = int(np.flatnonzero(~good)[0])
        raise ProtocolError(f"column '{path}', value {index}: {why}")


def _decode_elements(
    data: UInt8s, starts: Int64s, lengths: Int64s, t: DataType, path: str, rows: MakeDecoder
) -> tuple[pa.Array, Int64s]:
    """Return the elements of all arrays behind each other, and how many of each."""
    _require(lengths >= 4, path, "an array shorter than its count")
    counts = word_view(data, 4)[starts].view(np.int32).astype(np.int64)
    _require(counts >= 0, path, "an array of less than no elements")
    header = 4 + (counts + 31) // 32 * 4
    width = element_width(t)
    _require(header + counts * width <= lengths, path, "an array longer than its bytes")
    total = int(counts.sum())
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    index = np.arange(total) - first[owner]
    base, size = starts[owner], lengths[owner]
    bits = data[base + 4 + (index >> 3)] >> (index & 7).astype(np.uint8)
    null = (bits & 1).astype(np.bool_)
    valid = None
    if null.any():
        if not t.nullable:
            _require(~null, path, "null, which the type does not allow")
        valid = ~null
    words = word_view(data, width)[base + header[owner] + index * width].astype(np.uint64)
    if valid is not None:
        words[null] = 0
    fail = rv.failing(path, t, 0)
    if rv.is_number(t):
        return rv.build(rv.Numbers(words, width), t, valid, fail), counts
    if rv.is_stamp(t) and not rv.has_nanos(t):
        stamps = rv.Stamps(words.view(np.int64), np.zeros(total, np.int64))
        return rv.build(stamps, t, valid, fail), counts
    offset, length = (
        (words >> np.uint64(32)).view(np.int64),
        (words & np.uint64(0xFFFFFFFF)).view(np.int64),
    )
    if rv.is_stamp(t):
        _require((offset + _MILLI_BYTES <= size) | null, path, "a timestamp outside its array")
        millis = word_view(data)[np.where(null, 0, base + offset)].view(np.int64)
        millis = np.where(null, 0, millis)
        return rv.build(rv.Stamps(millis, length), t, valid, fail), counts
    if t.root in rv.BYTES:
        inline = (words >> np.uint64(63)).astype(np.bool_)
        short = ((words >> np.uint64(56)) & np.uint64(0x7F)).view(np.int64)
        _require(~inline | (short <= _INLINE), path, "a short value of more than 7 bytes")
        offset = np.where(inline, header[owner] + index * width, offset)
        length = np.where(inline, short, length)
    _require(offset + length <= size, path, "a value outside its array")
    # values may not share bytes: a small hostile row would else grow large
    used = np.bincount(owner, length, len(counts)) if total else np.zeros(len(counts))
    _require(used <= lengths, path, "values of more bytes than their array")
    blobs = Blobs(data, np.where(null, 0, base + offset), np.where(null, 0, length))
    if t.root in rv.NESTED:
        return decode_nested(blobs, t, valid, path, rows), counts
    return rv.build(blobs, t, valid, fail), counts

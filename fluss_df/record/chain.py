"""Records behind each other, each with its length before it (int32, without itself).

Where a record begins is known only from the one before, which takes a loop over them all. This is
how Parquet stores byte arrays (encoding PLAIN), and Arrow's reader of it is that loop, compiled: so
the records are given to it as a Parquet file of one column. It takes 12 ns for a record; a loop in
Python takes 80 to 130 ns, and many speculative walks at once in NumPy took 25 to 50 ns.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import ProtocolError
from fluss_df.record.unaligned import SLACK, Int64s, UInt8s

LENGTH_SIZE: Final = 4
_LENGTH: Final = struct.Struct("<i")
# the reader takes as long to begin as the loop for so many records
_FEW: Final = 1_000
# the largest page that Parquet has
_MOST_BYTES: Final = 2**31 - 1


def walk_chain(
    data: UInt8s, start: int, count: int, *, least: int, what: str
) -> tuple[Int64s, Int64s]:
    """Return where each record begins (behind its length) and ends.

    Parameters
    ----------
    data
        Bytes whose end, but for the slack, is that of the records.
    start
        Where the first length stands.
    count
        How many records there are.
    least
        The least length that can be.
    what
        What they are, for errors.

    Raises
    ------
    ProtocolError
        For another number of records, or lengths that do not end where the bytes do.
    """
    end = len(data) - SLACK
    if count < 0 or count * (LENGTH_SIZE + least) > end - start:
        raise ProtocolError(f"{count} {what} in {end - start} bytes")
    walk = _walk if count < _FEW or end - start > _MOST_BYTES else _walk_as_parquet
    edges = walk(data, start, end, count, what)
    short = np.flatnonzero(np.diff(edges) < LENGTH_SIZE + least)
    if len(short):
        raise ProtocolError(f"{what}: number {short[0]} of {count} is too short")
    if edges[-1] != end:
        raise ProtocolError(f"{count} {what} end at byte {edges[-1]}, the bytes at {end}")
    return edges[:-1] + LENGTH_SIZE, edges[1:]


def _walk(data: UInt8s, start: int, end: int, count: int, what: str) -> Int64s:
    """Return where each record begins, its length included, and where the last ends."""
    view = data.data[:end]
    unpack = _LENGTH.unpack_from
    begins = []
    at = start
    try:
        # a loop of nothing else: what the lengths may be is looked at afterwards, for all
        for _ in range(count):
            begins.append(at)
            at += unpack(view, at)[0] + LENGTH_SIZE
    except struct.error:
        raise ProtocolError(f"{what}: number {len(begins) - 1} of {count} is not there") from None
    return np.array([*begins, at], np.int64)


def _walk_as_parquet(data: UInt8s, start: int, end: int, count: int, what: str) -> Int64s:
    """Do as :func:`_walk`."""
    from pyarrow import parquet

    file = pa.BufferReader(_parquet_file(data[start:end], count))
    try:
        found = parquet.ParquetFile(file).read(use_threads=False).column(0)
    except (OSError, pa.ArrowException):
        found = None
    if found is None or len(found) != count or found.num_chunks != 1:
        # says what is wrong, and where
        return _walk(data, start, end, count, what)
    array = found.chunk(0)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: count + 1]
    return start + offsets + np.arange(0, LENGTH_SIZE * (count + 1), LENGTH_SIZE)


_MAGIC: Final = b"PAR1"
# Thrift's compact protocol: a field begins with what it adds to the number of the field before it
# (upper four bits) and its type; a structure ends with zero
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_END: Final = b"\0"
_REQUIRED, _BYTE_ARRAY, _PLAIN, _RLE, _DATA_PAGE = 0, 6, 0, 3, 0


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(step: int, kind: int, value: int | bytes) -> bytes:
    """Return a field; numbers are zigzag varints."""
    content = _varint(2 * value) if isinstance(value, int) else value
    return bytes([step << 4 | kind]) + content


def _one(kind: int, item: bytes) -> bytes:
    """Return a list of one item."""
    return bytes([1 << 4 | kind]) + item


def _parquet_file(body: UInt8s, count: int) -> pa.Buffer:
    """Return a Parquet file whose one column is stored as these bytes."""
    size = len(body)
    page = (
        _field(1, _I32, _DATA_PAGE)
        + _field(1, _I32, size)
        + _field(1, _I32, size)
        + _field(2, _STRUCT, b"")
        + _field(1, _I32, count)
        + _field(1, _I32, _PLAIN)
        + _field(1, _I32, _RLE)
        + _field(1, _I32, _RLE)
        + _END
        + _END
    )
    stored = len(page) + size
    name = _varint(1) + b"r"
    root = _field(4, _BINARY, name) + _field(1, _I32, 1) + _END
    leaf = _field(1, _I32, _BYTE_ARRAY) + _field(2, _I32, _REQUIRED) + _field(1, _BINARY, name)
    column = (
        _field(1, _I32, _BYTE_ARRAY)
        + _field(1, _LIST, _one(_I32, _varint(2 * _PLAIN)))
        + _field(1, _LIST, _one(_BINARY, name))
        + _field(1, _I32, 0)
        + _field(1, _I64, count)
        + _field(1, _I64, stored)
        + _field(1, _I64, stored)
        + _field(2, _I64, len(_MAGIC))
        + _END
    )
    chunk = _field(2, _I64, 0) + _field(1, _STRUCT, column) + _END
    group = (
        _field(1, _LIST, _one(_STRUCT, chunk))
        + _field(1, _I64, stored)
        + _field(1, _I64, count)
        + _END
    )
    footer = (
        _field(1, _I32, 1)
        + _field(1, _LIST, bytes([2 << 4 | _STRUCT]) + root + leaf + _END)
        + _field(1, _I64, count)
        + _field(1, _LIST, _one(_STRUCT, group))
        + _END
    )
    before = _MAGIC + page
    behind = footer + struct.pack("<i", len(footer)) + _MAGIC
    file = np.concatenate(
        [np.frombuffer(before, np.uint8), body, np.frombuffer(behind, np.uint8)], dtype=np.uint8
    )
    return pa.py_buffer(file)

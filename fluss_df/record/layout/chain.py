"""Records behind each other, each with its length before it (int32, without itself).

Where a record begins is known only from the one before, which takes a loop over them all. This is
how Parquet stores byte arrays (encoding PLAIN), and Arrow's reader of it is that loop, compiled: so
the records are given to it as a Parquet file of one column. It takes 12 ns for a record; a loop in
Python takes 80 to 130 ns, and many speculative walks at once in NumPy took 25 to 50 ns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import ProtocolError
from fluss_df.record.layout.headers import Bytes, byte_view
from fluss_df.record.layout.unaligned import SLACK, Int64s, UInt8s, padded, varint

LENGTH_SIZE: Final = 4
_LENGTH: Final = struct.Struct("<i")
# Arrow's reader takes as long to start as the loop takes for this number of records.
_FEW: Final = 1_000
# the largest page that Parquet has
_MOST_BYTES: Final = 2**31 - 1_024


@dataclass(frozen=True, slots=True)
class Chain:
    """Records that were found, as places in ``data``.

    ``starts`` and ``ends`` are those of the contents, without the lengths. ``data`` may be a copy
    in which the records stand elsewhere: in the bytes of the chain, each of them stands ``moved``
    bytes further back. ``data`` ends with slack, see :mod:`fluss_df.record.layout.unaligned`.
    """

    data: UInt8s
    starts: Int64s
    ends: Int64s
    moved: Int64s | int


def walk_chain(data: Bytes, start: int, count: int, *, least: int, what: str) -> Chain:
    """Return the records that fill some bytes.

    ``start`` is where the first length stands. No record may be shorter than ``least`` bytes.
    ``what`` is what the records are, for errors.

    Raises ProtocolError for another number of records, or lengths that do not end where the bytes
    do.
    """
    view = byte_view(data)
    size = len(view) - start
    if count < 0 or count * (LENGTH_SIZE + least) > size:
        raise ProtocolError(f"{count} {what} in {size} bytes")
    found = None
    if count >= _FEW and size <= _MOST_BYTES:
        found = _read_as_parquet(view, start, count)
    if found is None:
        found = _walk(view, start, count, what)
    short = np.flatnonzero(found.ends - found.starts < least)
    if len(short):
        raise ProtocolError(f"{what}: number {short[0]} of {count} is too short")
    return found


def _walk(view: memoryview, start: int, count: int, what: str) -> Chain:
    """Find the records one by one."""
    unpack = _LENGTH.unpack_from
    begins = []
    at = start
    try:
        # nothing else is done in the loop: lengths are checked afterwards, all at once
        for _ in range(count):
            begins.append(at)
            at += unpack(view, at)[0] + LENGTH_SIZE
    except struct.error:
        raise ProtocolError(f"{what}: number {len(begins) - 1} of {count} is not there") from None
    edges = np.array([*begins, at], np.int64)
    bad = np.flatnonzero(np.diff(edges) < LENGTH_SIZE)
    if len(bad):
        raise ProtocolError(f"{what}: number {bad[0]} of {count} is too short")
    if at != len(view):
        raise ProtocolError(f"{count} {what} end at byte {at}, the bytes at {len(view)}")
    return Chain(padded(view), edges[:-1] + LENGTH_SIZE, edges[1:], 0)


def _read_as_parquet(view: memoryview, start: int, count: int) -> Chain | None:
    """Find the records with Arrow; None where it finds something wrong."""
    from pyarrow import parquet

    file = _parquet_file(np.frombuffer(view, np.uint8)[start:], count)
    try:
        found = parquet.ParquetFile(pa.BufferReader(file)).read(use_threads=False).column(0)
    except (OSError, pa.ArrowException):
        return None
    # the last value is the slack
    if found.num_chunks != 1 or len(found) != count + 1:
        return None
    _, offsets, values = found.chunk(0).buffers()
    edges = np.frombuffer(offsets, np.int32)[: count + 2].astype(np.int64)
    if edges[0] or edges[count] + count * LENGTH_SIZE != len(view) - start:
        return None
    moved = np.arange(start + LENGTH_SIZE, start + LENGTH_SIZE * (count + 1), LENGTH_SIZE)
    return Chain(np.frombuffer(values, np.uint8), edges[:-2], edges[1:-1], moved)


_MAGIC: Final = b"PAR1"
# Thrift's compact protocol: a field begins with what it adds to the number of the field before it
# (upper four bits) and its type; a structure ends with zero
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_END: Final = b"\0"
_REQUIRED, _BYTE_ARRAY, _PLAIN, _RLE, _DATA_PAGE = 0, 6, 0, 3, 0


def _field(step: int, kind: int, value: int | bytes) -> bytes:
    """Return a field; numbers are zigzag varints."""
    content = varint(2 * value) if isinstance(value, int) else value
    return bytes([step << 4 | kind]) + content


def _one(kind: int, item: bytes) -> bytes:
    """Return a list of one item."""
    return bytes([1 << 4 | kind]) + item


def _parquet_file(records: UInt8s, count: int) -> pa.Buffer:
    """Return a Parquet file whose one column is stored as these bytes, and one value of slack."""
    slack = np.frombuffer(_LENGTH.pack(SLACK) + bytes(SLACK), np.uint8)
    size = len(records) + len(slack)
    count += 1
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
    name = varint(1) + b"r"
    root = _field(4, _BINARY, name) + _field(1, _I32, 1) + _END
    leaf = _field(1, _I32, _BYTE_ARRAY) + _field(2, _I32, _REQUIRED) + _field(1, _BINARY, name)
    column = (
        _field(1, _I32, _BYTE_ARRAY)
        + _field(1, _LIST, _one(_I32, varint(2 * _PLAIN)))
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
    ends = [np.frombuffer(part, np.uint8) for part in (before, behind)]
    file = np.concatenate([ends[0], records, slack, ends[1]])
    return pa.py_buffer(file)

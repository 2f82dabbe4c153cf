"""Records behind each other, each with its length before it (int32, without itself)."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from fluss_df.errors import ProtocolError
from fluss_df.record.headers import Bytes, byte_view
from fluss_df.record.unaligned import Int64s

LENGTH_SIZE: Final = 4
_LENGTH: Final = struct.Struct("<i")


def walk_chain(
    data: Bytes, start: int, end: int, count: int, *, least: int, what: str
) -> tuple[Int64s, Int64s]:
    """Return where each record begins (behind its length) and ends.

    Parameters
    ----------
    data, start, end
        The records, from the first length on.
    count
        How many there are.
    least
        The least length that can be.
    what
        What they are, for errors.

    Raises
    ------
    ProtocolError
        For another number of records, or lengths that do not end where the bytes do.
    """
    if count < 0 or count * (LENGTH_SIZE + least) > end - start:
        raise ProtocolError(f"{count} {what} in {end - start} bytes")
    view = byte_view(data)[:end]
    unpack = _LENGTH.unpack_from
    ends = []
    at = start
    for index in range(count):
        if at + LENGTH_SIZE > end:
            raise ProtocolError(f"{what}: number {index} of {count} begins behind the last byte")
        (length,) = unpack(view, at)
        if length < least:
            raise ProtocolError(f"{what}: number {index} has {length} bytes")
        at += LENGTH_SIZE + length
        if at > end:
            raise ProtocolError(f"{what}: number {index} reaches beyond the last byte")
        ends.append(at)
    if at != end:
        raise ProtocolError(f"{end - at} bytes behind the last of {count} {what}")
    found = np.array(ends, np.int64)
    begins = np.empty(count, np.int64)
    if count:
        begins[0] = start
        begins[1:] = found[:-1]
    return begins + LENGTH_SIZE, found

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
    begins = []
    at = start
    try:
        # a loop of nothing else: what the lengths may be is looked at afterwards, for all
        for _ in range(count):
            begins.append(at)
            at += unpack(view, at)[0] + LENGTH_SIZE
    except struct.error:
        raise ProtocolError(f"{what}: number {len(begins) - 1} of {count} is not there") from None
    edges = np.array([*begins, at], np.int64)
    short = np.flatnonzero(np.diff(edges) < LENGTH_SIZE + least)
    if len(short):
        raise ProtocolError(f"{what}: number {short[0]} of {count} is too short")
    if at != end:
        raise ProtocolError(f"{count} {what} end at byte {at}, the bytes at {end}")
    return edges[:-1] + LENGTH_SIZE, edges[1:]

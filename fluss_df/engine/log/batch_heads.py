"""The digest of a segment: a checksum over the headers of its batches.

The CRC of a batch covers its rows, but not its base offset, length and commit timestamp, which the
server sets. It also matches when the batch is put into another log. So the first bytes of each
batch, with its CRC, go into one CRC32C over all batches of the segment up to a position: the
digest. The index file of a segment and the file ``synced`` keep it.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c
import numpy as np

from fluss_df.record.layout.headers import HEADER_SIZE, Bytes, Int64s, LogHeaders

# bytes from the beginning of a batch that the digest covers; the CRC is among them in each magic
HEAD_BYTES: Final = 29
_OFFSET: Final = struct.Struct("<q")
_TIMESTAMP_AT: Final = 13
_START: Final = struct.Struct("<qi")


def stamped(
    records: memoryview, headers: LogHeaders, offset: int, timestamp: int
) -> list[bytes | memoryview]:
    """Return batches with their offsets and commit timestamp written into their headers.

    There are two parts of each batch: its first bytes, which are a copy, and the rest, which is a
    slice.
    """
    parts: list[bytes | memoryview] = []
    for i in range(len(headers)):
        start, size = int(headers.position[i]), int(headers.size[i])
        head = bytearray(records[start : start + HEAD_BYTES])
        _OFFSET.pack_into(head, 0, offset)
        _OFFSET.pack_into(head, _TIMESTAMP_AT, timestamp)
        parts += (bytes(head), records[start + HEAD_BYTES : start + size])
        headers.base_offset[i] = offset
        headers.timestamp[i] = timestamp
        offset += int(headers.last_offset_delta[i]) + 1
    return parts


def heads_of(data: Bytes, positions: Int64s) -> bytes:
    """Return the first bytes of the batches that begin at some positions."""
    view = np.frombuffer(data, np.uint8)
    heads: bytes = view[positions[:, None] + np.arange(HEAD_BYTES)].tobytes()
    return heads


def extended(digest: int, heads: bytes) -> int:
    """Return the digest of a log behind more batches."""
    return int(google_crc32c.extend(digest, heads))


def digest_behind(data: memoryview, digest: int) -> int | None:
    """Return the digest behind batches that fill some bytes; None where they do not."""
    at, end = 0, len(data)
    if not end:
        return digest
    heads = bytearray()
    unpack = _START.unpack_from
    while at < end:
        if at + HEADER_SIZE > end:
            return None
        size = unpack(data, at)[1] + _START.size
        if size < HEADER_SIZE or at + size > end:
            return None
        heads += data[at : at + HEAD_BYTES]
        at += size
    return extended(digest, bytes(heads))

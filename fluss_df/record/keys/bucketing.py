"""From keys to buckets, for all rows at once.

Fluss hashes with a variant of Murmur3 that mixes each byte of the tail as a block, seed 42, and
hashes the result once more; Paimon stops after the first. Iceberg uses Murmur3 as published, with
seed 0.

Java mixes the bytes of the tail signed. The official Rust and Python client (1.0.0) mixes them
unsigned, and so puts keys whose tail has a byte from 128 on into other buckets than every Java
writer: negative numbers, numbers over several bytes, text that is not ASCII. This project follows
Java; ``unsigned_tail`` gives the buckets of the Rust client, for tables that only it has written.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from fluss_df.errors import FlussError
from fluss_df.record.layout.bytes_columns import Keys

UInt8s = npt.NDArray[np.uint8]
UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
Tail = Literal["signed", "unsigned", "word"]

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_SEED: Final = 42
# rows that are hashed at a time: their arrays fit the processor's cache, and are small enough for
# the process to use their memory again
_BLOCK_ROWS: Final = 1 << 14


def bucket_ids(
    keys: Keys,
    num_buckets: int,
    lake_format: str | None = None,
    *,
    unsigned_tail: bool = False,
    of: str = "bucket key",
) -> npt.NDArray[np.int32]:
    """Return the bucket of each key.

    ``keys`` are those that :func:`fluss_df.record.keys.keys.encode_keys` made for the same lake
    format, which is the table's ``table.datalake.format``: None, ``paimon``, ``iceberg`` or
    ``lance``. ``unsigned_tail`` hashes as the official Rust client does, where that differs from
    Java; it has no effect for Iceberg. ``of`` names the table and the column in errors.

    Raises FlussError for no buckets, an empty key (Iceberg: an empty text or no bytes), or a lake
    format that is not supported.
    """
    if num_buckets < 1:
        raise FlussError(f"a table has at least one bucket, not {num_buckets}")
    lake = (lake_format or "").lower()
    tail: Tail = "unsigned" if unsigned_tail else "signed"
    if lake != "paimon" and (np.diff(keys.offsets) == 0).any():
        # Java's writers refuse it, too; Fluss's own keys hold a length, and are never empty
        raise FlussError(
            f"{of}: an empty key has no bucket in a table with a lake in Iceberg; leave out the"
            " rows where it is empty, or write another value"
        )
    if lake not in ("", "lance", "paimon", "iceberg"):
        raise FlussError(f"data lake format {lake_format!r}: its buckets are not supported")
    n = len(keys.offsets) - 1
    data = np.concatenate([keys.data[: keys.offsets[-1]], np.zeros(8, np.uint8)])
    buckets = np.empty(n, np.int32)
    for first in range(0, n, _BLOCK_ROWS):
        offsets = keys.offsets[first : first + _BLOCK_ROWS + 1]
        block = slice(first, first + len(offsets) - 1)
        if lake == "iceberg":
            positive = _murmur(data, offsets, 0, "word") & np.uint32(0x7FFFFFFF)
            buckets[block] = positive % np.uint32(num_buckets)
            continue
        hashes = _murmur(data, offsets, _SEED, tail)
        if lake == "paimon":
            # the remainder has the sign of the hash, as in Java
            buckets[block] = np.abs(hashes.view(np.int32).astype(np.int64)) % num_buckets
        else:
            buckets[block] = _int_murmur(hashes) % np.uint32(num_buckets)
    return buckets


def _murmur(data: UInt8s, offsets: Int64s, seed: int, tail: Tail) -> UInt32s:
    """Hash some keys: step i mixes the i-th block of every key that is long enough.

    The bytes behind the last whole block are mixed one by one as signed or unsigned numbers, or
    (as Murmur3 is published) together as one word; ``data`` has slack.
    """
    lengths = np.diff(offsets)
    n = len(lengths)
    # rows by length, longest first: the rows that still have a block are always a prefix
    longest, shortest = int(lengths.max()), int(lengths.min())
    order = None
    if longest // 4 != shortest // 4:
        # NumPy sorts numbers of up to 16 bits by their digits, in a fifth of the time
        kind = np.uint8 if longest < 2**8 else np.uint16 if longest < 2**16 else np.int64
        order = np.argsort((longest - lengths).astype(kind), kind="stable")
    starts = offsets[:-1]
    if order is not None:
        starts, lengths = starts[order], lengths[order]
    words = np.ndarray((len(data) - 4,), "<u4", data.data, strides=(1,))
    state = np.full(n, seed, np.uint32)
    blocks = lengths // 4
    for i in range(longest // 4):
        longer = n - int(np.searchsorted(blocks[::-1], i, side="right"))
        block = words[starts[:longer] + 4 * i].astype(np.uint32)
        state[:longer] = _mixed(state[:longer], block)
    tails, ends = lengths % 4, starts + blocks * 4
    for i in range(3) if tail != "word" else ():
        there = tails > i
        if not there.any():
            break
        raw = data[ends + i]
        if tail == "signed":
            byte = raw.view(np.int8).astype(np.int32).view(np.uint32)
        else:
            byte = raw.astype(np.uint32)
        # computed for all rows, which costs less than to pick those that have the byte
        mixed = _mixed(state, byte)
        if there.all():
            state = mixed
        else:
            np.copyto(state, mixed, where=there)
    if tail == "word":
        rows = np.flatnonzero(tails)
        mask = (np.uint64(1) << (tails[rows].astype(np.uint64) * np.uint64(8))) - np.uint64(1)
        rest = words[ends[rows]].astype(np.uint32) & mask.astype(np.uint32)
        state[rows] ^= _mix_block(rest)
    state ^= lengths.astype(np.uint32)
    _finish(state)
    if order is None:
        return state
    result = np.empty_like(state)
    result[order] = state
    return result


def _rotate(x: UInt32s, by: int) -> UInt32s:
    rotated = x << np.uint32(by)
    rotated |= x >> np.uint32(32 - by)
    return rotated


def _mix_block(block: UInt32s) -> UInt32s:
    mixed = _rotate(block * _C1, 15)
    mixed *= _C2
    return mixed


def _mixed(state: UInt32s, block: UInt32s) -> UInt32s:
    mixed = _rotate(state ^ _mix_block(block), 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    return mixed


def _finish(state: UInt32s) -> None:
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)


def _int_murmur(code: UInt32s) -> UInt32s:
    """Hash 4-byte numbers once more, to numbers from 0 on, as Flink does."""
    state = _rotate(_mix_block(code), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state ^= np.uint32(4)
    _finish(state)
    signed = state.view(np.int32)
    # -2**31 has no positive counterpart among the int32
    return np.where(signed == -(2**31), 0, np.abs(signed)).view(np.uint32)

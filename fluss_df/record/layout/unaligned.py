"""Words of eight bytes at any address: how rows of bytes are read and written in bulk.

Every array that is read or written so has :data:`SLACK` bytes more than it holds, since a word at
its last byte reaches over the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.headers import Bytes, byte_view

UInt8s = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SLACK: Final = 16
# values of more bytes are copied one at a time, by slices: cheaper than word by word
_LONG: Final = 2048
# a part whose values have no more bytes is written in one pass with the other parts
_SHORT: Final = 32
_U = np.uint64
_TOPS: Final = _U(0x8080808080808080)
# what the continuation bits of the first eight bytes are, by the length of the varint
_CONTINUES: Final = np.array(
    [0] + [((1 << 8 * (n - 1)) - 1) & 0x8080808080808080 for n in range(1, 9)] + [int(_TOPS)] * 2,
    np.uint64,
)
_FIRST_BYTES: Final = np.array([(1 << 8 * n) - 1 for n in range(8)], np.uint64)
# how groups of seven bits close up: what stays, and by how much the rest moves
_UNPACKING: Final = (
    (_U(0x007F007F007F007F), _U(1)),
    (_U(0x00003FFF00003FFF), _U(2)),
    (_U(0x000000000FFFFFFF), _U(4)),
)


def word_view(data: UInt8s, width: int = 8) -> npt.NDArray[np.unsignedinteger]:
    """Return a view whose item i is the little-endian number of ``width`` bytes at byte i."""
    count = max(0, len(data) - width + 1)
    return np.ndarray((count,), f"<u{width}", data.data, strides=(1,))


def padded(data: Bytes | UInt8s) -> UInt8s:
    """Return a copy with the slack that reading words needs."""
    raw = data if isinstance(data, np.ndarray) else np.frombuffer(byte_view(data), np.uint8)
    result = np.empty(len(raw) + SLACK, np.uint8)
    result[: len(raw)] = raw
    result[len(raw) :] = 0
    return result


def copy_blobs(
    source: UInt8s, starts: Int64s, lengths: Int64s, out: UInt8s, at: Int64s, *, exact: bool = False
) -> None:
    """Copy ``source[starts[i] :][: lengths[i]]`` to ``out[at[i] :]``, both with slack.

    Unless ``exact``, up to 8 bytes behind each value are overwritten, too: destinations ascend, so
    that the next value mends them.
    """
    words, target = word_view(source), word_view(out)
    if exact:
        short = np.flatnonzero((lengths < 8) & (lengths > 0))
        for width in (4, 2, 1):
            part = short[(lengths[short] & width) != 0]
            # a length of 7 is copied as 4, 2 and 1 bytes: those of the larger powers of two stand
            # before
            before = lengths[part] & ~np.int64(2 * width - 1)
            word_view(out, width)[at[part] + before] = word_view(source, width)[
                starts[part] + before
            ]
        rows = np.flatnonzero(lengths >= 8)
        target[at[rows]] = words[starts[rows]]
    else:
        target[at] = words[starts]
        rows = np.arange(len(starts))
    step = 8
    rows = rows[lengths[rows] > 8]
    for i in rows[lengths[rows] > _LONG].tolist():
        length, begin, to = int(lengths[i]), int(starts[i]), int(at[i])
        out[to : to + length] = source[begin : begin + length]
    rows = rows[lengths[rows] <= _LONG]
    while len(rows):
        # the last word of a value ends with it, over bytes that are already there
        within = np.minimum(step, lengths[rows] - 8)
        target[at[rows] + within] = words[starts[rows] + within]
        step += 8
        rows = rows[lengths[rows] > step]


def gather_blobs(source: UInt8s, starts: Int64s, lengths: Int64s) -> EncodedRows:
    """Return values, wherever they stand in ``source`` (with slack), behind each other."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    out = np.empty(total + SLACK, np.uint8)
    if total:
        copy_blobs(source, starts, lengths, out, offsets[:-1])
    return EncodedRows(out[:total], offsets)


@dataclass(frozen=True, slots=True)
class Words:
    """A part of up to eight bytes of each row; ``lengths`` is one for all rows, or one for each.

    The bytes of a value behind its length are zero.
    """

    values: UInt64s
    lengths: Int64s | int


@dataclass(frozen=True, slots=True)
class Blobs:
    """Parts of any length: of row i, ``data[starts[i] :][: lengths[i]]``; ``data`` has slack."""

    data: UInt8s
    starts: Int64s
    lengths: Int64s

    def __getitem__(self, rows: slice) -> Blobs:
        return Blobs(self.data, self.starts[rows], self.lengths[rows])


Part = Words | Blobs


def assemble(parts: list[Part], n: int) -> EncodedRows:
    """Put the parts of each row behind each other.

    Words are written in the order of their addresses: what one writes behind its end, the next one
    overwrites. Long values are copied last, and exactly.
    """
    parts = _merged(parts)
    counts = [_words_of(part) for part in parts]
    slots = sum(max(count, 1) for count in counts)
    at = np.empty((n, slots), np.int64)
    values = np.empty((n, slots), np.uint64)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(total_lengths(parts, n), out=offsets[1:])
    total = int(offsets[-1])
    out = np.empty(total + SLACK, np.uint8)
    behind: list[tuple[Blobs, Int64s, Int64s]] = []
    cursor = offsets[:-1].copy()
    i = 0
    for part, count in zip(parts, counts, strict=True):
        at[:, i] = cursor
        if isinstance(part, Words):
            values[:, i] = part.values
        else:
            words = word_view(part.data)
            values[:, i] = words[part.starts] if len(part.data) else 0
            if count > 1:
                # the last word ends with its value; one that is short is written again
                last = np.maximum(part.lengths - 8, 0)
                for word in range(1, count):
                    within = last if word == count - 1 else np.minimum(last, 8 * word)
                    np.add(cursor, within, out=at[:, i + word])
                    values[:, i + word] = words[part.starts + within]
            elif not count:
                rows = np.flatnonzero(part.lengths >= 8)
                behind.append((part, rows, at[rows, i]))
                # these are copied last, and without a byte too many
                at[rows, i] = total
                count = 1
        if not isinstance(part.lengths, int):
            none = part.lengths == 0
            if none.any():
                at[none, i : i + count] = total
        cursor += part.lengths
        i += count
    word_view(out)[at.reshape(-1)] = values.reshape(-1)
    for blobs, rows, where in behind:
        copy_blobs(blobs.data, blobs.starts[rows], blobs.lengths[rows], out, where, exact=True)
    return EncodedRows(out[:total], offsets)


def _words_of(part: Part) -> int:
    """Return in how many words a part is written; 0 for values of which some are copied last."""
    if isinstance(part, Words):
        return 1
    most = int(part.lengths.max(initial=1))
    return -(-most // 8) if most <= _SHORT else 0


def total_lengths(parts: Iterable[Part], n: int) -> Int64s:
    """Return the bytes of each row that its parts take together."""
    lengths = np.zeros(n, np.int64)
    for part in parts:
        lengths += part.lengths
    return lengths


def _merged(parts: list[Part]) -> list[Part]:
    """Join parts that follow each other and fit into a word of eight bytes together."""
    made: list[Part] = []
    used = 8
    for part in parts:
        if isinstance(part, Blobs):
            if int(part.lengths.max(initial=0)) >= 8 or not len(part.data):
                made.append(part)
                used = 8
                continue
            words = word_view(part.data)[part.starts]
            words &= _FIRST_BYTES[part.lengths]
            part = Words(words, part.lengths)
        lengths = part.lengths
        most = lengths if isinstance(lengths, int) else int(lengths.max(initial=0))
        last = made[-1] if made else None
        if used + most > 8 or not isinstance(last, Words):
            made.append(part)
            used = most
            continue
        behind = last.lengths
        shift = _U(8 * behind) if isinstance(behind, int) else (behind << 3).view(_U)
        made[-1] = Words(last.values | (part.values << shift), behind + lengths)
        used += most
    return made


def join(pieces: list[EncodedRows]) -> EncodedRows:
    """Put encoded rows behind each other."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return EncodedRows(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return EncodedRows(np.concatenate([piece.data for piece in pieces]), offsets)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


# most numbers are lengths and numbers of fields: to look them up takes a third of the time
_SMALL = [_varint(value) for value in range(1 << 10)]


def varint(value: int) -> bytes:
    """Return the unsigned LEB128 of one number from 0 on."""
    return _SMALL[value] if value < 1 << 10 else _varint(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that :func:`varint` wrote at a place, and where it ends.

    Raises ValueError where it has more than 10 bytes, IndexError where the bytes end within it. It
    may be larger than 64 bits hold.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while shift < 70:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise ValueError("a number of more than 10 bytes")


def varint_parts(values: UInt64s) -> list[Words]:
    """Return unsigned LEB128 as one part, or two where some take more than eight bytes."""
    top = int(values.max()) if len(values) else 0
    if top < 0x80:
        return [Words(values, 1)]
    more = np.ones(len(values), np.uint8)
    for bits in range(7, top.bit_length(), 7):
        more += values >= _U(1 << bits)
    lengths = more.astype(np.int64)
    x = values & _U(0x00FFFFFFFFFFFFFF)
    for mask, shift in reversed(_UNPACKING):
        if top >> int(shift) * 7:
            low = x & mask
            x ^= low
            x <<= shift
            x |= low
    x |= _CONTINUES[lengths]
    if top < 1 << 56:
        return [Words(x, lengths)]
    high = values >> _U(56)
    rest = (high & _U(0x7F)) | ((high & _U(0x80)) << _U(1)) | ((lengths == 10).astype(_U) << _U(7))
    return [Words(x, np.minimum(lengths, 8)), Words(rest, np.maximum(lengths - 8, 0))]


def read_varints(data: UInt8s, at: Int64s) -> tuple[UInt64s, Int64s | int]:
    """Read a varint at each place; return the values, and how many bytes each takes.

    That is 11 where the bytes are no varint of 64 bits.
    """
    x = word_view(data)[at]
    ends = ~x
    ends &= _TOPS
    # all bits up to the lowest that is set, the top of the last byte; where there is none, all
    below = ends - _U(1)
    below ^= ends
    lengths = np.bitwise_count(below) >> 3
    most = int(lengths.max()) if len(lengths) else 1
    if most == 1:
        x &= _U(0x7F)
        return x, 1
    x &= below
    x &= ~_TOPS
    for mask, shift in _UNPACKING:
        if most <= shift:
            break
        low = x & mask
        x ^= low
        x >>= shift
        x |= low
    lengths = lengths.astype(np.int64)
    if most == 8:
        long = np.flatnonzero(ends == 0)
        ninth = data[at[long] + 8].astype(_U)
        tenth = data[at[long] + 9].astype(_U)
        more = ninth >= 0x80
        x[long] |= ((ninth & _U(0x7F)) << _U(56)) | np.where(more, tenth << _U(63), _U(0))
        lengths[long] = np.where(more, np.where(tenth > 1, 11, 10), 9)
    return x, lengths

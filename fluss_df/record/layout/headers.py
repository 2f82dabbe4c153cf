"""Headers of log batches: walking the chain in a fetch response, and its checksums.

A batch begins with base offset (i64), length without these first 12 bytes (i32) and magic (u8);
what follows depends on the magic. All numbers are little endian; the CRC32C covers everything from
the schema id on. Offset, commit timestamp and leader epoch stand before it: the server sets them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Self, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError

Int64s = npt.NDArray[np.int64]
Bytes: TypeAlias = pa.Buffer | memoryview | bytes

OVERHEAD: Final = 12
HEADER_SIZE: Final = 48
CRC_START: Final = 25
APPEND_ONLY: Final = 0x01
NO_WRITER_ID: Final = -1
NO_SEQUENCE: Final = -1

_HEAD = struct.Struct("<qiB")
# Headers that are taken at once: the places of their bytes take eight times their size.
_BLOCK: Final = 4096

_TAIL = [
    ("crc", "<u4"),
    ("schema_id", "<i2"),
    ("attributes", "u1"),
    ("last_offset_delta", "<i4"),
    ("writer_id", "<i8"),
    ("sequence", "<i4"),
    ("record_count", "<i4"),
]
_PREFIX = [("base_offset", "<i8"), ("length", "<i4"), ("magic", "u1"), ("timestamp", "<i8")]
_EPOCH = [("leader_epoch", "<i4")]
_STATISTICS = [("statistics_length", "<i4")]

_V0 = np.dtype(_PREFIX + _TAIL)
_V1_EPOCH = np.dtype(_PREFIX + _EPOCH + _TAIL)
_V1_STATISTICS = np.dtype(_PREFIX + _TAIL + _STATISTICS)
_V2 = np.dtype(_PREFIX + _EPOCH + _TAIL + _STATISTICS)


@dataclass(frozen=True, slots=True)
class LogHeaders:
    """The headers of the whole batches in a piece of a log, one array item per batch.

    Attributes
    ----------
    position, size
        Where each batch begins in the scanned bytes, and its bytes with header.
    payload
        Where its change types or its Arrow message begin, as a position in the scanned bytes.
    crc_start
        The first byte that the CRC covers, as a position in the scanned bytes.
    base_offset, last_offset_delta
        The offset of the first row, and the distance from there to the last offset of the batch. A
        batch without rows still has one offset.
    timestamp
        Commit timestamps in milliseconds since the epoch.
    schema_id, append_only, writer_id, sequence, record_count, crc, magic
        The other fields of the header.
    consumed
        Bytes of whole batches: what follows is the beginning of a batch that was cut off.
    """

    position: Int64s
    size: Int64s
    payload: Int64s
    crc_start: Int64s
    base_offset: Int64s
    last_offset_delta: Int64s
    timestamp: Int64s
    schema_id: Int64s
    append_only: npt.NDArray[np.bool_]
    writer_id: Int64s
    sequence: Int64s
    record_count: Int64s
    crc: Int64s
    magic: Int64s
    consumed: int

    def __len__(self) -> int:
        return len(self.position)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the headers of pieces of a log, as if their whole batches were one piece."""
        ends = np.cumsum([part.consumed for part in parts])
        begins = np.repeat(ends - [part.consumed for part in parts], [len(part) for part in parts])
        found = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name != "consumed"
        }
        for name in ("position", "payload", "crc_start"):
            found[name] += begins
        return cls(**found, consumed=int(ends[-1]))

    @property
    def end_offset(self) -> int | None:
        """The offset after the last batch, where to fetch next; None without a whole batch."""
        if not len(self):
            return None
        return int(self.base_offset[-1] + self.last_offset_delta[-1]) + 1

    @property
    def missing_offsets(self) -> int:
        """How many offsets between the first batch and the last one no batch has."""
        if not len(self):
            return 0
        end = int(self.base_offset[-1] + self.last_offset_delta[-1]) + 1
        there = len(self) + int(self.last_offset_delta.sum())
        return end - int(self.base_offset[0]) - there

    @property
    def messages(self) -> Int64s:
        """Where the Arrow message of each batch begins, behind its change types."""
        return self.payload + np.where(self.append_only, 0, self.record_count)

    @property
    def rows(self) -> int:
        """The number of rows in all batches."""
        return int(self.record_count.sum())


def byte_view(data: Bytes) -> memoryview:
    """Return a view of unsigned bytes, without a copy; the views of Arrow buffers are signed."""
    view = memoryview(data)
    return view if view.format == "B" else view.cast("B")


def scan_headers(
    records: Bytes,
    *,
    magic1_has_statistics: bool = True,
    require_progress: bool = True,
    ascending: bool = True,
    most: int | None = None,
) -> LogHeaders:
    """Walk the chain of log batches and read their headers.

    ``records`` begins with a batch, as what a fetch returns does.

    Raises ProtocolError for a length, a count or an offset that cannot be, an unknown magic, or
    offsets that run backwards. A batch that is cut off at the end is left out.

    Parameters
    ----------
    magic1_has_statistics
        What magic 1 means: servers up to 0.9 put a leader epoch before the CRC, servers from 1.0
        on the length of statistics after the record count.
    require_progress
        Refuse bytes that do not hold one whole batch; a server always returns one.
    ascending
        Refuse offsets that run backwards; in what a writer sends, every batch begins at 0.
    most
        The most batches that are accepted; None for any number.
    """
    view = byte_view(records)
    positions, sizes, magics = _walk(view, most)
    if not positions and len(view) and require_progress:
        raise ProtocolError(f"{len(view)} bytes of a log do not hold one whole batch")
    n = len(positions)
    position = np.array(positions, np.int64)
    size = np.array(sizes, np.int64)
    magic = np.array(magics, np.int64)
    data = np.frombuffer(view, np.uint8)
    layouts = {0: _V0, 1: _V1_STATISTICS if magic1_has_statistics else _V1_EPOCH, 2: _V2}
    if n and (magic == 0).all():
        fields = _read(data, position, size, _V0)
    else:
        fields = {name: np.zeros(n, np.int64) for name in _FIELDS}
        for value in np.unique(magic).tolist():
            rows = np.flatnonzero(magic == value)
            part = _read(data, position[rows], size[rows], layouts[value])
            for name, values in part.items():
                fields[name][rows] = values
    _check(fields, position, size, ascending)
    return LogHeaders(
        position=position,
        size=size,
        payload=position + fields["header_size"],
        crc_start=position + fields["crc_offset"],
        base_offset=fields["base_offset"],
        last_offset_delta=fields["last_offset_delta"],
        timestamp=fields["timestamp"],
        schema_id=fields["schema_id"],
        append_only=(fields["attributes"] & APPEND_ONLY) != 0,
        writer_id=fields["writer_id"],
        sequence=fields["sequence"],
        record_count=fields["record_count"],
        crc=fields["crc"],
        magic=magic,
        consumed=positions[-1] + sizes[-1] if positions else 0,
    )


_FIELDS = (*(name for name, _ in _TAIL), "base_offset", "timestamp", "header_size", "crc_offset")


def _walk(view: memoryview, most: int | None) -> tuple[list[int], list[int], list[int]]:
    positions: list[int] = []
    sizes: list[int] = []
    magics: list[int] = []
    at, end = 0, len(view)
    unpack = _HEAD.unpack_from
    while at + _HEAD.size <= end:
        _, length, magic = unpack(view, at)
        if magic > 2:
            raise ProtocolError(f"a log batch of unknown magic {magic} at byte {at}")
        size = length + OVERHEAD
        if size < HEADER_SIZE:
            raise ProtocolError(f"a log batch of {size} bytes at byte {at}, less than its header")
        if at + size > end:
            break
        if len(positions) == most:
            raise ProtocolError(f"more than {most} log batches")
        positions.append(at)
        sizes.append(size)
        magics.append(magic)
        at += size
    return positions, sizes, magics


def _read(
    data: npt.NDArray[np.uint8], position: Int64s, size: Int64s, layout: np.dtype[np.void]
) -> dict[str, Int64s]:
    width = layout.itemsize
    if (size < width).any():
        raise ProtocolError("a log batch that is shorter than its header")
    heads = np.empty(len(position), layout)
    for at in range(0, len(position), _BLOCK):
        block = slice(at, at + _BLOCK)
        heads[block] = data[position[block, None] + np.arange(width)].view(layout)[:, 0]
    names = layout.names or ()
    fields = {name: heads[name].astype(np.int64) for name in _FIELDS if name in names}
    header_size = np.full(len(position), width, np.int64)
    if "statistics_length" in names:
        statistics = heads["statistics_length"].astype(np.int64)
        header_size += statistics
        if (statistics < 0).any() or (header_size > size).any():
            raise ProtocolError("a log batch whose statistics are longer than the batch")
    fields["header_size"] = header_size
    fields["crc_offset"] = np.full(
        len(position), CRC_START + (4 if "leader_epoch" in names else 0), np.int64
    )
    return fields


def _check(fields: dict[str, Int64s], position: Int64s, size: Int64s, ascending: bool) -> None:
    base, delta, count = fields["base_offset"], fields["last_offset_delta"], fields["record_count"]
    change_types = np.where(fields["attributes"] & APPEND_ONLY, 0, count)
    bad = (base < 0) | (delta < 0) | (count < 0) | (count > delta + 1)
    bad |= base > 2**62
    bad |= fields["header_size"] + change_types > size
    if ascending and len(base) > 1:
        bad[1:] |= base[1:] <= base[:-1] + delta[:-1]
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise ProtocolError(
            f"a log batch that cannot be, at byte {position[i]}: base offset {base[i]}, last "
            f"offset delta {delta[i]}, {count[i]} records in {size[i]} bytes"
        )


def verify_crcs(records: Bytes, headers: LogHeaders) -> None:
    """Compare each batch with its CRC32C.

    Not for a projected fetch: there the server rewrites the batch and leaves the old checksum.

    Raises ``CORRUPT_RECORD_EXCEPTION``, naming the offset of the first batch that differs.
    """
    data = np.frombuffer(records, np.uint8)  # the only view that google_crc32c takes
    value = google_crc32c.value
    starts = headers.crc_start.tolist()
    ends = (headers.position + headers.size).tolist()
    expected = headers.crc.tolist()
    for i, (start, end, crc) in enumerate(zip(starts, ends, expected, strict=True)):
        found = value(data[start:end])
        if found != crc:
            raise FlussError(
                f"the log batch at offset {headers.base_offset[i]} is corrupt: its checksum is "
                f"{crc:#010x}, its bytes have {found:#010x}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )

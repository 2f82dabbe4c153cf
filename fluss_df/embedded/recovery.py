"""Opening a log after its process ended, however it did."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from fluss_df.embedded.files import DamagedError
from fluss_df.embedded.segment import Segment, segment_offsets
from fluss_df.embedded.writers import WriterStates, WrittenBatch
from fluss_df.errors import FlussError
from fluss_df.record.headers import NO_WRITER_ID, LogHeaders, scan_headers, verify_crcs

logger = logging.getLogger(__name__)

_CHUNK: Final = 16 << 20
_RECORD: Final = struct.Struct("<8sqqq")
_MAGIC: Final = b"FDFSYNC1"
_CRC: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SyncedPoint:
    """Up to where a log is known to be on the disk.

    It is written after each sync and never before it: what is below was acknowledged, or may have
    been, and must be there in full.
    """

    end_offset: int
    segment: int
    position: int

    def pack(self) -> bytes:
        """Return the bytes of the file, 36 in one sector."""
        body = _RECORD.pack(_MAGIC, self.end_offset, self.segment, self.position)
        return body + _CRC.pack(google_crc32c.value(body))

    @classmethod
    def unpack(cls, data: bytes) -> SyncedPoint | None:
        """Read the file; None where it is empty or was torn while it was written."""
        if len(data) != _RECORD.size + _CRC.size:
            return None
        body = data[: _RECORD.size]
        magic, end_offset, segment, position = _RECORD.unpack(body)
        if magic != _MAGIC or google_crc32c.value(body) != _CRC.unpack(data[_RECORD.size :])[0]:
            return None
        return cls(end_offset, segment, position)


@dataclass(slots=True)
class LoadedLog:
    """What was found: the segments, whole batches only, and the writers."""

    segments: list[Segment]
    writers: WriterStates


def load_log(folder: Path, name: str, synced: SyncedPoint | None) -> LoadedLog:
    """Open the segments of a log, and cut off what a crash left unfinished.

    Segments with an index are taken as they are; all others are read and their checksums verified.

    Parameters
    ----------
    folder
        Of the log.
    name
        Of the table and bucket, for messages.
    synced
        Up to where nothing may be missing or damaged.

    Raises
    ------
    FlussError
        :class:`~fluss_df.embedded.files.DamagedError` for damage below the synced point. Nothing
        is changed on the disk.
    """
    segments: list[Segment] = []
    writers = WriterStates()
    bases = segment_offsets(folder)
    try:
        for number, base in enumerate(bases):
            segment = Segment(folder, base)
            segments.append(segment)
            if number and segments[-2].end_offset != base:
                raise _damage(name, folder, segments[-2].end_offset, "a segment is missing")
            state = segment.load_index()
            if state is not None:
                writers = WriterStates.from_json(state)
                continue
            whole = _read(segment, writers)
            if whole == segment.file_size():
                continue
            if synced is not None and segment.end_offset < synced.end_offset:
                raise _damage(name, segment.path, segment.end_offset, "a batch is damaged")
            lost = segment.file_size() - whole
            logger.warning(
                "%s: cut %d bytes behind offset %d that were not written to the end",
                name,
                lost,
                segment.end_offset,
            )
            segment.cut(whole)
            for later in bases[number + 1 :]:
                Segment(folder, later).delete()
            break
        end = segments[-1].end_offset if segments else 0
        if synced is not None and end < synced.end_offset:
            raise _damage(name, folder, end, f"batches up to {synced.end_offset} are missing")
    except BaseException:
        for segment in segments:
            segment.rest()
        raise
    for segment in segments[:-1]:
        segment.rest()
    return LoadedLog(segments, writers)


def _damage(name: str, path: Path, offset: int, what: str) -> FlussError:
    return DamagedError(
        f"the log of {name} is damaged at offset {offset}, below what was acknowledged: {what}"
        f" ({path}). Nothing was changed; restore the folder from a backup"
    )


def _read(segment: Segment, writers: WriterStates) -> int:
    """Take in the batches before the first that is no whole valid one; return their bytes."""
    end = segment.file_size()
    chunk = _CHUNK
    while segment.size < end:
        view = segment.view(segment.size, min(end, segment.size + chunk))
        headers = _valid(view, segment.end_offset)
        if headers is None:
            # one by one up to the bad one
            headers = _first_valid(view, segment.end_offset)
            if headers is None:
                break
        if not len(headers):
            if segment.size + chunk >= end:
                break
            chunk *= 4  # a batch larger than a chunk
            continue
        segment.take_in(headers)
        remember(writers, headers)
    return segment.size


def _valid(view: memoryview, offset: int) -> LogHeaders | None:
    """Return the headers of the whole batches in a view, or None when one of them is not valid."""
    try:
        headers = scan_headers(view, require_progress=False)
        verify_crcs(view, headers)
    except FlussError:
        return None
    for base, delta in zip(
        headers.base_offset.tolist(), headers.last_offset_delta.tolist(), strict=True
    ):
        if base != offset:
            return None
        offset += delta + 1
    return headers


def _first_valid(view: memoryview, offset: int) -> LogHeaders | None:
    """Return the header of the first batch in a view, or None when it is not valid."""
    if len(view) < 12:
        return None
    size = 12 + struct.unpack_from("<i", view, 8)[0]
    if not 12 < size <= len(view):
        return None
    return _valid(view[:size], offset)


def remember(writers: WriterStates, headers: LogHeaders) -> None:
    """Take note of the writers of batches in a log."""
    for i in (headers.writer_id != NO_WRITER_ID).nonzero()[0].tolist():
        base = int(headers.base_offset[i])
        writers.add(
            int(headers.writer_id[i]),
            WrittenBatch(
                int(headers.sequence[i]),
                base,
                base + int(headers.last_offset_delta[i]),
                int(headers.timestamp[i]),
            ),
        )

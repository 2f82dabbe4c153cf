"""Finds where batches begin and end in the memory map of a log."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from fluss_df.engine.log.batch_heads import digest_behind, extended, heads_of
from fluss_df.engine.log.segment import Segment
from fluss_df.errors import ProtocolError
from fluss_df.record.layout.headers import HEADER_SIZE, LogHeaders, scan_headers, verify_crcs

_BASE_OFFSET: Final = struct.Struct("<q")
_HEAD: Final = struct.Struct("<qi")
_SEARCH_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches of a log: their bytes, a slice of the segment's memory map."""

    data: memoryview
    headers: LogHeaders


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a segment: from the beginning of a batch to the end of what was written.

    It begins at ``position`` in the segment. ``view`` is its bytes, a slice of the segment's memory
    map. ``digest`` is that of the segment's batches before ``position``, see
    :mod:`~fluss_df.engine.log.batch_heads`.
    """

    segment: Segment
    position: int
    view: memoryview
    digest: int

    def verify(self, data: memoryview, headers: LogHeaders, at: int) -> None:
        """Verify batches that were not looked at since their segment was opened.

        Raises FlussError where they are not what was written.
        """
        segment, begin = self.segment, self.position + at
        end = begin + headers.consumed
        if end <= segment.verified:
            return
        verify_crcs(data, headers)
        self.verify_heads(at, at + headers.consumed, heads_of(data, headers.position))
        if begin <= segment.verified:
            segment.verified = max(segment.verified, end)

    def verify_heads(self, begin: int, end: int, heads: bytes) -> None:
        """Verify the headers of batches, up to the next one whose digest is known.

        Raises ProtocolError where they are not what was written.
        """
        index, last = self.segment.index, self.position + len(self.view)
        start, digest = index.entry_before(self.position + begin)
        known = index.entry_behind(self.position + end)
        if known is None or known[0] > last:
            known = last, self.digest
        before = self.view[start - self.position : begin]
        behind = self.view[end : known[0] - self.position]
        found = digest_behind(before, digest)
        if found is not None:
            found = digest_behind(behind, extended(found, heads))
        if found != known[1]:
            raise ProtocolError(
                f"headers of batches between bytes {start} and {known[0]} are not those that were"
                " written"
            )


def cut_piece(
    stretch: Stretch, offset: int, high: int, max_bytes: int, at_least_one: bool
) -> Piece | None:
    """Return whole batches, beginning with the one that holds an offset.

    Batches that were not looked at since their segment was opened are verified.

    The stretch begins at most an index interval before the offset. Batches that end behind the
    offset ``high`` are not visible yet. ``max_bytes`` is where to stop; with ``at_least_one``, one
    batch is returned even where it is larger.

    Raises FlussError, struct.error for bytes that are no batches.
    """
    view = stretch.view
    at = 0
    while True:  # at most an index interval and a batch
        base, length = _HEAD.unpack_from(view, at)
        size = length + _HEAD.size
        next_base = (
            _BASE_OFFSET.unpack_from(view, at + size)[0] if at + size + 8 <= len(view) else None
        )
        if size < HEADER_SIZE or next_base is None or next_base > offset:
            break
        at += size
    if base > offset or size < HEADER_SIZE:
        raise ProtocolError(f"there is a batch of offset {base} and {size} bytes")
    if size > max_bytes and not at_least_one:
        return None
    data = view[at : at + max(size, max_bytes)]
    headers = scan_headers(data)
    if headers.end_offset is not None and headers.end_offset > high:
        ends = headers.base_offset + headers.last_offset_delta + 1
        visible = int(np.searchsorted(ends, high, "right"))
        if not visible and offset < high:
            # readers see whole batches, so that the end of what they see is one of a batch
            raise ProtocolError(f"the batch of offset {base} ends behind offset {high}")
        if not visible:
            return None
        stop = int(headers.position[visible - 1] + headers.size[visible - 1])
        data = data[:stop]
        headers = scan_headers(data)
    stretch.verify(data, headers, at)
    return Piece(data[: headers.consumed], headers)


def cut_beginning(stretch: Stretch, offset: int, high: int, max_bytes: int) -> Piece | None:
    """Return whole batches as :func:`cut_piece`; the beginning of one where not even one fits.

    A client sees by it that there is more, and asks for this bucket alone.
    """
    whole = cut_piece(stretch, offset, high, max_bytes, at_least_one=True)
    if whole is None or len(whole.data) <= max_bytes:
        return whole
    return Piece(whole.data[:max_bytes], scan_headers(b"", require_progress=False))


def first_since(stretch: Stretch, timestamp: int, high: int) -> int:
    """Return the offset of the first batch that was committed at a time or later (ms).

    The high watermark, where there is none.

    Raises FlussError for headers that are not what was written.
    """
    view = stretch.view
    chunk = _SEARCH_BYTES
    while True:
        headers = scan_headers(view[:chunk], require_progress=False)
        i = int(np.searchsorted(headers.timestamp, timestamp))
        if stretch.position + headers.consumed > stretch.segment.verified:
            stretch.verify_heads(0, headers.consumed, heads_of(view, headers.position))
        if i < len(headers):
            return min(int(headers.base_offset[i]), high)
        if chunk >= len(view):
            return high
        chunk *= 4

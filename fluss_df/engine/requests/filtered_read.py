"""Reads that leave out batches whose statistics rule out every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fluss_df.engine.log.log_reads import Stretch
from fluss_df.engine.log.log_segments import damaged
from fluss_df.engine.log.tablet import Tablet
from fluss_df.errors import FlussError
from fluss_df.protocol.wire import Buffer
from fluss_df.pushdown.batch_filter import BatchFilter
from fluss_df.record.layout.headers import HEADER_SIZE, LogHeaders, scan_headers

_CHUNK: Final = 1 << 20
# the most of a log that one request looks at, before its client hears how far that was
_MOST_SEGMENTS: Final = 16
# as much of all logs together, where each batch counts for as many bytes besides its own
_MOST_BYTES: Final = 256 << 20
_BATCH_BYTES: Final = 4 << 10
_STATISTICS_AT: Final = HEADER_SIZE + 4


class LookBudget:
    """How much of logs one request may still look at, whatever it leaves out of its answer."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _MOST_BYTES

    @property
    def used_up(self) -> bool:
        """Whether no further batches are to be looked at."""
        return self._left <= 0

    def take(self, size: int, batches: int) -> None:
        """Take note of bytes, and of the number of batches in them."""
        self._left -= size + batches * _BATCH_BYTES


@dataclass(frozen=True, slots=True)
class FilteredRead:
    """The batches of a part of a log that a filter leaves.

    ``parts`` are whole batches one after the other, as slices of the segment's memory map. ``end``
    is the offset up to which batches were left out, if that is behind the batches in ``parts``.
    """

    parts: list[Buffer]
    end: int | None


def read_filtered(
    tablet: Tablet,
    offset: int,
    max_bytes: int,
    batch_filter: BatchFilter,
    look: LookBudget,
    cut: Callable[[memoryview], list[Buffer]] | None = None,
) -> FilteredRead:
    """Return the batches of a log that may have rows that pass a filter.

    As on a Fluss server, one batch is returned however large it is, batches come from one segment,
    and segments without any are passed over. Once the budget is used up there are no batches, and
    no end: the client asks again.

    ``offset`` is between the start of the log and its high watermark. ``cut`` returns what to
    return of each batch; None for all of it.

    Raises FlussError as :meth:`Tablet.read`. Batches that were left out were verified as well:
    damaged statistics would hide rows.
    """
    high, stretches = tablet.stretches(offset)
    end: int | None = None
    if look.used_up:
        return FilteredRead([], None)
    for stretch in stretches[:_MOST_SEGMENTS]:
        parts: list[Buffer] = []
        size = 0
        # where the last part begins and ends, which its neighbour is added to
        run = 0, -1
        for at, headers in _visible(tablet, stretch, offset, high):
            # all that was read, wherever this ends
            look.take(headers.consumed, len(headers))
            for i in range(len(headers)):
                behind = int(headers.base_offset[i] + headers.last_offset_delta[i]) + 1
                if behind <= offset:
                    continue
                begin = at + int(headers.position[i])
                batch = stretch.view[begin : begin + int(headers.size[i])]
                statistics = batch[:0]
                if headers.magic[i]:
                    statistics = batch[_STATISTICS_AT : at + int(headers.payload[i]) - begin]
                rows = int(headers.record_count[i])
                if not batch_filter.keeps(int(headers.schema_id[i]), rows, statistics):
                    end = behind
                    continue
                made = [batch] if cut is None else cut(batch)
                length = sum(map(len, made))
                if parts and size + length > max_bytes:
                    return FilteredRead(parts, None)
                size += length
                end = None
                if cut is None and run[1] == begin:
                    run = run[0], begin + length
                    parts[-1] = stretch.view[run[0] : run[1]]
                else:
                    run = begin, begin + length
                    parts += made
            if look.used_up:
                return FilteredRead(parts, end)
        if parts:
            return FilteredRead(parts, end)
    return FilteredRead([], end)


def _visible(
    tablet: Tablet, stretch: Stretch, offset: int, high: int
) -> Iterator[tuple[int, LogHeaders]]:
    """Yield headers of whole batches that readers may see, and where these count from."""
    view, segment = stretch.view, stretch.segment
    at, chunk = 0, _CHUNK
    while at < len(view):
        data = view[at : at + chunk]
        try:
            headers = scan_headers(data, require_progress=False)
            ends = headers.base_offset + headers.last_offset_delta + 1
            visible = int((ends <= high).sum())
            if visible < len(headers):
                data = data[: int(headers.position[visible])]
                headers = scan_headers(data, require_progress=False)
            stretch.verify(data, headers, at)
        except FlussError as error:
            raise damaged(tablet.name, offset, segment.path, error) from error
        if len(headers):
            yield at, headers
            at += headers.consumed
        elif len(data) == len(view) - at or len(data) < min(chunk, len(view) - at):
            return
        else:
            chunk *= 4  # a batch larger than a chunk

"""The sparse index of a segment: where some of its batches begin."""

from __future__ import annotations

import bisect
from array import array
from dataclasses import dataclass, field
from typing import Final

from fluss_df.engine.log.batch_heads import HEAD_BYTES, extended
from fluss_df.record.layout.headers import LogHeaders

# bytes of log between two entries of the index, about
_INDEX_INTERVAL: Final = 4096


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class SparseIndex:
    """Offset, position and commit timestamp of some batches of a segment, ascending.

    Commit timestamps never decrease within a log, so that one index serves searches by offset and
    by time. Each entry has the digest of the batches before it, see
    :mod:`~fluss_df.engine.log.batch_heads`. The four arrays have one item for each entry: 32 bytes
    in all, where lists of Python take 160.
    """

    offsets: array[int] = field(default_factory=_numbers)
    positions: array[int] = field(default_factory=_numbers)
    timestamps: array[int] = field(default_factory=_numbers)
    digests: array[int] = field(default_factory=_numbers)

    def add(self, headers: LogHeaders, shift: int, heads: bytes, digest: int) -> int:
        """Add entries for batches that were written behind the others.

        Returns the digest of all batches; ``digest`` is that of the batches before these. The first
        of the new batches begins at position ``shift`` of the segment. ``heads`` are the first
        ``HEAD_BYTES`` bytes of each.
        """
        last = self.positions[-1] if self.positions else -_INDEX_INTERVAL
        done = 0
        for i in range(len(headers)):
            position = int(headers.position[i]) + shift
            if position - last >= _INDEX_INTERVAL:
                digest = extended(digest, heads[done : i * HEAD_BYTES])
                done = i * HEAD_BYTES
                self.offsets.append(int(headers.base_offset[i]))
                self.timestamps.append(int(headers.timestamp[i]))
                self.digests.append(digest)
                # last of the four: entry_before and entry_behind run in other threads without a
                # lock, look into this one first, and then need the digest of what they found
                self.positions.append(position)
                last = position
        return extended(digest, heads[done:])

    def before_offset(self, offset: int) -> int:
        """Return the position of a batch that begins at or before an offset."""
        i = bisect.bisect_right(self.offsets, offset) - 1
        return self.positions[i] if i >= 0 else 0

    def before_time(self, timestamp: int) -> int:
        """Return the position of a batch; all batches before it are older than a time (ms)."""
        i = bisect.bisect_left(self.timestamps, timestamp) - 1
        return self.positions[i] if i >= 0 else 0

    def entry_before(self, position: int) -> tuple[int, int]:
        """Return position and digest of the last entry at or before a position; else zeros."""
        i = bisect.bisect_right(self.positions, position) - 1
        return (self.positions[i], self.digests[i]) if i >= 0 else (0, 0)

    def entry_behind(self, position: int) -> tuple[int, int] | None:
        """Return position and digest of the first entry at or behind a position, if any."""
        i = bisect.bisect_left(self.positions, position)
        return (self.positions[i], self.digests[i]) if i < len(self.positions) else None

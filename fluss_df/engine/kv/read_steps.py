"""How many keys one call to RocksDB looks up: few, as long as the size of values is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

# Keys that are read at once before anything is known of the size of their values; and at the most:
# small values say nothing of those behind them. More at once are hardly read any faster.
_FIRST_KEYS: Final = 8
_MOST_KEYS: Final = 128
# From this many keys in one call on, one large value of long ago counts for half as much: it must
# not slow down all others for ever.
_MANY_KEYS: Final = 1024

Read = Callable[[list[bytes]], list[bytes | None]]


class ReadSteps:
    """Reads values of one bucket in steps that fit a room, by the largest value that was seen.

    ``largest`` is the bytes of that value. Nothing is known of a bucket that was opened again.
    """

    def __init__(self) -> None:
        self.largest = 0

    def parts(
        self, read: Read, keys: Sequence[bytes], room: Callable[[], int]
    ) -> Iterator[tuple[list[bytes | None], list[int]]]:
        """Yield the values of keys a part at a time, and the bytes of those that are there.

        ``room`` returns how many bytes may still be read. As many keys are read at once as there is
        room for if each value is as large as the largest so far.
        """
        before, seen, at = self.largest, 0, 0
        step = _FIRST_KEYS
        while at < len(keys):
            step = max(1, min(step, room() // max(seen, before, 1)))
            part = read(list(keys[at : at + step]))
            at += len(part)
            sizes = [len(value) for value in part if value is not None]
            seen = max(seen, *sizes, 0)
            self.largest = max(seen, before)
            yield part, sizes
            step = min(_MOST_KEYS, 4 * step)
        if len(keys) >= _MANY_KEYS:
            self.largest = max(seen, before // 2)

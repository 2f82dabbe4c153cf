"""How much one answer may hold: values are read a part at a time, no more than there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from fluss_df.engine.files.workers import give_turn, paced
from fluss_df.errors import ErrorCode, FlussError

# Keys that are read at once before anything is known of the size of their values; and at the most:
# small values say nothing of those behind them. More at once are hardly read any faster.
_FIRST_KEYS: Final = 8
_MOST_KEYS: Final = 128
# From this many keys in one call on, one large value of long ago counts for half as much: it must
# not slow down all others for ever.
_MANY_KEYS: Final = 1024
# values that are read before others get a turn
_TURN_VALUES: Final = 8192
# of a value besides its bytes, while it is an object
_OBJECT_BYTES: Final = 48


class Rows(Protocol):
    """Where values are read."""

    #: the largest value that was seen there
    largest_value: int

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys."""


class AnswerRoom:
    """The bytes that are left for the values of one answer, of ``most`` bytes at first.

    ``way_out`` is what its reader can do instead, for the error.
    """

    def __init__(self, most: int, way_out: str) -> None:
        self._most = most
        self._left = most
        self._way_out = way_out

    def take(self, count: int) -> None:
        """Use bytes.

        Raises ``RECORD_TOO_LARGE_EXCEPTION`` where there is less room.
        """
        self._left -= count
        if self._left < 0:
            raise FlussError(
                f"the answer would be larger than the {self._most:,} bytes that one may have:"
                f" {self._way_out}",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )

    def values(self, rows: Rows, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, each value once in memory however often it is asked for.

        Raises FlussError as :meth:`take`.
        """
        wanted = list(dict.fromkeys(keys))
        found: list[bytes | None] = []
        before, seen = rows.largest_value, 0
        largest = max(1, before)
        step = max(1, min(_FIRST_KEYS, self._left // largest))
        turn = _TURN_VALUES
        while len(found) < len(wanted):
            if len(found) >= turn:
                turn += _TURN_VALUES
                give_turn()
            part = rows.get(wanted[len(found) : len(found) + step])
            found += part
            sizes = [len(value) for value in part if value is not None]
            seen = max(seen, *sizes, 0)
            # also for those who come later: nothing is known of a store that was opened again
            rows.largest_value = largest = max(seen, before, 1)
            self.take(sum(sizes) + _OBJECT_BYTES * len(sizes))
            step = max(1, min(_MOST_KEYS, 4 * step, self._left // largest))
        if len(wanted) >= _MANY_KEYS:
            rows.largest_value = max(seen, before // 2)
        if len(wanted) == len(keys):
            return found
        by_key = dict(zip(wanted, found, strict=True))
        values = [by_key[key] for key in keys]
        # values that are in the answer more than once
        self.take(_size(values) - _size(found))
        return values

    def rows(self, values: Iterable[bytes]) -> list[bytes]:
        """Return values, as they come.

        Raises FlussError as :meth:`take`.
        """
        found = []
        for value in paced(values):
            self.take(len(value) + _OBJECT_BYTES)
            found.append(value)
        return found


def _size(values: Iterable[bytes | None]) -> int:
    return sum(len(value) for value in values if value is not None)

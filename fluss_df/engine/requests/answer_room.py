"""How much one answer may hold: values are read a part at a time, no more than there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fluss_df.engine.files.workers import give_turn, paced
from fluss_df.errors import ErrorCode, FlussError

# keys that are read at a time: before the sizes of their values are known, and at the most
_FIRST_KEYS: Final = 8
_MOST_KEYS: Final = 8192
# the bytes of a value's object besides those of the value
_OBJECT_BYTES: Final = 48

Read = Callable[[list[bytes]], list[bytes | None]]


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

    def values(self, read: Read, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, each value once in memory however often it is asked for.

        Raises FlussError as :meth:`take`.
        """
        wanted = list(dict.fromkeys(keys))
        found: list[bytes | None] = []
        step, largest = _FIRST_KEYS, 1
        while len(found) < len(wanted):
            if len(found) >= _MOST_KEYS:
                give_turn()
            part = read(wanted[len(found) : len(found) + step])
            found += part
            sizes = [len(value) for value in part if value is not None]
            self.take(sum(sizes) + _OBJECT_BYTES * len(sizes))
            largest = max(largest, *sizes, 1)
            step = max(1, min(_MOST_KEYS, 4 * step, self._left // largest))
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

"""How much one answer may hold: values are read a part at a time, no more than there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from fluss_df.engine.files.workers import give_turn, paced
from fluss_df.engine.kv.read_steps import ReadSteps
from fluss_df.errors import ErrorCode, FlussError

# values that are read before others get a turn
_TURN_VALUES: Final = 8192
# of a value besides its bytes, while it is an object
_OBJECT_BYTES: Final = 48


class Rows(Protocol):
    """Where values are read."""

    @property
    def steps(self) -> ReadSteps:
        """The steps in which they are read."""

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
        turn = _TURN_VALUES
        for part, sizes in rows.steps.parts(rows.get, wanted, lambda: self._left):
            found += part
            self.take(sum(sizes) + _OBJECT_BYTES * len(sizes))
            if turn <= len(found) < len(wanted):
                turn += _TURN_VALUES
                give_turn()
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

"""Tables of flatbuffers, in which Arrow's messages say what they hold."""

from __future__ import annotations

import struct


class FlatTable:
    """A table of a flatbuffer; each read stays within the metadata or raises struct.error."""

    __slots__ = ("_at", "_data", "_vtable", "_width")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - struct.unpack_from("<i", data, _inside(data, at))[0]
        self._width = struct.unpack_from("<H", data, _inside(data, self._vtable))[0]

    def place(self, field: int) -> int | None:
        """Return where a field stands; None where the table lacks it."""
        entry = 4 + 2 * field
        if entry + 2 > self._width:
            return None
        offset = struct.unpack_from("<H", self._data, self._vtable + entry)[0]
        return self._at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        """Return a number; 0 where the table lacks it."""
        place = self.place(field)
        if place is None:
            return 0
        return int(struct.unpack_from(form, self._data, _inside(self._data, place))[0])

    def target(self, field: int) -> int | None:
        """Return the place that a field refers to; None where the table lacks it."""
        place = self.place(field)
        if place is None:
            return None
        return place + int(struct.unpack_from("<I", self._data, _inside(self._data, place))[0])

    def table(self, field: int) -> FlatTable | None:
        """Return a table that a field refers to; None where the table lacks it."""
        target = self.target(field)
        return None if target is None else FlatTable(self._data, target)

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of pairs of int64; an empty one where the table lacks it."""
        target = self.target(field)
        if target is None:
            return []
        count = struct.unpack_from("<I", self._data, _inside(self._data, target))[0]
        if count * 16 > len(self._data) - target - 4:
            raise struct.error("a vector is longer than the metadata")
        values = struct.unpack_from(f"<{2 * count}q", self._data, target + 4)
        return list(zip(values[::2], values[1::2], strict=True))


def _inside(data: memoryview, at: int) -> int:
    # struct counts negative offsets from the end
    if at < 0 or at >= len(data):
        raise struct.error("an offset leads out of the metadata")
    return at

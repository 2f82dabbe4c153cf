"""Rows of a RocksDB: of the embedded engine's, and of the snapshots that servers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocksdict import RdictIter


def take_values(
    rows: RdictIter, count: int, keys: list[bytes] | None = None, most_bytes: int | None = None
) -> list[bytes]:
    """Take up to ``count`` values of an iterator, and step behind them; none at its end.

    Their keys are added to ``keys``, where that is given. With ``most_bytes``, the last value is
    the one with which the values have more bytes than that.

    Raises RocksDB's own Exception behind the last value that can be read: its iterators end
    silently at a block that they cannot read, and only say so when they are asked.
    """
    value, step = rows.value, rows.next
    values: list[bytes] = []
    add = values.append
    left = most_bytes
    for _ in range(count):
        found = value()
        if found is None:
            break
        if keys is not None:
            keys.append(rows.key())
        add(found)
        step()
        if left is not None:
            left -= len(found)
            if left < 0:
                break
    if not values:
        rows.status()
    return values

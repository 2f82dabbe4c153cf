"""Rows of a RocksDB: of the embedded engine's, and of the snapshots that servers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocksdict import RdictIter


def take_values(
    rows: RdictIter, count: int, keys: list[bytes] | None = None, most_bytes: int | None = None
) -> list[bytes]:
    """Take the next values of an iterator, and step behind them.

    Raises Exception: RocksDB's own, behind the last one that can be read: its iterators end without
    a word at a block that they cannot read, and only say so when they are asked.

    Parameters
    ----------
    rows
        The iterator.
    count
        How many values to take, at the most.
    keys
        Where to add their keys; None for values alone.
    most_bytes
        The value with which they are more is the last one; None for no limit.

    Returns
    -------
    list
        Empty behind the last one.
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

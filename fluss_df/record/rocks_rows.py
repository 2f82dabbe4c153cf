"""Rows of a RocksDB: of the embedded engine's, and of the snapshots that servers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocksdict import RdictIter


def take_values(rows: RdictIter, count: int, keys: list[bytes] | None = None) -> list[bytes]:
    """Take the next values of an iterator, and step behind them.

    Parameters
    ----------
    rows
        The iterator.
    count
        How many values to take, at the most.
    keys
        Where to add their keys; None for values alone.

    Returns
    -------
    list
        Empty behind the last one.

    Raises
    ------
    Exception
        RocksDB's own, behind the last one that can be read: its iterators end without a word at a
        block that they cannot read, and only say so when they are asked.
    """
    value, step = rows.value, rows.next
    values: list[bytes] = []
    add = values.append
    for _ in range(count):
        found = value()
        if found is None:
            break
        if keys is not None:
            keys.append(rows.key())
        add(found)
        step()
    if not values:
        rows.status()
    return values

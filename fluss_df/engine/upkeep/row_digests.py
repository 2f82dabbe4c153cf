"""The current rows of a changelog against those in RocksDB, in memory of a fixed size.

Of each row a digest of its key and one of its values are held, 128 bits each: 33 bytes a row. Where
a bucket has more rows than may be held, it is compared in pieces, by the bits of its keys' digests:
each piece reads everything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fluss_df.record.layout.bytes_columns import EncodedRows

# rows that one piece holds; half as many, at the most, wait to be put to them
MOST_ROWS: Final = 1_000_000
_AT_LEAST: Final = 250_000
_KEY: Final = ["key", "key2"]
# two digests of 64 bits make one of 128
_SEEDS: Final = (0x5F2D, 0xA61B)


@dataclass(frozen=True, slots=True)
class Piece:
    """The keys whose digests end with some bits."""

    bits: int = 0
    value: int = 0

    def halves(self) -> tuple[Piece, Piece]:
        """Return both halves."""
        return Piece(self.bits + 1, self.value), Piece(self.bits + 1, self.value | (1 << self.bits))

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the piece."""
        if not self.bits:
            return frame
        mask = pl.lit((1 << self.bits) - 1, pl.UInt64)
        return frame.filter((pl.col("key") & mask) == pl.lit(self.value, pl.UInt64))


class RowDigests:
    """The newest row of each key of a piece.

    ``piece`` says which keys. It becomes smaller where there are more than may be held, and
    ``left`` is what was given up of it.
    """

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.left: list[Piece] = []
        self._rows = pl.DataFrame(
            schema={
                "key": pl.UInt64,
                "key2": pl.UInt64,
                "value": pl.UInt64,
                "value2": pl.UInt64,
                "deleted": pl.Boolean,
            }
        )
        self._waiting: list[pl.DataFrame] = []
        self._count = 0

    def add(
        self, keys: pl.Series, values: pl.Series, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Add rows, in their order; a later one takes the place of an earlier one."""
        gone = np.zeros(len(keys), np.bool_) if deleted is None else deleted
        frame = pl.DataFrame(
            {
                "key": keys.hash(_SEEDS[0]),
                "key2": keys.hash(_SEEDS[1]),
                "value": values.hash(_SEEDS[0]),
                "value2": values.hash(_SEEDS[1]),
                "deleted": gone,
            }
        )
        frame = self.piece.of(frame)
        self._waiting.append(frame)
        self._count += frame.height
        if self._count > max(_AT_LEAST, self._rows.height // 2):
            self._merge()

    def _merge(self) -> None:
        rows = pl.concat([self._rows, *self._waiting])
        self._waiting, self._count = [], 0
        rows = rows.unique(_KEY, keep="last", maintain_order=True)
        self._rows = rows.filter(~pl.col("deleted"))
        while self._rows.height > MOST_ROWS:
            kept, other = self.piece.halves()
            self.left.append(other)
            self.narrow(kept)

    def narrow(self, piece: Piece) -> None:
        """Give up what is not in a smaller piece."""
        self.piece = piece
        self._rows = piece.of(self._rows)
        self._waiting = [piece.of(frame) for frame in self._waiting]
        self._count = sum(frame.height for frame in self._waiting)

    @property
    def rows(self) -> pl.DataFrame:
        """The rows."""
        self._merge()
        return self._rows


def differing(expected: RowDigests, found: RowDigests) -> tuple[int, int]:
    """Return how many keys are in one only, and how many have other values."""
    one, other = expected.rows, found.rows
    if found.piece != expected.piece:
        expected.narrow(found.piece)
        one = expected.rows
    if one.height == other.height:
        same = one.join(other, on=[*_KEY, "value", "value2"], how="semi").height
        if same == one.height:
            return 0, 0
    both = one.join(other, on=_KEY, how="inner")
    changed = both.filter(
        (pl.col("value") != pl.col("value_right")) | (pl.col("value2") != pl.col("value2_right"))
    )
    return one.height + other.height - 2 * both.height, changed.height


def column_of(found: EncodedRows) -> pl.Series:
    """Return pieces of bytes as a column."""
    buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return _series(pa.Array.from_buffers(pa.large_binary(), len(found), buffers))


def binary(values: Sequence[bytes]) -> pl.Series:
    """Return bytes as a column."""
    return _series(pa.array(values, pa.large_binary()))


def _series(array: pa.Array) -> pl.Series:
    made = pl.from_arrow(array)
    assert isinstance(made, pl.Series)
    return made

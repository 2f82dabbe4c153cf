"""Arrow data of Fluss as Polars frames."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from fluss_df.io.base.names import all_exact
from fluss_df.record.layout.chunks import JOINED_ROWS, are_small
from fluss_df.record.layout.views import with_views

# more bytes than this are not put together: offsets of texts and lists end at 2 GiB
_JOINED_BYTES: Final = 1 << 30


@functools.lru_cache(256)
def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types that Arrow data of a schema is read with."""
    return to_polars(pa.Table.from_batches([], schema)).schema


def sliced(
    frames: Iterable[pl.DataFrame], pre_slice: tuple[int, int] | None
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a slice (offset, length) of frames; no frame more than it needs."""
    skip, most = pre_slice or (0, None)
    for frame in frames:
        if skip:
            frame, skip = frame.slice(skip), max(0, skip - frame.height)
        if most is not None:
            frame = frame.head(most)
            most -= frame.height
        yield frame
        if most == 0:
            return


def chosen(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return some columns of a frame; with none of them, a frame of as many rows."""
    return frame.select(all_exact(columns)) if columns else pl.DataFrame(height=frame.height)


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Return Arrow data as a frame, without a copy where Polars has the same layout."""
    # handed over by the C stream interface, which takes Polars a sixth of the time of a pa.Table
    return pl.DataFrame(with_views(table).to_reader())


def to_table(frame: pl.DataFrame) -> pa.Table:
    """Return a frame as Arrow data; small chunks of it are put together, some rows at a time.

    Polars takes some microseconds for each chunk and column, which is more than its rows take.
    """
    if not are_small(frame.height, max(frame.n_chunks("all"), default=0)):
        return frame.to_arrow()
    parts = (frame.slice(at, JOINED_ROWS) for at in range(0, frame.height, JOINED_ROWS))
    return pa.concat_tables(map(_small_table, parts))


def _small_table(part: pl.DataFrame) -> pa.Table:
    table = part.rechunk().to_arrow()
    return table if table.nbytes <= _JOINED_BYTES else part.to_arrow()

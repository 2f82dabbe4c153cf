"""Arrow data of Fluss as Polars frames."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa

from fluss_df.io.base.names import all_exact
from fluss_df.record.layout.views import with_views


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

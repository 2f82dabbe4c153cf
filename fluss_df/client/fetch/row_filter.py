"""Rows of decoded batches: some columns of those for which a predicate is true."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.pushdown.evaluate import bind, evaluate
from fluss_df.pushdown.predicate import Predicate, conjuncts
from fluss_df.pushdown.server_filter import ServerFilter, server_filter
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.schema import TableInfo


class RowFilter:
    """Filters decoded rows and selects columns of them; without a predicate it does nothing.

    The result has the columns ``selected``, then the metadata columns. ``columns`` are those to
    decode: ``selected``, then those that only the predicate needs.

    Raises FlussError when the predicate does not fit the table.
    """

    def __init__(
        self,
        info: TableInfo,
        selected: Sequence[str],
        predicate: Predicate | None,
        metadata: Sequence[str] = (),
    ) -> None:
        self._selected = [*selected, *metadata]
        self.columns = tuple(selected)
        self._predicate: Predicate | None = None
        if predicate is None:
            return
        if not isinstance(predicate, Predicate):
            raise FlussError(
                f"expected a predicate, not {predicate!r}: build one with col(), as in"
                " filter(col('x') >= 1)"
            )
        what = f"table {info.table_path}:"
        self._predicate = bind(predicate, info.schema.arrow_schema, what=what)
        extra = sorted(self._predicate.columns() - set(selected))
        self.columns = (*self.columns, *extra)

    def server_filter(self, info: TableInfo) -> ServerFilter | None:
        """Return what of the predicate servers can judge log batches by."""
        return None if self._predicate is None else server_filter(info, conjuncts(self._predicate))

    def schema(self, decoded: pa.Schema) -> pa.Schema:
        """Return the schema of the result, given that of what is decoded."""
        return (
            decoded
            if self._predicate is None
            else pa.schema([decoded.field(name) for name in self._selected])
        )

    def table(self, table: pa.Table) -> pa.Table:
        """Return the wanted rows and columns of a table."""
        if self._predicate is None:
            return table
        return table.filter(evaluate(self._predicate, table)).select(self._selected)

    def batches(self, batches: Iterable[DecodedBatch]) -> Iterator[DecodedBatch]:
        """Return the wanted rows and columns of log batches; none of a batch without any."""
        if self._predicate is None:
            yield from batches
            return
        for decoded in batches:
            kept = evaluate(self._predicate, decoded.batch).combine_chunks().fill_null(False)
            rows = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
            if not len(rows):
                continue
            changes = decoded.change_types
            yield DecodedBatch(
                decoded.batch.filter(kept).select(self._selected),
                decoded.base_offset + int(rows[0]),
                decoded.timestamp,
                None if changes is None else changes.filter(kept),
                pa.array(rows + decoded.base_offset),
            )


def part_of(decoded: DecodedBatch, start: int, rows: int) -> DecodedBatch:
    """Return some consecutive rows of a decoded batch."""
    changes, offsets = decoded.change_types, decoded.offsets
    return dataclasses.replace(
        decoded,
        batch=decoded.batch.slice(start, rows),
        base_offset=(decoded.base_offset + start if offsets is None else offsets[start].as_py()),
        change_types=None if changes is None else changes.slice(start, rows),
        offsets=None if offsets is None else offsets.slice(start, rows),
    )

"""Scans of a dataset: what is read of the table, and what Arrow makes of the batches that come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from fluss_df.arrow.expressions import columns_of, nodes_of, pushed
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact
from fluss_df.io.polars_reader import FlussScan
from fluss_df.io.scan import explain
from fluss_df.io.scans.flow import Flow
from fluss_df.io.snapshot import FlussSnapshot
from fluss_df.metadata import require_columns
from fluss_df.polars_adapter.scans import with_known_schema
from fluss_df.pushdown.plan import Explanation
from fluss_df.pushdown.predicate import UnsupportedExpression

Columns: TypeAlias = "Sequence[str] | Mapping[str, pc.Expression] | None"
Node: TypeAlias = "FlussScan | FlussSnapshot"

#: The most rows in a batch, where nothing else is asked for.
BATCH_ROWS: Final = 131_072
# about the most bytes in a batch; a single row may have more
_BATCH_BYTES: Final = 1 << 20
# how long the end of a scan that is not read to its end waits for its thread
_CLOSE_S: Final = 1.0


class FlussScanner:
    """A scan of a table as a scanner of Arrow; ``scanner`` of a dataset makes it.

    It can be read several times, and reads the rows that are there each time. Batches are computed
    as they are taken: some tens of MB are held, however large the table is. A scan ends when its
    last batch is taken, or when nobody has its reader or iterator any more. Arrow's own scanners
    read up to 1 GiB ahead, and to the end of the table when they are let go of: that is why this is
    none.

    Parameters
    ----------
    node
        What is scanned.
    columns
        Names of columns, or expressions of them by the name of the result; all for None.
    condition
        What rows are to satisfy; None for all rows.
    batch_size
        The most rows in a batch.

    Attributes
    ----------
    projected_schema
        The columns of the result.
    dataset_schema
        The columns of the table.
    """

    def __init__(
        self,
        node: Node,
        columns: Columns = None,
        condition: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise FlussError(f"batch_size={batch_size!r}: expected at least 1")
        self.dataset_schema: pa.Schema = node.source.schema
        self._node = node
        self._condition = condition
        self._batch_size = batch_size
        if columns is not None and not isinstance(columns, Mapping):
            if isinstance(columns, str):
                raise FlussError(f"columns={columns!r}: expected a list of names")
            columns = list(columns)
        self._columns = columns
        self._pushed: list[pl.Expr] = []
        read = self._looked_at()
        self._read = pa.schema([f for f in self.dataset_schema if f.name in read])
        # where they are read in this order, and nothing is computed of them
        self._is_plain = condition is None and columns in (None, self._read.names)
        self.projected_schema: pa.Schema = self._evaluated([]).projected_schema

    def _looked_at(self) -> set[str]:
        """Return the columns that are read, and find the conditions that are pushed down."""
        names, columns = self.dataset_schema.names, self._columns
        table = f"table {self._node.source.table}:"
        expressions = [] if self._condition is None else [self._condition]
        read = set()
        if columns is None:
            read |= {*names}
        elif isinstance(columns, Mapping):
            expressions += columns.values()
        else:
            require_columns(columns, names, table)
            read |= {*columns}
        for expression in expressions:
            if not isinstance(expression, pc.Expression):
                raise FlussError(
                    f"{expression!r}: expected an expression of Arrow, as pc.field('x') > 1"
                )
            try:
                node = nodes_of(expression, self.dataset_schema)
            except UnsupportedExpression:
                # it may look at any column
                read |= {*names}
                continue
            looked_at = columns_of(node)
            require_columns(sorted(looked_at), names, table)
            read |= looked_at
            if expression is self._condition:
                self._pushed = pushed(node, self.dataset_schema)
        # to count rows, some column has to be read: the narrowest
        return read or {min(self.dataset_schema, key=lambda field: _width(field.type)).name}

    def _evaluated(self, batches: list[pa.RecordBatch]) -> pads.Scanner:
        """Return the scanner of Arrow for batches of what is read."""
        columns = self.dataset_schema.names if self._columns is None else self._columns
        return pads.Scanner.from_batches(
            batches, schema=self._read, columns=columns, filter=self._condition, use_threads=False
        )

    def _query(self, node: Node, most: int | None) -> pl.LazyFrame:
        frame = with_known_schema(node.lazy(), self.dataset_schema.names)
        for condition in self._pushed:
            frame = frame.filter(condition)
        frame = frame.select(all_exact(self._read.names))
        return frame if most is None else frame.head(most)

    def explain(self) -> Explanation:
        """Return what would be read of Fluss now; see :func:`fluss_df.explain`."""
        return explain(self._query(self._node, None))

    # ---- rows

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches of the result; none is empty."""
        return self._batches(None)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the batches. Nothing is fetched before the first is asked for."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches(None))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows; without a condition, no more than these are asked for."""
        if num_rows < 0:
            raise FlussError(f"num_rows={num_rows!r}: expected no less than 0")
        taken: list[pa.RecordBatch] = []
        left = num_rows
        if left:
            batches = self._batches(num_rows if self._condition is None else None)
            for batch in batches:
                taken.append(batch.slice(0, left))
                left -= taken[-1].num_rows
                if not left:
                    break
            del batches
        return pa.Table.from_batches(taken, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Return rows by their numbers; every row is read for that."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Return the number of rows of the result, which are read for that."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _batches(self, most: int | None) -> Iterator[pa.RecordBatch]:
        """Run a scan while its batches are taken; it ends when nobody takes them."""
        flow = Flow()
        with flow.running.planned():
            frame = self._query(self._node.copy(), most)
        try:
            with contextlib.closing(flow.batches(frame)) as parts:
                for part in parts:
                    for batch in self._cut(part):
                        if self._is_plain:
                            yield batch
                        else:
                            made = self._evaluated([batch]).to_table()
                            yield from (found for found in made.to_batches() if found.num_rows)
        finally:
            flow.join(_CLOSE_S)

    def _cut(self, part: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        if part.height:
            rows = part.height * _BATCH_BYTES // max(1, int(part.estimated_size()))
            for piece in part.iter_slices(max(1, min(self._batch_size, rows))):
                yield from piece.to_arrow().cast(self._read).to_batches()


def _width(kind: pa.DataType) -> int:
    """Return how many bits a value has, about."""
    if pa.types.is_nested(kind):
        return 1 << 20
    try:
        return int(kind.bit_width)
    except ValueError:
        # about, for types without a fixed size
        return 1 << 10

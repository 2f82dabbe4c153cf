"""Scanning the virtual tables ``$changelog`` and ``$binlog``: :class:`ChangeTableScanner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.scan.bounded_reads import Make
from fluss_df.client.scan.fetch_buffer import Taken
from fluss_df.client.scan.log_scanner import LogScanner
from fluss_df.client.scan.records import RecordBatch
from fluss_df.errors import FlussError
from fluss_df.metadata import CHANGELOG_COLUMNS, TableBucket
from fluss_df.pushdown.predicate import Predicate
from fluss_df.record.change_tables import BinlogMaker, ChangeTable, to_changelog
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext


class ChangeTableScanner(LogScanner):
    """Reads ``$changelog`` or ``$binlog`` of a table as Arrow; otherwise as a LogScanner.

    ``kind`` is the virtual table, and ``columns`` are those of it to read, in this order; None for
    all. With a predicate, which only ``$changelog`` may have, only changes of rows are read for
    which it is true.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        kind: ChangeTable,
        columns: Sequence[str] | None,
        *,
        predicate: Predicate | None = None,
    ) -> None:
        whole = kind.schema(info.schema.arrow_schema)
        self._kind = kind
        self._selected = whole.names if columns is None else list(columns)
        if kind is ChangeTable.BINLOG and predicate is not None:
            raise FlussError(
                f"{info.table_path}{kind.value} cannot be filtered by columns of the table, "
                "which would tear updates apart: filter its rows"
            )
        own = info.get_column_names()
        if kind is ChangeTable.CHANGELOG:
            own = [name for name in self._selected if name in own]
        super().__init__(
            connection,
            info,
            tuple(own),
            records=False,
            metadata_columns=CHANGELOG_COLUMNS,
            predicate=predicate,
        )
        self._own = pa.schema([self._decoder.schema.field(name) for name in own])
        self._maker = BinlogMaker(self._own)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Arrow results."""
        made = self._kind.schema(self._own)
        return pa.schema([made.field(name) for name in self._selected])

    def _made(self, changes: pa.Table, maker: BinlogMaker, bucket: object = None) -> pa.Table:
        if self._kind is ChangeTable.CHANGELOG:
            return to_changelog(changes).select(self._selected)
        return maker.add(changes, bucket).select(self._selected)

    def as_table(self, taken: Taken) -> pa.Table:
        """Return what was taken as one table."""
        parts = [self.schema.empty_table()]
        for position, decoded in taken:
            changes = pa.Table.from_batches([decoded.batch])
            parts.append(self._made(changes, self._maker, position.bucket))
        return pa.concat_tables(parts)

    def _undo(self) -> Callable[[], None]:
        """Return what forgets the halves of updates that came last."""
        before, self._maker = self._maker, self._maker.copy()

        def undo() -> None:
            self._maker = before

        return undo

    def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """Refuse: rows of virtual tables do not stand one for one for those of log batches."""
        raise FlussError(
            f"{self._info.table_path}{self._kind.value} has no log batches: use poll_arrow"
        )

    def _whole(self, table: pa.Table) -> pa.Table:
        """Return the result of all rows up to the latest offset."""
        return self._made(super()._whole(table), BinlogMaker(self._own))

    def _lazy_maker(self) -> Make:
        """Return what makes the result of decoded rows."""
        maker = BinlogMaker(self._own)

        def make(rows: pa.Table, bucket: TableBucket) -> tuple[pa.Table, bool]:
            return self._made(self._filter.table(rows), maker, bucket), maker.is_pending(bucket)

        return make

"""Appending to log tables: :class:`AppendWriter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.send.batch import EncodedBatch, WriteResultHandle
from fluss_df.client.send.requests import ProduceLog, WriteApi
from fluss_df.client.transport.folders import served_here
from fluss_df.client.write.writer import TableWriter
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.log.log_batch import Compression, encode_log_batch, log_batch
from fluss_df.record.log.row_log import ROW_LOG_FORMATS, encode_row_log_batch
from fluss_df.record.log.single_arrow import arrow_row_encoder
from fluss_df.record.log.statistics import encode_statistics, statistics_columns
from fluss_df.record.python.row_collector import Gathered, Row
from fluss_df.record.rows.row_formats import encoder_of, require_milliseconds
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# Batches of an engine in this process are read where they are, each for a price: scans of wide
# tables take a fifth less time than of the 2 MB that a server gets.
_LARGE_BYTES = 8 << 20


class AppendWriter(TableWriter):
    """Appends rows and Arrow data to a log table, for any number of threads.

    What is written is checked at once and sent in the background; :meth:`flush` waits until all
    of it is acknowledged. Rows and small frames wait up to ``writer.batch-timeout`` for more.
    When ``writer.buffer.memory-size`` bytes are on their way, the caller waits.

    Obtain one from ``table.new_append().create_writer()``; use it in a ``with`` statement, or
    call :meth:`close`: both flush and report what was not acknowledged.

    Parameters
    ----------
    connection
        The connection.
    info
        The table.
    create_partitions
        Whether to create the partitions of the rows where they do not exist.
    """

    def __init__(
        self, connection: ClientContext, info: TableInfo, *, create_partitions: bool = False
    ) -> None:
        if info.has_primary_key():
            raise FlussError(
                f"table {info.table_path} has a primary key: it takes upserts, not appends",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._row_encoder = None
        if info.log_format in ROW_LOG_FORMATS:
            self._row_encoder = encoder_of(info.log_format)(info.schema.columns)
        elif info.log_format != "arrow":
            raise FlussError(
                f"table {info.table_path} has the log format '{info.log_format}', which is not"
                f" known here; known are arrow, {', '.join(ROW_LOG_FORMATS)}",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        self._statistics_columns = statistics_columns(info)
        self._compression = Compression.from_properties(info.get_properties())
        self._message_of_one: Callable[[Sequence[Any]], bytes | None] | None = None
        # made for the first row: a writer of frames needs none
        self._takes_one = self._row_encoder is None and not self._statistics_columns
        # of frames only, where nobody asked for another size, and no filter goes by batches
        self._large_bytes = 0
        config = connection.config
        plain = self._row_encoder is None and not self._statistics_columns
        if plain and not config.is_set("writer.batch-size") and served_here(config):
            self._large_bytes = min(_LARGE_BYTES, config.writer_request_max_size * 4 // 5)
        super().__init__(
            connection,
            info,
            columns=info.schema.columns,
            frame_schema=info.schema.arrow_schema,
            create_partitions=create_partitions,
        )

    def append(self, row: Row) -> WriteResultHandle:
        """Append a row.

        Parameters
        ----------
        row
            A dict of column to value, or a list or tuple of values in the order of the columns.

        Returns
        -------
        WriteResultHandle
            To wait for the acknowledgement of this row, without lingering.

        Raises
        ------
        SchemaMismatchError
            When the row does not fit; nothing of it is written.
        """
        return self._put_row(row)

    def _reset(self) -> None:
        super()._reset()
        # in front of the method, which only calls it
        self.append = self._put_row  # type: ignore[method-assign,assignment]

    @property
    def _frame_bytes(self) -> int:
        return self._large_bytes or super()._frame_bytes

    def _checked(self, table: pa.Table) -> pa.Table:
        data = super()._checked(table)
        if self._row_encoder is not None:
            require_milliseconds(data, self._columns, self._name)
        return data

    def _batch(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        data = super()._batch(gathered, values)
        if self._row_encoder is not None:
            require_milliseconds(data, self._columns, self._name)
        return data

    def _lone_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], EncodedBatch] | None:
        if self._takes_one and self._message_of_one is None:
            self._message_of_one = arrow_row_encoder(self._info.schema.columns, self._compression)
            self._takes_one = self._message_of_one is not None
        message = None if self._message_of_one is None else self._message_of_one(values)
        if message is None:
            return None
        return values, log_batch(pa.py_buffer(message), 1, self._info.schema_id)

    def _write_api(self) -> WriteApi:
        return ProduceLog(self._info)

    def _encode_frame(self, data: pa.RecordBatch) -> EncodedBatch:
        if self._row_encoder is not None:
            return encode_row_log_batch(
                data, schema_id=self._info.schema_id, rows=self._row_encoder
            )
        columns = self._statistics_columns
        return encode_log_batch(
            data,
            schema_id=self._info.schema_id,
            compression=self._compression,
            statistics=encode_statistics(data, columns) if columns else b"",
        )

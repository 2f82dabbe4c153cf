"""Rows of log tables: :class:`LogCodec`."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from fluss_df.client.transport.folders import served_here
from fluss_df.client.write.codec import RowCodec
from fluss_df.config import Config
from fluss_df.protocol.produce import ProduceLog
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.record.log.log_batch import Compression, encode_log_batch, log_batch
from fluss_df.record.log.row_log import encode_row_log_batch, require_log_format
from fluss_df.record.log.single_arrow import arrow_row_encoder
from fluss_df.record.log.statistics import statistics_columns
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.fits import NO_LIMITS
from fluss_df.record.python.row_collector import Gathered, RowCollector, limits_of_rows
from fluss_df.record.rows.row_formats import encoder_of, require_milliseconds
from fluss_df.schema import TableInfo

# Batches of an engine in this process are read in place, and each costs some time. With batches of
# this size, scans of wide tables take a fifth less time than with the 2 MB that servers get.
_LARGE_BYTES = 8 << 20


class LogCodec(RowCodec):
    """Log batches, of Arrow data or of rows.

    It chooses the functions of ``record`` that rows pass. Raises ``UNSUPPORTED_VERSION`` for a log
    format that is not known here.
    """

    most_rows = sys.maxsize

    def __init__(self, info: TableInfo, config: Config) -> None:
        require_log_format(info.log_format, info.table_path)
        self._name = str(info.table_path)
        self._schema_id = info.schema_id
        self.columns = info.schema.columns
        self.frame_schema = info.schema.arrow_schema
        self.api = ProduceLog(info.table_id)
        self._compression = Compression.from_properties(info.get_properties())
        self._message_of_one: Callable[[Sequence[Any]], bytes | None] | None = None
        statistics = statistics_columns(info)
        self._arrow = info.log_format == "arrow"
        limits = NO_LIMITS if self._arrow else limits_of_rows(info.log_format)
        limits = dataclasses.replace(limits, required=frozenset(info.get_bucket_keys()))
        self.rows = RowCollector(self.columns, self._name, limits)
        if self._arrow:
            self.frame = functools.partial(coerce, columns=self.columns, table=self._name)
            self.encode = functools.partial(
                encode_log_batch,
                schema_id=info.schema_id,
                compression=self._compression,
                statistics=statistics,
            )
        else:
            self.frame = self._frame_of_milliseconds
            self.encode = functools.partial(
                encode_row_log_batch,
                schema_id=info.schema_id,
                rows=encoder_of(info.log_format)(self.columns),
            )
        # made for the first row: a writer of frames needs none
        self._takes_one = self._arrow and not statistics
        # where nobody asked for another size, and no filter goes by batches
        self._large_bytes = 0
        if self._takes_one and not config.is_set("writer.batch-size") and served_here(config):
            self._large_bytes = min(_LARGE_BYTES, config.writer_request_max_size * 4 // 5)

    def frame_of_rows(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows with exactly the types of the log."""
        return self.rows.batch(values)

    def _frame_of_milliseconds(self, table: pa.Table) -> pa.Table:
        data = coerce(table, self.columns, table=self._name)
        require_milliseconds(data, self.columns, self._name)
        return data

    def one_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], StampedBatch] | None:
        """Return a log batch of one row, made without arrays; None for other than plain values."""
        if self._takes_one and self._message_of_one is None:
            self._message_of_one = arrow_row_encoder(self.columns, self._compression)
            self._takes_one = self._message_of_one is not None
        message = None if self._message_of_one is None else self._message_of_one(values)
        if message is None:
            return None
        return values, log_batch(pa.py_buffer(message), 1, self._schema_id)

    def frame_bytes(self, target_bytes: int) -> int:
        """Return about how many bytes the batches of a large frame have."""
        return self._large_bytes or target_bytes

"""Keys to the servers that have their rows, and the answers back: :class:`Asker`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.lookup.one_key import DirectLookup
from fluss_df.client.lookup.queue import Answer, LookupQueue
from fluss_df.client.routing.one_row import PlainKeys
from fluss_df.client.routing.partitions import PartitionRouter, bucket_assigner, named_key
from fluss_df.client.runtime.io_thread import reset_after_fork
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.runtime.retry import Backoff
from fluss_df.client.scan.change_fold import key_array
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.metadata import TableBucket
from fluss_df.observe import spans
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.cut_digits import CutDigits
from fluss_df.record.keys.keys import Keys, encode_keys
from fluss_df.record.kv.primary_key import key_lake_format
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.row_collector import Row
from fluss_df.record.python.rows import RowChecker, rows_to_batch
from fluss_df.schema import TableInfo
from fluss_df.types import Column

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# a column of the keys on their way: which row of the input they came from
_ROW = "\0row"


class Asker:
    """The common part of both lookups: keys to buckets, answers back to the rows of the keys.

    ``columns`` are those of a key as users give it. ``encoded`` are those of them that are encoded
    as the key; the others name the partition. ``prefix`` says whether a key is a prefix.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[Column],
        encoded: Sequence[Column],
        *,
        prefix: bool,
    ) -> None:
        self._connection = connection
        self._info = info
        self._columns = columns
        self._encoded = encoded
        self._prefix = prefix
        self._name = str(info.table_path)
        self._of_table = connection.metrics.of_table(self._name)
        self._lake_format = key_lake_format(info)
        self._named_key = named_key(info)
        self._check_row = RowChecker(columns, self._name)
        self._plain = PlainKeys(info, columns, encoded, self._lake_format)
        self._cut = CutDigits(columns, encoded, self._lake_format)
        self._assign = bucket_assigner(info, connection.config, count_of=self._buckets_of)
        self.values = ValueReader(connection, info)
        self._reset()
        reset_after_fork(self)

    def _buckets_of(self, partition_id: int | None) -> int:
        return self._partitions.buckets_of(partition_id)

    def _reset(self) -> None:
        self._partitions = PartitionRouter(self._connection, self._info, create=False)
        self._queue: LookupQueue | None = None
        # made when it is needed: in a child that was forked, the connection may be closed
        self._direct: DirectLookup | None = None

    def after_fork(self) -> None:
        """Start again in a forked child."""
        self._reset()

    def _span(self, keys: int) -> contextlib.AbstractContextManager[Any]:
        name = "prefix_lookup" if self._prefix else "lookup"
        attributes = spans.table_attributes(name, self._info.table_path)
        if keys != 1:
            # by OpenTelemetry's conventions, one key is no batch
            attributes["db.operation.batch.size"] = keys
        return spans.current(f"{name} {self._name}", "client", attributes)

    def ask_one(self, key: Row) -> Any:
        """Return what a server has for one key: a value or None, or a list of values."""
        if spans.tracer is None:
            return self._ask_one(key)
        with self._span(1):
            return self._ask_one(key)

    def _ask_one(self, key: Row) -> Any:
        self._check_row(key)
        self._of_table.add_to("lookups", 1)
        place = self._plain.place(key, self._partitions.known_id, self._buckets_of)
        if place is None:
            return self._ask_batch(rows_to_batch([key], self._columns, self._name))
        answer = self._ask_server(*place)
        if answer is None:
            # the partition is gone; another one may have its name by now
            self._partitions.forget(place[0].partition_id)
            return self._ask_row(rows_to_batch([key], self._columns, self._name))
        return answer[0]

    def _ask_batch(self, batch: pa.RecordBatch) -> Any:
        """Return what a server has for the one coerced key in a batch: a row of this very key."""
        if self._cut.impossible(batch) is not None:
            return None
        answers = [self._ask_row(batch)]
        self._leave_out_others(pa.Table.from_batches([batch]), answers)
        return answers[0]

    def _ask_row(self, batch: pa.RecordBatch, metrics: Metrics | None = None) -> Any:
        """Return what a server has for the one coerced key in a batch."""
        info = self._info
        if info.is_partitioned():
            return self._ask(pa.Table.from_batches([batch]), metrics)[0]
        # the same as _ask without frames, which cost as much time as a round trip
        keys = self._keys(batch)
        bucket_keys = (
            keys
            if self._plain.one_encoding
            else self._encode(batch, self._plain.bucket_columns, info.lake_format)
        )
        bucket_id = 0
        if info.num_buckets > 1:
            found = bucket_ids(bucket_keys, info.num_buckets, info.lake_format, of=self._named_key)
            bucket_id = int(found[0])
        answer = self._ask_server(TableBucket(info.table_id, bucket_id), keys[0], metrics)
        return None if answer is None else answer[0]

    def _ask_server(
        self, bucket: TableBucket, key: bytes, metrics: Metrics | None = None
    ) -> Answer | None:
        """Return the one answer for a key; None where the bucket's partition is gone."""
        direct = self._direct
        if direct is None:
            cluster = self._connection.cluster
            direct = self._direct = DirectLookup(cluster, self._info, prefix=self._prefix)
        answer = direct.ask(bucket, key)
        if answer is not None:
            if metrics is not None:
                metrics.add(requests=1)
        else:
            queue = self._started_queue()
            answer = self._connection.io.run(queue.ask(bucket, [key], metrics))
        return answer

    def ask_many(self, keys: Any, metrics: Metrics | None = None) -> list[Any]:
        """Return what servers have for each row of a frame of keys."""
        found = coerce(_as_table(keys, self._name), self._columns, table=self._name)
        self._of_table.add(lookups=found.num_rows)
        if spans.tracer is None:
            return self._ask_possible(found, metrics)
        with self._span(found.num_rows):
            return self._ask_possible(found, metrics)

    def _ask_possible(self, keys: pa.Table, metrics: Metrics | None) -> list[Any]:
        """Return the rows of these very keys, where servers know only what is encoded of them."""
        impossible = self._cut.impossible(keys)
        asked = keys if impossible is None else keys.filter(pa.array(~impossible))
        answers = self._ask_each(asked, metrics) if asked.num_rows else []
        self._leave_out_others(asked, answers)
        if impossible is None:
            return answers
        left = iter(answers)
        return [None if odd else next(left) for odd in impossible.tolist()]

    def _leave_out_others(self, keys: pa.Table, answers: list[Any]) -> None:
        """Put None for rows that have another key, which is encoded as the one asked for."""
        if not self._cut.of_answers or not any(answers):
            return
        found = np.flatnonzero(np.fromiter(map(bool, answers), np.bool_, len(answers)))
        rows = self.values.decode([answers[i] for i in found.tolist()])
        for i in found[self._cut.others(keys.take(pa.array(found)), rows)].tolist():
            answers[i] = None

    def _ask_each(self, found: pa.Table, metrics: Metrics | None) -> list[Any]:
        if found.num_rows == 1 and not self._info.is_partitioned():
            return [self._ask_row(found.combine_chunks().to_batches()[0], metrics)]
        return self._ask(found, metrics)

    def _ask(self, keys: pa.Table, metrics: Metrics | None = None) -> list[Any]:
        """Ask for coerced keys; a key whose partition does not exist has nothing.

        Where a partition is gone that was there before, another one may have its name: it is asked,
        until servers and the list of partitions agree.
        """
        results: list[Any] = [None] * keys.num_rows
        data = keys.append_column(_ROW, pa.array(np.arange(keys.num_rows)))
        gone = self._ask_into(results, data, metrics)
        backoff = Backoff(self._connection.config.retry_timeout_ms)
        while gone:
            for partition_id, _ in gone:
                self._partitions.forget(partition_id)
            rows = np.unique(np.concatenate([rows for _, rows in gone]))
            before = {partition_id for partition_id, _ in gone}
            gone = self._ask_into(results, data.take(pa.array(rows)), metrics)
            if before.isdisjoint(partition_id for partition_id, _ in gone):
                continue
            if backoff.expired:
                raise FlussError(
                    f"table {self._name}: a partition is listed whose buckets no server knows",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            time.sleep(backoff.next_pause())
        return results

    def _ask_into(
        self, results: list[Any], data: pa.Table, metrics: Metrics | None
    ) -> list[tuple[int | None, Sequence[int]]]:
        """Fill in what servers have; return (partition id, rows) where a partition is gone."""
        parts: list[tuple[TableBucket, Sequence[bytes]]] = []
        rows: list[Sequence[int]] = []
        for _, partition_id, part in self._partitions.split_existing(data):
            for batch in part.combine_chunks().to_batches():
                for bucket, found in self._assign(batch, partition_id):
                    parts.append((bucket, key_array(self._keys(found)).to_pylist()))
                    rows.append(found.column(_ROW).to_pylist())
        if not parts:
            return []
        gone = []
        answers = self._connection.io.run(self._started_queue().ask_all(parts, metrics))
        for (bucket, _), at, answer in zip(parts, rows, answers, strict=True):
            if answer is None:
                gone.append((bucket.partition_id, at))
                continue
            for row, value in zip(at, answer, strict=True):
                results[row] = value
        return gone

    def decode(self, values: list[bytes], metrics: Metrics | None) -> pa.Table:
        """Return values as rows, counted."""
        size = sum(map(len, values))
        if metrics is not None:
            metrics.add(rows=len(values), record_bytes=size)
        self._of_table.add(records_read=len(values), bytes_read=size)
        return self.values.decode(values)

    def _started_queue(self) -> LookupQueue:
        if self._queue is None:
            self._queue = LookupQueue(self._connection.cluster, self._info, prefix=self._prefix)
        return self._queue

    def _keys(self, batch: pa.RecordBatch) -> Keys:
        return self._encode(batch, self._encoded, self._lake_format)

    def _encode(
        self, batch: pa.RecordBatch, columns: Sequence[Column], lake_format: str | None = None
    ) -> Keys:
        return encode_keys(
            [batch.column(column.name) for column in columns],
            [column.type for column in columns],
            lake_format,
            names=[column.name for column in columns],
            table=self._name,
        )


def _as_table(keys: Any, table: str) -> pa.Table:
    if isinstance(keys, pa.Table):
        return keys
    if isinstance(keys, pa.RecordBatch):
        return pa.Table.from_batches([keys])
    if hasattr(keys, "__arrow_c_stream__"):
        return pa.table(keys)
    raise SchemaMismatchError(
        f"cannot look up {type(keys).__name__} in table {table}: expected a pyarrow Table or"
        " RecordBatch, or anything that exports __arrow_c_stream__"
    )

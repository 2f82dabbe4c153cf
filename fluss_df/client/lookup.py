"""Looking up rows of primary-key tables: :class:`Lookuper` and :class:`PrefixLookuper`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss_df.client.change_fold import key_array
from fluss_df.client.direct_lookup import DirectLookup
from fluss_df.client.facade import Ready, ReadyDict, ready
from fluss_df.client.io_thread import reset_after_fork
from fluss_df.client.kv_keys import check_primary_key, key_columns, key_lake_format
from fluss_df.client.lookup_queue import Answer, LookupQueue
from fluss_df.client.metrics import Metrics
from fluss_df.client.plain_keys import PlainKeys
from fluss_df.client.retry import Backoff
from fluss_df.client.routing import PartitionRouter, bucket_assigner
from fluss_df.client.value_reader import ValueReader
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.metadata import TableBucket, require_columns
from fluss_df.record.bucketing import bucket_ids
from fluss_df.record.coerce import coerce
from fluss_df.record.keys import Keys, encode_keys
from fluss_df.record.row_collector import Row
from fluss_df.record.rows import RowChecker, rows_to_batch
from fluss_df.schema import TableInfo
from fluss_df.types import Column

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection

# a column of the keys on their way: which row of the input they came from
_ROW = "\0row"


class _Asker:
    """What both kinds of lookup share: keys to buckets, answers back to the rows of the keys.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns of a key as users give it.
    encoded
        Those of them that are encoded as the key; the others name the partition.
    prefix
        Whether a key is a prefix.
    """

    def __init__(
        self,
        connection: FlussConnection,
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
        self._lake_format = key_lake_format(info)
        self._check_row = RowChecker(columns, self._name)
        self._plain = PlainKeys(info, columns, encoded, self._lake_format)
        self._assign = bucket_assigner(info, connection.config, count_of=self._buckets_of)
        self.values = ValueReader(connection, info)
        self._reset()
        reset_after_fork(self)

    def _buckets_of(self, partition_id: int | None) -> int:
        return self._partitions.buckets_of(partition_id)

    def _reset(self) -> None:
        self._partitions = PartitionRouter(self._connection, self._info, create=False)
        self._queue: LookupQueue | None = None
        cluster = self._connection.cluster
        self._direct = DirectLookup(cluster, self._info, prefix=self._prefix)

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._reset()

    def ask_one(self, key: Row) -> Any:
        """Return what a server has for one key: a value or None, or a list of values."""
        self._check_row(key)
        place = self._plain.place(key, self._partitions.known_id, self._buckets_of)
        if place is None:
            return self._ask_row(rows_to_batch([key], self._columns, self._name))
        answer = self._ask_server(*place)
        if answer is None:
            # the partition is gone; another one may have its name by now
            self._partitions.forget(place[0].partition_id)
            return self._ask_row(rows_to_batch([key], self._columns, self._name))
        return answer[0]

    def _ask_row(self, batch: pa.RecordBatch, metrics: Metrics | None = None) -> Any:
        """Return what a server has for the one coerced key in a batch."""
        info = self._info
        if info.is_partitioned():
            return self._ask(pa.Table.from_batches([batch]), metrics)[0]
        # the same without frames, whose price is that of a round trip
        keys = self._keys(batch)
        bucket_keys = (
            keys
            if self._plain.one_encoding
            else self._encode(batch, self._plain.bucket_columns, info.lake_format)
        )
        bucket_id = 0
        if info.num_buckets > 1:
            bucket_id = int(bucket_ids(bucket_keys, info.num_buckets, info.lake_format)[0])
        answer = self._ask_server(TableBucket(info.table_id, bucket_id), keys[0], metrics)
        return None if answer is None else answer[0]

    def _ask_server(
        self, bucket: TableBucket, key: bytes, metrics: Metrics | None = None
    ) -> Answer | None:
        """Return the one answer for a key; None where the bucket's partition is gone."""
        answer = self._direct.ask(bucket, key)
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
        if metrics is not None:
            metrics.add(rows=len(values), record_bytes=sum(map(len, values)))
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


class Lookuper(Ready):
    """Looks up rows by their primary key, for any number of threads.

    A lookup goes out at once; those that come while a server is busy with one go together. What
    a lookup finds is what was acknowledged before it began, or newer.

    Obtain one from ``table.new_lookup().create_lookuper()``.

    Parameters
    ----------
    connection, info
        The table.

    Examples
    --------
    >>> lookuper = table.new_lookup().create_lookuper()  # doctest: +SKIP
    >>> lookuper.lookup({"id": 1})  # doctest: +SKIP
    {'id': 1, 'name': 'Ada'}
    """

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        by_name = {column.name: column for column in info.schema.columns}
        self._asker = _Asker(
            connection,
            info,
            [by_name[name] for name in info.get_primary_keys()],
            key_columns(info),
            prefix=False,
        )
        self._prefix: PrefixLookuper | None = None

    def lookup(self, pk: Row) -> dict[str, Any] | None:
        """Return the row that has a key, or None.

        Parameters
        ----------
        pk
            A dict of key column to value, or a list or tuple of values in the order of the key.

        Returns
        -------
        dict or None
            The row. It can also be awaited; where an event loop runs in the calling thread, so
            can a None, which is then false and equal to None but is not None itself.

        Raises
        ------
        FlussError
            When the key does not fit, or no server answered within ``retry-timeout``.
        """
        value = self._asker.ask_one(pk)
        if not value:
            # a None that can be awaited, where that is likely
            return ready(None) if _in_event_loop() else None
        return ReadyDict(self._asker.values.rows([value])[0])

    def lookup_arrow(
        self, keys: Any, *, found_column: str | None = None, metrics: Metrics | None = None
    ) -> pa.Table:
        """Return the rows of many keys, row for row.

        Parameters
        ----------
        keys
            An Arrow table or record batch, or anything that exports ``__arrow_c_stream__``: the
            key columns, in any order, and no others. Keys may repeat.
        found_column
            The name of a boolean column to append, which says whether there is such a row.
        metrics
            Where requests, rows and their bytes are counted.

        Returns
        -------
        pa.Table
            As many rows as ``keys``, in the same order, with the table's columns; all of them are
            null, those of the key too, where there is no such row.
        """
        schema = self._asker.values.schema
        if found_column is not None and found_column in schema.names:
            raise FlussError(
                f"table {self._info.table_path} has a column '{found_column}': choose another"
                " found_column"
            )
        values = self._asker.ask_many(keys, metrics)
        found = np.fromiter(map(bool, values), np.bool_, len(values))
        rows = self._asker.decode(list(filter(None, values)), metrics)
        if not found.all():
            index = np.cumsum(found) - 1
            rows = rows.combine_chunks().take(pa.array(index, mask=~found))
        if found_column is not None:
            rows = rows.append_column(found_column, pa.array(found))
        return rows

    def prefix_lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """Return all rows whose key begins with a prefix; see :class:`PrefixLookuper`."""
        return self._prefix_lookuper().lookup(prefix)

    def prefix_lookup_arrow(self, prefixes: Any, *, index_column: str | None = None) -> pa.Table:
        """Return all rows whose keys begin with prefixes; see :class:`PrefixLookuper`."""
        return self._prefix_lookuper().lookup_arrow(prefixes, index_column=index_column)

    def _prefix_lookuper(self) -> PrefixLookuper:
        if self._prefix is None:
            self._prefix = PrefixLookuper(self._connection, self._info)
        return self._prefix

    def __repr__(self) -> str:
        return f"Lookuper({str(self._info.table_path)!r})"


class PrefixLookuper(Ready):
    """Looks up all rows whose primary key begins with given values, for any number of threads.

    The prefix is the bucket key of a table whose bucket key is a true prefix of its primary key,
    and its partition columns.

    Obtain one from ``table.new_lookup().lookup_by(columns).create_lookuper()``.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns of the prefix; None for the partition columns and then those of the bucket key.
    """

    def __init__(
        self, connection: FlussConnection, info: TableInfo, columns: Sequence[str] | None = None
    ) -> None:
        check_primary_key(info)
        self._info = info
        names = _prefix_columns(info, columns)
        by_name = {column.name: column for column in info.schema.columns}
        bucket_keys = [by_name[name] for name in info.get_bucket_keys()]
        wanted = [by_name[name] for name in names]
        self._asker = _Asker(connection, info, wanted, bucket_keys, prefix=True)

    def lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """Return the rows whose key begins with a prefix, in no particular order.

        Parameters
        ----------
        prefix
            A dict of column to value, or a list or tuple of values in the order of the columns.
        """
        values = self._asker.ask_one(prefix)
        rows: list[dict[str, Any]] = []
        if values:
            rows = self._asker.values.rows(values)
        return ready(rows)

    def lookup_arrow(
        self, prefixes: Any, *, index_column: str | None = None, metrics: Metrics | None = None
    ) -> pa.Table:
        """Return the rows of many prefixes, those of the first prefix first.

        Parameters
        ----------
        prefixes
            An Arrow table or record batch, or anything that exports ``__arrow_c_stream__``.
        index_column
            The name of an int64 column to append: which row of ``prefixes`` a row belongs to.
        metrics
            Where requests, rows and their bytes are counted.
        """
        schema = self._asker.values.schema
        if index_column is not None and index_column in schema.names:
            raise FlussError(
                f"table {self._info.table_path} has a column '{index_column}': choose another"
                " index_column"
            )
        lists = [values or () for values in self._asker.ask_many(prefixes, metrics)]
        rows = self._asker.decode(list(itertools.chain.from_iterable(lists)), metrics)
        if index_column is not None:
            counts = np.fromiter(map(len, lists), np.int64, len(lists))
            index = np.repeat(np.arange(len(lists)), counts)
            rows = rows.append_column(index_column, pa.array(index))
        return rows

    def __repr__(self) -> str:
        return f"PrefixLookuper({str(self._info.table_path)!r})"


class TableLookup:
    """Builds lookupers; may also be used as one itself.

    Obtain one from ``table.new_lookup()``.
    """

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        self._lookuper: Lookuper | None = None

    def create_lookuper(self) -> Lookuper:
        """Return a lookuper by primary key."""
        return Lookuper(self._connection, self._info)

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Return a builder of lookupers by a prefix of the key.

        Parameters
        ----------
        column_names
            The partition columns, if any, and those of the bucket key, in this order.

        Raises
        ------
        FlussError
            When these columns are no prefix that the server can look up.
        """
        return TablePrefixLookup(self._connection, self._info, column_names)

    def lookup(self, pk: Row) -> dict[str, Any] | None:
        """As :meth:`Lookuper.lookup`."""
        return self._own().lookup(pk)

    def lookup_arrow(self, keys: Any, *, found_column: str | None = None) -> pa.Table:
        """As :meth:`Lookuper.lookup_arrow`."""
        return self._own().lookup_arrow(keys, found_column=found_column)

    def prefix_lookup(self, prefix: Row) -> list[dict[str, Any]]:
        """As :meth:`Lookuper.prefix_lookup`."""
        return self._own().prefix_lookup(prefix)

    def prefix_lookup_arrow(self, prefixes: Any, *, index_column: str | None = None) -> pa.Table:
        """As :meth:`Lookuper.prefix_lookup_arrow`."""
        return self._own().prefix_lookup_arrow(prefixes, index_column=index_column)

    def _own(self) -> Lookuper:
        if self._lookuper is None:
            self._lookuper = self.create_lookuper()
        return self._lookuper

    def __repr__(self) -> str:
        return f"TableLookup({str(self._info.table_path)!r})"


class TablePrefixLookup:
    """Builds lookupers by a prefix of the key; obtained from :meth:`TableLookup.lookup_by`."""

    def __init__(
        self, connection: FlussConnection, info: TableInfo, columns: Sequence[str]
    ) -> None:
        self._connection = connection
        self._info = info
        self._columns = _prefix_columns(info, columns)

    def create_lookuper(self) -> PrefixLookuper:
        """Return a lookuper by prefix."""
        return PrefixLookuper(self._connection, self._info, self._columns)

    def __repr__(self) -> str:
        return f"TablePrefixLookup({str(self._info.table_path)!r}, {self._columns})"


def _prefix_columns(info: TableInfo, columns: Sequence[str] | None) -> list[str]:
    """Return the columns of a prefix, in the order in which users give them."""
    where = f"table {info.table_path}"
    partition, bucket = info.get_partition_keys(), info.get_bucket_keys()
    key = [column.name for column in key_columns(info)]
    if bucket == key or bucket != key[: len(bucket)]:
        raise FlussError(
            f"{where} has no prefix lookup: its bucket key ({', '.join(bucket)}) would have to be"
            f" a true prefix of its primary key ({', '.join(key)}); look up by primary key, or"
            " create the table with such bucket_keys"
        )
    expected = [*partition, *bucket]
    if columns is None:
        return expected
    if isinstance(columns, str):
        raise FlussError(f"expected a list of column names, not the string {columns!r}")
    require_columns(columns, info.get_column_names(), f"{where}:")
    rest = [name for name in columns if name not in partition]
    if len(set(columns)) != len(columns) or sorted(columns) != sorted(expected) or rest != bucket:
        raise FlussError(
            f"{where}: a prefix lookup is by {', '.join(expected)}, not by {', '.join(columns)}"
        )
    return list(columns)


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


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

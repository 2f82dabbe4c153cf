"""Reads a task's part of a table as record batches, in bounded memory."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.chunk_read import positions_of
from fluss_df.client.fetch.table_decoder import METADATA_FIELDS, TableDecoder
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import BUCKET_COLUMN, CHANGE_TYPE_COLUMN, ChangeType
from fluss_df.pushdown.evaluate import filter_rows
from fluss_df.pushdown.plan import Split
from fluss_df.pushdown.predicate import conjuncts
from fluss_df.pushdown.server_filter import ServerFilter, server_filter
from fluss_df.schema import TableInfo
from fluss_df.spark.plan.lake_tasks import lake_rows
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import ReadTask, require_same_table
from fluss_df.spark.plan.types import SparkCast
from fluss_df.spark.read.pinned import pinned_rows

logger = logging.getLogger(__name__)

_OLD_VALUE = ChangeType.UpdateBefore.short_string()


def read_task(options: ReadOptions, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the columns and types of a Spark schema.

    Raises FlussError when the table was dropped, or made again, since the query was planned; when
    offsets that were named have expired meanwhile; for a value that Spark cannot hold.
    """
    connection = options.connection.open()
    info = connection.get_table(task.table).get_table_info()
    require_same_table(task.table, task.table_id, info)
    cast = SparkCast(schema, task.table, truncate=options.truncate_nanoseconds)
    if task.lake is not None:
        tables = lake_rows(
            connection, info, task.lake, task.columns, task.metadata_columns, options.buckets
        )
    elif task.keys is not None:
        tables = _lookup(connection, task, task.keys)
    else:
        read = _snapshot if task.mode == "snapshot" else _log
        tables = read(connection, info, task)
    for table in tables:
        if task.mode == "upsert":
            table = _without_old_values(table)
        if task.predicate is not None:
            table = filter_rows(task.predicate, table)
        yield from cast(table)


def _log(connection: FlussConnection, info: TableInfo, task: ReadTask) -> Iterator[pa.Table]:
    metrics = Metrics(parent=connection.metrics)
    metadata = task.metadata_columns
    if task.mode == "upsert" and CHANGE_TYPE_COLUMN not in metadata:
        metadata = (*metadata, CHANGE_TYPE_COLUMN)
    decoder = TableDecoder(connection, info, task.columns, metadata, metrics)
    chosen = _server_filter(info, task)

    def read(splits: Iterable[Split]) -> Iterator[pa.Table]:
        positions = positions_of(info.table_id, tuple(splits), lambda _: task.from_log_start)
        yield from decoder.read(positions, chosen)

    if not task.without_dropped:
        yield from read(task.splits)
        return
    # one partition after the other, so that one that goes takes no rows of others with it
    for name, splits in itertools.groupby(task.splits, lambda split: split.partition_name):
        try:
            yield from read(splits)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            logger.warning(
                "table %s: partition '%s' was dropped while a batch of a stream read it, and what"
                " the batch did not have of it yet is lost; goes on, as lost data is to be ignored",
                *(task.table, name),
            )


def _server_filter(info: TableInfo, task: ReadTask) -> ServerFilter | None:
    """Return the filter by which servers leave out batches; the task filters the other rows."""
    if task.predicate is None:
        return None
    own = set(info.get_column_names()) - set(task.metadata_columns)
    return server_filter(info, [p for p in conjuncts(task.predicate) if p.columns() <= own])


def _lookup(connection: FlussConnection, task: ReadTask, keys: pa.Table) -> Iterator[pa.Table]:
    table = connection.get_table(task.table)
    key = table.get_table_info().get_primary_keys()[0]
    rows = table.new_lookup().lookup_arrow(keys)
    yield rows.filter(rows.column(key).is_valid()).select(list(task.columns or (key,)))


def _without_old_values(table: pa.Table) -> pa.Table:
    kinds = table.column(CHANGE_TYPE_COLUMN).cast(pa.string())
    return table.filter(pc.not_equal(kinds, _OLD_VALUE))


def _snapshot(connection: FlussConnection, info: TableInfo, task: ReadTask) -> Iterator[pa.Table]:
    # a key column where only metadata columns are wanted, to count rows
    columns = task.columns or tuple(info.get_primary_keys()[:1])
    for split in task.splits:
        for table in pinned_rows(connection, info, columns, split):
            yield _with_place(table, split, task.metadata_columns)


def _with_place(table: pa.Table, split: Split, metadata_columns: tuple[str, ...]) -> pa.Table:
    """Append the metadata columns that rows of a snapshot have."""
    for name in metadata_columns:
        field = METADATA_FIELDS[name]
        value = split.bucket_id if name == BUCKET_COLUMN else split.partition_name
        column = pa.repeat(pa.scalar(value, field.type), table.num_rows)
        table = table.append_column(field, column)
    return table

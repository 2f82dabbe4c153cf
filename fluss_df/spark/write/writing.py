"""Writing from tasks of Spark: every row is acknowledged before its task ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.sinks.target import TableLayout, Target, find_target
from fluss_df.io.sinks.writing import Writing
from fluss_df.metadata import TablePath, require_columns
from fluss_df.record.python.coerce import coerce
from fluss_df.schema import TableInfo
from fluss_df.spark.boundary import called_by_spark
from fluss_df.spark.plan.options import WriteOptions, invalid
from fluss_df.spark.plan.types import arrow_schema
from fluss_df.spark.workers import plans_a_write

# Spark delivers batches of some thousand rows. They are joined to about this number of bytes,
# because fewer and larger ones cost less.
_GATHER_BYTES = 8 << 20

# what an operation column may have, and the change type in a changelog
_OPERATIONS = {
    "+i": "+I",
    "i": "+I",
    "insert": "+I",
    "+u": "+U",
    "u": "+U",
    "update": "+U",
    "upsert": "+U",
    "-u": "-U",
    "-d": "-D",
    "d": "-D",
    "delete": "-D",
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: how many rows it wrote, all acknowledged, to which table."""

    rows: int
    table_id: int


def find_written(options: WriteOptions, schema: StructType) -> Target:
    """Return the table that a write is for.

    Raises FlussError when the table does not exist, or does not take what the mode does.
    """
    connection = options.connection.open()
    path = TablePath.parse(options.table, connection.default_database)
    # raises for a missing table, and names those that there are: a write creates none
    connection.get_table(path)
    column = options.operation_column
    target = find_target(
        connection,
        path,
        pl.Schema(dict.fromkeys((n for n in schema.names if n != column), pl.Null())),
        TableLayout(),
        mode=options.mode,
        create_if_not_exists=False,
        change_type_column=column,
    )
    # a log gets nulls for what rows do not have, as by Spark's own INSERT INTO v (id): whoever
    # adds a column to it ends no job that writes it
    return replace(target, merges=target.mode == "append")


def check_write(options: WriteOptions, schema: StructType) -> Target:
    """Return the table that a write is for. Called by the driver, and again by each task.

    Raises FlussError as :func:`find_written`. Raises SchemaMismatchError when columns or types do
    not fit, whatever the rows are.
    """
    target = find_written(options, schema)
    column = options.operation_column
    if column is not None:
        require_columns([column], schema.names, f"operation.column of the write to {target.path}:")
    written = [f for f in arrow_schema(schema, f"table {target.path}") if f.name != column]
    taken = _columns_to_write(target)
    written = [field for field in written if taken is None or field.name in taken]
    if not written:
        names = ", ".join(target.existing.get_column_names())
        raise SchemaMismatchError(
            f"table {target.path}: the data has no columns for it; there are {names}"
        )
    info = target.existing
    places = [*info.get_partition_keys(), *info.get_bucket_keys()] if target.merges else []
    for name in places:
        if name not in schema.names:
            raise SchemaMismatchError(
                f"table {target.path}: column '{name}' is missing in the data: it says which"
                " partition or bucket a row goes to"
            )
    if target.mode == "partial_update":
        # raises for columns that cannot be updated without others, such as a part of the key
        table = target.connection.get_table(target.path)
        table.new_upsert([wanted.name for wanted in target.columns])
    # no row is needed to check types, but a chunk is: empty_table() has one for each column
    coerce(
        pa.schema(written).empty_table(),
        target.columns,
        table=str(target.path),
        allow_missing=target.merges,
        upserts=target.mode == "upsert",
    )
    return target


def find_streamed(options: WriteOptions, schema: StructType) -> Target:
    """Return the table that a stream writes a batch to; its columns are checked before tasks run.

    Spark makes a writer for the tasks of a batch, and another one when they are done, to commit
    what they have written: whatever columns the table has got by then, it is written. A task
    checks them itself.

    Raises
    ------
    FlussError
        As :func:`check_write`, and for an option that is for batches alone.
    """
    if options.all_or_nothing:
        raise invalid(
            "option 'all.or.nothing' is for batch writes: a stream's batches are whole with"
            " 'delivery.guarantee'"
        )
    return (check_write if plans_a_write() else find_written)(options, schema)


def _columns_to_write(target: Target) -> frozenset[str] | None:
    """Return the columns that go to the table; None for all. A delete needs those of the key."""
    if target.mode != "delete":
        return None
    return frozenset(column.name for column in target.columns)


def refuse_overwrite(options: WriteOptions, path: TablePath) -> None:
    """Raise for Spark's mode ``overwrite``."""
    raise FlussError(
        f"mode 'overwrite': table {path} cannot be overwritten, because Fluss only adds to tables;"
        " use .mode('append'), which upserts into primary-key tables. To replace partitions, drop"
        " them (fluss_df's admin.drop_partition) and append with option 'create.partitions'; to"
        " replace a table, write another one",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


def prepared(target: Target, rows: pa.Table) -> pa.Table:
    """Return rows as the writer takes them: operations as +I, -U, +U, -D, or columns it needs."""
    column = target.change_type_column
    if column is not None:
        at = rows.schema.get_field_index(column)
        return rows.set_column(at, column, _operations(rows.column(column), target.path, column))
    taken = _columns_to_write(target)
    return rows.select([n for n in rows.schema.names if taken is None or n in taken])


def _operations(column: pa.ChunkedArray, path: TablePath, name: str) -> pa.ChunkedArray:
    """Return the operations by their names in a changelog."""
    # with Spark's setting useLargeVarTypes, strings are large strings
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        raise SchemaMismatchError(
            f"table {path}: operation column '{name}' is {column.type}, not a string"
        )
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    index = pc.index_in(plain, pa.array(list(_OPERATIONS)))
    if index.null_count:
        wrong = column.filter(index.is_null())[0].as_py()
        raise SchemaMismatchError(
            f"table {path}: operation column '{name}' has {wrong!r}: expected insert, update,"
            " upsert or delete, or +I, +U, -U, -D"
        )
    return pa.array(list(_OPERATIONS.values())).take(index.combine_chunks())


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put record batches together to tables of some megabytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _GATHER_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def require_same_target(target: Target, began_with: int) -> None:
    """Raise when the table of a write was dropped and created again since the write began.

    Its tasks that were done before wrote into a table that is gone: the write must not succeed.
    """
    _require_same_table(target.path, target.existing.table_id, began_with)


def written_table(
    options: WriteOptions, table_ids: Iterable[int]
) -> tuple[FlussConnection, TableInfo]:
    """Return the table that tasks wrote to, whatever columns it has by now.

    Raises FlussError as :func:`require_same_target`: of another table, buckets and columns may be
    others, whatever it is called.
    """
    connection = options.connection.open()
    path = TablePath.parse(options.table, connection.default_database)
    info = connection.get_table(path).get_table_info()
    for table_id in table_ids:
        _require_same_table(path, info.table_id, table_id)
    return connection, info


def require_still_there(
    options: WriteOptions, began_with: int, messages: Iterable[WriterCommitMessage | None]
) -> None:
    """Raise as :func:`require_same_target`, whatever columns the table has by now.

    The writer of a stream that commits was made when the tasks were done: they say which table
    theirs was.
    """
    written_table(options, {began_with, *(m.table_id for m in messages if isinstance(m, Written))})


def _require_same_table(path: TablePath, found: int, began_with: int) -> None:
    if found != began_with:
        raise FlussError(
            f"table {path} was dropped and created again while it was written (its id was"
            f" {began_with}, and is {found}): rows that were written before are gone with it; run"
            " the write again",
            ErrorCode.TABLE_NOT_EXIST,
        )


def write_rows(
    options: WriteOptions, schema: StructType, batches: Iterable[pa.RecordBatch], began_with: int
) -> Written:
    """Write a task's rows, and wait until every one is acknowledged."""
    target = check_write(options, schema)
    require_same_target(target, began_with)
    with Writing(target, create_partitions=options.create_partitions, progress=None) as writing:
        for table in gathered(batches):
            writing.write_arrow(prepared(target, table))
    written = sum(bucket.rows for bucket in writing.buckets())
    return Written(written, target.existing.table_id)


class FlussWriter(DataSourceArrowWriter):
    """A batch write.

    Rows of a task that failed, or is repeated, stay. A primary-key table has the same rows after a
    task is repeated, but for the merge engine ``aggregation``, which adds them again; a log table
    has its rows twice.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        if options.guarantee != "at-least-once":
            raise invalid(
                "option 'delivery.guarantee' is for streams: a batch write has no name by which a"
                " repetition could be known; with option 'all.or.nothing' its rows are there as a"
                " whole, or not at all"
            )
        target = check_write(options, schema)
        self._table_id = target.existing.table_id
        if overwrite:
            refuse_overwrite(options, target.path)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return write_rows(self._options, self._schema, iterator, self._table_id)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make sure that the rows, which are acknowledged, went into the table that is there."""
        require_still_there(self._options, self._table_id, messages)


class FlussStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write, at least once: a batch that is repeated writes its rows again.

    Primary-key tables then have the same rows, because those of a key come in the same order again;
    but for the merge engine ``aggregation``, which adds them again.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        target = find_streamed(options, schema)
        self._table_id = target.existing.table_id
        if overwrite and target.mode == "append":
            raise FlussError(
                f"output mode 'complete': table {target.path} is a log, which cannot be replaced;"
                " use output mode 'append', or a table with a primary key",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return write_rows(self._options, self._schema, iterator, self._table_id)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make sure that the rows, which are acknowledged, went into the table that is there."""
        require_still_there(self._options, self._table_id, messages)

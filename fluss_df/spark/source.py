"""The Spark data source ``fluss``: batch reads of log tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.client.metrics import Metrics
from fluss_df.client.reader import read_splits
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.planning import frame_schema, plan_scan, refuse_primary_key
from fluss_df.io.source import ScanSource, parse_offset, parse_partitions
from fluss_df.metadata import METADATA_COLUMNS, TablePath
from fluss_df.pushdown.plan import ScanPlan, Split, bind_columns, bind_metadata
from fluss_df.spark.options import ReadOptions


class FlussDataSource(DataSource):
    """Reads Fluss log tables as Spark dataframes.

    The offsets to read are pinned when Spark plans a query; rows appended later are not part of
    its result. Filters are evaluated by Spark.

    Examples
    --------
    >>> spark.dataSource.register(FlussDataSource)  # doctest: +SKIP
    >>> reader = spark.read.format("fluss")  # doctest: +SKIP
    >>> reader.option("bootstrap.servers", "127.0.0.1:9123").load("db.t")  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "fluss"

    def schema(self) -> StructType:
        """Return the columns that were asked for, all of them nullable."""
        return _spark_schema(_source(ReadOptions.parse(self.options), None).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema, which may be the user's."""
        return FlussReader(ReadOptions.parse(self.options), schema)


class FlussPartition(InputPartition):
    """One task: a range of offsets of a bucket."""

    def __init__(self, plan: ScanPlan, split: Split) -> None:
        super().__init__(None)
        self.plan = plan
        self.split = split


class FlussReader(DataSourceReader):
    """Plans in the driver, reads in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, with the offsets of this moment.

        Raises
        ------
        FlussError
            When table, columns, partitions or offsets do not exist.
        SchemaMismatchError
            When a type of the user's schema is not that of the table.
        """
        source = _source(self._options, self._schema.names)
        _check_types(source, self._schema)
        _, plan = plan_scan(source)
        size = self._options.rows_per_task
        return [
            FlussPartition(plan, split.slice(offset, size))
            for split in plan.splits
            for offset in range(0, split.rows, size)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises
        ------
        FlussError
            When the table was dropped, or made anew, since the query was planned.
        """
        # Spark makes one task without a range where there are none
        if not isinstance(partition, FlussPartition):
            return
        connection = _connect(self._options)
        plan = partition.plan
        info = connection.get_table(plan.table).get_table_info()
        if info.table_id != plan.table_id:
            raise FlussError(
                f"table {plan.table} was made anew while it was read (id {plan.table_id} became"
                f" {info.table_id}); run the query again",
                ErrorCode.TABLE_NOT_EXIST,
            )
        wanted = _arrow_schema(self._schema)
        metrics = Metrics(parent=connection.metrics)
        for table in read_splits(connection, info, plan, [partition.split], metrics):
            yield from _cast(table, wanted, plan.table).to_batches()


def _connect(options: ReadOptions) -> FlussConnection:
    return resolve_connection(options.connection)


def _source(options: ReadOptions, names: Sequence[str] | None) -> ScanSource:
    """Look the table up; ``names`` are those of a schema, None for those of the options."""
    connection = _connect(options)
    path = TablePath.parse(options.table, connection.default_database)
    info = connection.get_table(path).get_table_info()
    refuse_primary_key(info)
    if names is None:
        columns, extra = options.columns, options.metadata_columns
    else:
        own = info.get_column_names()
        extra = tuple(n for n in names if n in METADATA_COLUMNS and n not in own)
        columns = tuple(n for n in names if n not in extra)
    bound = bind_columns(info, columns)
    metadata_columns = bind_metadata(info, extra)
    return ScanSource(
        connection=connection,
        table=path,
        columns=bound,
        metadata_columns=metadata_columns,
        schema=frame_schema(info, bound, metadata_columns),
        partitions=parse_partitions(info, options.partitions),
        start=parse_offset(info, "start", options.start),
        stop=parse_offset(info, "stop", options.stop),
    )


def _spark_schema(schema: pa.Schema) -> StructType:
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    return from_arrow_schema(nullable, prefer_timestamp_ntz=True)


def _arrow_schema(schema: StructType) -> pa.Schema:
    made: Any = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in made])


def _check_types(source: ScanSource, schema: StructType) -> None:
    found = _spark_schema(source.schema)
    for field in schema.fields:
        there = found[field.name].dataType
        if field.dataType.simpleString() != there.simpleString():
            raise SchemaMismatchError(
                f"table {source.table}: column '{field.name}' is {there.simpleString()}, and the"
                f" schema says {field.dataType.simpleString()}; name the column's own type, and"
                " cast it in the query"
            )


def _cast(table: pa.Table, schema: pa.Schema, path: TablePath) -> pa.Table:
    """Return the columns of a schema in its order; never changes a value."""
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise FlussError(
                f"table {path}: column '{field.name}' ({column.type}) has a value that Spark"
                f" cannot hold as {field.type}: {error}; leave the column out by option 'columns'"
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)

"""The Spark data source ``fluss``: what Spark asks of it, handed to the modules beside."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from fluss_df.pushdown.predicate import Predicate
from fluss_df.spark.boundary import called_by_spark
from fluss_df.spark.plan.filters import from_spark
from fluss_df.spark.plan.options import ReadOptions, WriteOptions
from fluss_df.spark.plan.partition import FlussPartition
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.read.reading import read_task
from fluss_df.spark.read.streaming import FlussStreamReader
from fluss_df.spark.write.all_or_nothing import AllOrNothingWriter
from fluss_df.spark.write.exactly_once import ExactlyOnceWriter
from fluss_df.spark.write.writing import FlussStreamWriter, FlussWriter

if "SPARK_REUSE_WORKER" in os.environ:
    # Only Spark's Python workers collect garbage after each task. With this they skip the objects
    # of imported modules, which takes 60 ms each time.
    gc.freeze()


class FlussDataSource(DataSource):
    """Fluss tables as dataframes and streams of Spark, to read and to write.

    Log tables are read as their rows, primary-key tables as their current rows or as their
    changes. What is read is pinned when Spark plans a query: rows that come later are not part of
    its result. ``docs/spark.md`` lists the options.

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

    @called_by_spark
    def schema(self) -> StructType:
        """Return the columns that were asked for, all of them nullable.

        Spark asks before it says whether this is a batch or a stream. A primary-key table has more
        columns as a changelog: streams of one name the mode.
        """
        return TableScan(ReadOptions.parse(self.options)).schema

    @called_by_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema, which may be the user's."""
        return FlussReader(ReadOptions.parse(self.options), schema)

    @called_by_spark
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return a stream of the columns of a schema, which may be the user's."""
        return FlussStreamReader(ReadOptions.parse(self.options), schema)

    # Spark calls these with their parameters by name

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch write."""
        options = WriteOptions.parse(self.options)
        whole = options.all_or_nothing and options.guarantee == "at-least-once"
        return (AllOrNothingWriter if whole else FlussWriter)(options, schema, overwrite)

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a streaming write."""
        options = WriteOptions.parse(self.options)
        once = options.guarantee == "exactly-once"
        return (ExactlyOnceWriter if once else FlussStreamWriter)(options, schema, overwrite)

    def __repr__(self) -> str:
        return "FlussDataSource()"


class FlussReader(DataSourceReader):
    """Plans in the driver, reads in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: tuple[Predicate, ...] = ()

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802 - Spark's name
        """The method that Spark calls with its filters, if it pushes filters."""
        return _PushFilters(self)

    @property
    def takes_filters(self) -> bool:
        """Whether filters of Spark are used."""
        return self._options.push_filters

    @called_by_spark
    def push(self, filters: Sequence[Filter]) -> None:
        """Take the filters that are understood."""
        scan = TableScan(self._options, schema=self._schema)
        truncated = self._options.truncate_nanoseconds
        self._pushed = from_spark(filters, scan.all_fields, truncated=truncated)

    @called_by_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, with the offsets of this moment.

        Raises FlussError when table, columns, partitions or offsets do not exist, and
        SchemaMismatchError when a type of the user's schema is not that of the table.
        """
        scan = TableScan(self._options, schema=self._schema)
        return [FlussPartition(task) for task in scan.tasks(self._pushed)]

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        # where there are no tasks, Spark makes one of its own, without a range
        if isinstance(partition, FlussPartition):
            yield from read_task(self._options, self._schema, partition.task)


class _PushFilters:
    """Takes filters where Spark pushes them, and does not disturb Spark where it does not.

    Spark 4.3 refuses every read of a class that overrides ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is false, its default; it recognises that by the
    function behind the method, which is here the one that is not overridden.

    Spark 4.3 plans the scans of one dataframe once: all of them get the tasks that were made with
    the filters of the last. Of ``v WHERE k = 1 UNION ALL v WHERE k = 2`` only the rows of the
    second were found. So filters are taken only where the option ``push.filters`` says that the
    dataframe is used once in each query.
    """

    def __init__(self, reader: FlussReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> FunctionType:
        return cast("FunctionType", DataSourceReader.pushFilters)

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Return all filters: Spark evaluates them again."""
        if self._reader.takes_filters:
            self._reader.push(filters)
        return filters

"""Relations without rows that stand for tables while a query is planned, and columns of nulls.

Both are kept for each classic session, because each costs many calls between Python and Java:
a relation about 60 ms, a column of nulls 3 ms. Over Spark Connect they are made where they run.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from fluss_df.spark.queries.analysis import is_classic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_RELATIONS: Final = 100
_COLUMNS: Final = 10_000


class StandIns:
    """Temporary views in the place of tables, for as long as a query is planned.

    A view has the columns of its table, and no rows. Spark reads it from files, because it prunes
    these: what its plan does not name is not needed.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._of_schema: dict[str, int] = {}
        self.names: list[str] = []
        #: the prefix of each view's columns in Spark's plans, which is followed by their numbers
        self.prefixes: list[str] = []

    def add(self, schema: StructType) -> str:
        """Make a view of the columns of a table, and return its name."""
        self.names.append(f"{self._name}{len(self.names)}")
        # each mention has other column names, so that two of one table can be told apart
        key = schema.json()
        number = self._of_schema[key] = self._of_schema.get(key, -1) + 1
        prefix, relation = _relation(self._spark, schema, key, number)
        self.prefixes.append(prefix)
        relation.createOrReplaceTempView(self.names[-1])
        return self.names[-1]

    def drop(self) -> None:
        """Drop the views."""
        catalog = self._spark.catalog
        for name in self.names:
            catalog.dropTempView(name)


class _Kept:
    """The objects of Java that are kept for a session; they do not hold the session."""

    def __init__(self) -> None:
        self.relations: dict[tuple[str, int], tuple[str, Any]] = {}
        self.columns: dict[tuple[str, ...], Column] = {}


_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


def _of(spark: SparkSession) -> _Kept:
    return _kept.setdefault(spark, _Kept())


def _relation(
    spark: SparkSession, schema: StructType, key: str, number: int
) -> tuple[str, DataFrame]:
    """Return how the columns of a relation begin, and the relation."""
    if not is_classic(spark):
        return _made_relation(spark, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    kept = _of(spark).relations
    found = kept.get((key, number))
    if found is None:
        prefix, made = _made_relation(spark, schema)
        if len(kept) >= _RELATIONS:
            kept.clear()
        found = kept[key, number] = prefix, made._jdf
    # returned from here, because another thread may have cleared the cache meanwhile
    return found[0], ClassicDataFrame(found[1], spark)


def _made_relation(spark: SparkSession, schema: StructType) -> tuple[str, DataFrame]:
    prefix = f"fluss_{uuid.uuid4().hex[:12]}_c"
    columns = [StructField(f"{prefix}{i}", field.dataType) for i, field in enumerate(schema)]
    found = spark.read.schema(StructType(columns)).format("parquet").load(_no_files(spark))
    return prefix, found.toDF(*schema.names)


def _no_files(spark: SparkSession) -> list[str]:
    """Return the folders of a relation without files.

    Of none at all Spark logs a warning. A server of Spark Connect has no folder of this process,
    and its log is its own.
    """
    if not is_classic(spark):
        return []
    folder = Path(tempfile.gettempdir()) / f"fluss_df-no-files-{os.getpid()}"
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Hadoop's paths are not URIs: a space is written as it is
    return [f"file:{folder}"]


def null_column(spark: SparkSession, field: StructField) -> Column:
    """Return a column of nulls, of the name and type of a field."""
    from pyspark.sql import functions as sf

    def made() -> Column:
        return sf.lit(None).cast(field.dataType).alias(field.name)

    return _column(spark, ("null", field.name, field.dataType.json()), made)


def named_column(spark: SparkSession, column: str, name: str) -> Column:
    """Return a column by another name."""
    from pyspark.sql import functions as sf

    return _column(spark, ("column", column, name), lambda: sf.col(column).alias(name))


def _column(spark: SparkSession, key: tuple[str, ...], made: Callable[[], Column]) -> Column:
    if not is_classic(spark):
        return made()
    kept = _of(spark).columns
    found = kept.get(key)
    if found is None:
        if len(kept) >= _COLUMNS:
            kept.clear()
        found = kept[key] = made()
    return found

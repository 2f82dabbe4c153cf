"""Ibis expressions on Spark: compiled to Spark's SQL, whose scans read only what it needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ibis.expr.operations as ops
import ibis.expr.types as ir
import sqlglot
from sqlglot import exp
from sqlglot.optimizer.pushdown_predicates import pushdown_predicates
from sqlglot.optimizer.pushdown_projections import pushdown_projections
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.simplify import simplify

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.record.change_tables import LAKE_SUFFIX, split_virtual
from fluss_df.spark.queries.queries import run_sql
from fluss_df.spark.queries.temporary import TemporaryViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIALECT = "spark"


def expression_to_spark(
    expr: ir.Expr,
    spark: SparkSession,
    connection: FlussConnection,
    params: Mapping[ir.Scalar, Any] | None = None,
) -> DataFrame:
    """Return an Ibis expression over Fluss tables as a dataframe of Spark.

    The expression's tables must be those of the cluster, or memtables. Memtables are temporary
    views for as long as Spark needs them. The settings of ``connection`` become options of the
    reads.

    Raises FlussError for a table that is local to the Ibis connection, or an operation that Spark
    has no SQL for.
    """
    query = spark_sql(expr, params)
    memtables = list(expr.op().find(ops.InMemoryTable))
    with TemporaryViews(spark, [memtable.name for memtable in memtables]) as views:
        for memtable in memtables:
            rows = spark.createDataFrame(memtable.data.to_pyarrow(memtable.schema))
            rows.createOrReplaceTempView(memtable.name)
        found = run_sql(spark, query, connection.config.to_dict())
        views.keep_for(found)
    return found


def spark_sql(expr: ir.Expr, params: Mapping[ir.Scalar, Any] | None = None) -> str:
    """Return an expression as Spark's SQL; each subquery selects only the columns that are used."""
    import ibis
    from ibis.backends.sql.compilers.pyspark import PySparkCompiler
    from ibis.common.exceptions import IbisError

    with warnings.catch_warnings():
        # Reading ibis.pyspark registers the options that the compiler reads. Importing pyspark
        # warns that it is not made for pandas 3.
        warnings.simplefilter("ignore", FutureWarning)
        _ = ibis.pyspark
    columns: dict[str, Any] = {}
    for table in expr.op().find((ops.DatabaseTable, ops.InMemoryTable)):
        names = dict.fromkeys(table.schema, "unknown")
        if isinstance(table, ops.InMemoryTable):
            columns.setdefault("", {})[table.name] = names
            continue
        if table.namespace.database is None:
            raise FlussError(
                f"table {table.name!r} is local to the Ibis connection, and Spark cannot read it:"
                " build the expression of tables of the cluster and memtables"
            )
        base, virtual = split_virtual(table.name)
        if virtual:
            way = "changes by the option 'changelog.mode' of spark.read.format('fluss')"
            if virtual == LAKE_SUFFIX:
                way = f"the lake alone by the catalog of the lake; {base} is lake and log together"
            raise FlussError(f"table {table.name!r}: Spark reads {way}")
        columns.setdefault(table.namespace.database, {})[table.name] = names
    try:
        tree = PySparkCompiler().to_sqlglot(expr.as_table(), params=params)
    except IbisError as error:
        raise FlussError(f"the expression cannot be run by Spark: {error}") from error
    # With each column qualified by its table, sqlglot can move conditions to the scans and leave
    # out columns that are not used. It needs a tree in which each node has one parent: Ibis uses a
    # node in several places, so the SQL is parsed again.
    parsed = sqlglot.parse_one(tree.sql(dialect=_DIALECT), dialect=_DIALECT)
    qualified = qualify(parsed, dialect=_DIALECT, schema=columns, validate_qualify_columns=False)
    pruned: exp.Expr = pushdown_projections(simplify(pushdown_predicates(qualified)))
    return pruned.sql(dialect=_DIALECT)

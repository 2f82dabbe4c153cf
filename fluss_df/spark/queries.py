"""SQL of Spark over Fluss tables, whose scans get only the columns and rows that a query needs.

Spark's Python sources are asked for all columns of a view, whatever the query. So the query is read
here first: each mention of a Fluss table becomes a view of its own, of the columns that the query
uses of it and the rows that its conditions leave. Spark runs the query as it stands, every
condition included; what is not understood here only costs time.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.pushdown.predicate import UnsupportedExpression
from fluss_df.spark.options import ReadOptions
from fluss_df.spark.planning import TableScan
from fluss_df.spark.sql_filter import SqlConditions, parse_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIALECT = "spark"


@dataclass(frozen=True, slots=True)
class SqlScan:
    """What a query reads of one mention of a Fluss table.

    Parameters
    ----------
    view
        The name of its temporary view.
    table
        The table.
    columns
        The columns that are read.
    filter
        The condition that its rows are read with, in SQL; None for all rows.
    """

    view: str
    table: str
    columns: tuple[str, ...]
    filter: str | None

    def __str__(self) -> str:
        where = "" if self.filter is None else f" where {self.filter}"
        return f"{self.table} ({', '.join(self.columns)}){where}"


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """A query, and the scans it was given.

    Parameters
    ----------
    query
        The query over the views.
    scans
        What they read.
    """

    query: str
    scans: tuple[SqlScan, ...]


def sql(
    spark: SparkSession, query: str, *, connection: str | None = None, **options: Any
) -> DataFrame:
    """Run a query of Spark SQL over Fluss tables, reading only what it needs.

    Tables that Spark knows (views, tables of its catalog) are Spark's; all others are looked up in
    Fluss. Works with classic sessions and with Spark Connect.

    Parameters
    ----------
    spark
        The session; the data source is registered with it.
    query
        A SELECT.
    connection
        An address, ``fluss://`` URL, or a folder (in local mode); the environment's by default.
    **options
        Options of the reads, underscores for dots: ``bootstrap_servers``, ``rows_per_task``.

    Raises
    ------
    FlussError
        For a query that cannot be read, or a table that neither has.

    Examples
    --------
    >>> from fluss_df.spark import sql
    >>> late = "SELECT carrier, avg(arr_delay) FROM flights WHERE origin = 'JFK' GROUP BY carrier"
    >>> sql(spark, late, connection="127.0.0.1:9123").show()  # doctest: +SKIP
    """
    return run_sql(spark, query, _options(connection, options))


def run_sql(spark: SparkSession, query: str, options: Mapping[str, str]) -> DataFrame:
    """Run a query as :func:`sql` does, with options by their names."""
    plan = plan_sql(spark, query, options)
    for scan in plan.scans:
        _view(spark, scan.view, options, scan)
    return spark.sql(plan.query)


def fluss_views(
    spark: SparkSession,
    tables: str | Iterable[str] | Mapping[str, str],
    *,
    connection: str | None = None,
    **options: Any,
) -> dict[str, DataFrame]:
    """Make temporary views of Fluss tables for ``spark.sql``, and return them.

    A view reads all its columns, whatever a query uses of it: :func:`sql` reads less.

    Parameters
    ----------
    spark
        The session.
    tables
        Tables, whose views have their names without the database, or names of views to tables.
    connection, **options
        As of :func:`sql`.
    """
    given = _options(connection, options)
    if isinstance(tables, str):
        tables = [tables]
    if not isinstance(tables, Mapping):
        tables = {table.rpartition(".")[2]: table for table in tables}
    return {name: _view(spark, name, given, SqlScan(name, table, (), None))
            for name, table in tables.items()}  # fmt: skip


def plan_sql(spark: SparkSession, query: str, options: Mapping[str, str]) -> SqlPlan:
    """Return what :func:`sql` makes of a query, without running it."""
    try:
        tree = sqlglot.parse_one(query, dialect=_DIALECT)
    except SqlglotError as error:
        raise FlussError(f"the query cannot be read: {parse_message(error)}") from None
    if not isinstance(tree, exp.Query):
        raise FlussError(f"expected a query (SELECT ...), not {tree.key.upper()}")
    schemas: dict[str, pa.Schema] = {}
    names: dict[str, str] = {}
    known: dict[str, dict[str, str]] = {}
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for mention in list(tree.find_all(exp.Table)):
        name = ".".join(part.name for part in mention.parts)
        if not name or name.lower() in local:
            continue
        if spark.catalog.tableExists(name):
            known[name] = dict.fromkeys(spark.table(name).columns, "unknown")
            continue
        view = f"fluss_{uuid.uuid4().hex[:12]}"
        schemas[view] = _schema(name, options)
        names[view] = name
        alias = mention.args.get("alias") or exp.TableAlias(
            this=exp.to_identifier(mention.name, quoted=True)
        )
        mention.replace(
            exp.Table(
                this=exp.to_identifier(view),
                **{key: value for key, value in mention.args.items()
                   if key not in ("this", "db", "catalog", "alias")},
                alias=alias,
            )
        )  # fmt: skip
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    needs = _needs(tree, schemas, known, zone)
    scans = []
    for view, schema in schemas.items():
        columns, conditions = needs.get(view, (schema.names, ()))
        text = " AND ".join(f"({condition})" for condition in conditions) or None
        # a count needs rows, and they need a column
        scans.append(SqlScan(view, names[view], tuple(columns) or (_narrowest(schema),), text))
    return SqlPlan(tree.sql(dialect=_DIALECT), tuple(scans))


def _options(connection: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    given = {key.replace("_", "."): str(value) for key, value in options.items()}
    return given if connection is None else given | {"connection": str(connection)}


def _schema(table: str, options: Mapping[str, str]) -> pa.Schema:
    try:
        return TableScan(ReadOptions.parse({**options, "table": table})).arrow_schema
    except FlussError as error:
        if error.error_code != ErrorCode.TABLE_NOT_EXIST:
            raise
        raise FlussError(
            f"Spark has no table or view '{table}', and in Fluss {error.message}", error.error_code
        ) from None


# sessions that have the data source: registering it anew costs each query a moment
_registered: weakref.WeakSet[Any] = weakref.WeakSet()


def _register(spark: SparkSession) -> None:
    if spark not in _registered:
        from fluss_df.spark.source import FlussDataSource

        spark.dataSource.register(FlussDataSource)
        _registered.add(spark)


def _view(spark: SparkSession, name: str, options: Mapping[str, str], scan: SqlScan) -> DataFrame:
    _register(spark)
    reader = spark.read.format("fluss").options(**options)
    if scan.columns:
        source = TableScan(ReadOptions.parse({**options, "table": scan.table}))
        fields = [source.schema[column] for column in scan.columns]
        reader = reader.schema(type(source.schema)(fields))
    if scan.filter is not None:
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        reader = reader.option("filter", scan.filter).option("filter.timezone", zone)
    found = reader.load(scan.table)
    found.createOrReplaceTempView(name)
    return found


def _narrowest(schema: pa.Schema) -> str:
    """Return the column that costs least to read."""
    return str(min(schema, key=lambda field: _width(field.type)).name)


def _width(t: pa.DataType) -> int:
    try:
        return int(t.bit_width)
    except ValueError:
        # of no fixed width
        return 1 << 20


# ---- what a query needs

Needs = dict[str, tuple[list[str], list[str]]]


def _needs(
    tree: exp.Expr,
    schemas: Mapping[str, pa.Schema],
    known: Mapping[str, Mapping[str, str]],
    timezone: str,
) -> Needs:
    """Return for each view the columns that the query uses, and conditions on its rows.

    Nothing for a query that cannot be analysed: then its views have all columns and rows.
    """
    schema: dict[str, Any] = {
        view: dict.fromkeys(found.names, "unknown") for view, found in schemas.items()
    }
    for name, columns in known.items():
        if "." not in name:
            schema[name] = dict(columns)
    try:
        qualified = qualify(
            tree.copy(),
            dialect=_DIALECT,
            schema=schema if all("." not in name for name in known) else None,
            validate_qualify_columns=True,
        )
        scopes = traverse_scope(qualified)
    except (SqlglotError, KeyError, ValueError):
        return {}
    found: Needs = {}
    for scope in scopes:
        for alias, view in _views(scope, schemas):
            used = {
                column.name.lower()
                for column in scope.expression.find_all(exp.Column)
                if column.table.lower() == alias.lower()
            }
            names = [name for name in schemas[view].names if name.lower() in used]
            conditions = SqlConditions(schemas[view], timezone)
            pushed = []
            for part in _conjuncts_on(scope, alias):
                plain = part.copy()
                for column in plain.find_all(exp.Column):
                    column.set("table", None)
                try:
                    conditions.convert(plain)
                except UnsupportedExpression:
                    continue
                pushed.append(plain.sql(dialect=_DIALECT))
            found[view] = (names, pushed)
    return found


def _views(scope: Scope, schemas: Mapping[str, pa.Schema]) -> Iterator[tuple[str, str]]:
    for alias, source in scope.sources.items():
        if isinstance(source, exp.Table) and source.name in schemas:
            yield alias, source.name


def _conjuncts_on(scope: Scope, alias: str) -> Iterator[exp.Expr]:
    """Yield conditions without which no row of a table can be part of the result.

    Those are conjuncts of WHERE, and of the ON of joins, that look at this table alone, where no
    outer join could keep a row, or make one of nulls, in spite of them.
    """
    select = scope.expression
    if not isinstance(select, exp.Select):
        return
    joins: list[exp.Join] = select.args.get("joins") or []
    if any(_kind(join) not in ("INNER", "LEFT", "SEMI", "ANTI") for join in joins):
        return
    if select.args.get("laterals") or scope.sources[alias].args.get("sample"):  # type: ignore[union-attr]
        return
    own = next((join for join in joins if join.this.alias_or_name.lower() == alias.lower()), None)
    kind = "FROM" if own is None else _kind(own)
    sources = []
    if kind in ("FROM", "INNER"):
        where = select.args.get("where")
        sources = [where.this] if where is not None else []
        sources += [join.args["on"] for join in joins if join.args.get("on") is not None
                    and _kind(join) in ("INNER", "SEMI")]  # fmt: skip
    elif own is not None and own.args.get("on") is not None:
        # rows of the right side that do not fit ON are as good as not there
        sources = [own.args["on"]]
    for source in sources:
        for part in source.flatten() if isinstance(source, exp.And) else [source]:
            part = part.unnest()
            columns = list(part.find_all(exp.Column))
            if not columns or part.find(exp.Query, exp.AggFunc, exp.Window):
                continue
            if all(column.table.lower() == alias.lower() for column in columns):
                yield part


def _kind(join: exp.Join) -> str:
    """Return what a join is: INNER for a comma and CROSS too, OTHER for what is not followed."""
    side, kind, method = join.side.upper(), join.kind.upper(), join.method.upper()
    if method or join.args.get("using"):
        return "OTHER"
    if kind in ("SEMI", "ANTI"):
        return kind
    if side == "LEFT" and kind in ("", "OUTER"):
        return "LEFT"
    return "INNER" if not side and kind in ("", "INNER", "CROSS") else "OTHER"

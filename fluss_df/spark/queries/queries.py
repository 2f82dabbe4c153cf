"""SQL of Spark over Fluss tables, whose scans get only the columns and rows that a query needs.

Spark's Python sources are asked for all columns of a view, whatever the query. So each mention of a
Fluss table in a query becomes a view of its own. Spark runs the text of the query as it was given,
but for the names of these tables, and every condition in it. A view has all columns of its table;
those that the query does not read, as Spark's own optimizer shows, are null in it. Conditions that
a view is read with are proven in the same way.
"""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from pyspark.sql.types import StructType
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.spark.plan.options import ReadOptions, plain, time_zone
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.plan.sql_filter import SqlConditions, parse_filter
from fluss_df.spark.queries.mentions import Mention, find_mentions, placed
from fluss_df.spark.queries.proof import Plan
from fluss_df.spark.queries.stand_ins import StandIns, named_column, null_column
from fluss_df.spark.queries.temporary import TemporaryViews
from fluss_df.spark.registration import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIALECT = "spark"


@dataclass(frozen=True, slots=True)
class SqlScan:
    """The part of a Fluss table that one mention in a query reads.

    ``view`` is the name of its temporary view. ``columns`` are those that are read. ``filter`` is
    the condition that the rows are read with, in SQL; None for all rows.
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
    """A query over temporary views, the scans that these views are, and their tables.

    The tables have the names that they have in the query of the user.
    """

    query: str
    scans: tuple[SqlScan, ...]
    tables: Mapping[str, TableScan] = field(repr=False)


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
        Options of the reads, underscores for dots: ``bootstrap_servers``, ``rows_per_task``. Lists
        and dicts are taken as they are (``partitions=["JFK"]``, ``starting_offsets={0: 17}``); None
        leaves an option out.

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
    return run_plan(spark, plan_sql(spark, query, options), options)


def run_plan(spark: SparkSession, plan: SqlPlan, options: Mapping[str, str]) -> DataFrame:
    """Run what :func:`plan_sql` made of a query."""
    with TemporaryViews(spark, [scan.view for scan in plan.scans]) as views:
        for scan in plan.scans:
            rows = _pruned(spark, options, scan, plan.tables[scan.table])
            rows.createOrReplaceTempView(scan.view)
        found = spark.sql(plan.query)
        views.keep_for(found)
    return found


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
    _register(spark)
    found = {}
    for name, table in tables.items():
        found[name] = spark.read.format("fluss").options(**given).load(table)
        found[name].createOrReplaceTempView(name)
    return found


def plan_sql(spark: SparkSession, query: str, options: Mapping[str, str]) -> SqlPlan:
    """Return what :func:`sql` makes of a query, without running it."""
    run = f"fluss_{uuid.uuid4().hex[:12]}_"
    tables: dict[str, TableScan] = {}
    made = StandIns(spark, run)

    def stand_in(table: str) -> str:
        if table not in tables:
            tables[table] = _table(table, options)
        return made.add(tables[table].schema)

    try:
        mentions, stand_ins, found = find_mentions(spark, query, stand_in)
        views = [f"{name}v" for name in stand_ins]
        plan = Plan(spark, query, mentions, made, found)
        needs = _needs(spark, query, mentions, stand_ins, tables, plan) if mentions else []
    finally:
        made.drop()
    scans = [
        SqlScan(view, mention.table, columns, condition)
        for view, mention, (columns, condition) in zip(views, mentions, needs, strict=True)
    ]
    return SqlPlan(placed(query, mentions, views), tuple(scans), tables)


def _options(connection: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    given = {k.replace("_", "."): _text(v) for k, v in options.items() if v is not None}
    return given if connection is None else given | {"connection": str(connection)}


def _text(value: Any) -> str:
    """Return the value of an option as Spark's options are written: lists and dicts in JSON."""
    if isinstance(value, Mapping):
        # keys of offsets by bucket may be (partition, bucket), as in scan_fluss
        value = {"/".join(map(str, k)) if isinstance(k, tuple) else k: v for k, v in value.items()}
    elif not isinstance(value, list | tuple):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _table(table: str, options: Mapping[str, str]) -> TableScan:
    try:
        return TableScan(ReadOptions.parse({**options, "table": table}))
    except FlussError as error:
        if error.error_code != ErrorCode.TABLE_NOT_EXIST:
            raise
        raise FlussError(
            f"Spark has no table or view '{table}', and in Fluss {error.message}", error.error_code
        ) from None


# sessions that have the data source: registering it again costs each query a moment
_registered: weakref.WeakSet[Any] = weakref.WeakSet()


def _register(spark: SparkSession) -> None:
    if spark not in _registered:
        register(spark)
        _registered.add(spark)


def _pruned(
    spark: SparkSession, options: Mapping[str, str], scan: SqlScan, table: TableScan
) -> DataFrame:
    """Return all columns of a table in their order, those that are not read as nulls."""
    _register(spark)
    schema = table.schema
    read = [i for i, name in enumerate(schema.names) if name in scan.columns]
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    reader = spark.read.format("fluss").options(**_narrowed(options, scan, table, zone))
    reader = reader.schema(StructType([schema[i] for i in read]))
    found = reader.load(scan.table)
    if len(read) == len(schema):
        return found
    # columns get numbers for names, because Spark ignores case in names
    names = [f"c{i}" for i in read]
    numbered = found.toDF(*names)
    return numbered.select(
        *(
            named_column(spark, f"c{i}", item.name) if i in read else null_column(spark, item)
            for i, item in enumerate(schema.fields)
        )
    )


def _narrowed(
    options: Mapping[str, str], scan: SqlScan, table: TableScan, zone: str
) -> Mapping[str, str]:
    """Return the options with the condition of the query, beside the filter that was given."""
    if scan.filter is None:
        return options
    given = ReadOptions.parse({**options, "table": scan.table})
    if time_zone(zone) is None:
        # a session may have '+05:30': no condition for which the zone counts was taken
        zone = given.timezone
    if given.filter is None:
        condition = scan.filter
    else:
        meant = {
            str(parse_filter(scan.filter, table.all_fields, each, scan.table))
            for each in (zone, given.timezone)
        }
        if len(meant) > 1:
            # one filter has one zone: without the query's condition, which Spark evaluates anyway
            return options
        # the line break ends a comment at the end of the given filter
        zone, condition = given.timezone, f"({given.filter}\n) AND ({scan.filter})"
    others = {k: v for k, v in options.items() if plain(k) not in ("filter", "filtertimezone")}
    return {**others, "filter": condition, "filter.timezone": zone}


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


def _needs(
    spark: SparkSession,
    query: str,
    mentions: Sequence[Mention],
    stand_ins: Sequence[str],
    tables: Mapping[str, TableScan],
    plan: Plan,
) -> list[tuple[tuple[str, ...], str | None]]:
    """Return for each mention the columns that are read, and the condition on its rows."""
    schemas = [tables[mention.table].arrow_schema for mention in mentions]
    conditions = _proven(plan, _candidates(spark, query, mentions, stand_ins, schemas))
    found = []
    for at, schema in enumerate(schemas):
        read = plan.columns(at)
        names = tuple(n for i, n in enumerate(schema.names) if read is None or i in read)
        # a count needs rows, and rows need a column
        found.append((names or (_narrowest(schema),), conditions.get(at)))
    return found


def _proven(plan: Plan, conditions: dict[int, str]) -> dict[int, str]:
    """Return those of the conditions on mentions that the query has as well."""
    if not conditions or plan.has(conditions):
        return conditions
    if len(conditions) == 1:
        return {}
    return {at: text for at, text in conditions.items() if plan.has({at: text})}


def _candidates(
    spark: SparkSession,
    query: str,
    mentions: Sequence[Mention],
    stand_ins: Sequence[str],
    schemas: Sequence[pa.Schema],
) -> dict[int, str]:
    """Return for mentions, by their numbers, conditions that the query seems to have on their rows.

    None of a query that sqlglot cannot analyse.
    """
    numbers = {name: at for at, name in enumerate(stand_ins)}
    try:
        tree = sqlglot.parse_one(query, dialect=_DIALECT)
        if tree.find(exp.Where, exp.Join) is None:
            return {}
        columns = _placed_in_tree(spark, tree, mentions, stand_ins, schemas)
        qualified = qualify(tree, dialect=_DIALECT, schema=columns, validate_qualify_columns=True)
        scopes = traverse_scope(qualified)
    except (SqlglotError, KeyError, ValueError, AttributeError, RecursionError):
        return {}
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    # with this setting a backslash is a plain character to Spark, and not to the scan
    raw = spark.conf.get("spark.sql.parser.escapedStringLiterals", "false") == "true"
    found: dict[int, str] = {}
    for scope in scopes:
        for alias, at in _aliases(scope, numbers):
            converter = SqlConditions(schemas[at], zone)
            pushed = []
            for part in _conjuncts_on(scope, alias):
                own = part.copy()
                for column in own.find_all(exp.Column):
                    column.set("table", None)
                text = own.sql(dialect=_DIALECT)
                if raw and "\\" in text:
                    continue
                try:
                    converter.convert(own)
                    # checked, because sqlglot may write what the scan does not take
                    parse_filter(text, schemas[at], zone, mentions[at].table)
                except FlussError:
                    continue
                pushed.append(text)
            if pushed:
                found[at] = " AND ".join(f"({text})" for text in pushed)
    return found


def _placed_in_tree(
    spark: SparkSession,
    tree: exp.Expr,
    mentions: Sequence[Mention],
    stand_ins: Sequence[str],
    schemas: Sequence[pa.Schema],
) -> dict[str, Any] | None:
    """Put stand-ins where tables are mentioned, and return the columns of all tables."""
    places = {mention.start: at for at, mention in enumerate(mentions)}
    columns: dict[str, Any] = {}
    others: list[str] = []
    for table in list(tree.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier):
            continue
        at = places.get(table.parts[0].meta.get("start", -1))
        if at is None:
            others.append(".".join(part.name for part in table.parts))
            continue
        name = stand_ins[at]
        columns[name] = dict.fromkeys(schemas[at].names, "unknown")
        if not table.args.get("alias"):
            alias = exp.to_identifier(table.name, quoted=True)
            table.set("alias", exp.TableAlias(this=alias))
        table.set("this", exp.to_identifier(name))
        table.set("db", None)
        table.set("catalog", None)
    common = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for name in others:
        if name.lower() in common:
            continue
        if "." in name or not spark.catalog.tableExists(name):
            return None
        columns[name] = dict.fromkeys(spark.table(name).columns, "unknown")
    return columns


def _aliases(scope: Scope, numbers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for alias, source in scope.sources.items():
        if isinstance(source, exp.Table) and source.name in numbers:
            yield alias, numbers[source.name]


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
        # rows of the right side that do not fit ON do not show in the result
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

"""Statements in SQL: queries, INSERT, UPDATE, DELETE, and :mod:`fluss_df.backend.sql.ddl`'s."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.schema as sch
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa
import sqlglot
from ibis.formats.polars import PolarsSchema
from sqlglot import exp

from fluss_df.backend.catalog.frames import by_position, floats_of_decimals, frame_of, with_nulls
from fluss_df.backend.catalog.leaves import plain_schema
from fluss_df.backend.catalog.overwriting import Overwriting
from fluss_df.backend.sql.arguments import require_read
from fluss_df.backend.sql.ddl import RESET, is_shown
from fluss_df.backend.sql.dialect import Fluss, Text, spot, tokens_of, unsupported
from fluss_df.backend.sql.merge import require_changes, typed
from fluss_df.backend.sql.merging import Merging
from fluss_df.backend.sql.queries import SqlScope, count_hints, errors_of_polars, parse
from fluss_df.backend.sql.values import constant, typed_rows
from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.scan import explain
from fluss_df.metadata import TablePath, require_columns
from fluss_df.polars_adapter.plans import plan_text
from fluss_df.schema import TableInfo

_EXPLAIN = re.compile(r"EXPLAIN\s+(?:PLAN\s+FOR\s+)?(.*)", re.IGNORECASE | re.DOTALL)


class Statements(Merging):
    """The SQL of the backend."""

    def sql(
        self, query: str, /, *, schema: sch.Schema | None = None, dialect: str | None = None
    ) -> ir.Table:
        """Return a query in SQL as an expression; each run of it reads again."""
        text = self._transpile_sql(query, dialect=dialect)
        frame = SqlScope(self).execute(text)
        if schema is None:
            return self._named_query(frame, text, self._database)
        kinds = PolarsSchema.from_ibis(ibis.schema(schema))
        return self._named(frame.select(exact(n).cast(t) for n, t in kinds.items()))

    def _named_query(self, frame: pl.LazyFrame, text: str, database: str) -> ir.Table:
        found = self._named(frame)
        # a copy, because the name itself would stay alive as long as this dictionary has it
        self._queries[str(found.op().name)] = text, database
        return found

    def _release(self, name: str) -> None:
        super()._release(name)
        self._queries.pop(name, None)

    def _get_sql_string_view_schema(self, *, name: str, table: ir.Table, query: str) -> sch.Schema:
        scope = SqlScope(self)
        self._run_pre_execute_hooks(table)
        scope.register(name, self.translated(table, scope))
        return plain_schema(scope.execute(query))

    def _get_schema_using_query(self, query: str) -> sch.Schema:
        return plain_schema(SqlScope(self).execute(query))

    def raw_sql(self, query: str, /, **kwargs: Any) -> pl.DataFrame:
        """Run one statement, and return its rows; of a statement without rows, an empty frame.

        Raises
        ------
        FlussError
            For what cannot be read or run, with the part and where it stands.
        """
        if kwargs:
            raise FlussError(f"raw_sql has no option {min(kwargs)!r}")
        query = Text(query)
        bare = bare_statement(query)
        if is_shown(bare):
            return self.show(bare)
        explained = _EXPLAIN.fullmatch(bare)
        if explained is not None:
            return self._explain(explained[1])
        reset = RESET.fullmatch(bare)
        if reset is not None:
            self.reset(reset)
            return pl.DataFrame()
        return self.run_parsed(parse(query), query)

    def run_parsed(self, tree: exp.Expr, query: str) -> pl.DataFrame:
        """Run a statement that was parsed, of this text; as :meth:`raw_sql`."""
        if isinstance(tree, exp.Values):
            tree = _query_of(tree)
        if isinstance(tree, exp.Query):
            return _collected(SqlScope(self).run(tree, count_hints(query)))
        require_read(tree)
        if isinstance(tree, exp.Insert):
            return self._insert(tree, query)
        if isinstance(tree, exp.Update):
            return self._update(tree)
        if isinstance(tree, exp.Delete):
            return self._delete(tree)
        if isinstance(tree, exp.Merge):
            return self._merge(tree, count_hints(query))
        if isinstance(tree, exp.Create):
            self._create_statement(tree, bare_statement(query))
        elif isinstance(tree, exp.Drop):
            self._drop_statement(tree)
        elif isinstance(tree, exp.Alter):
            self._alter_statement(tree, bare_statement(query))
        elif isinstance(tree, exp.Use):
            self._use(tree)
        elif isinstance(tree, exp.TruncateTable):
            self._truncate(tree)
        else:
            raise unsupported("statement", tree)
        return pl.DataFrame()

    def run_script(self, script: str) -> list[pl.DataFrame]:
        """Run statements that semicolons divide, in order; the first error ends it."""
        return [self.raw_sql(statement) for _, statement in split_statements(script)]

    def _insert(self, tree: exp.Insert, query: str) -> pl.DataFrame:
        for part in ("where", "conflict", "returning", "alternative"):
            if tree.args.get(part):
                raise FlussError(f"INSERT cannot be run with {part.upper()}")
        target = tree.this
        listed: list[str] = []
        if isinstance(target, exp.Schema):
            listed = [item.name for item in target.expressions]
            target = target.this
        path = self._written_path(target, "INSERT INTO")
        info = self.written_info(path)
        constants = self._partition_values(target.args.get("partition"), info)
        columns = [c for c in info.get_column_names() if c not in constants]
        require_columns(listed, columns, f"table {path}: INSERT")
        if len(set(listed)) != len(listed):
            raise FlussError(f"table {path}: INSERT names a column more than once")
        source = tree.expression
        if source is None:
            raise FlussError(f"INSERT INTO {path}: expected VALUES (...) or a query{spot(target)}")
        frame: pl.LazyFrame | pl.DataFrame
        if isinstance(source, exp.Values):
            by_name = {c.name: c for c in info.schema.columns}
            given = [by_name[name] for name in listed or columns]
            frame = frame_of(typed_rows(source, given, path, self._compute), self.compile)
        else:
            common = tree.args.get("with_")
            if common is not None:
                source.set("with_", common)
            _name_apart(source)
            rows = SqlScope(self).run(source, count_hints(query))
            frame = floats_of_decimals(by_position(rows, listed or columns, path), info)
        if constants:
            named = pl.DataFrame(pa.table(constants))
            frame = frame.lazy().join(named.lazy(), how="cross")
        overwrite = tree.args.get("overwrite")
        in_part = listed and not overwrite and _updates_in_part(info, (*listed, *constants))
        if not in_part:
            frame = with_nulls(frame, info)
        with errors_of_polars():
            if overwrite:
                return self._overwrite(info, frame, constants)
            mode = "partial_update" if in_part else "auto"
            return _written(path, self._write(frame, path, mode=mode).rows)

    def _overwrite(
        self, info: TableInfo, rows: pl.LazyFrame | pl.DataFrame, constants: dict[str, pa.Array]
    ) -> pl.DataFrame:
        """Replace the partitions that were named, else those of the rows, else the whole table."""
        spec: dict[str, Any] | None = {name: item[0].as_py() for name, item in constants.items()}
        if info.get_partition_keys() and not spec:
            spec = None
        return _written(info.table_path, self._replace(info.table_path, rows, spec).rows)

    def _partition_values(self, tree: exp.Expr | None, info: TableInfo) -> dict[str, pa.Array]:
        """Return the values of ``PARTITION (column = value, ...)``, each an array of one."""
        found: dict[str, pa.Array] = {}
        by_name = {column.name: column for column in info.schema.columns}
        path = info.table_path
        for item in tree.expressions if tree is not None else ():
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise FlussError(
                    f"table {path}: PARTITION takes column = value, not {item.sql(Fluss)}: give"
                    f" other partition columns as the rest of the columns{spot(item)}"
                )
            name = item.this.name
            if name not in info.get_partition_keys() or name in found:
                why = "stands twice in PARTITION" if name in found else "is no partition column"
                there = ", ".join(info.get_partition_keys()) or "none"
                raise FlussError(
                    f"table {path}: column '{name}' {why} (there are: {there}){spot(item)}"
                )
            found[name] = constant(item.expression, by_name[name], path)
        return found

    def _truncate(self, tree: exp.TruncateTable) -> None:
        table = tree.expressions[0]
        name, database = table.name, table.db or None
        if len(tree.expressions) > 1:
            raise unsupported("TRUNCATE TABLE of several tables", tree)
        part = tree.args.get("partition")
        if part is None or self.is_local(name, database):
            self.truncate_table(name, database=database)
            return
        info = self.written_info(self.path(name, database))
        values = self._partition_values(part, info)
        spec = {column: item[0].as_py() for column, item in values.items()}
        there = Overwriting(self._connection, info, self.creation_of).partitions(spec)
        if not there:
            shown = ", ".join(f"{column} = {value!r}" for column, value in spec.items())
            raise FlussError(f"table {info.table_path} has no partition with {shown}{spot(table)}")
        self._replace(info.table_path, None, spec)

    def _compute(self, expressions: Sequence[exp.Expr]) -> list[Any]:
        """Return the values of expressions without columns.

        The name of a single one is part of messages.
        """
        names = ["value", *(f"value_{at}" for at in range(1, len(expressions)))]
        items = [exp.alias_(e.copy(), n) for e, n in zip(expressions, names, strict=True)]
        query = exp.Select(expressions=items)
        found = _collected(SqlScope(self).run(query)).to_arrow()
        if len(expressions) > 1 and found.num_rows != 1:
            raise FlussError(f"{len(expressions)} expressions have {found.num_rows} rows")
        return [column[0].as_py() for column in found.columns]

    def _update(self, tree: exp.Update) -> pl.DataFrame:
        """Write the rows that a query over the table finds, with their new values."""
        path = self._only_table(tree, "UPDATE")
        info = self._keyed(path, "UPDATE")
        require_changes(info, "UPDATE", "update")
        keys, numbered = info.get_primary_keys(), info.schema.auto_increment
        columns = [name for name in info.get_column_names() if name not in numbered]
        new: dict[str, exp.Expr] = {}
        for item in tree.expressions:
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise unsupported(f"part of UPDATE {path}", item)
            _require_of_table(item.this, tree.this, path)
            if item.this.name in keys or item.this.name in new:
                why = "is of the primary key" if item.this.name in keys else "is set twice"
                raise FlussError(f"UPDATE {path}: column '{item.this.name}' {why}{spot(item.this)}")
            if item.this.name in numbered:
                raise FlussError(
                    f"UPDATE {path}: column '{item.this.name}' is numbered by the server (auto"
                    f" increment): it cannot be set{spot(item.this)}"
                )
            new[item.this.name] = item.expression
        require_columns(list(new), columns, f"UPDATE {path}: SET")
        by_name = {column.name: column for column in info.schema.columns}
        new = {name: typed(value, by_name[name], path) for name, value in new.items()}
        values = [c for c in info.schema.columns if c.name in columns and c.name not in keys]
        others = [c for c in values if c.name not in new]
        # Other columns keep their values, even if somebody writes them meanwhile. Fluss can do so
        # in tables whose columns are all nullable.
        partial = all(c.type.nullable for c in values)
        names = [n for n in columns if n in keys or n in new] if partial else columns
        chosen = exp.select(
            *(
                exp.alias_(new.get(n, exp.column(n, quoted=True)).copy(), n, quoted=True)
                for n in names
            )
        )
        found = self._found(chosen, tree)
        # an upsert without the numbered column (auto increment) keeps its number
        mode = "partial_update" if partial and others else "upsert"
        with errors_of_polars():
            # all rows are computed before the first is written
            result = self._write(floats_of_decimals(found.collect(), info), path, mode=mode)
        return _written(path, result.rows)

    def _delete(self, tree: exp.Delete) -> pl.DataFrame:
        """Delete the rows whose keys a query over the table finds."""
        path = self._only_table(tree, "DELETE FROM")
        if tree.args.get("where") is None:
            raise FlussError(
                f"DELETE FROM {path}: without WHERE it would empty the table: TRUNCATE TABLE does"
                " that"
            )
        info = self._keyed(path, "DELETE")
        require_changes(info, "DELETE FROM", "delete")
        keys = info.get_primary_keys()
        found = self._found(exp.select(*(exp.column(key, quoted=True) for key in keys)), tree)
        with errors_of_polars():
            # all keys are computed before the first is deleted
            result = self._write(found.collect(), path, mode="delete")
        return _written(path, result.rows)

    def _only_table(self, tree: exp.Update | exp.Delete, what: str) -> TablePath:
        """Return the table of a statement that names no other table."""
        path = self._written_path(tree.this, what)
        for part in ("from_", "using", "returning", "limit", "order", "with_"):
            if tree.args.get(part):
                raise FlussError(f"{what} {path} cannot be run with {part.strip('_').upper()}")
        return path

    def _written_path(self, table: exp.Expr, what: str) -> TablePath:
        """Return the table of Fluss that a statement changes, whose rows it reads by this name."""
        name, database = table.name, table.text("db") or None
        if self.is_local(name, database):
            raise FlussError(f"{what} {name}: it is local to the connection")
        return self.path(name, database)

    def _found(self, query: exp.Select, tree: exp.Update | exp.Delete) -> pl.LazyFrame:
        """Return what a query finds in the rows that a statement is about."""
        query = query.from_(tree.this.copy())
        where = tree.args.get("where")
        return SqlScope(self).run(query if where is None else query.where(where.this.copy()))

    def _explain(self, query: str) -> pl.DataFrame:
        query = Text(query)
        tree = parse(query)
        if not isinstance(tree, exp.Query):
            raise FlussError(f"EXPLAIN is for queries, not for {tree.sql(Fluss)[:80]}{spot(tree)}")
        frame = SqlScope(self).run(tree, count_hints(query))
        return pl.DataFrame({"plan": [explain(frame) or plan_text(frame)]})


def _require_of_table(column: exp.Column, table: exp.Expr, path: TablePath) -> None:
    """Raise for the target of a SET that is not a column by its name, or by its table's and its."""
    around = [part.name for part in column.parts[:-1]]
    if around not in ([], [table.alias], [path.table_name], [path.database_name, path.table_name]):
        raise FlussError(
            f"UPDATE {path}: SET {column.sql(Fluss)}: expected a column of the table; of a row all"
            f" fields are set together{spot(column)}"
        )


def _query_of(values: exp.Values) -> exp.Select:
    return exp.select("*").from_(exp.alias_(values, "v", table=True))


def _name_apart(query: exp.Expr) -> None:
    """Give the columns of a query names of their own where some have the same.

    They go into a table by their positions, and Polars refuses names that are there twice.
    """
    if not isinstance(query, exp.Select) or query.is_star:
        return
    names = [item.alias or item.sql(Fluss) for item in query.expressions]
    for at, item in enumerate(query.expressions):
        if names.count(names[at]) > 1:
            item.replace(exp.alias_(item.unalias().copy(), f"__fluss_item_{at}"))


def _written(path: TablePath, rows: int) -> pl.DataFrame:
    return pl.DataFrame({"table": [str(path)], "rows": [rows]})


def _collected(frame: pl.LazyFrame) -> pl.DataFrame:
    with errors_of_polars():
        return frame.collect()


def parsed_statement(query: str) -> exp.Expr | None:
    """Return the tree of a statement; None for SHOW, EXPLAIN and others that are no tree.

    Raises FlussError as :func:`parse`.
    """
    query = query if isinstance(query, Text) else Text(query)
    bare = bare_statement(query)
    if is_shown(bare) or _EXPLAIN.fullmatch(bare) or RESET.fullmatch(bare):
        return None
    tree = parse(query)
    return _query_of(tree) if isinstance(tree, exp.Values) else tree


def explained_query(query: str) -> exp.Expr | None:
    """Return the tree of the query that an ``EXPLAIN`` is of; None for other statements."""
    found = _EXPLAIN.fullmatch(bare_statement(query))
    return None if found is None else parse(found[1])


def bare_statement(query: str) -> str:
    """Return a statement without the comments and semicolons around it."""
    try:
        tokens = tokens_of(query)
    except sqlglot.errors.SqlglotError:
        return query  # whoever parses it says why
    last = len(tokens) - 1
    while last >= 0 and tokens[last].token_type == sqlglot.TokenType.SEMICOLON:
        last -= 1
    if last < 0:
        return ""
    end = tokens[last].end + 1
    # a hint is a comment that belongs to the statement
    trailing = re.match(r"\s*/\*\+.*?\*/", query[end:], re.DOTALL)
    return query[tokens[0].start : end + (trailing.end() if trailing else 0)]


def is_complete(script: str) -> bool:
    """Whether a semicolon ends the last statement of a script, or there is none."""
    try:
        tokens = sqlglot.tokenize(script, dialect=Fluss)
    except sqlglot.errors.SqlglotError:
        return False  # a quote or a comment goes on
    return not tokens or tokens[-1].token_type == sqlglot.TokenType.SEMICOLON


def _updates_in_part(info: TableInfo, named: Sequence[str]) -> bool:
    """Whether an INSERT that names some columns leaves the others of rows as they are.

    Flink does so with tables that do not merge rows by themselves.
    """
    if not info.has_primary_key() or info.get_properties().get("table.merge-engine"):
        return False
    others = {*info.get_column_names()} - {*named, *info.schema.auto_increment}
    return bool(others) and set(info.get_primary_keys()) <= set(named)


def split_statements(script: str) -> list[tuple[int, str]]:
    """Return the statements of a script, each with the line, from 1 on, where it begins.

    Semicolons in strings, names and comments stay.
    """
    try:
        tokens = sqlglot.tokenize(script, dialect=Fluss)
    except sqlglot.errors.SqlglotError as error:
        raise FlussError(f"SQL cannot be read: {error}") from None
    ends = [t.start for t in tokens if t.token_type == sqlglot.TokenType.SEMICOLON]
    starts = [0, *(end + 1 for end in ends)]
    spans = zip(starts, [*ends, len(script)], strict=True)
    begun = sorted(t.start for t in tokens if t.token_type != sqlglot.TokenType.SEMICOLON)
    statements = []
    for start, end in spans:
        first = bisect_left(begun, start)
        # text with comments only is no statement
        if first < bisect_left(begun, end):
            line = script.count("\n", 0, begun[first]) + 1
            statements.append((line, script[start:end].strip()))
    return statements

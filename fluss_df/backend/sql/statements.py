"""Statements in SQL: queries, INSERT, UPDATE, DELETE, and :mod:`fluss_df.backend.sql.ddl`'s."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import ibis
import ibis.expr.schema as sch
import ibis.expr.types as ir
import polars as pl
import sqlglot
from ibis.formats.polars import PolarsSchema
from sqlglot import exp

from fluss_df.backend.catalog.frames import by_position, frame_of, with_nulls
from fluss_df.backend.catalog.leaves import plain_schema
from fluss_df.backend.sql.arguments import require_read
from fluss_df.backend.sql.ddl import RESET, Ddl, is_shown
from fluss_df.backend.sql.dialect import Fluss, spot, unsupported
from fluss_df.backend.sql.queries import SqlScope, count_hints, parse, polars_reason
from fluss_df.backend.sql.values import typed_rows
from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.scan import explain
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import TableInfo
from fluss_df.types import TypeRoot

_EXPLAIN = re.compile(r"EXPLAIN\s+(?:PLAN\s+FOR\s+)?(.*)", re.IGNORECASE | re.DOTALL)


class Statements(Ddl):
    """The SQL of the backend."""

    def sql(
        self,
        query: str,
        /,
        *,
        schema: sch.Schema | None = None,
        dialect: str | None = None,
    ) -> ir.Table:
        """Return a query in SQL as an expression; each run of it reads again."""
        frame = SqlScope(self).execute(self._transpile_sql(query, dialect=dialect))
        if schema is not None:
            kinds = PolarsSchema.from_ibis(ibis.schema(schema))
            frame = frame.select(exact(n).cast(t) for n, t in kinds.items())
        name = ibis.util.gen_name("fluss_sql")
        self._keep(name, frame, overwrite=False)
        self._unnamed.add(name)
        return self.table(name)

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
        bare = _bare(query)
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
        if isinstance(tree, exp.Create):
            self._create_statement(tree, query)
        elif isinstance(tree, exp.Drop):
            self._drop_statement(tree)
        elif isinstance(tree, exp.Alter):
            self._alter_statement(tree)
        elif isinstance(tree, exp.Use):
            self._use(tree)
        elif isinstance(tree, exp.TruncateTable):
            if len(tree.expressions) > 1:
                raise unsupported("TRUNCATE TABLE of several tables", tree)
            table = tree.expressions[0]
            self.truncate_table(table.name, database=table.db or None)
        else:
            raise unsupported("statement", tree)
        return pl.DataFrame()

    def run_script(self, script: str) -> list[pl.DataFrame]:
        """Run statements that semicolons divide, in order; the first error ends it."""
        return [self.raw_sql(statement) for statement in split_statements(script)]

    def _insert(self, tree: exp.Insert, query: str) -> pl.DataFrame:
        for part in ("overwrite", "where", "conflict", "returning", "alternative"):
            if tree.args.get(part):
                raise FlussError(f"INSERT cannot be run with {part.upper()}")
        target = tree.this
        listed: list[str] = []
        if isinstance(target, exp.Schema):
            listed = [item.name for item in target.expressions]
            target = target.this
        path = self.path(target.name, target.db or None)
        if target.args.get("partition"):
            raise FlussError(
                f"INSERT INTO {path} cannot be run with PARTITION: give its columns as others"
                f"{spot(target)}"
            )
        info = self.table_info(path.table_name, path.database_name)
        columns = info.get_column_names()
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
            rows = SqlScope(self).run(source, count_hints(query))
            frame = _floats(by_position(rows, listed or columns, path), info)
        with _errors_of_polars():
            result = self._write(with_nulls(frame, info), path)
        return _written(path, result.rows)

    def _compute(self, expression: exp.Expr) -> Any:
        """Return the value of an expression without columns."""
        query = exp.select(exp.alias_(expression.copy(), "value"))
        return _collected(SqlScope(self).run(query)).to_arrow().column(0)[0].as_py()

    def _update(self, tree: exp.Update) -> pl.DataFrame:
        """Write the rows that a query over the table finds, with their new values."""
        path = self._only_table(tree, "UPDATE")
        info = self._keyed(path, "UPDATE")
        keys, columns = info.get_primary_keys(), info.get_column_names()
        new: dict[str, exp.Expr] = {}
        for item in tree.expressions:
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise unsupported(f"part of UPDATE {path}", item)
            if item.this.name in keys or item.this.name in new:
                why = "is of the primary key" if item.this.name in keys else "is set twice"
                raise FlussError(f"UPDATE {path}: column '{item.this.name}' {why}{spot(item.this)}")
            new[item.this.name] = item.expression
        require_columns(list(new), columns, f"UPDATE {path}: SET")
        others = [c for c in info.schema.columns if c.name not in keys and c.name not in new]
        # other columns keep their values, whoever writes them meanwhile; Fluss does so with columns
        # that can be null
        partial = all(c.type.nullable for c in others)
        names = [n for n in columns if n in keys or n in new] if partial else columns
        chosen = exp.select(
            *(
                exp.alias_(new.get(n, exp.column(n, quoted=True)).copy(), n, quoted=True)
                for n in names
            )
        )
        found = self._found(chosen, tree)
        mode = "partial_update" if partial and others else "upsert"
        with _errors_of_polars():
            # known before the first is written
            result = self._write(_floats(found.collect(), info), path, mode=mode)
        return _written(path, result.rows)

    def _delete(self, tree: exp.Delete) -> pl.DataFrame:
        """Delete the rows whose keys a query over the table finds."""
        path = self._only_table(tree, "DELETE FROM")
        if tree.args.get("where") is None:
            raise FlussError(
                f"DELETE FROM {path}: without WHERE it would empty the table, which Fluss cannot;"
                " drop the table and create it again"
            )
        keys = self._keyed(path, "DELETE").get_primary_keys()
        found = self._found(exp.select(*(exp.column(key, quoted=True) for key in keys)), tree)
        with _errors_of_polars():
            # known before the first is deleted
            result = self._write(found.collect(), path, mode="delete")
        return _written(path, result.rows)

    def _only_table(self, tree: exp.Update | exp.Delete, what: str) -> TablePath:
        """Return the table of a statement that speaks of no other."""
        path = self.path(tree.this.name, tree.this.db or None)
        for part in ("from_", "using", "returning", "limit", "order", "with_"):
            if tree.args.get(part):
                raise FlussError(f"{what} {path} cannot be run with {part.strip('_').upper()}")
        return path

    def _found(self, query: exp.Select, tree: exp.Update | exp.Delete) -> pl.LazyFrame:
        """Return what a query finds in the rows that a statement is about."""
        query = query.from_(tree.this.copy())
        where = tree.args.get("where")
        return SqlScope(self).run(query if where is None else query.where(where.this.copy()))

    def _explain(self, query: str) -> pl.DataFrame:
        tree = parse(query)
        if not isinstance(tree, exp.Query):
            raise FlussError(f"EXPLAIN is for queries, not for {tree.sql(Fluss)[:80]}{spot(tree)}")
        frame = SqlScope(self).run(tree, count_hints(query))
        return pl.DataFrame({"plan": [explain(frame) or frame.explain()]})


def _floats(frame: pl.LazyFrame | pl.DataFrame, info: TableInfo) -> pl.LazyFrame | pl.DataFrame:
    """Make floats of decimals for columns of floats: a number with a point is a decimal in SQL."""
    kinds = frame.collect_schema()
    wanted = [
        exact(c.name).cast(pl.Float64)
        for c in info.schema.columns
        if c.type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE)
        and isinstance(kinds.get(c.name), pl.Decimal)
    ]
    return frame.with_columns(wanted) if wanted else frame


def _query_of(values: exp.Values) -> exp.Select:
    return exp.select("*").from_(exp.alias_(values, "v", table=True))


def _written(path: TablePath, rows: int) -> pl.DataFrame:
    return pl.DataFrame({"table": [str(path)], "rows": [rows]})


@contextlib.contextmanager
def _errors_of_polars() -> Iterator[None]:
    """Say as other errors of SQL what is found wrong only when rows are there."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise FlussError(f"SQL cannot be run: {polars_reason(error)}") from error


def _collected(frame: pl.LazyFrame) -> pl.DataFrame:
    with _errors_of_polars():
        return frame.collect()


def parsed_statement(query: str) -> exp.Expr | None:
    """Return the tree of a statement; None for SHOW, EXPLAIN and others that are no tree.

    Raises
    ------
    FlussError
        As :func:`parse`.
    """
    bare = _bare(query)
    if is_shown(bare) or _EXPLAIN.fullmatch(bare) or RESET.fullmatch(bare):
        return None
    tree = parse(query)
    return _query_of(tree) if isinstance(tree, exp.Values) else tree


def _bare(query: str) -> str:
    """Return a statement without the comments and semicolons around it."""
    try:
        tokens = sqlglot.tokenize(query, dialect=Fluss)
    except sqlglot.errors.SqlglotError:
        return query  # whoever parses it says why
    while tokens and tokens[-1].token_type == sqlglot.TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        return ""
    end = tokens[-1].end + 1
    # a hint is part of the statement
    trailing = re.match(r"\s*/\*\+.*?\*/", query[end:], re.DOTALL)
    return query[tokens[0].start : end + (trailing.end() if trailing else 0)]


def is_complete(script: str) -> bool:
    """Whether a semicolon ends the last statement of a script, or there is none."""
    try:
        tokens = sqlglot.tokenize(script, dialect=Fluss)
    except sqlglot.errors.SqlglotError:
        return False  # a quote or a comment goes on
    return not tokens or tokens[-1].token_type == sqlglot.TokenType.SEMICOLON


def split_statements(script: str) -> list[str]:
    """Return the statements of a script; semicolons in strings, names and comments stay."""
    try:
        tokens = sqlglot.tokenize(script, dialect=Fluss)
    except sqlglot.errors.SqlglotError as error:
        raise FlussError(f"SQL cannot be read: {error}") from None
    ends = [t.start for t in tokens if t.token_type == sqlglot.TokenType.SEMICOLON]
    starts = [0, *(end + 1 for end in ends)]
    spans = zip(starts, [*ends, len(script)], strict=True)
    # what has comments only is none
    begun = sorted(t.start for t in tokens if t.token_type != sqlglot.TokenType.SEMICOLON)
    return [script[a:b].strip() for a, b in spans if bisect_left(begun, a) < bisect_left(begun, b)]

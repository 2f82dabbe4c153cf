"""Statements in SQL: queries, INSERT, DELETE, and the DDL of :mod:`fluss_df.backend.ddl`."""

from __future__ import annotations

import re
from typing import Any

import ibis
import ibis.expr.schema as sch
import ibis.expr.types as ir
import polars as pl
import sqlglot
from ibis.formats.polars import PolarsSchema
from sqlglot import exp

from fluss_df.backend.catalog import by_position, with_nulls
from fluss_df.backend.ddl import RESET, SHOW, Ddl, unsupported
from fluss_df.backend.dialect import Fluss
from fluss_df.backend.queries import SqlScope, count_hints, parse, spot
from fluss_df.errors import FlussError
from fluss_df.io.scan import explain
from fluss_df.metadata import require_columns
from fluss_df.schema import TableInfo
from fluss_df.types import TypeRoot

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(.*)", re.IGNORECASE | re.DOTALL)


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
        """Return a query in SQL as an expression; each run of it reads anew."""
        frame = SqlScope(self).execute(self._transpile_sql(query, dialect=dialect))
        if schema is not None:
            kinds = PolarsSchema.from_ibis(ibis.schema(schema))
            frame = frame.select(pl.col(n).cast(t) for n, t in kinds.items())
        name = ibis.util.gen_name("fluss_sql")
        self._keep(name, frame, overwrite=False)
        self._unnamed.add(name)
        return self.table(name)

    def _get_sql_string_view_schema(self, *, name: str, table: ir.Table, query: str) -> sch.Schema:
        scope = SqlScope(self)
        self._run_pre_execute_hooks(table)
        scope.register(name, self.translated(table, scope))
        return PolarsSchema.to_ibis(scope.execute(query).collect_schema())

    def _get_schema_using_query(self, query: str) -> sch.Schema:
        return PolarsSchema.to_ibis(SqlScope(self).execute(query).collect_schema())

    def raw_sql(self, query: str, /, **kwargs: Any) -> pl.DataFrame:
        """Run one statement, and return its rows; of a statement without rows, an empty frame.

        Raises
        ------
        FlussError
            For what cannot be read or run, with the part and where it stands.
        """
        if kwargs:
            raise FlussError(f"raw_sql has no option {min(kwargs)!r}")
        shown = SHOW.fullmatch(query)
        if shown is not None:
            return self.show(shown)
        explained = _EXPLAIN.fullmatch(query)
        if explained is not None:
            return self._explain(explained[1])
        reset = RESET.fullmatch(query)
        if reset is not None:
            self.reset(reset)
            return pl.DataFrame()
        tree = parse(query)
        if isinstance(tree, exp.Query):
            return SqlScope(self).execute(query).collect()
        if isinstance(tree, exp.Insert):
            return self._insert(tree, query)
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
            table = tree.expressions[0]
            self.truncate_table(table.name, database=table.db or None)
        else:
            raise unsupported("statement", tree)
        return pl.DataFrame()

    def run_script(self, script: str) -> list[pl.DataFrame]:
        """Run statements that semicolons divide, in order; the first error ends it."""
        return [self.raw_sql(statement) for statement in split_statements(script)]

    def _insert(self, tree: exp.Insert, query: str) -> pl.DataFrame:
        for part in ("overwrite", "where", "conflict", "returning", "partition", "alternative"):
            if tree.args.get(part):
                raise FlussError(f"INSERT cannot be run with {part.upper()}")
        target = tree.this
        listed: list[str] = []
        if isinstance(target, exp.Schema):
            listed = [item.name for item in target.expressions]
            target = target.this
        path = self.path(target.name, target.db or None)
        info = self.table_info(path.table_name, path.database_name)
        columns = info.get_column_names()
        require_columns(listed, columns, f"table {path}: INSERT")
        if len(set(listed)) != len(listed):
            raise FlussError(f"table {path}: INSERT names a column more than once")
        source = tree.expression
        if source is None:
            raise FlussError(f"INSERT INTO {path}: expected VALUES (...) or a query{spot(target)}")
        if isinstance(source, exp.Values):
            source = exp.select("*").from_(exp.alias_(source, "v", table=True))
        rows = SqlScope(self).run(source, count_hints(query))
        frame = _floats(by_position(rows, listed or columns, path), info)
        result = self._write(with_nulls(frame, info), path)
        return pl.DataFrame({"table": [str(path)], "rows": [result.rows]})

    def _delete(self, tree: exp.Delete) -> pl.DataFrame:
        """Delete the rows whose keys a query over the table finds."""
        table = tree.this
        path = self.path(table.name, table.db or None)
        where = tree.args.get("where")
        if where is None:
            raise FlussError(
                f"DELETE FROM {path}: without WHERE it would empty the table, which Fluss cannot;"
                " drop the table and create it again"
            )
        for part in ("using", "returning", "limit", "order"):
            if tree.args.get(part):
                raise FlussError(f"DELETE FROM {path} cannot be run with {part.upper()}")
        keys = self._keyed(path, "DELETE").get_primary_keys()
        chosen = exp.select(*(exp.column(key, quoted=True) for key in keys))
        found = SqlScope(self).run(chosen.from_(table.copy()).where(where.this.copy()))
        # known before the first is deleted
        result = self._write(found.collect(), path, mode="delete")
        return pl.DataFrame({"table": [str(path)], "rows": [result.rows]})

    def _explain(self, query: str) -> pl.DataFrame:
        frame = SqlScope(self).execute(query)
        return pl.DataFrame({"plan": [explain(frame) or frame.explain()]})


def _floats(frame: pl.LazyFrame | pl.DataFrame, info: TableInfo) -> pl.LazyFrame | pl.DataFrame:
    """Make floats of decimals for columns of floats: a number with a point is a decimal in SQL."""
    kinds = frame.collect_schema()
    wanted = [
        pl.col(c.name).cast(pl.Float64)
        for c in info.schema.columns
        if c.type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE)
        and isinstance(kinds.get(c.name), pl.Decimal)
    ]
    return frame.with_columns(wanted) if wanted else frame


def split_statements(script: str) -> list[str]:
    """Return the statements of a script; semicolons in strings, names and comments stay."""
    try:
        tokens = sqlglot.tokenize(script, dialect=Fluss)
    except sqlglot.errors.SqlglotError as error:
        raise FlussError(f"SQL cannot be read: {error}") from None
    ends = [t.start for t in tokens if t.token_type == sqlglot.TokenType.SEMICOLON]
    starts = [0, *(end + 1 for end in ends)]
    parts = [script[a:b] for a, b in zip(starts, [*ends, len(script)], strict=True)]
    return [part.strip() for part in parts if part.strip()]

"""Statements in SQL: queries, Flink-style DDL, INSERT, SHOW and DESCRIBE."""

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

from fluss_df.backend.catalog import Catalog, by_position, with_nulls
from fluss_df.backend.dialect import Fluss, fluss_type
from fluss_df.backend.queries import SqlScope, count_hints, parse
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column

_SHOW = re.compile(
    r"\s*(?:SHOW\s+(?P<what>DATABASES|TABLES|PARTITIONS|CREATE\s+TABLE)|(?P<describe>DESC(?:RIBE)?))"
    r"(?:\s+(?:(?:FROM|IN)\s+)?(?P<name>[^\s;']+))??(?:\s+LIKE\s+'(?P<like>[^']*)')?\s*;?\s*",
    re.IGNORECASE,
)


class Statements(Catalog):
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
        shown = _SHOW.fullmatch(query)
        if shown is not None:
            return self._show(shown)
        tree = parse(query)
        if isinstance(tree, exp.Query):
            return SqlScope(self).execute(query).collect()
        if isinstance(tree, exp.Insert):
            return self._insert(tree, query)
        if isinstance(tree, exp.Create):
            self._create_statement(tree)
        elif isinstance(tree, exp.Drop):
            self._drop_statement(tree)
        elif isinstance(tree, exp.Alter):
            self._alter_statement(tree)
        elif isinstance(tree, exp.Use):
            self._use(tree)
        else:
            raise _unsupported("statement", tree)
        return pl.DataFrame()

    def run_script(self, script: str) -> list[pl.DataFrame]:
        """Run statements that semicolons divide, in order; the first error ends it."""
        return [self.raw_sql(statement) for statement in split_statements(script)]

    def _show(self, match: re.Match[str]) -> pl.DataFrame:
        what = " ".join((match["what"] or "DESCRIBE").upper().split())
        name, like = match["name"], match["like"]
        table = exp.to_table(name, dialect=Fluss) if name else None
        if like is not None and what not in ("DATABASES", "TABLES"):
            raise FlussError(f"{what} has no LIKE")
        # SQL's LIKE: % stands for any text, _ for one character
        names_like = like and "^" + re.escape(like).replace("%", ".*").replace("_", ".") + "$"
        if what == "DATABASES":
            if table is not None:
                raise FlussError(f"SHOW DATABASES takes no name, such as {name!r}")
            return pl.DataFrame(
                {"database": self.list_databases(like=names_like)}, schema={"database": pl.String}
            )
        if what == "TABLES":
            found = self.list_tables(like=names_like, database=table.name if table else None)
            return pl.DataFrame({"table": found}, schema={"table": pl.String})
        if table is None:
            raise FlussError(f"{what}: expected the name of a table")
        info = self.table_info(table.name, table.db or None)
        if what == "PARTITIONS":
            there = self._connection.get_admin().list_partition_infos(info.table_path)
            names = [partition.partition_name for partition in there]
            return pl.DataFrame({"partition": names}, schema={"partition": pl.String})
        if what == "CREATE TABLE":
            return pl.DataFrame({"statement": [create_statement(info.table_path, info.descriptor)]})
        keys = info.get_primary_keys()
        return pl.DataFrame(
            {
                "column": info.get_column_names(),
                "type": [str(c.type) for c in info.schema.columns],
                "primary_key": [c.name in keys for c in info.schema.columns],
                "comment": [c.comment for c in info.schema.columns],
            },
            schema_overrides={"comment": pl.String},
        )

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
        if isinstance(source, exp.Values):
            source = exp.select("*").from_(exp.alias_(source, "v", table=True))
        rows = SqlScope(self).run(source, count_hints(query))
        frame = by_position(rows, listed or columns, path)
        result = self._write(with_nulls(frame, info), path)
        return pl.DataFrame({"table": [str(path)], "rows": [result.rows]})

    def _create_statement(self, tree: exp.Create) -> None:
        if tree.kind == "DATABASE":
            comment = None
            for item in _properties(tree):
                if not isinstance(item, exp.SchemaCommentProperty):
                    raise _unsupported("part of CREATE DATABASE", item)
                comment = item.this.name
            self.create_described_database(tree.this.name, comment, force=bool(tree.args["exists"]))
            return
        if tree.kind != "TABLE" or tree.expression is not None or tree.args.get("replace"):
            raise _unsupported("statement", tree)
        if not isinstance(tree.this, exp.Schema):
            raise FlussError(f"CREATE TABLE {tree.this.sql(Fluss)}: expected columns in (...)")
        table = tree.this.this
        path = self.path(table.name, table.db or None)
        columns: list[Column] = []
        keys: list[str] = []
        for item in tree.this.expressions:
            if isinstance(item, exp.PrimaryKey):
                keys += [key.name for key in item.expressions]
            elif isinstance(item, exp.ColumnDef):
                columns.append(_column(item))
            else:
                raise _unsupported(f"part of CREATE TABLE {path}", item)
        columns = [
            Column(c.name, c.type.with_nullable(False), c.comment) if c.name in keys else c
            for c in columns
        ]
        comment, partitioned, properties = None, [], {}
        for item in _properties(tree):
            if isinstance(item, exp.SchemaCommentProperty):
                comment = item.this.name
            elif isinstance(item, exp.PartitionedByProperty):
                partitioned = [key.name for key in item.this.expressions]
            elif isinstance(item, exp.Property):
                properties[item.name] = item.args["value"].name
            else:
                raise _unsupported(f"part of CREATE TABLE {path}", item)
        descriptor = TableDescriptor(
            Schema.from_columns(columns, keys),
            partition_keys=partitioned,
            comment=comment,
            properties=properties,
        )
        self._create(path, descriptor, if_not_exists=bool(tree.args["exists"]))

    def _drop_statement(self, tree: exp.Drop) -> None:
        exists = bool(tree.args.get("exists"))
        name, database = tree.this.name, tree.this.db or None
        if tree.kind == "DATABASE":
            self.drop_database(name, cascade=bool(tree.args.get("cascade")), force=exists)
        elif tree.kind == "TABLE":
            self.drop_table(name, database=database, force=exists)
        elif tree.kind == "VIEW":
            self.drop_view(name, database=database, force=exists)
        else:
            raise _unsupported("statement", tree)

    def _alter_statement(self, tree: exp.Alter) -> None:
        # ADD COLUMN and SET belong here once the admin client has them
        path = self.path(tree.this.name, tree.this.db or None)
        if any(not isinstance(action, exp.AddPartition) for action in tree.args["actions"]):
            raise _unsupported("statement", tree)
        admin = self._connection.get_admin()
        for action in tree.args["actions"]:
            pairs = action.this.expressions
            if not all(isinstance(p, exp.EQ) and p.expression.is_string for p in pairs):
                raise FlussError(f"ALTER TABLE {path}: expected PARTITION (column = 'value', ...)")
            spec = {pair.this.name: pair.expression.name for pair in pairs}
            admin.create_partition(path, spec, ignore_if_exists=bool(action.args.get("exists")))

    def _use(self, tree: exp.Use) -> None:
        name = tree.this.name
        if not self._connection.get_admin().database_exists(name):
            there = ", ".join(self.list_databases())
            raise FlussError(f"database {name!r} does not exist (databases: {there})")
        self._database = name


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


def create_statement(path: TablePath, descriptor: TableDescriptor) -> str:
    """Return the statement that creates a table."""

    def text(value: str) -> str:
        return "'" + value.replace("'", "''") + "'"

    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    lines = [
        f"  `{c.name}` {c.type}" + (f" COMMENT {text(c.comment)}" if c.comment else "")
        for c in descriptor.schema.columns
    ]
    if descriptor.schema.primary_keys:
        lines.append(f"  PRIMARY KEY ({listed(descriptor.schema.primary_keys)}) NOT ENFORCED")
    body = ",\n".join(lines)
    made = f"CREATE TABLE `{path.database_name}`.`{path.table_name}` (\n{body}\n)"
    if descriptor.comment:
        made += f" COMMENT {text(descriptor.comment)}"
    if descriptor.partition_keys:
        made += f" PARTITIONED BY ({listed(descriptor.partition_keys)})"
    options = {**descriptor.properties, **descriptor.custom_properties}
    if descriptor.bucket_count is not None:
        options["bucket.num"] = str(descriptor.bucket_count)
    if descriptor.bucket_keys:
        options["bucket.key"] = ",".join(descriptor.bucket_keys)
    if options:
        pairs = (f"  {text(k)} = {text(v)}" for k, v in sorted(options.items()))
        made += " WITH (\n" + ",\n".join(pairs) + "\n)"
    return made


def _column(item: exp.ColumnDef) -> Column:
    if item.kind is None:
        raise FlussError(f"column '{item.name}' has no type")
    kind, comment = fluss_type(item.kind, item.name), None
    for constraint in item.args.get("constraints") or ():
        what = constraint.kind
        if isinstance(what, exp.NotNullColumnConstraint):
            kind = kind.with_nullable(bool(what.args.get("allow_null")))
        elif isinstance(what, exp.CommentColumnConstraint):
            comment = what.this.name
        else:
            raise _unsupported(f"part of column '{item.name}'", constraint)
    return Column(item.name, kind, comment)


def _properties(tree: exp.Create) -> list[exp.Expr]:
    found = tree.args.get("properties")
    return list(found.expressions) if found else []


def _unsupported(what: str, part: exp.Expr) -> FlussError:
    return FlussError(f"this {what} cannot be run: {part.sql(Fluss)[:200]}")

"""Statements about databases, tables and partitions, as Flink writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import polars as pl
import sqlglot
from sqlglot import exp

from fluss_df.backend.catalog.catalog import not_renamed
from fluss_df.backend.catalog.frames import by_position
from fluss_df.backend.catalog.replacing import Replacing
from fluss_df.backend.sql.dialect import Fluss, spot, unsupported
from fluss_df.backend.sql.queries import SqlScope, count_hints, errors_of_polars
from fluss_df.backend.sql.sql_types import (
    commented,
    constrained,
    fluss_type,
    literal,
    quoted,
    sql_type,
)
from fluss_df.backend.sql.views import Views
from fluss_df.errors import FlussError
from fluss_df.io.sinks.target import TableLayout, describe
from fluss_df.metadata import VIEW_PROPERTY, TablePath, require_columns
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column

# sqlglot cannot parse these statements
_SHOWN = re.compile(r"(SHOW|DESC|DESCRIBE)\b", re.IGNORECASE)
_SHOW = re.compile(
    r"(?:SHOW\s+(?P<what>DATABASES|CURRENT\s+DATABASE|TABLES|VIEWS|PARTITIONS|CREATE\s+(?:TABLE|VIEW))"
    r"|DESC(?:RIBE)?)"
    r"(?:\s+(?:(?:FROM|IN)\s+)?(?P<name>(?!(?:LIKE|NOT)\b)[^\s;']+))?(?:\s+LIKE\s+'(?P<like>[^']*)')?"
    r"(?:\s+PARTITION\s*\((?P<spec>[^()]*)\))?"
    r"(?:[\s;]*(?:--[^'\n]*|/\*[^']*\*/))?",
    re.IGNORECASE,
)
RESET = re.compile(
    r"ALTER\s+TABLE\s+(?P<name>[^\s;']+)\s+RESET\s*\(\s*(?P<keys>'[^']*'(\s*,\s*'[^']*')*)\s*\)",
    re.IGNORECASE,
)


class Ddl(Views):
    """What SQL says about databases and tables, done."""

    def show(self, statement: str) -> pl.DataFrame:
        """Answer a statement that begins with SHOW or DESCRIBE."""
        match = _SHOW.fullmatch(statement)
        if match is None:
            raise FlussError(
                f"SQL cannot be read: {' '.join(statement.split())[:80]}: expected SHOW DATABASES"
                " [LIKE '...'], SHOW TABLES [FROM database] [LIKE '...'], SHOW CURRENT DATABASE,"
                " SHOW VIEWS [FROM database] [LIKE '...'], SHOW PARTITIONS table [PARTITION (...)],"
                " SHOW CREATE TABLE table, SHOW CREATE VIEW view, DESCRIBE table"
            )
        what = " ".join((match["what"] or "DESCRIBE").upper().split())
        name, like = match["name"], match["like"]
        table = exp.to_table(name, dialect=Fluss) if name else None
        if like is not None and what not in ("DATABASES", "TABLES", "VIEWS"):
            raise FlussError(f"{what} has no LIKE")
        if match["spec"] is not None and what != "PARTITIONS":
            raise FlussError(f"{what} has no PARTITION (...)")
        # SQL's LIKE: % stands for any text, _ for one character
        names_like = like and "^" + re.escape(like).replace("%", ".*").replace("_", ".") + "$"
        if what == "DATABASES":
            if table is not None:
                raise FlussError(f"SHOW DATABASES takes no name, such as {name!r}")
            return pl.DataFrame(
                {"database": self.list_databases(like=names_like)}, schema={"database": pl.String}
            )
        if what == "CURRENT DATABASE":
            return pl.DataFrame({"database": [self.current_database]})
        if what == "TABLES":
            found = self.list_tables(like=names_like, database=table.name if table else None)
            return pl.DataFrame({"table": found}, schema={"table": pl.String})
        if what == "VIEWS":
            found = self.list_views(like=names_like, database=table.name if table else None)
            return pl.DataFrame({"view": found}, schema={"view": pl.String})
        if table is None:
            raise FlussError(f"{what}: expected the name of a table")
        if self.is_local(table.name, table.db or None):
            if what != "DESCRIBE":
                raise FlussError(f"{what}: {table.name!r} is local to the connection")
            return _described(self._columns_of(self._tables[table.name]), ())
        path = self.path(table.name, table.db or None)
        info = self.table_info(path.table_name, path.database_name)
        if VIEW_PROPERTY in info.get_custom_properties():
            return self._show_view(what, path)
        if what == "CREATE VIEW":
            raise FlussError(f"{path} is a table, not a view: SHOW CREATE TABLE shows it")
        if what == "PARTITIONS":
            spec = dict(re.findall(r"([\w`]+)\s*=\s*'([^']*)'", match["spec"] or ""))
            there = self._connection.get_admin().list_partition_infos(
                info.table_path, {name.strip("`"): value for name, value in spec.items()} or None
            )
            names = [partition.partition_name for partition in there]
            return pl.DataFrame({"partition": names}, schema={"partition": pl.String})
        if what == "CREATE TABLE":
            return pl.DataFrame({"statement": [create_statement(info.table_path, info.descriptor)]})
        return _described(info.schema.columns, info.get_primary_keys())

    def creation_of(self, path: TablePath, descriptor: TableDescriptor) -> str:
        """Return the statement in SQL that creates a table."""
        return create_statement(path, descriptor)

    def _columns_of(self, frame: pl.LazyFrame) -> tuple[Column, ...]:
        """Return the columns of a view or temporary table as a table of Fluss would have them."""
        kinds = frame.collect_schema()
        return describe(self.path("view"), kinds, TableLayout()).schema.columns

    def _show_view(self, what: str, path: TablePath) -> pl.DataFrame:
        if what == "DESCRIBE":
            frame = self.scan_table(path.table_name, path.database_name)
            return _described(self._columns_of(frame), ())
        if what != "CREATE VIEW":
            raise FlussError(f"{path} is a view: SHOW CREATE VIEW and DESCRIBE show it")
        view = self.view(path)
        if view.sql is None:
            body = "/* an expression of Ibis: con.table(...) has it */"
        else:
            body = view.sql
        names = ", ".join(map(quoted, view.columns))
        name = f"{quoted(path.database_name)}.{quoted(path.table_name)}"
        return pl.DataFrame({"statement": [f"CREATE VIEW {name} ({names}) AS {body}"]})

    def _create_statement(self, tree: exp.Create, query: str) -> None:
        if tree.kind == "DATABASE":
            comment = None
            for item in _properties(tree):
                if not isinstance(item, exp.SchemaCommentProperty):
                    raise unsupported("part of CREATE DATABASE", item)
                comment = item.this.name
            self.create_described_database(tree.this.name, comment, force=bool(tree.args["exists"]))
            return
        if tree.kind == "VIEW" and tree.expression is not None:
            self._create_view_statement(tree, query)
            return
        if tree.kind != "TABLE" or (tree.args.get("replace") and tree.expression is None):
            raise unsupported("statement", tree)
        if tree.expression is not None:
            self._create_as(tree, query)
            return
        if not isinstance(tree.this, exp.Schema):
            raise FlussError(
                f"CREATE TABLE {tree.this.sql(Fluss)}: expected columns in (...){spot(tree.this)}"
            )
        table = tree.this.this
        path = self.path(table.name, table.db or None)
        columns: list[Column] = []
        keys: list[str] = []
        for item in tree.this.expressions:
            if isinstance(item, exp.Constraint) and len(item.expressions) == 1:
                item = item.expressions[0]
            if isinstance(item, exp.PrimaryKey):
                keys += [key.name for key in item.expressions]
            elif isinstance(item, exp.ColumnDef):
                columns.append(_column(item))
                if item.find(exp.PrimaryKeyColumnConstraint):
                    keys.append(item.name)
            elif isinstance(item, (exp.Identifier, exp.Column)):
                raise FlussError(f"column '{item.name}' has no type{spot(item)}")
            else:
                raise unsupported(f"part of CREATE TABLE {path}", item)
        names = [column.name for column in columns]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise FlussError(f"CREATE TABLE {path}: column '{twice[0]}' stands there twice")
        require_columns(keys, names, f"CREATE TABLE {path}: primary key")
        columns = [
            replace(c, type=c.type.with_nullable(False)) if c.name in keys else c for c in columns
        ]
        comment, partitioned, properties = _table_options(tree, path)
        require_columns(partitioned, names, f"CREATE TABLE {path}: PARTITIONED BY")
        columns = [_aggregated(column, properties) for column in columns]
        # others than servers read are kept for whoever asks for them
        others = [key for key in properties if not key.startswith(("table.", "bucket."))]
        own = {key: properties.pop(key) for key in others}
        descriptor = TableDescriptor(
            Schema.from_columns(columns, keys),
            partition_keys=partitioned,
            comment=comment,
            properties=properties,
            custom_properties=own,
        )
        self._create(path, descriptor, if_not_exists=bool(tree.args["exists"]))

    def _create_view_statement(self, tree: exp.Create, query: str) -> None:
        """Name a query, and perhaps its columns."""
        table, columns, comment, temporary = tree.this, [], None, False
        if isinstance(table, exp.Schema):
            table, columns = table.this, [item.name for item in table.expressions]
        for item in _properties(tree):
            if isinstance(item, exp.SchemaCommentProperty):
                comment = item.this.name
            elif isinstance(item, exp.TemporaryProperty):
                temporary = True
            else:
                raise unsupported("part of CREATE VIEW", item)
        replace, exists = bool(tree.args.get("replace")), bool(tree.args.get("exists"))
        if not temporary:
            path = self.path(table.name, table.db or None)
            if exists and self._connection.get_admin().table_exists(path):
                return
            text = query_behind_as(query)
            self.create_query_view(path, text, columns, overwrite=replace, comment=comment)
            return
        if table.db:
            raise FlussError(
                f"view {table.sql(Fluss)}: temporary views are local to the connection; leave the"
                f" database out{spot(table)}"
            )
        if self.is_local(table.name) and not replace:
            if exists:
                return
            raise FlussError(
                f"view '{table.name}' exists: CREATE OR REPLACE TEMPORARY VIEW replaces it"
                f"{spot(table)}"
            )
        frame = SqlScope(self).run(tree.expression, count_hints(query))
        if columns:
            frame = by_position(frame, columns, f"view '{table.name}'").lazy()
        self._keep(table.name, frame, overwrite=replace)

    def _create_as(self, tree: exp.Create, query: str) -> None:
        """Create a table from the rows of a query."""
        table, keys = tree.this, []
        if isinstance(table, exp.Schema):
            for item in table.expressions:
                if isinstance(item, exp.Constraint) and len(item.expressions) == 1:
                    item = item.expressions[0]
                if not isinstance(item, exp.PrimaryKey):
                    raise FlussError(
                        "CREATE TABLE ... AS takes its columns from the query: in (...) stands"
                        f" PRIMARY KEY (...) alone, not {item.sql(Fluss)[:80]}{spot(item)}"
                    )
                keys += [key.name for key in item.expressions]
            table = table.this
        path = self.path(table.name, table.db or None)
        admin = self._connection.get_admin()
        exists = admin.table_exists(path)
        if tree.args.get("exists") and exists:
            return
        frame = SqlScope(self).run(tree.expression, count_hints(query))
        comment, partitioned, properties = _table_options(tree, path)
        names = frame.collect_schema().names()
        require_columns(keys, names, f"CREATE TABLE {path}: primary key")
        require_columns(partitioned, names, f"CREATE TABLE {path}: PARTITIONED BY")
        layout = TableLayout(keys or None, partitioned or None, None, None, properties)
        if exists and tree.args.get("replace"):
            self._replace_table(path, frame, layout, comment)
            return
        with errors_of_polars():
            self.create_described_table(path, frame, layout, comment)

    def _replace_table(
        self, path: TablePath, frame: pl.LazyFrame, layout: TableLayout, comment: str | None
    ) -> None:
        """Drop a table and create it again with the rows of a query, which are computed before."""
        self.written_info(path)
        made = describe(path, frame.collect_schema(), layout, comment=comment)
        with errors_of_polars():
            rows = frame.collect()
        Replacing(self._connection, path, made).replace(rows)

    def _drop_statement(self, tree: exp.Drop) -> None:
        exists = bool(tree.args.get("exists"))
        if tree.kind not in ("DATABASE", "TABLE", "VIEW"):
            raise unsupported("statement", tree)
        for item in tree.args.get("tables") or [tree.this]:
            name, database = item.name, item.db or None
            if tree.kind == "DATABASE":
                self.drop_database(name, cascade=bool(tree.args.get("cascade")), force=exists)
            elif tree.kind == "TABLE":
                self.drop_table(name, database=database, force=exists)
            else:
                self.drop_view(name, database=database, force=exists)

    def _alter_statement(self, tree: exp.Alter, query: str) -> None:
        actions = tree.args["actions"]
        if tree.args.get("kind") == "VIEW" and isinstance(actions[0], exp.Query):
            path = self.path(tree.this.name, tree.this.db or None)
            self.view(path)
            self.create_query_view(path, query_behind_as(query), (), overwrite=True)
            return
        if len(actions) == 1 and isinstance(actions[0], exp.AlterRename):
            database = tree.this.db or None
            if self.is_local(tree.this.name, database):
                self.rename_table(tree.this.name, actions[0].this.name)
                return
            raise not_renamed(self.path(tree.this.name, database), actions[0].this.name)
        if tree.args.get("kind") != "TABLE":
            raise unsupported("statement", tree)
        path = self.path(tree.this.name, tree.this.db or None)
        admin = self._connection.get_admin()
        self.require_table(path, "CREATE OR REPLACE VIEW, or ALTER VIEW ... AS, changes it")
        if tree.args.get("exists") and not admin.table_exists(path):
            return
        columns: list[Column] = []
        properties: dict[str, str] = {}
        for action in tree.args["actions"]:
            exists = bool(action.args.get("exists"))
            if isinstance(action, exp.AddPartition):
                spec = _partition(path, action.this.expressions)
                admin.create_partition(path, spec, ignore_if_exists=exists)
            elif isinstance(action, exp.DropPartition):
                for item in action.expressions:
                    spec = _partition(path, item.expressions)
                    admin.drop_partition(path, spec, ignore_if_not_exists=exists)
            elif isinstance(action, exp.ColumnDef):
                if action.args.get("position") is not None:
                    raise FlussError(
                        f"ALTER TABLE {path}: Fluss adds columns behind the others: leave out"
                        f" {action.args['position'].sql(Fluss)}{spot(action)}"
                    )
                if not (exists and action.name in self._column_names(path)):
                    columns.append(_column(action))
            elif isinstance(action, exp.AlterSet):
                properties |= _pairs(f"ALTER TABLE {path} SET", action.expressions)
                fixed = sorted(properties.keys() & {"bucket.num", "bucket.key"})
                if fixed:
                    raise FlussError(f"ALTER TABLE {path} SET: '{fixed[0]}' of a table is fixed")
            elif isinstance(action, exp.RenameColumn | exp.AlterColumn | exp.Drop):
                raise FlussError(
                    f"ALTER TABLE {path}: Fluss adds columns, and neither renames, changes nor"
                    f" drops them: {action.sql(Fluss)[:80]}{spot(action)}"
                )
            else:
                raise unsupported(f"part of ALTER TABLE {path}", action)
        if columns or properties:
            admin.alter_table(path, add_columns=columns, set_properties=properties or None)

    def _column_names(self, path: TablePath) -> list[str]:
        return self.table_info(path.table_name, path.database_name).get_column_names()

    def reset(self, match: re.Match[str]) -> None:
        """Set properties of a table back to their defaults."""
        table = exp.to_table(match["name"], dialect=Fluss)
        keys = re.findall(r"'([^']*)'", match["keys"])
        self._connection.get_admin().alter_table(
            self.path(table.name, table.db or None), reset_properties=keys
        )

    def _use(self, tree: exp.Use) -> None:
        name = tree.this.name
        if not self._connection.get_admin().database_exists(name):
            there = ", ".join(self.list_databases())
            raise FlussError(f"database {name!r} does not exist (databases: {there})")
        self._database = name


def query_behind_as(statement: str) -> str:
    """Return the query of ``CREATE VIEW ... AS query``, as it was written."""
    depth = 0
    tokens = sqlglot.tokenize(statement, dialect=Fluss)
    for token, following in pairwise(tokens):
        if token.token_type == sqlglot.TokenType.L_PAREN:
            depth += 1
        elif token.token_type == sqlglot.TokenType.R_PAREN:
            depth -= 1
        elif token.token_type == sqlglot.TokenType.ALIAS and not depth:
            return statement[following.start :]
    raise FlussError("SQL cannot be read: expected AS and a query")


def is_shown(statement: str) -> bool:
    """Whether a statement is one for :meth:`Ddl.show`."""
    return _SHOWN.match(statement) is not None


def _described(columns: Sequence[Column], keys: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "column": [c.name for c in columns],
            "type": [str(c.type) for c in columns],
            "primary_key": [c.name in keys for c in columns],
            "comment": [c.comment for c in columns],
        },
        schema_overrides={"comment": pl.String},
    )


def _partition(path: TablePath, pairs: Sequence[exp.Expr]) -> dict[str, str]:
    return _pairs(f"ALTER TABLE {path} PARTITION", pairs)


def _pairs(what: str, pairs: Sequence[exp.Expr]) -> dict[str, str]:
    """Return the pairs of (key = 'value', ...)."""
    found: dict[str, str] = {}
    for pair in pairs:
        if pair is None:
            raise FlussError(f"{what}: expected (key = 'value', ...)")
        if not isinstance(pair, exp.EQ) or not isinstance(pair.expression, exp.Literal):
            raise FlussError(
                f"{what}: expected key = 'value', not {pair.sql(Fluss)[:80]}{spot(pair)}"
            )
        found[pair.this.name] = pair.expression.name
    return found


def create_statement(path: TablePath, descriptor: TableDescriptor) -> str:
    """Return the statement that creates a table."""

    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(quoted(name) for name in names)

    lines = [
        f"  {quoted(c.name)} {sql_type(c.type)}{commented(c.comment)}"
        for c in descriptor.schema.columns
    ]
    if descriptor.schema.primary_keys:
        lines.append(f"  PRIMARY KEY ({listed(descriptor.schema.primary_keys)}) NOT ENFORCED")
    body = ",\n".join(lines)
    made = f"CREATE TABLE {quoted(path.database_name)}.{quoted(path.table_name)} (\n{body}\n)"
    made += commented(descriptor.comment)
    if descriptor.partition_keys:
        made += f" PARTITIONED BY ({listed(descriptor.partition_keys)})"
    options = {**descriptor.properties, **descriptor.custom_properties}
    options |= _aggregate_options(descriptor.schema.columns)
    if descriptor.bucket_count is not None:
        options["bucket.num"] = str(descriptor.bucket_count)
    if descriptor.bucket_keys:
        options["bucket.key"] = ",".join(descriptor.bucket_keys)
    if options:
        pairs = (f"  {literal(k)} = {literal(v)}" for k, v in sorted(options.items()))
        made += " WITH (\n" + ",\n".join(pairs) + "\n)"
    return made


def _column(item: exp.ColumnDef) -> Column:
    if item.kind is None:
        raise FlussError(f"column '{item.name}' has no type{spot(item)}")
    kind, comment = constrained(fluss_type(item.kind, item.name), item, item.name)
    return Column(item.name, kind, comment)


def _aggregated(column: Column, properties: dict[str, str]) -> Column:
    """Return a column with its function of the merge engine, which is taken out of the options.

    Flink writes ``'fields.<column>.agg' = '<function>'``, and parameters of the function as
    ``'fields.<column>.<function>.<parameter>'``.
    """
    function = properties.pop(f"fields.{column.name}.agg", None)
    if function is None:
        return column
    prefix = f"fields.{column.name}.{function}."
    given = [key for key in properties if key.startswith(prefix)]
    parameters = tuple((key.removeprefix(prefix), properties.pop(key)) for key in given)
    return replace(column, aggregate=function, aggregate_parameters=parameters)


def _aggregate_options(columns: Sequence[Column]) -> dict[str, str]:
    """Return the options that :func:`_aggregated` reads."""
    options: dict[str, str] = {}
    for column in columns:
        if column.aggregate is not None:
            options[f"fields.{column.name}.agg"] = column.aggregate
            for name, value in column.aggregate_parameters:
                options[f"fields.{column.name}.{column.aggregate}.{name}"] = value
    return options


def _table_options(
    tree: exp.Create, path: TablePath
) -> tuple[str | None, list[str], dict[str, str]]:
    """Return comment, partition columns and properties of a table to create."""
    comment, partitioned, properties = None, [], {}
    for item in _properties(tree):
        if isinstance(item, exp.SchemaCommentProperty):
            comment = item.this.name
        elif isinstance(item, exp.PartitionedByProperty):
            if not isinstance(item.this, exp.Schema):
                raise FlussError(
                    f"CREATE TABLE {path}: PARTITIONED BY ({item.this.sql(Fluss)}) stands in"
                    f" parentheses{spot(item.this)}"
                )
            partitioned = [key.name for key in item.this.expressions]
        elif type(item) is exp.Property:
            properties[item.name] = item.args["value"].name
        else:
            raise unsupported(f"part of CREATE TABLE {path}", item)
    return comment, partitioned, properties


def _properties(tree: exp.Create) -> list[exp.Expr]:
    found = tree.args.get("properties")
    return list(found.expressions) if found else []

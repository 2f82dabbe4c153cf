"""Statements about databases, tables and partitions, as Flink writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.catalog import Catalog
from fluss_df.backend.dialect import Fluss, fluss_type
from fluss_df.backend.queries import SqlScope, count_hints, spot
from fluss_df.errors import FlussError
from fluss_df.io.target import TableLayout
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, to_arrow

SHOW = re.compile(
    r"\s*(?:SHOW\s+(?P<what>DATABASES|TABLES|PARTITIONS|CREATE\s+TABLE)|(?P<describe>DESC(?:RIBE)?))"
    r"(?:\s+(?:(?:FROM|IN)\s+)?(?P<name>[^\s;']+))??(?:\s+LIKE\s+'(?P<like>[^']*)')?\s*;?\s*",
    re.IGNORECASE,
)


# sqlglot reads neither
RESET = re.compile(
    r"\s*ALTER\s+TABLE\s+(?P<name>[^\s;']+)\s+RESET\s*\(\s*(?P<keys>'[^']*'(\s*,\s*'[^']*')*)\s*\)\s*;?\s*",
    re.IGNORECASE,
)


class Ddl(Catalog):
    """What SQL says about databases and tables, done."""

    def show(self, match: re.Match[str]) -> pl.DataFrame:
        """Answer a statement that :data:`SHOW` matches."""
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
            frame = SqlScope(self).run(tree.expression, count_hints(query))
            if tree.this.db:
                raise FlussError(
                    f"view {tree.this.sql(Fluss)}: views are local to the connection; leave the"
                    f" database out{spot(tree.this)}"
                )
            self._keep(tree.this.name, frame, overwrite=bool(tree.args.get("replace")))
            return
        if tree.kind != "TABLE" or tree.args.get("replace"):
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
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise FlussError(f"CREATE TABLE {path}: column '{twice[0]}' stands there twice")
        require_columns(keys, names, f"CREATE TABLE {path}: primary key")
        columns = [
            Column(c.name, c.type.with_nullable(False), c.comment) if c.name in keys else c
            for c in columns
        ]
        comment, partitioned, properties = _table_options(tree, path)
        require_columns(partitioned, names, f"CREATE TABLE {path}: PARTITIONED BY")
        descriptor = TableDescriptor(
            Schema.from_columns(columns, keys),
            partition_keys=partitioned,
            comment=comment,
            properties=properties,
        )
        self._create(path, descriptor, if_not_exists=bool(tree.args["exists"]))

    def _create_as(self, tree: exp.Create, query: str) -> None:
        """Create a table from the rows of a query."""
        if isinstance(tree.this, exp.Schema):
            raise FlussError(
                "CREATE TABLE ... AS takes its columns from the query: leave out"
                f" {tree.this.sql(Fluss)[:80]}{spot(tree.this)}"
            )
        path = self.path(tree.this.name, tree.this.db or None)
        if tree.args.get("exists") and self._connection.get_admin().table_exists(path):
            return
        frame = SqlScope(self).run(tree.expression, count_hints(query))
        comment, partitioned, properties = _table_options(tree, path)
        layout = TableLayout(None, partitioned or None, None, None, properties)
        self.create_described_table(path, frame, layout, comment)

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

    def _alter_statement(self, tree: exp.Alter) -> None:
        if tree.args.get("kind") != "TABLE":
            raise unsupported("statement", tree)
        path = self.path(tree.this.name, tree.this.db or None)
        admin = self._connection.get_admin()
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
                columns.append(_column(action))
            elif isinstance(action, exp.AlterSet):
                properties |= _pairs(f"ALTER TABLE {path} SET", action.expressions)
            else:
                raise unsupported(f"part of ALTER TABLE {path}", action)
        if columns or properties:
            fields = [pa.field(c.name, to_arrow(c.type), c.type.nullable) for c in columns]
            admin.alter_table(
                path,
                add_columns=pa.schema(fields) if fields else None,
                set_properties=properties or None,
            )

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


def _partition(path: TablePath, pairs: Sequence[exp.Expr]) -> dict[str, str]:
    return _pairs(f"ALTER TABLE {path} PARTITION", pairs)


def _pairs(what: str, pairs: Sequence[exp.Expr]) -> dict[str, str]:
    """Return what stands in (key = 'value', ...)."""
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
        raise FlussError(f"column '{item.name}' has no type{spot(item)}")
    kind, comment = fluss_type(item.kind, item.name), None
    for constraint in item.args.get("constraints") or ():
        what = constraint.kind
        if isinstance(what, exp.NotNullColumnConstraint):
            kind = kind.with_nullable(bool(what.args.get("allow_null")))
        elif isinstance(what, exp.CommentColumnConstraint):
            comment = what.this.name
        elif isinstance(what, exp.PrimaryKeyColumnConstraint):
            kind = kind.with_nullable(False)
        else:
            raise unsupported(f"part of column '{item.name}'", constraint)
    return Column(item.name, kind, comment)


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


def unsupported(what: str, part: exp.Expr | None) -> FlussError:
    """Return the error for a part of SQL that can be read and not run, and where it stands."""
    if part is None:
        return FlussError(f"a {what} is missing: expected more of the statement")
    return FlussError(f"this {what} cannot be run: {part.sql(Fluss)[:200]}{spot(part)}")

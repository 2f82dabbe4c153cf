"""Views that are kept in the database: a query or an expression under a name, for all its users.

Fluss has no views. One is kept as a table without rows, whose custom property says what it is: so
its name is taken, rights on it are those of a table, and to replace it is one request. What is kept
is data, a statement or operations, never code.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
from sqlglot import exp

from fluss_df.backend.catalog.catalog import database_name
from fluss_df.backend.catalog.expressions import expression_of_data, expression_to_data
from fluss_df.backend.catalog.rows import Rows
from fluss_df.backend.sql.queries import SqlScope, count_hints, parse, require_no_files
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.names import exact
from fluss_df.metadata import VIEW_PROPERTY, TablePath, ViewError
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, DataType, TypeRoot

#: How deep views of views may be.
MOST_VIEWS: Final = 32
# ZooKeeper takes a megabyte for all that is known of a table
_LONGEST: Final = 500_000
_VERSION: Final = 1
_COLUMN: Final = Column(
    "is_a_view_of_fluss_df",
    DataType(TypeRoot.BOOLEAN),
    "This table stands for a view. It has no rows; fluss_df reads the view by SQL and Ibis.",
)
_EXPANDING: Final[contextvars.ContextVar[tuple[TablePath, ...]]] = contextvars.ContextVar(
    "views that are being read", default=()
)


@dataclass(frozen=True, slots=True)
class View:
    """What a view is.

    Attributes
    ----------
    columns
        The names of its columns, as they were when it was created.
    renamed
        What they are called in the query.
    sql
        The query, or None for an expression of Ibis.
    database
        The database of names in the query that have none.
    operations
        The expression as :func:`expression_to_data` returns it; None for a query.
    """

    columns: tuple[str, ...]
    renamed: tuple[str, ...]
    sql: str | None
    database: str
    operations: list[Any] | None = None

    def to_text(self, path: TablePath) -> str:
        """Return the view as it is kept."""
        value = {
            "version": _VERSION,
            "columns": self.columns,
            "renamed": self.renamed,
            "sql": self.sql,
            "database": self.database,
            "ibis": self.operations,
        }
        text = json.dumps({k: v for k, v in value.items() if v is not None}, ensure_ascii=False)
        size = len(text.encode())
        if size > _LONGEST:
            raise FlussError(
                f"view {path} has {size:,} bytes, and at most {_LONGEST:,} can be kept: make views"
                " of its parts, or a table"
            )
        return text

    @staticmethod
    def of_text(path: TablePath, text: str) -> View:
        """Return the view that was kept.

        Raises FlussError for a text that is not a view, or is one of a later version.
        """
        try:
            value = json.loads(text)
            version = int(value["version"])
            found = View(
                tuple(map(str, value["columns"])),
                tuple(map(str, value["renamed"])),
                str(value["sql"]) if "sql" in value else None,
                str(value["database"]),
                list(value["ibis"]) if "ibis" in value else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FlussError(
                f"view {path} cannot be read: its property '{VIEW_PROPERTY}' is no view"
            ) from None
        if version > _VERSION:
            raise FlussError(f"view {path} was created by a later version of fluss_df")
        if len(found.columns) != len(found.renamed) or (found.sql is None) == (
            found.operations is None
        ):
            raise FlussError(
                f"view {path} cannot be read: its property '{VIEW_PROPERTY}' is no view"
            )
        return found


class Views(Rows):
    """Views of databases."""

    _queries: dict[str, tuple[str, str]]  # text and database of the queries that sql() named

    # ---- reading

    def scan_table(self, name: str, database: str | None = None, **options: Any) -> pl.LazyFrame:
        """Return a lazy frame over a table or a view; options as of ``scan_fluss``."""
        try:
            return super().scan_table(name, database, **options)
        except ViewError as error:
            path, columns = error.path, options.pop("columns", None)
            if options or path.table_name != name.rpartition(".")[2]:
                raise FlussError(
                    f"{path} is a view, which has no changes and takes no options: they belong to"
                    " the tables in it"
                ) from None
            definition = error.definition
        frame = self._rows_of(path, View.of_text(path, definition))
        return frame if columns is None else frame.select(exact(c) for c in columns)

    def _rows_of(self, path: TablePath, view: View) -> pl.LazyFrame:
        above = _EXPANDING.get()
        if path in above:
            circle = " -> ".join(map(str, (*above[above.index(path) :], path)))
            raise FlussError(f"view {path} speaks of itself: {circle}")
        if len(above) >= MOST_VIEWS:
            raise FlussError(f"view {above[0]}: views speak of views, {MOST_VIEWS} deep and more")
        token = _EXPANDING.set((*above, path))
        try:
            frame = self._frame_of(view)
            there = frame.collect_schema().names()
            missing = [name for name in view.renamed if name not in there]
            if missing:
                raise FlussError(
                    f"column '{missing[0]}' is not there any more, because its tables have changed:"
                    " create the view again"
                )
        except FlussError as error:
            if error.message.startswith("view "):
                raise
            raise FlussError(f"view {path}: {error.message}", error.error_code) from error
        finally:
            _EXPANDING.reset(token)
        pairs = zip(view.renamed, view.columns, strict=True)
        return frame.select(exact(old).alias(new) for old, new in pairs)

    def _frame_of(self, view: View) -> pl.LazyFrame:
        if view.sql is not None:
            return self._query_frame(view.sql, view.database)
        expr = self._expression_of(view)
        frame: pl.LazyFrame = self.translated(expr, SqlScope(self, view.database))
        return frame

    def _expression_of(self, view: View) -> ir.Table:
        def find_query(text: str, database: str) -> ops.Relation:
            return self._named_query(self._query_frame(text, database), text, database).op()

        return expression_of_data(
            view.operations or [],
            lambda name, database: self.table(name, database=database).op(),
            find_query,
        )

    def _query_frame(self, text: str, database: str) -> pl.LazyFrame:
        tree = parse(text)
        _require_tables(tree)
        return SqlScope(self, database).run(tree, count_hints(text))

    def _named_query(self, frame: pl.LazyFrame, text: str, database: str) -> ir.Table:
        """Return a query as an expression, by a name of this connection."""
        raise NotImplementedError

    # ---- creating and dropping

    def create_view(
        self, name: str, /, obj: ir.Table, *, database: str | None = None, overwrite: bool = False
    ) -> ir.Table:
        """Keep an expression in the database under a name; each query that uses it reads again.

        Others see it by ``con.table(name)`` and in SQL, also after a restart, and may read it if
        they may read its tables. Its columns are those of now: columns that its tables get later
        are none of it.

        Parameters
        ----------
        name, database
            Its name.
        obj
            An expression over tables and views of the cluster, ``con.sql(...)`` too.
        overwrite
            Replace a view of that name, at once.

        Raises
        ------
        FlussError
            When a table has that name, or for an expression that has more than data: rows in
            memory, temporary tables, functions of users.
        """
        path = self.path(name, database)
        query = self._query_of(obj)
        self._run_pre_execute_hooks(obj)
        columns = tuple(obj.columns)
        if query is not None:
            self.create_query_view(path, query[0], columns, query[1], overwrite=overwrite)
        else:
            operations = expression_to_data(obj, self._queries.get)
            view = View(columns, columns, None, self._database, operations)
            self._keep_view(path, view, overwrite=overwrite)
        return self.table(path.table_name, database=path.database_name)

    def _query_of(self, obj: ir.Table) -> tuple[str, str] | None:
        node = obj.op()
        if isinstance(node, ops.DatabaseTable) and node.namespace.database is None:
            return self._queries.get(node.name)
        return None

    def create_query_view(
        self,
        path: TablePath,
        text: str,
        names: Sequence[str],
        database: str | None = None,
        *,
        overwrite: bool,
        comment: str | None = None,
    ) -> None:
        """Keep a query in SQL under a name.

        Parameters
        ----------
        path, overwrite
            As for :meth:`create_view`.
        text
            The query.
        names
            Names of its columns; none for those that it has.
        database
            The database of names in it that have none; the current one by default.
        comment
            A description.
        """
        tree = parse(text)
        for table in tree.find_all(exp.Table):
            if not table.db and self.is_local(table.name):
                raise FlussError(
                    f"view {path}: '{table.name}' is local to this connection, so a view of the"
                    " database cannot speak of it: CREATE TEMPORARY VIEW is local too"
                )
        token = _EXPANDING.set((*_EXPANDING.get(), path))
        try:
            there = self._query_frame(text, database or self._database).collect_schema().names()
        finally:
            _EXPANDING.reset(token)
        if names and len(names) != len(there):
            raise FlussError(
                f"view {path}: {len(names)} names ({', '.join(names)}) given for {len(there)}"
                f" columns ({', '.join(there)})"
            )
        view = View(tuple(names or there), tuple(there), text, database or self._database)
        if len(set(view.columns)) < len(view.columns):
            raise FlussError(f"view {path}: two of its columns have one name")
        self._keep_view(path, view, overwrite=overwrite, comment=comment)

    def _keep_view(
        self, path: TablePath, view: View, *, overwrite: bool, comment: str | None = None
    ) -> None:
        admin, text = self._connection.get_admin(), view.to_text(path)
        if view.sql is None:
            # a view that cannot be read is not kept; queries were checked before
            self._rows_of(path, view)
        if overwrite and admin.table_exists(path):
            if self.find_view(path) is None:
                raise FlussError(f"view {path}: there is a table of this name")
            admin.alter_table(path, set_properties={VIEW_PROPERTY: text})
            return
        descriptor = TableDescriptor(
            Schema.from_columns([_COLUMN]),
            bucket_count=1,
            comment=comment or f"A view, kept in the property '{VIEW_PROPERTY}'",
            custom_properties={VIEW_PROPERTY: text},
        )
        try:
            admin.create_table(path, descriptor)
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_ALREADY_EXIST:
                raise
            if self.find_view(path) is None:
                raise FlussError(
                    f"view {path}: there is a table of this name", error.error_code
                ) from None
            raise FlussError(
                f"view {path} exists: CREATE OR REPLACE VIEW replaces it, or overwrite=True",
                error.error_code,
            ) from None

    def find_view(self, path: TablePath) -> View | None:
        """Return a view; None for a table."""
        info = self.table_info(path.table_name, path.database_name)
        text = info.get_custom_properties().get(VIEW_PROPERTY)
        return None if text is None else View.of_text(path, text)

    def view(self, path: TablePath) -> View:
        """Return a view.

        Raises
        ------
        FlussError
            For a table, and where there is neither.
        """
        found = self.find_view(path)
        if found is None:
            raise FlussError(f"{path} is a table, not a view")
        return found

    def drop_view(self, name: str, /, *, database: str | None = None, force: bool = False) -> None:
        """Drop a view, first one of this connection; ``force`` bears that there is none."""
        if self.is_local(name, database):
            self._forget(name)
            return
        path = self.path(name, database)
        admin = self._connection.get_admin()
        if force and not admin.table_exists(path):
            return
        try:
            self.view(path)
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            there = ", ".join(self.list_views(database=path.database_name)) or "none"
            raise FlussError(
                f"view {path} does not exist (views of '{path.database_name}': {there})",
                error.error_code,
            ) from None
        admin.drop_table(path, ignore_if_not_exists=force)

    def drop_table(self, name: str, /, *, database: str | None = None, force: bool = False) -> None:
        """Drop a table with all its rows; ``force`` bears that there is none."""
        if not self.is_local(name, database):
            self.require_table(self.path(name, database), "DROP VIEW, or drop_view, drops it")
        super().drop_table(name, database=database, force=force)

    def require_table(self, path: TablePath, way_out: str) -> None:
        """Raise where a name is that of a view; say what to do instead."""
        admin = self._connection.get_admin()
        if admin.table_exists(path) and self.find_view(path) is not None:
            raise FlussError(f"{path} is a view: {way_out}", ErrorCode.INVALID_TABLE_EXCEPTION)

    def list_views(
        self, *, like: str | None = None, database: str | tuple[str, str] | None = None
    ) -> list[str]:
        """Return the names of the views of a database; ``like`` is a regular expression."""
        found = []
        wanted = database_name(database) or self._database
        names = self._filter_with_like(
            sorted(self._connection.get_admin().list_tables(wanted)), like
        )
        for name in names:
            try:
                info = self.table_info(name, wanted)
            except FlussError as error:
                # dropped meanwhile
                if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                    raise
                continue
            if VIEW_PROPERTY in info.get_custom_properties():
                found.append(name)
        return found


def _require_tables(tree: exp.Expr) -> None:
    """Raise for what is no query over tables: a view is another user's text, and reads no files."""
    if not isinstance(tree, exp.Query):
        raise FlussError("a view is a query")
    require_no_files(tree, "a view reads")

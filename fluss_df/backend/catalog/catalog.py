"""Databases and tables of the cluster, views and temporary tables of the connection."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import ibis
import ibis.common.exceptions as com
import ibis.expr.operations as ops
import ibis.expr.schema as sch
import ibis.expr.types as ir
import polars as pl
from ibis.backends import CanCreateDatabase, HasCurrentDatabase
from ibis.formats.polars import PolarsSchema

from fluss_df.backend.catalog.frames import frame_of
from fluss_df.backend.catalog.leaves import ibis_schema, plain_schema
from fluss_df.backend.catalog.replacing import Replacing
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.scan import scan_fluss
from fluss_df.io.sinks.sink import SinkResult, sink_fluss, write_fluss
from fluss_df.io.sinks.target import TableLayout, describe
from fluss_df.metadata import VIEW_PROPERTY, DatabaseDescriptor, TablePath, require_table
from fluss_df.record.change_tables import LAKE_SUFFIX, ChangeTable, split_virtual
from fluss_df.schema import TableDescriptor, TableInfo

_SCAN_OPTIONS = frozenset(
    {"mode", "start", "stop", "include_metadata", "partitions", "buckets", "lake"}
)

_NOT_FOUND = (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST)


class TableNotFoundError(FlussError, com.TableNotFound):  # type: ignore[misc]
    """There is no such table; for Ibis a ``TableNotFound`` too."""


class _Name(str):
    """A name that no user sees: one object, shared by all expressions that use the name."""

    __slots__ = ("__weakref__",)


class Catalog(HasCurrentDatabase, CanCreateDatabase):  # type: ignore[misc]
    """What the backend knows of databases and tables.

    A name without a database means a view or temporary table of the connection first, then a table
    of the current database.
    """

    _connection: FlussConnection
    _database: str
    _tables: dict[str, pl.LazyFrame]
    _unnamed: set[str]  # local tables that no user named
    _names: weakref.WeakValueDictionary[str, _Name]  # their names as objects

    # ---- databases

    @property
    def current_database(self) -> str:
        """The database of table names without one."""
        return self._database

    def list_databases(self, *, like: str | None = None, catalog: str | None = None) -> list[str]:
        """Return the names of the databases; ``like`` is a regular expression."""
        _no_catalog(catalog)
        names: list[str] = self._filter_with_like(
            list(self._connection.get_admin().list_databases()), like
        )
        return names

    def create_database(
        self, name: str, /, *, catalog: str | None = None, force: bool = False
    ) -> None:
        """Create a database; ``force`` bears one that exists."""
        _no_catalog(catalog)
        self._connection.get_admin().create_database(name, ignore_if_exists=force)

    def create_described_database(self, name: str, comment: str | None, *, force: bool) -> None:
        """Create a database with a comment."""
        self._connection.get_admin().create_database(
            name, DatabaseDescriptor(comment), ignore_if_exists=force
        )

    def drop_database(
        self,
        name: str,
        /,
        *,
        catalog: str | None = None,
        cascade: bool = False,
        force: bool = False,
    ) -> None:
        """Drop a database, which must be empty without ``cascade``; ``force`` bears none."""
        _no_catalog(catalog)
        self._connection.get_admin().drop_database(
            name, ignore_if_not_exists=force, cascade=cascade
        )

    # ---- looking

    def path(self, name: str, database: str | None = None) -> TablePath:
        """Return the path that a name means here."""
        database = database_name(database)
        if database is not None:
            return TablePath.parse(TablePath(database, name))
        return TablePath.parse(name, self._database)

    def is_local(self, name: str, database: str | None = None) -> bool:
        """Whether a name means a view or temporary table of this connection."""
        return database is None and name in self._tables

    def table_info(self, name: str, database: str | None = None) -> TableInfo:
        """Return what the cluster says of a table."""
        return self._connection.get_table(self.path(name, database)).get_table_info()

    def written_info(self, path: TablePath) -> TableInfo:
        """Return what the cluster says of a table that is to be written; a view is none."""
        info = self.table_info(path.table_name, path.database_name)
        require_table(path, info.get_custom_properties())
        return info

    def list_tables(
        self, *, like: str | None = None, database: str | tuple[str, str] | None = None
    ) -> list[str]:
        """Return names of tables, and of views and temporary tables where no database is given."""
        database = database_name(database)
        names = set(self._connection.get_admin().list_tables(database or self._database))
        if database is None:
            names |= set(self._tables) - self._unnamed
        found: list[str] = self._filter_with_like(sorted(names), like)
        return found

    def scan_table(self, name: str, database: str | None = None, **options: Any) -> pl.LazyFrame:
        """Return a lazy frame over a table of the cluster; options as of ``scan_fluss``."""
        base, suffix = split_virtual(name)
        source = self.path(base, database)
        return scan_fluss(
            f"{source}{suffix}" if suffix else source, connection=self._connection, **options
        )

    def table(self, name: str, /, *, database: str | None = None, **options: Any) -> ir.Table:
        """Return a table as an expression.

        Parameters
        ----------
        name
            ``"table"`` or ``"database.table"``; with ``$changelog`` or ``$binlog`` behind it, the
            changes of the table, and with ``$lake``, what of it is in the data lake.
        database
            The database of the name, by default the current one.
        **options
            ``mode``, ``start``, ``stop``, ``partitions``, ``buckets``, ``lake`` and
            ``include_metadata`` as :func:`fluss_df.scan_fluss` takes them.

        Raises
        ------
        FlussError
            When there is no such table, naming what there is.
        """
        unknown = sorted(set(options) - _SCAN_OPTIONS)
        if unknown:
            raise FlussError(
                f"table({name!r}) has no option {unknown[0]!r}; there are"
                f" {', '.join(sorted(_SCAN_OPTIONS))}"
            )
        if self.is_local(name, database):
            if options:
                raise FlussError(f"{name!r} is local to the connection and takes no options")
            schema = plain_schema(self._tables[name])
            return ops.DatabaseTable(self._names.get(name, name), schema, self).to_expr()
        base, suffix = split_virtual(name)
        path = self.path(base, database)
        virtual = f"{path.table_name}{suffix}"
        try:
            frame = self.scan_table(virtual, path.database_name, **options)
        except FlussError as error:
            if error.error_code not in _NOT_FOUND:
                raise
            raise TableNotFoundError(error.message, error.error_code) from None
        if options:
            return self._named(frame, f"scan_{path.table_name}")
        info = self.table_info(path.table_name, path.database_name)
        columns = info.schema.arrow_schema
        if suffix and suffix != LAKE_SUFFIX:
            columns = ChangeTable(suffix).schema(columns)
        is_view = VIEW_PROPERTY in info.get_custom_properties()
        schema = plain_schema(frame) if is_view else ibis_schema(frame, columns)
        namespace = ops.Namespace(database=path.database_name)
        return ops.DatabaseTable(virtual, schema, self, namespace).to_expr()

    def get_schema(self, table_name: str, *, database: str | None = None) -> sch.Schema:
        """Return the columns and types of a table."""
        return self.table(table_name, database=database).schema()

    # ---- creating and dropping

    def create_table(
        self,
        name: str,
        /,
        obj: Any = None,
        *,
        schema: sch.IntoSchema | None = None,
        database: str | None = None,
        temp: bool | None = None,
        overwrite: bool = False,
        primary_key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        bucket_by: str | Sequence[str] | None = None,
        buckets: int | None = None,
        properties: Mapping[str, str] | None = None,
        comment: str | None = None,
    ) -> ir.Table:
        """Create a table, of the cluster or with ``temp=True`` of this connection.

        Parameters
        ----------
        name, database
            Its name.
        obj
            An expression, frame or Arrow table whose rows are appended.
        schema
            Its columns; those of ``obj`` by default.
        temp
            True for a table in memory, local to this connection, with the rows of now.
        overwrite
            Replace a table of that name. A table of the cluster is dropped and made again, which
            its readers notice; its new rows are computed before.
        primary_key, partition_by, bucket_by, buckets, properties, comment
            As of :class:`fluss_df.TableDescriptor`; columns by name.

        Raises
        ------
        FlussError
            When it exists, or Fluss has no type for a column. When writing the rows of ``obj``
            fails, the table is dropped again; one that replaced another is there, and the error
            says how many rows it has.
        """
        if obj is None and schema is None:
            raise ibis.common.exceptions.IbisError("create_table needs obj or schema")
        frame = None if obj is None else frame_of(obj, self.compile)
        if schema is not None:
            kinds = pl.Schema(PolarsSchema.from_ibis(ibis.schema(schema)))
            if frame is not None:
                frame = frame.lazy().select(exact(n).cast(t) for n, t in kinds.items())
        else:
            assert frame is not None
            kinds = frame.collect_schema()
        if temp:
            given = (primary_key, partition_by, bucket_by, buckets, properties, comment)
            if any(item is not None for item in given):
                raise FlussError(f"temporary table {name!r}: only tables of the cluster have keys")
            # rows rather than a plan, so that the table stays as it is when its sources change
            kept = pl.DataFrame(schema=kinds) if frame is None else frame.lazy().collect()
            self._keep(name, kept, overwrite)
            return self.table(name)
        path = self.path(name, database)
        layout = TableLayout(
            names_of(primary_key), names_of(partition_by), names_of(bucket_by), buckets, properties
        )
        required: frozenset[str] = frozenset()
        if schema is not None:
            required = frozenset(n for n, t in ibis.schema(schema).items() if not t.nullable)
        made = describe(path, kinds, layout, required=required, comment=comment)
        replaced = overwrite and self._connection.get_admin().table_exists(path)
        if replaced:
            there = self.table_info(path.table_name, path.database_name)
            require_table(path, there.get_custom_properties())
            # computed first, because the new rows may come from the table that is dropped
            rows = None if frame is None else frame.lazy().collect()
            Replacing(self._connection, path, made).replace(rows)
        elif frame is None:
            self._create(path, made)
        else:
            self._create_with(path, made, frame)
        return self.table(path.table_name, database=path.database_name)

    def create_described_table(
        self, path: TablePath, frame: pl.LazyFrame, layout: TableLayout, comment: str | None
    ) -> None:
        """Create a table of the cluster for the rows of a query, and write them."""
        self._create_with(
            path, describe(path, frame.collect_schema(), layout, comment=comment), frame
        )

    def _create_with(
        self, path: TablePath, descriptor: TableDescriptor, frame: pl.LazyFrame | pl.DataFrame
    ) -> None:
        """Create a table with rows; where they cannot be written, there is none."""
        self._create(path, descriptor)
        try:
            self._write(frame, path)
        except BaseException as error:
            with contextlib.suppress(FlussError):
                self._connection.get_admin().drop_table(path, ignore_if_not_exists=True)
                if isinstance(error, FlussError):
                    error.message = f"{error.message}; table {path} was dropped again"
                    error.args = (error.message, error.error_code)
            raise

    def _create(
        self, path: TablePath, descriptor: TableDescriptor, *, if_not_exists: bool = False
    ) -> None:
        self._connection.get_admin().create_table(path, descriptor, if_not_exists)

    def drop_table(self, name: str, /, *, database: str | None = None, force: bool = False) -> None:
        """Drop a table with all its rows; ``force`` bears that there is none."""
        if self.is_local(name, database):
            self._forget(name)
            return
        self._connection.get_admin().drop_table(
            self.path(name, database), ignore_if_not_exists=force
        )

    def _keep(self, name: str, frame: pl.LazyFrame | pl.DataFrame, overwrite: bool) -> None:
        if name in self._tables and not overwrite:
            raise FlussError(f"{name!r} exists in this connection; overwrite=True replaces it")
        self._add_table(name, frame)

    def _named(self, frame: pl.LazyFrame, what: str = "fluss_sql") -> ir.Table:
        """Return a frame as an expression, by a name that no user sees.

        The name goes with the last expression that has it, also one that is bound to no backend,
        as a connection that is open for long has many.
        """
        name = ibis.util.gen_name(what)
        made = self._names[name] = _Name(name)
        weakref.finalize(made, self._release, name).atexit = False
        self._tables[name] = frame
        self._unnamed.add(name)
        return self.table(name)

    def _release(self, name: str) -> None:
        """Forget a name that no user sees; it may have been forgotten, as by ``disconnect``."""
        self._tables.pop(name, None)
        self._unnamed.discard(name)

    def _forget(self, name: str) -> None:
        del self._tables[name]
        if name in self._context.tables():
            self._context.unregister(name)

    def _create_cached_table(self, name: str, expr: ir.Table) -> ir.Table:
        self._keep(name, self.compile(expr).collect(), overwrite=False)
        return self.table(name)

    def rename_table(self, old_name: str, new_name: str) -> None:
        """Rename a view or temporary table; Fluss cannot rename the cluster's tables."""
        if not self.is_local(old_name):
            raise not_renamed(self.path(old_name), new_name)
        self._keep(new_name, self._tables[old_name], overwrite=False)
        self._forget(old_name)

    # ---- writing

    def _write(
        self, frame: pl.LazyFrame | pl.DataFrame, path: TablePath, mode: str = "auto"
    ) -> SinkResult:
        options: dict[str, Any] = {"mode": mode, "connection": self._connection}
        # a partition that does not exist has no rows to delete, so none is created
        options["create_partitions"] = mode != "delete"
        if isinstance(frame, pl.DataFrame):
            return write_fluss(frame, path, **options)
        result: SinkResult = sink_fluss(frame, path, **options)
        return result


def not_renamed(path: TablePath, new_name: str) -> FlussError:
    """Return the error for a table of the cluster that is to get another name."""
    return FlussError(
        f"table {path} cannot be renamed: no server of Fluss has such a request; CREATE TABLE"
        f" {new_name} AS SELECT * FROM {path.table_name} copies it, and CREATE VIEW {new_name} AS"
        f" SELECT * FROM {path.table_name} gives it a second name"
    )


def database_name(database: str | tuple[str, ...] | None) -> str | None:
    """Return the name of a database, behind that of a catalog where Ibis gives both."""
    return database[-1] if isinstance(database, tuple) else database


def names_of(names: str | Sequence[str] | None) -> list[str] | None:
    """Return names that were given as one or several."""
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)


def _no_catalog(catalog: str | None) -> None:
    if catalog is not None:
        raise FlussError(f"catalog={catalog!r}: Fluss has databases and no catalogs")

"""Rows of tables: added, updated, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ibis.expr.types as ir
import polars as pl

from fluss_df.backend.catalog.catalog import Catalog, names_of
from fluss_df.backend.catalog.frames import by_position, frame_of, require_places, with_nulls
from fluss_df.backend.catalog.overwriting import Overwriting, Overwritten
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact, exact
from fluss_df.io.sinks.sink import SinkResult
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import TableDescriptor, TableInfo

if TYPE_CHECKING:
    import pandas as pd


class Rows(Catalog):
    """What the backend does with the rows of tables."""

    def insert(
        self,
        name: str,
        /,
        obj: pd.DataFrame | ir.Table | list[Any] | dict[str, Any],
        *,
        database: str | None = None,
        overwrite: bool = False,
    ) -> SinkResult | None:
        """Append rows to a table, and create the partitions they need.

        Columns are matched by name where all names are the table's, else by position, unless a
        name is that of a column at another place. Nullable columns that are not given become null.

        Parameters
        ----------
        name, database
            The table.
        obj
            An expression, a frame, or what ``ibis.memtable`` takes.
        overwrite
            Have the rows stand for all that the table has. They are computed before anything
            changes, and may come of the table itself. In a primary-key table they are upserted,
            then the rows with other keys are deleted; another table, or each partition, is
            dropped and created again, and the new rows are stored in a table beside it before.

        Returns
        -------
        SinkResult
            Rows, and offsets by bucket; None for a temporary table, and with ``overwrite``.
        """
        frame = frame_of(obj, self.compile)
        if self.is_local(name, database):
            self._insert_locally(name, frame, overwrite)
            return None
        path = self.path(name, database)
        info = self.written_info(path)
        names = frame.collect_schema().names()
        columns = info.get_column_names()
        if not set(names) <= set(columns):
            require_places(names, columns, path)
            frame = by_position(frame, columns, path)
        frame = with_nulls(frame, info)
        if overwrite:
            self._replace(path, frame, {})
            return None
        return self._write(frame, path)

    def _insert_locally(
        self, name: str, rows: pl.LazyFrame | pl.DataFrame, overwrite: bool
    ) -> None:
        there = self._tables[name]
        kinds = there.collect_schema()
        rows = rows.lazy().collect()
        if not set(rows.columns) <= set(kinds):
            require_places(rows.columns, list(kinds), name)
            rows = by_position(rows, list(kinds), name).lazy().collect()
        missing = (pl.lit(None, kinds[n]).alias(n) for n in kinds if n not in rows.columns)
        made = rows.with_columns(missing).select(exact(n).cast(t) for n, t in kinds.items()).lazy()
        self._add_table(name, made if overwrite else pl.concat([there, made]))

    def upsert(
        self,
        name: str,
        /,
        obj: pd.DataFrame | ir.Table | list[Any] | dict[str, Any],
        on: str | Sequence[str],
        *,
        database: str | None = None,
    ) -> SinkResult:
        """Write rows of a primary-key table: new ones are inserted, others updated.

        Columns that are not given keep their values, null in new rows.

        Parameters
        ----------
        name, database
            The table.
        obj
            An expression, a frame, or what ``ibis.memtable`` takes.
        on
            The primary key of the table, all of it: Fluss can match rows by nothing else.

        Raises
        ------
        FlussError
            For a table without primary key, or another ``on``.
        """
        path = self.path(name, database)
        info = self._keyed(path, "upsert")
        keys = info.get_primary_keys()
        given = names_of(on) or []
        if set(given) != set(keys):
            raise FlussError(
                f"table {path}: upsert(on={given!r}): rows are matched by the primary key,"
                f" on={keys!r}"
            )
        frame = frame_of(obj, self.compile)
        partial = len(frame.collect_schema().names()) < len(info.get_column_names())
        return self._write(frame, path, mode="partial_update" if partial else "upsert")

    def delete(
        self,
        name: str,
        /,
        obj: pd.DataFrame | ir.Table | list[Any] | dict[str, Any],
        *,
        database: str | None = None,
    ) -> SinkResult:
        """Delete the rows of a primary-key table whose keys are given.

        Parameters
        ----------
        name, database
            The table.
        obj
            An expression, a frame, or what ``ibis.memtable`` takes, with the columns of the
            primary key; others are left out.
        """
        path = self.path(name, database)
        keys = self._keyed(path, "delete").get_primary_keys()
        frame = frame_of(obj, self.compile)
        require_columns(keys, frame.collect_schema().names(), f"delete from table {path}")
        return self._write(frame.select(all_exact(keys)), path, mode="delete")

    def _keyed(self, path: TablePath, operation: str) -> TableInfo:
        info = self.written_info(path)
        if not info.has_primary_key():
            raise FlussError(
                f"table {path} has no primary key, so there is no {operation}: rows of a log are"
                " only added, with insert"
            )
        return info

    def truncate_table(self, name: str, /, *, database: str | None = None) -> None:
        """Take all rows out of a table, which stays as it is.

        Rows of a primary-key table are deleted one by one, which those that follow its changes
        see. Other tables, and the partitions of partitioned ones, are dropped and created again.

        Parameters
        ----------
        name, database
            The table; a temporary table of the connection too.

        Raises
        ------
        FlussError
            For a log table with a data lake, in which the rows would stay.
        """
        if self.is_local(name, database):
            self._add_table(name, self._tables[name].clear())
            return
        self._replace(self.path(name, database), None, {})

    def _replace(
        self,
        path: TablePath,
        rows: pl.LazyFrame | pl.DataFrame | None,
        spec: Mapping[str, Any] | None,
    ) -> Overwritten:
        info = self.written_info(path)
        return Overwriting(self._connection, info, self.creation_of).replace(rows, spec)

    def creation_of(self, path: TablePath, descriptor: TableDescriptor) -> str:
        """Return the statement in SQL that creates a table."""
        raise NotImplementedError

"""Replaces a table by another one of its name, as CREATE OR REPLACE TABLE does."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.sinks.sink import write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import TableDescriptor, descriptor_with

# names of tables have at most 200 characters, of which an ending takes some
_LONGEST: Final = 170
# a lake would keep the rows of a table that is dropped
_LAKE: Final = "table.datalake."


def path_beside(path: TablePath, what: str) -> TablePath:
    """Return the name of a table that has the rows of another one for a while."""
    name = f"{path.table_name[:_LONGEST]}_{what}_{secrets.token_hex(4)}"
    return TablePath(path.database_name, name)


@dataclass(frozen=True, slots=True)
class Replacing:
    """Drops a table, and creates another one of its name.

    The server refuses some definitions, and rows may not fit: so the new table is made beside the
    old one first, with its rows, which are never only in this process.
    """

    connection: FlussConnection
    path: TablePath
    descriptor: TableDescriptor

    def replace(self, rows: pl.DataFrame | None = None) -> None:
        """Replace the old table by the new one, with these rows.

        Raises FlussError for a definition that is refused, or rows that do not fit: then nothing
        has changed. Where servers fail after that, the error says where the rows are.
        """
        admin = self.connection.get_admin()
        with self._beside(rows) as beside:
            admin.drop_table(self.path)
            try:
                admin.create_table(self.path, self.descriptor, ignore_if_exists=False)
                if rows is not None:
                    self._write(rows, self.path)
            except FlussError as error:
                where = f"; table {self.path} was dropped before"
                if rows is not None:
                    where += f", and its new rows are all in table {beside}"
                raise FlussError(f"{error.message}{where}", error.error_code) from error
        admin.drop_table(beside, ignore_if_not_exists=True)

    def prove(self) -> None:
        """Raise where the new table could not be created."""
        with self._beside(None) as beside:
            pass
        self.connection.get_admin().drop_table(beside, ignore_if_not_exists=True)

    @contextlib.contextmanager
    def _beside(self, rows: pl.DataFrame | None) -> Iterator[TablePath]:
        admin, beside = self.connection.get_admin(), path_beside(self.path, "replace")
        try:
            admin.create_table(beside, _without_lake(self.descriptor), ignore_if_exists=False)
            if rows is not None:
                self._write(rows, beside)
        except BaseException as error:
            with contextlib.suppress(FlussError):
                admin.drop_table(beside, ignore_if_not_exists=True)
            if isinstance(error, FlussError):
                error.message = error.message.replace(beside.table_name, self.path.table_name)
                error.message += f"; table {self.path} stays as it is"
                error.args = (error.message, error.error_code)
            raise
        yield beside

    def _write(self, rows: pl.DataFrame, path: TablePath) -> None:
        write_fluss(rows, path, connection=self.connection, create_partitions=True)


def _without_lake(made: TableDescriptor) -> TableDescriptor:
    properties = {k: v for k, v in made.properties.items() if not k.startswith(_LAKE)}
    return descriptor_with(made, properties=properties)

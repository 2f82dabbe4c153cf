"""Rows that take the place of others: INSERT OVERWRITE, TRUNCATE TABLE.

Fluss has no such request. On primary-key tables the new rows are upserted, and then the keys that
have none are deleted: no row is missing meanwhile. Other tables and their partitions are dropped
and created again; the new rows are stored in a table beside them before, so that they are never
only in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.backend.catalog.replacing import path_beside
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.io.base.names import all_exact, without_keys_of
from fluss_df.io.scan import scan_fluss
from fluss_df.io.sinks.changes import Changes
from fluss_df.io.sinks.sink import sink_fluss
from fluss_df.metadata import PartitionInfo, TablePath
from fluss_df.record.keys.partition_names import names_of_rows
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.types import Column


@dataclass(frozen=True, slots=True)
class Overwritten:
    """How many rows were written, and how many deleted.

    ``deleted`` is None where the table or partitions were dropped and created again instead.
    """

    rows: int
    deleted: int | None


class Overwriting:
    """Replaces rows of one table.

    ``statement_of`` returns the SQL statement that creates a table. Errors name it, and so does the
    comment of the table that has the new rows meanwhile: with it, a table that could not be created
    again can be restored by hand.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        statement_of: Callable[[TablePath, TableDescriptor], str],
    ) -> None:
        self._connection = connection
        self._info = info
        self._path = info.table_path
        self._statement_of = statement_of
        self._admin = connection.get_admin()

    def partitions(self, spec: Mapping[str, Any]) -> list[PartitionInfo]:
        """Return the partitions that have values of some partition columns."""
        texts = {name: self._text(name, value) for name, value in spec.items()}
        return self._admin.list_partition_infos(self._path, texts or None)

    def _text(self, name: str, value: object) -> str:
        column = next(c for c in self._info.schema.columns if c.name == name)
        return self._names_of(pl.DataFrame({name: [value]}).to_arrow(), [column])[0]

    def _names_of(self, rows: pa.Table, columns: list[Column]) -> list[str]:
        return names_of_rows(rows, columns, table=str(self._path))

    def replace(
        self, rows: pl.LazyFrame | pl.DataFrame | None, spec: Mapping[str, Any] | None
    ) -> Overwritten:
        """Replace rows of the table by new ones.

        ``rows`` have the table's columns, and may be computed from the table; None deletes only.
        ``spec`` has values of partition columns: the partitions with these values are replaced.
        ``{}`` replaces the whole table, None the partitions that the new rows belong to.

        Raises FlussError for rows that do not fit: then nothing has changed. Where servers fail
        meanwhile, the error says what is there then.
        """
        if self._is_deletable():
            return self._replace_keys(rows, spec)
        if self._info.get_properties().get("table.datalake.enabled", "false").lower() == "true":
            raise FlussError(
                f"table {self._path} has a data lake, in which its rows would stay: it cannot be"
                " emptied or overwritten; drop it and its table in the lake, and create it again"
            )
        return self._replace_log(rows, spec)

    def _is_deletable(self) -> bool:
        """Whether rows of the table can be deleted one by one."""
        properties = self._info.get_properties()
        return (
            self._info.has_primary_key()
            and not properties.get("table.merge-engine")
            and properties.get("table.delete.behavior", "allow").lower() == "allow"
        )

    # ---- of a primary key

    def _replace_keys(
        self, rows: pl.LazyFrame | pl.DataFrame | None, spec: Mapping[str, Any] | None
    ) -> Overwritten:
        changes = Changes(self._connection, self._info)
        keys = all_exact(self._info.get_primary_keys())
        new = None if rows is None else changes.write(rows.lazy().collect().to_arrow())
        written = 0 if new is None else new.num_rows
        options: dict[str, Any] = {"connection": self._connection}
        if self._info.get_partition_keys():
            if spec is None:
                named = set() if new is None else set(self._partition_names(new))
                there = [p for p in self.partitions({}) if p.partition_name in named]
            else:
                there = self.partitions(spec)
            if not there:
                changes.apply()
                return Overwritten(written, 0)
            options["partitions"] = [p.partition_name for p in there]
        old = scan_fluss(self._path, **options).select(keys)
        if new is not None:
            kept = pl.DataFrame(new.select(self._info.get_primary_keys()))
            old = without_keys_of(old, kept.lazy(), kept.columns)
        gone = old.collect()
        changes.delete(gone.to_arrow())
        # new rows first: where this is interrupted, rows that are not replaced yet are still there
        changes.apply(deletes_first=False)
        return Overwritten(written, len(gone))

    def _partition_names(self, rows: pa.Table) -> list[str]:
        by_name = {column.name: column for column in self._info.schema.columns}
        columns = [by_name[key] for key in self._info.get_partition_keys()]
        return self._names_of(rows.select([c.name for c in columns]), columns)

    # ---- of other tables

    def _replace_log(
        self, rows: pl.LazyFrame | pl.DataFrame | None, spec: Mapping[str, Any] | None
    ) -> Overwritten:
        partitioned = bool(self._info.get_partition_keys())
        if rows is None and partitioned:
            self._make_again(self.partitions(spec or {}), "")
            return Overwritten(0, None)
        beside = self._store(rows)
        name = f"{beside.database_name}.{beside.table_name}"
        stored = scan_fluss(beside, connection=self._connection)
        way_out = (
            f"the new rows are all in table {name}: INSERT OVERWRITE {self._path} SELECT * FROM"
            f" {name} completes this, then drop it"
        )
        if partitioned:
            keys = self._info.get_partition_keys()
            with undoing(lambda: self._admin.drop_table(beside, ignore_if_not_exists=True)):
                found = stored.select(all_exact(keys)).unique().collect().to_arrow()
                named = set(self._partition_names(found)) if found.num_rows else set()
            there = self.partitions(spec or {})
            if spec is None:
                there = [p for p in there if p.partition_name in named]
            self._make_again(there, way_out)
        else:
            self._make_table_again(way_out)
        written = 0
        if rows is not None:
            try:
                written = sink_fluss(
                    stored, self._path, connection=self._connection, create_partitions=True
                ).rows
            except FlussError as error:
                raise FlussError(f"{error.message}; {way_out}", error.error_code) from error
        self._admin.drop_table(beside, ignore_if_not_exists=True)
        return Overwritten(written, None)

    def _store(self, rows: pl.LazyFrame | pl.DataFrame | None) -> TablePath:
        """Write rows to a table beside this one, in which all is checked; return its name."""
        info = self._info
        beside = path_beside(self._path, "overwrite")
        columns = [Column(c.name, c.type, c.comment) for c in info.schema.columns]
        statement = self._statement_of(self._path, info.descriptor)
        self._admin.create_table(
            beside,
            TableDescriptor(
                Schema.from_columns(columns),
                bucket_count=info.num_buckets,
                # with the same bucket keys rows of a key keep their order, by which tables may
                # merge them
                bucket_keys=info.get_bucket_keys() or None,
                comment=f"New rows of {self._path}, which was created by: {statement}",
            ),
        )
        if rows is None:
            return beside
        numbered = info.schema.auto_increment
        try:
            if numbered:
                raise FlussError(
                    f"table {self._path} merges its rows, and numbers column '{numbered[0]}' (auto"
                    " increment): it cannot be overwritten"
                )
            sink_fluss(rows.lazy(), beside, connection=self._connection)
        except BaseException as error:
            self._admin.drop_table(beside, ignore_if_not_exists=True)
            if isinstance(error, FlussError):
                name = beside.table_name
                error.message = error.message.replace(name, self._path.table_name)
                error.args = (error.message, error.error_code)
            raise
        return beside

    def _make_again(self, partitions: Collection[PartitionInfo], way_out: str) -> None:
        for partition in partitions:
            name = partition.partition_name
            try:
                self._admin.drop_partition(self._path, partition.spec, ignore_if_not_exists=True)
                self._admin.create_partition(self._path, partition.spec, ignore_if_exists=True)
            except FlussError as error:
                raise FlussError(
                    f"table {self._path}: partition '{name}' could not be made again:"
                    f" {error.message}; {way_out or 'run the statement again'}",
                    error.error_code,
                ) from error

    def _make_table_again(self, way_out: str) -> None:
        descriptor = self._info.descriptor
        try:
            self._admin.drop_table(self._path)
            self._admin.create_table(self._path, descriptor)
        except FlussError as error:
            statement = self._statement_of(self._path, descriptor)
            raise FlussError(
                f"table {self._path} could not be made again: {error.message}; if it is gone,"
                f" create it by: {statement}; {way_out}",
                error.error_code,
            ) from error

"""Databases, tables, schemas and partitions: in memory, and durable before a change is answered.

One JSON file for the databases and the counters, one for each table, each kept twice. A file is
replaced atomically, so each change happens wholly or not at all. Names never become file names:
files and folders are named by ids, which are never used twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from fluss_df.engine.catalog import validation
from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.files.files import DamagedError, damage_in
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.tables import options
from fluss_df.engine.tables.buckets import java_name, unknown_bucket
from fluss_df.engine.tables.tables import (
    MAX_BUCKETS,
    Database,
    Partition,
    Table,
    TableVersion,
    databases_from_json,
    databases_to_json,
    now_ms,
)
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.metadata import DatabaseDescriptor, TableBucket, TablePath
from fluss_df.schema import Schema, TableDescriptor

logger = logging.getLogger(__name__)

# ids are reserved in blocks, so that not each one costs a sync; a crash leaves a gap
_BLOCK: Final = 100
# where other Java clients look first
DEFAULT_DATABASE: Final = "fluss"


class Catalog:
    """All databases and tables of an engine; thread safe.

    Its files are created where they are missing. Tables that do not say otherwise have
    ``default_buckets`` buckets.

    Raises :class:`~fluss_df.engine.files.files.DamagedError` for files that are damaged and cannot
    be made again from their copies.
    """

    def __init__(self, files: CatalogFiles, default_buckets: int = 1) -> None:
        self._files = files
        self._default_buckets = default_buckets
        self._lock = threading.RLock()
        self._databases: dict[str, Database] = {}
        self._tables: dict[TablePath, Table] = {}
        self._by_id: dict[int, Table] = {}
        self._partitions: dict[int, tuple[Table, Partition]] = {}
        self._next = {"table": 0, "partition": 0, "writer": 0}
        self._reserved = dict(self._next)
        self._root = files.databases()
        self._kept: dict[int, KeptJson] = {}
        files.make()
        self._load()

    # ---- files

    def _load(self) -> None:
        files = self._files
        value = self._root.load()
        ids = files.table_ids()
        if value is None:
            if ids:
                raise DamagedError(
                    f"{self._root.first} and its copy {self._root.second} are lost: restore the"
                    " folder from a backup"
                )
            now = now_ms()
            self._databases[DEFAULT_DATABASE] = Database(DatabaseDescriptor(), now, now)
            self._save()
            return
        with damage_in(self._root.first):
            self._databases = databases_from_json(value["databases"])
            self._next = {kind: int(value["next"][kind]) for kind in self._next}
        for table_id in ids:
            kept = files.table(table_id)
            stored = kept.load()
            with damage_in(kept.first):
                table = Table.from_json(stored)
            self._tables[table.path] = table
            self._kept[table.id] = kept
            self._index(table)
        # ids are never used twice, whatever became of the counters
        highest = max(self._partitions, default=-1)
        self._next["table"] = max(self._next["table"], files.highest_data_id() + 1, *self._by_id, 0)
        self._next["partition"] = max(self._next["partition"], highest + 1)
        self._reserved = dict(self._next)

    def _store(self, table: Table) -> None:
        """Bring a table to the disk."""
        kept = self._kept.get(table.id) or self._files.table(table.id)
        kept.save(table.to_json())
        self._kept[table.id] = kept

    def _index(self, table: Table) -> None:
        self._by_id[table.id] = table
        for partition in table.partitions.values():
            self._partitions[partition.id] = (table, partition)

    def _save(self) -> None:
        entries = databases_to_json(self._databases)
        self._root.save({"databases": entries, "next": self._reserved})

    def _id(self, kind: str) -> int:
        if self._next[kind] >= self._reserved[kind]:
            self._reserved[kind] = self._next[kind] + _BLOCK
            with undoing(lambda: self._reserved.update({kind: self._next[kind]})):
                self._save()
        self._next[kind] += 1
        return self._next[kind] - 1

    def writer_id(self) -> int:
        """Return an id for a writer, that no writer ever had."""
        with self._lock:
            return self._id("writer")

    # ---- databases

    def create_database(self, name: str, ignore_if_exists: bool, text: bytes) -> None:
        """Create a database."""
        validation.check_database_name(name)
        try:
            descriptor = DatabaseDescriptor.from_json(text) if text else DatabaseDescriptor()
        except FlussError as error:
            raise FlussError(error.message, ErrorCode.UNKNOWN_SERVER_ERROR) from error
        self._check_size(name, descriptor)
        with self._lock:
            if name in self._databases:
                if ignore_if_exists:
                    return
                raise FlussError(
                    f"Database {name} already exists.", ErrorCode.DATABASE_ALREADY_EXIST
                )
            now = now_ms()
            self._databases[name] = Database(descriptor, now, now)
            with undoing(lambda: self._databases.pop(name)):
                self._save()

    @staticmethod
    def _check_size(name: str, descriptor: DatabaseDescriptor) -> None:
        text = descriptor.to_json()
        validation.check_size(f"database {name}", text, ErrorCode.INVALID_DATABASE_EXCEPTION)

    def alter_database(self, name: str, descriptor: DatabaseDescriptor) -> None:
        """Replace the description of a database."""
        self._check_size(name, descriptor)
        with self._lock:
            old = self.database(name)
            self._databases[name] = Database(descriptor, old.created, now_ms())
            with undoing(lambda: self._databases.update({name: old})):
                self._save()

    def drop_database(
        self, name: str, ignore_if_not_exists: bool, cascade: bool, dropped: list[Table]
    ) -> None:
        """Drop a database; ``dropped`` gets the tables that went with it.

        It has those that were dropped also where an error ends it.
        """
        with self._lock:
            if name not in self._databases:
                if ignore_if_not_exists:
                    return
                raise self._no_database(name)
            tables = [t for t in self._tables.values() if t.path.database_name == name]
            if tables and not cascade:
                raise FlussError(f"Database {name} is not empty.", ErrorCode.DATABASE_NOT_EMPTY)
            for table in tables:
                self.drop_table(table.path, False)
                dropped.append(table)
            database = self._databases.pop(name)
            with undoing(lambda: self._databases.update({name: database})):
                self._save()

    def databases(self) -> list[str]:
        """Return the names of the databases."""
        with self._lock:
            return sorted(self._databases)

    def database(self, name: str) -> Database:
        """Return a database."""
        with self._lock:
            found = self._databases.get(name)
        if found is None:
            raise FlussError(f"Database '{name}' does not exist.", ErrorCode.DATABASE_NOT_EXIST)
        return found

    def has_database(self, name: str) -> bool:
        """Return whether there is a database."""
        return name in self._databases

    @staticmethod
    def _no_database(name: str) -> FlussError:
        return FlussError(f"Database {name} does not exist.", ErrorCode.DATABASE_NOT_EXIST)

    # ---- tables

    def create_table(
        self,
        path: TablePath,
        text: bytes,
        ignore_if_exists: bool,
        create_lake: Callable[[TablePath, TableDescriptor], None] | None = None,
    ) -> Table | None:
        """Create a table; None where it was there before and that is to be ignored.

        ``create_lake`` makes its lake table, where it is to have one; without it none may.
        """
        validation.check_database_name(path.database_name)
        validation.check_table_name(path.table_name)
        descriptor = validation.read_descriptor(
            text, self._default_buckets, lake=create_lake is not None
        )
        validation.check_size(
            f"table {path}", descriptor.to_json(), ErrorCode.INVALID_TABLE_EXCEPTION
        )
        with self._lock:
            if path.database_name not in self._databases:
                raise self._no_database(path.database_name)
            if path in self._tables:
                if ignore_if_exists:
                    return None
                raise FlussError(f"Table {path} already exists.", ErrorCode.TABLE_ALREADY_EXIST)
            now = now_ms()
            # ids of columns are given once, here
            schema = Schema.from_json(descriptor.schema.to_json())
            descriptor.schema = schema
            if create_lake is not None and options.boolean(
                descriptor.properties, options.DATALAKE_ENABLED
            ):
                create_lake(path, descriptor)
            version = TableVersion(descriptor, now, {1: schema})
            table = Table(self._id("table"), path, now, version)
            self._store(table)
            self._tables[path] = table
            self._index(table)
            return table

    def drop_table(self, path: TablePath, ignore_if_not_exists: bool) -> Table | None:
        """Drop a table; None where there was none and that is to be ignored."""
        with self._lock:
            table = self._tables.get(path)
            if table is None:
                if ignore_if_not_exists:
                    return None
                raise FlussError(f"Table {path} does not exist.", ErrorCode.TABLE_NOT_EXIST)
            self._files.drop(table.id)
            del self._tables[path], self._by_id[table.id], self._kept[table.id]
            for partition in table.partitions.values():
                del self._partitions[partition.id]
            return table

    def while_gone(self, path: TablePath, function: Callable[[TablePath], None]) -> None:
        """Call a function with a path, unless a table is there; none is created meanwhile."""
        with self._lock:
            if path not in self._tables:
                function(path)

    def tables(self, database: str) -> list[str]:
        """Return the names of a database's tables."""
        with self._lock:
            if database not in self._databases:
                raise self._no_database(database)
            return sorted(
                path.table_name for path in self._tables if path.database_name == database
            )

    def all_tables(self) -> list[Table]:
        """Return all tables."""
        with self._lock:
            return list(self._tables.values())

    def has_table(self, path: TablePath) -> bool:
        """Return whether there is a table."""
        return path in self._tables

    def table(self, path: TablePath) -> Table:
        """Return a table."""
        with self._lock:
            table = self._tables.get(path)
        if table is None:
            raise FlussError(f"Table '{path}' does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return table

    def _current(self, table: TablePath | Table) -> Table:
        """Return a table that is there, and not another one of its name that was created again."""
        found = self.table(table.path if isinstance(table, Table) else table)
        if isinstance(table, Table) and found is not table:
            raise FlussError(f"Table '{table.path}' does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return found

    def table_by_id(self, table_id: int) -> Table | None:
        """Return the table of an id, or None."""
        return self._by_id.get(table_id)

    def table_of(self, bucket: TableBucket) -> Table:
        """Return the table of a bucket; raise where there is no such bucket."""
        table = self.table_by_id(bucket.table_id)
        if table is None or not 0 <= bucket.bucket_id < table.buckets:
            raise unknown_bucket(java_name(bucket))
        if bucket.partition_id is None:
            known = not table.partitioned
        else:
            found = self.partition_by_id(bucket.partition_id)
            known = found is not None and found[0] is table
        if not known:
            raise unknown_bucket(java_name(bucket))
        return table

    def schema(self, path: TablePath, schema_id: int | None) -> tuple[int, Schema]:
        """Return a schema of a table with its id; None for the newest."""
        table = self._tables.get(path)
        schemas = table.schemas if table else {}
        wanted = max(schemas, default=0) if schema_id is None else schema_id
        found = schemas.get(wanted)
        if found is None:
            raise FlussError(
                f"Schema for table {path} with schema id {wanted} does not exist.",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        return wanted, found

    def replace(self, table: Table, descriptor: TableDescriptor) -> None:
        """Give a table other properties, or another schema."""
        what, text = f"table {table.path}", descriptor.to_json()
        validation.check_size(what, text, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
        with self._lock:
            self._current(table)
            schemas = table.schemas
            if descriptor.schema != table.schemas[table.schema_id]:
                schemas = {**schemas, table.schema_id + 1: descriptor.schema}
            version = TableVersion(descriptor, now_ms(), schemas)
            self._store(replace(table, version=version))
            # in place, as tablets refer to it
            table.version = version

    def set_lake(self, table: Table, lake: dict[str, Any]) -> None:
        """Take note how far a table is tiered; it is durable then."""
        with self._lock:
            self._current(table)
            old, table.lake = table.lake, lake
            with undoing(lambda: setattr(table, "lake", old)):
                self._store(table)

    def sequence_range(self, table: Table, count: int) -> int:
        """Return the first of ``count`` numbers that no row of a table was given yet."""
        with self._lock:
            self._current(table)
            first = table.sequence
            table.sequence = first + count
            with undoing(lambda: setattr(table, "sequence", first)):
                self._store(table)
            return first

    # ---- partitions

    def create_partition(
        self, of: TablePath | Table, spec: Mapping[str, str], ignore_if_exists: bool
    ) -> Partition | None:
        """Create a partition; None where it was there before and that is to be ignored."""
        with self._lock:
            table = self._current(of)
            path = table.path
            if not table.partitioned:
                raise FlussError(
                    "Only partitioned table support create partition.",
                    ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
                )
            keys = table.descriptor.partition_keys
            values = validation.partition_values(str(path), keys, spec, creating=True)
            name = "$".join(values)
            if name in table.partitions:
                if ignore_if_exists:
                    return None
                raise FlussError(
                    f"Partition '{_shown(keys, values)}' already exists for table {path}",
                    ErrorCode.PARTITION_ALREADY_EXISTS,
                )
            if len(table.partitions) >= validation.MAX_PARTITIONS:
                raise FlussError(
                    f"Exceed the maximum number of partitions for table {path}, only allow"
                    f" {validation.MAX_PARTITIONS} partitions.",
                    ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
                )
            if (len(table.partitions) + 1) * table.buckets > MAX_BUCKETS:
                raise FlussError(
                    f"Adding partition '{name}' would result in more than"
                    f" {MAX_BUCKETS} buckets for table {path}.",
                    ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                )
            partition = Partition(self._id("partition"), tuple(values))
            table.partitions[name] = partition
            with undoing(lambda: table.partitions.pop(name)):
                self._store(table)
            self._partitions[partition.id] = (table, partition)
            return partition

    def drop_partition(
        self, of: TablePath | Table, spec: Mapping[str, str], ignore_if_not_exists: bool
    ) -> tuple[Table, Partition] | None:
        """Drop a partition; None where there was none and that is to be ignored."""
        with self._lock:
            table = self._current(of)
            path = table.path
            if not table.partitioned:
                raise FlussError(
                    "Only partitioned table support drop partition.",
                    ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
                )
            keys = table.descriptor.partition_keys
            values = validation.partition_values(str(path), keys, spec, creating=False)
            partition = table.partitions.pop("$".join(values), None)
            if partition is None:
                if ignore_if_not_exists:
                    return None
                raise FlussError(
                    f"Partition '{_shown(keys, values)}' does not exist for table {path}",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            table.dropped.append(partition.id)
            try:
                self._store(table)
            except BaseException:
                table.partitions[partition.name] = partition
                table.dropped.remove(partition.id)
                raise
            del self._partitions[partition.id]
            return table, partition

    def list_partitions(
        self, path: TablePath, partial: Mapping[str, str] | None
    ) -> tuple[Table, list[Partition]]:
        """Return the partitions of a table that have some values."""
        with self._lock:
            table = self.table(path)
            if not table.partitioned:
                raise FlussError(
                    f"Table '{path}' is not a partitioned table.",
                    ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
                )
            keys = table.descriptor.partition_keys
            wanted = dict(partial or {})
            if wanted.keys() - set(keys):
                shown = ", ".join(f"{k}={v}" for k, v in wanted.items())
                raise FlussError(
                    f"Fail to list partitions for table: {path}, partitionSpec: {shown}.",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
            return table, [
                p
                for p in table.partitions.values()
                if all(
                    wanted.get(key, value) == value
                    for key, value in zip(keys, p.values, strict=True)
                )
            ]

    def partition(self, path: TablePath, name: str) -> tuple[Table, Partition] | None:
        """Return a table and its partition of a name; None where either is missing."""
        with self._lock:
            table = self._tables.get(path)
            partition = None if table is None else table.partitions.get(name)
            return None if table is None or partition is None else (table, partition)

    def partition_by_id(self, partition_id: int) -> tuple[Table, Partition] | None:
        """Return a partition and its table, or None."""
        return self._partitions.get(partition_id)

    def forget_dropped(self, table: Table, removed: set[int]) -> None:
        """Forget partitions that were dropped, as there is nothing left of them on the disk.

        Stored with the next change of the table: to look for their folders once more harms nobody.
        """
        with self._lock:
            table.dropped = [each for each in table.dropped if each not in removed]


def _shown(keys: tuple[str, ...], values: list[str]) -> str:
    return "/".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))

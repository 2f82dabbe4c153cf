"""Databases, tables and partitions as the catalog stores them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fluss_df.engine.tables.names import as_name
from fluss_df.engine.tables.options import check_no_place
from fluss_df.metadata import DatabaseDescriptor, TablePath
from fluss_df.record.log.cut import ColumnLayout
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.types import wire_arrow_schema

# the most buckets of a table, or of each of its partitions, as in Apache Fluss
MAX_BUCKETS: Final = 128_000


def now_ms() -> int:
    """Return the time, in ms since 1970."""
    return time.time_ns() // 1_000_000


def as_id(value: object) -> int:
    """Return an id that was read from a file; it is checked, as folders are named by ids.

    Raises ValueError for whatever is not an integer from 0 on.
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no id")
    return value


@dataclass(slots=True)
class Database:
    """A database; ``created`` and ``modified`` are in milliseconds since 1970."""

    descriptor: DatabaseDescriptor
    created: int
    modified: int


@dataclass(slots=True)
class Partition:
    """A partition: its id, and its values in the order of the table's partition keys."""

    id: int
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its values, joined with ``$``."""
        return "$".join(self.values)


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The parts of a table that an ALTER changes; they are replaced together, as one object.

    Attributes
    ----------
    descriptor
        What clients are told of it, with the newest schema.
    modified
        When this version was made, in milliseconds since 1970.
    schemas
        Schema id -> schema; the highest id is the newest.
    """

    descriptor: TableDescriptor
    modified: int
    schemas: dict[int, Schema]

    @property
    def schema_id(self) -> int:
        """The id of the newest schema."""
        return max(self.schemas)


@dataclass(slots=True)
class Table:
    """A table, with all its schemas and partitions.

    Attributes
    ----------
    version
        The descriptor and schemas. Code that needs several of its fields reads ``version`` once,
        because an ALTER may replace it.
    partitions
        Name -> partition; empty where the table has no partition keys.
    sequence
        The next number for the table's auto-increment column that no bucket has reserved.
    dropped
        The ids of partitions that were dropped, whose folders may still be there.
    lake
        The newest lake snapshot, and the offsets of snapshots that are being made. Empty for a
        table that was never tiered.
    """

    id: int
    path: TablePath
    created: int
    version: TableVersion
    partitions: dict[str, Partition] = field(default_factory=dict)
    sequence: int = 1
    dropped: list[int] = field(default_factory=list)
    lake: dict[str, Any] = field(default_factory=dict)
    _layouts: dict[int, ColumnLayout] = field(default_factory=dict, repr=False)

    @property
    def descriptor(self) -> TableDescriptor:
        """What clients are told of it, with the newest schema."""
        return self.version.descriptor

    @property
    def schemas(self) -> dict[int, Schema]:
        """Schema id -> schema; the highest id is the newest."""
        return self.version.schemas

    @property
    def schema_id(self) -> int:
        """The id of the newest schema."""
        return self.version.schema_id

    @property
    def buckets(self) -> int:
        """Buckets of the table, or of each partition."""
        return self.descriptor.bucket_count or 1

    @property
    def partitioned(self) -> bool:
        """Whether it has partition keys."""
        return bool(self.descriptor.partition_keys)

    @property
    def has_primary_key(self) -> bool:
        """Whether its rows have a primary key."""
        return bool(self.descriptor.schema.primary_keys)

    @property
    def log_format(self) -> str:
        """The format of its log: arrow, indexed or compacted."""
        return self.descriptor.properties.get("table.log.format", "arrow").lower()

    @property
    def arrow(self) -> bool:
        """Whether its rows are stored as Arrow."""
        return self.log_format == "arrow"

    @property
    def layouts(self) -> dict[int, ColumnLayout]:
        """Where the columns of each schema stand in an Arrow message."""
        schemas = self.schemas
        for schema_id in schemas.keys() - self._layouts.keys():
            schema = wire_arrow_schema(schemas[schema_id].columns)
            self._layouts[schema_id] = ColumnLayout(schema)
        return self._layouts

    def info(self) -> TableInfo:
        """Return the table as a client would see it."""
        version = self.version
        return TableInfo(
            self.path,
            self.id,
            version.schema_id,
            version.descriptor,
            self.created,
            version.modified,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        version = self.version
        return {
            "id": self.id,
            "database": self.path.database_name,
            "name": self.path.table_name,
            "descriptor": json.loads(version.descriptor.to_json()),
            "created": self.created,
            "modified": version.modified,
            "schemas": {str(key): schema.to_json() for key, schema in version.schemas.items()},
            "partitions": [[p.id, *p.values] for p in self.partitions.values()],
            "sequence": self.sequence,
            "dropped": self.dropped,
            **({"lake": self.lake} if self.lake else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Table:
        """Read what was stored.

        Raises FlussError, or another of the errors of a value that is not what was written.
        """
        descriptor = TableDescriptor.from_json(json.dumps(value["descriptor"]).encode())
        if not 1 <= (descriptor.bucket_count or 1) <= MAX_BUCKETS:
            raise ValueError(f"{descriptor.bucket_count} buckets")
        check_no_place(descriptor.properties)
        partitions = [
            Partition(as_id(number), tuple(map(as_name, values)))
            for number, *values in value["partitions"]
        ]
        return cls(
            as_id(value["id"]),
            TablePath(as_name(value["database"]), as_name(value["name"])),
            value["created"],
            TableVersion(
                descriptor,
                value["modified"],
                {int(key): Schema.from_json(schema) for key, schema in value["schemas"].items()},
            ),
            {partition.name: partition for partition in partitions},
            value.get("sequence", 1),
            [as_id(each) for each in value.get("dropped", [])],
            value.get("lake", {}),
        )


def databases_to_json(databases: Mapping[str, Database]) -> dict[str, Any]:
    """Return what is stored of databases."""
    return {
        name: {
            "comment": database.descriptor.comment,
            "properties": database.descriptor.get_custom_properties(),
            "created": database.created,
            "modified": database.modified,
        }
        for name, database in databases.items()
    }


def databases_from_json(value: Mapping[str, Any]) -> dict[str, Database]:
    """Read the databases that were stored, by name."""
    return {
        as_name(name): Database(
            # Earlier versions stored property values that were no strings.
            DatabaseDescriptor(
                entry.get("comment"),
                {
                    key: json.dumps(of) if isinstance(of, list | dict | None) else of
                    for key, of in entry["properties"].items()
                },
            ),
            entry["created"],
            entry.get("modified", entry["created"]),
        )
        for name, entry in value.items()
    }

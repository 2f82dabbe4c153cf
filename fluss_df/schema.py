"""Tables: schema, descriptor, and the cluster's information about a table."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath, key_columns_of, property_texts, reading, require_columns
from fluss_df.ready import Ready
from fluss_df.texts.html_tables import descriptor_html, info_html, schema_html
from fluss_df.types import Column, TypeRoot, arrow_schema, from_arrow, type_from_json, type_to_json

# larger descriptors are parsed each time
_REMEMBERED_BYTES: Final = 64 << 10


class Schema(Ready):
    """Columns and primary key of a table.

    Parameters
    ----------
    schema
        The columns as an Arrow schema; a column that must not be null is a field with
        ``nullable=False``.
    primary_keys
        Names of the primary key's columns, which become NOT NULL; None for a log table.
    auto_increment_column
        A column of a primary-key table that the server numbers: INT or BIGINT, not in the key.

    Raises
    ------
    FlussError
        For an Arrow type that Fluss does not have, a column twice, an unknown key column, or an
        auto-increment column that servers refuse: of a table without a primary key, in the key, or
        neither INT nor BIGINT.

    Examples
    --------
    >>> schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
    >>> schema.get_column_types()
    ['int NOT NULL', 'string']
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_keys: Sequence[str] | None = None,
        auto_increment_column: str | None = None,
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise FlussError(f"Schema takes a pyarrow.Schema, not {type(schema).__name__}")
        keys = key_columns_of(primary_keys, "primary key")
        columns = []
        for item in schema:
            try:
                fluss_type = from_arrow(item.type, item.nullable and item.name not in keys)
            except FlussError as error:
                raise FlussError(
                    f"column '{item.name}': {error.message}", error.error_code
                ) from None
            columns.append(Column(item.name, fluss_type))
        self._init(columns, keys, () if auto_increment_column is None else (auto_increment_column,))
        if auto_increment_column is not None:
            self._check_auto_increment(auto_increment_column)

    def _check_auto_increment(self, name: str) -> None:
        """Raise where servers would refuse to number a column."""
        what = f"auto increment column '{name}'"
        if not self.primary_keys:
            raise FlussError(f"{what}: only a primary-key table has one: name primary_keys")
        if name in self.primary_keys:
            raise FlussError(f"{what} can not be used as the primary key: new keys get it")
        kind = next(column.type for column in self.columns if column.name == name)
        if kind.root not in (TypeRoot.INTEGER, TypeRoot.BIGINT):
            raise FlussError(f"{what} is {kind}: it must be INT or BIGINT")

    @classmethod
    def from_columns(
        cls,
        columns: Iterable[Column],
        primary_keys: Sequence[str] = (),
        *,
        auto_increment: Sequence[str] = (),
        highest_field_id: int | None = None,
    ) -> Schema:
        """Return a schema of Fluss columns."""
        made = cls.__new__(cls)
        made._init(columns, tuple(primary_keys), tuple(auto_increment), highest_field_id)
        return made

    def _init(
        self,
        columns: Iterable[Column],
        primary_keys: tuple[str, ...],
        auto_increment: tuple[str, ...] = (),
        highest_field_id: int | None = None,
    ) -> None:
        self.columns: tuple[Column, ...] = tuple(columns)
        self.primary_keys = primary_keys
        self.auto_increment = auto_increment
        self._highest_field_id = highest_field_id
        names = [column.name for column in self.columns]
        twice = {name for name, count in Counter(names).items() if count > 1}
        if twice:
            raise FlussError(f"column '{min(twice)}' stands in the schema more than once")
        require_columns(primary_keys, names, "primary key")
        require_columns(auto_increment, names, "auto increment")
        self.arrow_schema: pa.Schema = arrow_schema(self.columns)

    def get_column_names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return [column.name for column in self.columns]

    def get_column_types(self) -> list[str]:
        """Return the Fluss types of the columns, in order."""
        return [str(column.type) for column in self.columns]

    def get_columns(self) -> list[tuple[str, str]]:
        """Return (name, type) of each column."""
        return list(zip(self.get_column_names(), self.get_column_types(), strict=True))

    def get_primary_keys(self) -> list[str]:
        """Return the names of the primary key's columns; empty for a log table."""
        return list(self.primary_keys)

    def get_auto_increment_columns(self) -> list[str]:
        """Return the names of the columns that the server numbers; mostly there are none."""
        return list(self.auto_increment)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as the server's JSON (version 1).

        Columns and fields of rows without an id get the next free ones, depth first.
        """
        columns = []
        for column in self.columns:
            entry: dict[str, Any] = {"name": column.name, "data_type": type_to_json(column.type)}
            if column.comment is not None:
                entry["comment"] = column.comment
            if column.aggregate is not None:
                function: dict[str, Any] = {"type": column.aggregate}
                if column.aggregate_parameters:
                    function["parameters"] = dict(column.aggregate_parameters)
                entry["agg_function"] = function
            entry["id"] = -1 if column.column_id is None else column.column_id
            columns.append(entry)
        highest = max(_ids(columns), default=-1)
        if self._highest_field_id is not None:
            highest = max(highest, self._highest_field_id)
        highest = _give_ids(columns, highest)
        result: dict[str, Any] = {"version": 1, "columns": columns}
        if self.primary_keys:
            result["primary_key"] = list(self.primary_keys)
        if self.auto_increment:
            result["auto_increment_column"] = list(self.auto_increment)
        result["highest_field_id"] = highest
        return result

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schema:
        """Read the server's JSON.

        Raises
        ------
        ProtocolError
            When it is not a schema.
        """
        with reading("a schema"):
            columns = [_column_from_json(entry) for entry in value["columns"]]
            return cls.from_columns(
                columns,
                value.get("primary_key", ()),
                auto_increment=value.get("auto_increment_column", ()),
                highest_field_id=value.get("highest_field_id"),
            )

    @classmethod
    def from_json_bytes(cls, text: bytes) -> Schema:
        """Read the server's JSON from bytes."""
        with reading("a schema"):
            return cls.from_json(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Schema)
            and self.columns == other.columns
            and self.primary_keys == other.primary_keys
        )

    def __hash__(self) -> int:
        return hash((self.columns, self.primary_keys))

    def __str__(self) -> str:
        shown = ", ".join(f'("{name}", "{kind}")' for name, kind in self.get_columns())
        return f"Schema: columns=[{shown}]"

    def __repr__(self) -> str:
        keys = f", primary_keys={list(self.primary_keys)}" if self.primary_keys else ""
        return f"Schema({', '.join(f'{name} {kind}' for name, kind in self.get_columns())}{keys})"

    _repr_html_ = schema_html


# the JSON keys of id and type, of columns and of fields of rows
_COLUMN = ("id", "data_type")
_FIELD = ("field_id", "field_type")


def _nested(data_type: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over the fields of the outermost rows in a type."""
    yield from data_type.get("fields", ())
    for key in ("element_type", "key_type", "value_type"):
        if key in data_type:
            yield from _nested(data_type[key])


def _ids(entries: Iterable[dict[str, Any]], names: tuple[str, str] = _COLUMN) -> Iterator[int]:
    for entry in entries:
        yield entry[names[0]]
        yield from _ids(_nested(entry[names[1]]), _FIELD)


def _give_ids(
    entries: Iterable[dict[str, Any]], highest: int, names: tuple[str, str] = _COLUMN
) -> int:
    """Replace ids of -1 by the next ones; return the highest."""
    for entry in entries:
        if entry[names[0]] < 0:
            highest += 1
            entry[names[0]] = highest
        highest = _give_ids(_nested(entry[names[1]]), highest, _FIELD)
    return highest


def _column_from_json(entry: Mapping[str, Any]) -> Column:
    name = entry["name"]
    if not isinstance(name, str):
        raise TypeError(f"the column name {name!r} is no string")
    function = entry.get("agg_function") or {}
    return Column(
        name=name,
        type=type_from_json(entry["data_type"]),
        comment=entry.get("comment"),
        column_id=entry.get("id"),
        aggregate=function["type"] if function else None,
        aggregate_parameters=tuple(sorted(function.get("parameters", {}).items())),
    )


class TableDescriptor:
    """The definition of a table: what it is created from.

    Parameters
    ----------
    schema
        Columns and primary key.
    partition_keys
        Columns whose values cut the table into partitions.
    bucket_count
        Buckets in each partition; None for the cluster's default.
    bucket_keys
        Columns whose hash chooses the bucket; None for none (log tables), or for the primary key
        without the partition keys.
    comment
        A description.
    log_format
        ``"ARROW"``, ``"INDEXED"`` or ``"COMPACTED"``.
    kv_format
        ``"COMPACTED"`` or ``"INDEXED"``, for primary-key tables.
    properties
        Options of Fluss, such as ``{"table.log.ttl": "1d"}``.
    custom_properties
        Options that Fluss keeps and does not read.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        partition_keys: Sequence[str] | None = None,
        bucket_count: int | None = None,
        bucket_keys: Sequence[str] | None = None,
        comment: str | None = None,
        log_format: str | None = None,
        kv_format: str | None = None,
        properties: Mapping[str, str] | None = None,
        custom_properties: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(schema, Schema):
            raise FlussError(
                f"TableDescriptor takes a Schema, not {type(schema).__name__};"
                " wrap an Arrow schema in fluss_df.Schema(...)"
            )
        names = schema.get_column_names()
        self.schema = schema
        self.partition_keys = _key_tuple(partition_keys, names, "partition key")
        self.bucket_keys = _key_tuple(bucket_keys, names, "bucket key")
        if bucket_count is not None and (
            isinstance(bucket_count, bool) or not isinstance(bucket_count, int) or bucket_count < 1
        ):
            raise FlussError(f"invalid bucket_count {bucket_count!r}: expected a positive integer")
        self.bucket_count = bucket_count
        self.comment = comment
        self.properties = property_texts(properties, "the table property")
        self.custom_properties = property_texts(custom_properties, "the custom property")
        for key, value, allowed in (
            ("table.log.format", log_format, ("arrow", "indexed", "compacted")),
            ("table.kv.format", kv_format, ("compacted", "indexed")),
        ):
            if value is None:
                continue
            if str(value).lower() not in allowed:
                raise FlussError(
                    f"invalid {key} {value!r}: expected {' or '.join(a.upper() for a in allowed)}"
                )
            # in capitals, as servers write them: the official Rust and Python client reads no
            # others
            self.properties[key] = str(value).upper()
        # DDL spells these two as properties; the descriptor has fields for them
        if "bucket.num" in self.properties and self.bucket_count is None:
            text = self.properties.pop("bucket.num")
            if not (text.isdecimal() and text.isascii() and len(text) < 10) or int(text) < 1:
                raise FlussError(f"invalid bucket.num {text!r}: expected a positive integer")
            self.bucket_count = int(text)
        if "bucket.key" in self.properties and not self.bucket_keys:
            keys = [key.strip() for key in self.properties.pop("bucket.key").split(",")]
            self.bucket_keys = _key_tuple(keys, names, "bucket key")

    def get_schema(self) -> Schema:
        """Return the schema."""
        return self.schema

    def to_json(self) -> bytes:
        """Return the descriptor as the server's JSON (version 1)."""
        value: dict[str, Any] = {"version": 1, "schema": self.schema.to_json()}
        if self.comment is not None:
            value["comment"] = self.comment
        value["partition_key"] = list(self.partition_keys)
        value["bucket_key"] = list(self.bucket_keys)
        if self.bucket_count is not None:
            value["bucket_count"] = self.bucket_count
        value["properties"] = self.properties
        value["custom_properties"] = self.custom_properties
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, text: bytes) -> TableDescriptor:
        """Read the server's JSON."""
        with reading("a table descriptor"):
            # remembered, because each query asks what its table is, and mostly gets the same answer
            read = _read_descriptor if len(text) > _REMEMBERED_BYTES else _remembered_descriptor
            schema, value = read(text)
            return cls(
                schema,
                partition_keys=value.get("partition_key"),
                bucket_count=value.get("bucket_count"),
                bucket_keys=value.get("bucket_key"),
                comment=value.get("comment"),
                properties=value.get("properties"),
                custom_properties=value.get("custom_properties"),
            )

    def __repr__(self) -> str:
        return (
            f"TableDescriptor({self.schema!r}, partition_keys={list(self.partition_keys)},"
            f" bucket_count={self.bucket_count}, bucket_keys={list(self.bucket_keys)})"
        )

    _repr_html_ = descriptor_html


def descriptor_with(old: TableDescriptor, **changes: Any) -> TableDescriptor:
    """Return what a table is created from, with other values of some parameters."""
    # its attributes are named as its parameters
    return TableDescriptor(**{**vars(old), **changes})


def _read_descriptor(text: bytes) -> tuple[Schema, dict[str, Any]]:
    value = json.loads(text)
    return Schema.from_json(value["schema"]), value


_remembered_descriptor = functools.lru_cache(maxsize=64)(_read_descriptor)


def _key_tuple(keys: Sequence[str] | None, names: Sequence[str], what: str) -> tuple[str, ...]:
    result = key_columns_of(keys, what)
    require_columns(result, names, what)
    return result


@dataclass(frozen=True)
class TableInfo(Ready):
    """A table as its server describes it.

    Parameters
    ----------
    table_path, table_id, schema_id
        Its path, its id (another one after it was dropped and created again), and the id of its
        newest schema.
    descriptor
        Schema, keys, properties.
    created_time, modified_time
        In ms since 1970.
    remote_data_dir
        Where its remote segments are, on servers that say so.
    """

    table_path: TablePath
    table_id: int
    schema_id: int
    descriptor: TableDescriptor
    created_time: int
    modified_time: int
    remote_data_dir: str | None = None

    @property
    def num_buckets(self) -> int:
        """Buckets in the table, or in each of its partitions."""
        return self.descriptor.bucket_count or 1

    @property
    def comment(self) -> str | None:
        """The comment, or None."""
        return self.descriptor.comment

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self.descriptor.schema

    def get_schema(self) -> Schema:
        """Return the newest schema."""
        return self.descriptor.schema

    def get_primary_keys(self) -> list[str]:
        """Return the primary key's columns; empty for a log table."""
        return self.schema.get_primary_keys()

    def get_partition_keys(self) -> list[str]:
        """Return the partition columns; empty where there are none."""
        return list(self.descriptor.partition_keys)

    def get_bucket_keys(self) -> list[str]:
        """Return the columns whose hash chooses the bucket; empty where rows are spread."""
        return list(self.descriptor.bucket_keys)

    def has_primary_key(self) -> bool:
        """Whether this is a primary-key table."""
        return bool(self.schema.primary_keys)

    def is_partitioned(self) -> bool:
        """Whether the table has partitions."""
        return bool(self.descriptor.partition_keys)

    def get_column_names(self) -> list[str]:
        """Return the names of the columns."""
        return self.schema.get_column_names()

    def get_column_count(self) -> int:
        """Return the number of columns."""
        return len(self.schema.columns)

    def get_properties(self) -> dict[str, str]:
        """Return all properties."""
        return dict(self.descriptor.properties)

    def get_custom_properties(self) -> dict[str, str]:
        """Return the properties that Fluss does not read."""
        return dict(self.descriptor.custom_properties)

    @property
    def lake_format(self) -> str | None:
        """``"paimon"``, ``"iceberg"``, ``"lance"`` or None: it decides how keys are hashed."""
        value = self.descriptor.properties.get("table.datalake.format")
        return value.lower() if value else None

    @property
    def log_format(self) -> str:
        """``"arrow"``, ``"indexed"`` or ``"compacted"``."""
        return self.descriptor.properties.get("table.log.format", "arrow").lower()

    @property
    def kv_format(self) -> str:
        """``"compacted"`` or ``"indexed"``: how the rows of a primary-key table are stored."""
        return self.descriptor.properties.get("table.kv.format", "compacted").lower()

    _repr_html_ = info_html

"""Checks of primary-key tables: keys, merge engine, aggregates, deletes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fluss_df.engine.merge import aggregates
from fluss_df.engine.merge.merge_engines import DELETE_BEHAVIOR, MERGE_ENGINE, VERSION_COLUMN
from fluss_df.engine.tables.options import FORMAT_VERSION, invalid_config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.schema import Schema, TableDescriptor, descriptor_with
from fluss_df.types import DataType, TypeRoot

_NO_KEYS: Final = ("ARRAY", "MAP", "ROW")
_NEWEST_FORMAT: Final = 2
_VERSIONS: Final = (
    TypeRoot.INTEGER,
    TypeRoot.BIGINT,
    TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE,
    TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE,
)


def _refused(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def _shown(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def shown_type(kind: DataType) -> str:
    """Return a type as Java's Fluss prints it."""
    if kind.root is TypeRoot.ROW:
        parts = [f"`{part.name}` {shown_type(part.type)}" for part in kind.fields]
        text = f"ROW<{', '.join(parts)}>"
    elif kind.element is not None:
        text = f"ARRAY<{shown_type(kind.element)}>"
    elif kind.key is not None and kind.value is not None:
        text = f"MAP<{shown_type(kind.key)}, {shown_type(kind.value)}>"
    else:
        text = str(replace(kind, nullable=True)).upper().replace(",", ", ")
        if kind.precision is not None and "(" not in text:
            text = f"{text}({kind.precision})"
    return text if kind.nullable else f"{text} NOT NULL"


def check_keys(value: Mapping[str, Any]) -> None:
    """Check the keys in what a client wants created; names of columns were checked before."""
    schema = value["schema"]
    names = [column["name"] for column in schema["columns"]]
    keys = schema.get("primary_key") or []
    if not keys:
        if schema.get("auto_increment_column"):
            raise _refused("Auto increment column can only be used in primary-key table.")
        return
    if len(set(keys)) < len(keys):
        twice = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]
        raise _refused(
            f"Primary key constraint CONSTRAINT PK_{'_'.join(keys)} PRIMARY KEY"
            f" ({', '.join(keys)}) must not contain duplicate columns. Found: {_shown(twice)}"
        )
    if not set(keys) <= set(names):
        raise _refused(
            f"Table column {_shown(names)} should include all primary key constraint {_shown(keys)}"
        )
    if set(schema.get("auto_increment_column") or []) & set(keys):
        raise _refused("Auto increment column can not be used as the primary key.")
    for column in schema["columns"]:
        if column.get("agg_function") and column["name"] in keys:
            raise _refused(
                f"Cannot set aggregation function for primary key column '{column['name']}'."
                " Primary key columns automatically use 'primary-key' aggregation."
            )
    partitions = value.get("partition_key") or []
    if not set(partitions) <= set(keys):
        raise _refused(
            f"Partitioned Primary Key Table requires partition key {_shown(partitions)} is a"
            f" subset of the primary key {_shown(keys)}."
        )
    buckets = value.get("bucket_key") or []
    if not set(buckets) <= set(keys):
        raise _refused(
            "Bucket keys must be a subset of primary keys excluding partition keys for"
            f" primary-key tables. The primary keys are {_shown(keys)}, the partition keys are"
            f" {_shown(partitions)}, but the user-defined bucket keys are {_shown(buckets)}."
        )
    if set(keys) == set(partitions):
        raise _refused(
            f"Primary Key constraint {_shown(keys)} should not be same with partition fields"
            f" {_shown(partitions)}."
        )


def with_defaults(descriptor: TableDescriptor) -> TableDescriptor:
    """Return a table with what the server decides where its creator did not."""
    schema = descriptor.schema
    if not schema.primary_keys:
        return descriptor
    required = set(schema.primary_keys)
    columns = [
        replace(c, type=c.type.with_nullable(False)) if c.name in required else c
        for c in schema.columns
    ]
    properties = dict(descriptor.properties)
    if MERGE_ENGINE in properties:
        properties.setdefault(DELETE_BEHAVIOR, "IGNORE")
    properties.setdefault(FORMAT_VERSION, str(_NEWEST_FORMAT))
    partitions = descriptor.partition_keys
    default_keys = [key for key in schema.primary_keys if key not in partitions]
    return descriptor_with(
        descriptor,
        schema=Schema.from_columns(
            columns,
            schema.primary_keys,
            auto_increment=schema.auto_increment,
            highest_field_id=schema.to_json()["highest_field_id"],
        ),
        bucket_keys=descriptor.bucket_keys or default_keys,
        properties=properties,
    )


def check_primary_key_table(descriptor: TableDescriptor) -> None:
    """Refuse a primary-key table that Fluss would refuse, and what the engine does not have."""
    schema, properties = descriptor.schema, descriptor.properties
    types = {column.name: column.type for column in schema.columns}
    for key in schema.primary_keys:
        if types[key].root.name in _NO_KEYS:
            raise _refused(
                f"Primary key column '{key}' has unsupported data type {shown_type(types[key])}."
                " Currently, primary key column does not support types: [ARRAY, MAP, ROW]."
            )
    for name in schema.auto_increment:
        if types[name].root not in (TypeRoot.INTEGER, TypeRoot.BIGINT):
            raise _refused("The data type of auto increment column must be INT or BIGINT.")
    version = properties.get(FORMAT_VERSION, "1")
    if int(version) > _NEWEST_FORMAT:
        raise invalid_config(
            f"Unsupported kv format version {version}. The maximum supported version is"
            f" {_NEWEST_FORMAT}."
        )
    log_format = properties.get("table.log.format", "arrow").lower()
    kv_format = properties.get("table.kv.format", "compacted").lower()
    if log_format == "indexed" and kv_format == "compacted":
        raise invalid_config(
            "Currently, Primary Key Table supports ARROW or COMPACTED log format when kv format is"
            " COMPACTED."
        )
    _check_merge_engine(descriptor)


def _check_merge_engine(descriptor: TableDescriptor) -> None:
    schema, properties = descriptor.schema, descriptor.properties
    engine = properties.get(MERGE_ENGINE, "").upper()
    if engine == "VERSIONED":
        _check_version_column(schema, properties.get(VERSION_COLUMN))
    if engine == "AGGREGATION":
        if properties.get("table.changelog.image", "full").upper() == "WAL":
            raise invalid_config(
                "Table with 'AGGREGATION' merge engine does not support 'WAL' changelog image"
                " mode. Aggregation merge engine tables require FULL changelog image mode for"
                " correct UNDO recovery. Please set 'table.changelog.image' to 'FULL' or remove"
                " the setting."
            )
        check_aggregates(schema)
    deletes = properties.get(DELETE_BEHAVIOR, "").upper()
    if engine in ("FIRST_ROW", "VERSIONED") and deletes == "ALLOW":
        raise invalid_config(
            f"Table with '{engine}' merge engine does not support delete operations. The"
            " 'table.delete.behavior' config must be set to 'ignore' or 'disable', but got"
            " 'allow'."
        )


def _check_version_column(schema: Schema, name: str | None) -> None:
    if name is None:
        raise invalid_config(f"'{VERSION_COLUMN}' must be set for versioned merge engine.")
    found = next((column for column in schema.columns if column.name == name), None)
    if found is None:
        raise invalid_config(
            f"The version column '{name}' for versioned merge engine doesn't exist in schema."
        )
    if found.type.root not in _VERSIONS:
        raise invalid_config(
            f"The version column '{name}' for versioned merge engine must be one type of [INT,"
            f" BIGINT, TIMESTAMP, TIMESTAMP_LTZ], but got {shown_type(found.type)}."
        )


def check_aggregates(schema: Schema) -> None:
    """Refuse functions that are not there, or do not take the type of their column."""
    for column in schema.columns:
        if column.aggregate is None or column.name in schema.primary_keys:
            continue
        name = aggregates.function_name(column.aggregate)
        where = f"Invalid aggregation function for column '{column.name}':"
        if name not in aggregates.FUNCTIONS:
            raise invalid_config(
                f"{where} the embedded engine has no '{name}', only"
                f" {', '.join(aggregates.FUNCTIONS)}"
            )
        taken = aggregates.FUNCTIONS[name]
        if taken is not None and column.type.root not in taken:
            raise invalid_config(
                f"{where} Data type for {name} column must be part of"
                f" [{', '.join(root.name for root in taken)}] but was"
                f" '{shown_type(column.type)}'."
            )

"""Checks of new names, tables and partitions, with the codes and messages of Fluss 0.9.1."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fluss_df.engine.catalog.primary_keys import (
    check_keys,
    check_primary_key_table,
    shown_type,
    with_defaults,
)
from fluss_df.engine.merge import aggregates
from fluss_df.engine.merge.merge_engines import DELETE_BEHAVIOR, MERGE_ENGINE
from fluss_df.engine.tables import options
from fluss_df.engine.tables.names import name_problem
from fluss_df.engine.tables.options import invalid_config
from fluss_df.engine.tables.tables import MAX_BUCKETS
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import DataType

MAX_PARTITIONS: Final = 1000
# a description is written with each change; Fluss's servers keep no more of one, in ZooKeeper
_MOST_BYTES: Final = 1 << 20
_RESERVED_COLUMNS: Final = (
    "__offset",
    "__timestamp",
    "__bucket",
    "_change_type",
    "_log_offset",
    "_commit_timestamp",
)
# the id of a column or field that is not numbered yet
_NO_ID: Final = -1
# aggregate functions that Fluss has, and this engine does not
_BITMAPS: Final = ("rbm32", "rbm64")
_NO_KEYS: Final = ("ARRAY", "MAP", "ROW")
_PARTITION_TYPES: Final = (
    "CHAR, STRING, BOOLEAN, BINARY, BYTES, TINYINT, SMALLINT, INTEGER, DATE, "
    "TIME_WITHOUT_TIME_ZONE, BIGINT, FLOAT, DOUBLE, TIMESTAMP_WITHOUT_TIME_ZONE, "
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
)


def check_database_name(name: str) -> None:
    """Refuse a name that no database may have."""
    problem = name_problem(name)
    if problem:
        raise FlussError(
            f"Database name {name} is invalid: {problem}", ErrorCode.INVALID_DATABASE_EXCEPTION
        )


def check_table_name(name: str) -> None:
    """Refuse a name that no table may have."""
    problem = name_problem(name)
    if problem:
        raise invalid_table(f"Table name {name} is invalid: {problem}")


# characters that are spaces in Python and not in Java
_NO_SPACE = frozenset("\u00a0\u2007\u202f\x85")


def invalid_table(message: str) -> FlussError:
    """Return the error for a table that cannot be."""
    return FlussError(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def check_size(what: str, text: bytes, code: int) -> None:
    """Refuse the description of a database or table that takes more than a megabyte."""
    if len(text) > _MOST_BYTES:
        raise FlussError(
            f"{what}: its columns, comments and properties are {len(text):,} bytes of JSON, and may"
            f" be {_MOST_BYTES:,}: shorten comments and custom properties, or split the table",
            code,
        )


def _strings(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid_table(f"Failed to parse table descriptor: {what} is no list of names")
    return value


def read_descriptor(text: bytes, default_buckets: int, *, lake: bool = False) -> TableDescriptor:
    """Read what a client wants created, with the server's defaults in it.

    ``lake`` says whether tables may have a lake.

    Raises FlussError as Fluss has it where the table cannot be.
    """
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
            raise ValueError("it is no table descriptor")
    except (ValueError, RecursionError) as error:
        raise invalid_table(f"Failed to parse table descriptor: {error}") from None
    _check_keys(value)
    properties = dict(value.get("properties") or {})
    properties.setdefault(options.REPLICATION_FACTOR, "1")
    partition_keys = value.get("partition_key") or []
    if (
        len(partition_keys) > 1
        and properties.get(options.AUTO_PARTITION) == "true"
        and options.AUTO_PARTITION_PRECREATE not in properties
    ):
        properties[options.AUTO_PARTITION_PRECREATE] = "0"
    value["properties"] = properties
    buckets = value.setdefault("bucket_count", default_buckets)
    if not isinstance(buckets, int) or buckets < 1:
        raise FlussError("Number of buckets must be larger than 0.", ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        descriptor = TableDescriptor.from_json(json.dumps(value).encode())
    except FlussError as error:
        raise invalid_table(f"Failed to parse table descriptor: {error.message}") from None
    engine = descriptor.properties.get(MERGE_ENGINE, "first_row")
    if engine.upper() not in options.MERGE_ENGINES:
        # the coordinator reads this one before it looks at the others
        raise FlussError(
            f"Could not parse value '{engine}' for key '{MERGE_ENGINE}'.",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    for key, setting in descriptor.properties.items():
        options.check_option(key, setting)
    descriptor = with_defaults(descriptor)
    if not lake and options.boolean(descriptor.properties, options.DATALAKE_ENABLED):
        raise invalid_table(
            "'table.datalake.enabled' is enabled for the table, but the Fluss cluster doesn't"
            " enable datalake tables."
        )
    check_descriptor(descriptor)
    return descriptor


def _check_keys(value: dict[str, Any]) -> None:
    """Check the names of columns and keys, before they are put together to a schema."""
    try:
        names = [column["name"] for column in value["schema"]["columns"]]
        engine = str((value.get("properties") or {}).get(MERGE_ENGINE)).upper()
        for column in value["schema"]["columns"]:
            require_field_name(column["name"])
            as_fluss_keeps_it(column["data_type"], added=False)
            _name_function(column, engine == "AGGREGATION")
        _number_columns(value["schema"])
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise invalid_table(f"Failed to parse table descriptor: {error!r}") from None
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise invalid_table(
            f"Table column [{', '.join(map(str, names))}] must not contain duplicate fields."
            f" Found: [{', '.join(twice)}]"
        )
    partition_keys = _strings(value.get("partition_key") or [], "partition_key")
    bucket_keys = _strings(value.get("bucket_key") or [], "bucket_key")
    for kind, keys in (("Partition", partition_keys), ("Bucket", bucket_keys)):
        for key in keys:
            if key not in names:
                raise invalid_table(f"{kind} key '{key}' does not exist in the schema.")
    if set(bucket_keys) & set(partition_keys):
        raise invalid_table(
            f"Bucket key [{', '.join(bucket_keys)}] shouldn't include any column in partition"
            f" keys [{', '.join(partition_keys)}]."
        )
    properties = value.get("properties") or {}
    custom = value.get("custom_properties") or {}
    for given in (properties, custom):
        if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
            raise invalid_table("Failed to parse table descriptor: properties are strings")
    _strings(value["schema"].get("primary_key") or [], "primary_key")
    _strings(value["schema"].get("auto_increment_column") or [], "auto_increment_column")
    check_keys(value)


def _number_columns(schema: dict[str, Any]) -> None:
    """Give columns without ids those of their places, and refuse ids that cannot be."""
    columns = schema["columns"]
    without = [column.setdefault("id", _NO_ID) == _NO_ID for column in columns]
    if all(without):
        for place, column in enumerate(columns):
            column["id"] = place
    elif any(without):
        raise invalid_table("All columns must have columnId or none of them must have columnId.")
    ids = list(_field_ids(columns, "id", "data_type"))
    # rows are stored by the ids of their columns
    unique = len(set(ids))
    if unique < len(ids):
        raise invalid_table(
            "All field IDs (including nested fields) must be unique. Found"
            f" {unique} unique IDs but expected {len(ids)}."
        )
    largest = max(ids, default=_NO_ID)
    if schema.setdefault("highest_field_id", largest) < largest:
        raise invalid_table(
            f"Highest field ID ({schema['highest_field_id']}) must be greater than or equal to the"
            f" maximum field ID ({largest}) including nested fields."
        )


def require_field_name(name: Any) -> None:
    """Refuse the name of a column, or of a field of a row, that nobody could see."""
    if all(letter.isspace() and letter not in _NO_SPACE for letter in str(name)):
        raise invalid_table("Field names must contain at least one non-whitespace character.")


def as_fluss_keeps_it(kind: Any, *, added: bool) -> None:
    """Change the JSON of a type to what Fluss keeps of it: the keys of maps are NOT NULL.

    The fields of rows of a column that is ``added`` to a table are numbered by the server.
    """
    if not isinstance(kind, dict):
        return
    if isinstance(kind.get("key_type"), dict):
        kind["key_type"]["nullable"] = False
    for inner in ("element_type", "key_type", "value_type"):
        as_fluss_keeps_it(kind.get(inner), added=added)
    for field in kind.get("fields") or ():
        require_field_name(field.get("name", "?"))
        if added:
            field["field_id"] = _NO_ID
        as_fluss_keeps_it(field.get("field_type"), added=added)


def _name_function(column: dict[str, Any], aggregates_rows: bool) -> None:
    """Write an aggregate function as Fluss does, which forgets one that it does not have."""
    function = column.get("agg_function")
    if not function:
        return
    function["type"] = name = aggregates.function_name(function["type"])
    # a table that aggregates rows is refused with such a function: it would be another one
    if name not in (*aggregates.FUNCTIONS, *_BITMAPS) and not aggregates_rows:
        del column["agg_function"]


def _field_ids(entries: Any, number: str, kind: str) -> Iterator[Any]:
    for entry in entries:
        yield entry.get(number, _NO_ID)
        yield from _nested_ids(entry.get(kind))


def _nested_ids(kind: Any) -> Iterator[Any]:
    if not isinstance(kind, dict):
        return
    yield from _field_ids(kind.get("fields") or (), "field_id", "field_type")
    for key in ("element_type", "key_type", "value_type"):
        yield from _nested_ids(kind.get(key))


def check_descriptor(descriptor: TableDescriptor) -> None:
    """Refuse a table that Fluss would refuse, and what the embedded engine does not have."""
    properties = descriptor.properties
    schema = descriptor.schema
    if (descriptor.bucket_count or 1) > MAX_BUCKETS:
        raise FlussError(
            f"Bucket count {descriptor.bucket_count} exceeds the maximum limit {MAX_BUCKETS}.",
            ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
        )
    types = {column.name: column.type for column in schema.columns}
    for key in descriptor.bucket_keys:
        if types[key].root.name in _NO_KEYS:
            raise invalid_table(
                f"Bucket key column '{key}' has unsupported data type {shown_type(types[key])}."
                " Currently, bucket key column does not support types: [ARRAY, MAP, ROW]."
            )
    factor = options.integer(properties, options.REPLICATION_FACTOR, 1)
    if factor != 1:
        raise FlussError(
            "Replication factor must be larger than 0."
            if factor < 1
            else f"Replication factor: {factor} larger than available tablet servers: 1.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    check_properties(properties, bool(schema.primary_keys))
    if schema.primary_keys:
        check_primary_key_table(descriptor)
    _check_partitions(descriptor, types)
    check_columns(schema)
    _check_statistics(descriptor, types)


def check_properties(properties: Mapping[str, str], has_primary_key: bool) -> None:
    """Refuse properties that do not go together, or with the kind of the table."""
    level = options.integer(properties, "table.log.arrow.compression.zstd.level", 3)
    if not 1 <= level <= 22:
        raise invalid_config(
            f"Invalid ZSTD compression level: {level}. Expected a value between 1 and 22."
        )
    if MERGE_ENGINE in properties and not has_primary_key:
        raise invalid_config("Merge engine is only supported in primary key table.")
    if DELETE_BEHAVIOR in properties and not has_primary_key:
        raise invalid_config(
            "The 'table.delete.behavior' configuration is only supported for primary key tables."
        )
    if options.integer(properties, "table.log.tiered.local-segments", 2) <= 0:
        raise invalid_config("'table.log.tiered.local-segments' must be greater than 0.")


def _check_partitions(descriptor: TableDescriptor, types: Mapping[str, DataType]) -> None:
    properties, keys = descriptor.properties, descriptor.partition_keys
    automatic = options.boolean(properties, options.AUTO_PARTITION)
    if automatic and not keys:
        raise invalid_config(
            "Currently, auto partition is only supported for partitioned table, please set table"
            " property 'table.auto-partition.enabled' to false."
        )
    for key in keys:
        if types[key].root.name in (*_NO_KEYS, "DECIMAL"):
            raise invalid_table(
                f"Currently, partitioned table supported partition key type are"
                f" [{_PARTITION_TYPES}], but got partition key '{key}' with data type"
                f" {shown_type(types[key])}."
            )
    if not automatic or len(keys) < 2:
        return
    named = properties.get(options.AUTO_PARTITION_KEY, "").strip()
    if not named:
        raise invalid_table(
            "Currently, auto partitioned table must set one auto partition key when it has"
            " multiple partition keys. Please set table property 'table.auto-partition.key'."
        )
    if named not in keys:
        raise invalid_table(
            "The specified key for auto partitioned table is not a partition key. Your key"
            f" '{named}' is not in key list [{', '.join(keys)}]"
        )
    created = options.integer(properties, options.AUTO_PARTITION_PRECREATE, 2)
    if created > 0:
        raise invalid_table(
            "For a partitioned table with multiple partition keys, auto pre-create is unsupported"
            f" and this value must be set to 0, but is {created}"
        )


def _check_statistics(descriptor: TableDescriptor, types: Mapping[str, DataType]) -> None:
    wanted = descriptor.properties.get(options.STATISTICS_COLUMNS)
    if wanted is None:
        return
    if descriptor.schema.primary_keys:
        raise invalid_config(
            "Statistics columns are not supported for primary key tables. Please remove the"
            f" '{options.STATISTICS_COLUMNS}' property."
        )
    if wanted.strip() == "*":
        return
    names = [name for name in map(str.strip, wanted.split(",")) if name]
    if not names:
        raise invalid_config(
            "Statistics columns configuration cannot be empty. Use '*' to collect statistics for"
            " all supported columns, or remove the property to disable statistics collection."
        )
    for name in names:
        if name not in types:
            raise invalid_config(
                f"Column '{name}' specified in statistics collection does not exist in table schema"
            )
        if types[name].root.name in (*_NO_KEYS, "BINARY", "BYTES"):
            raise invalid_config(
                f"Column '{name}' of type '{shown_type(types[name])}' is not supported for"
                " statistics collection. Supported types are: BOOLEAN, TINYINT, SMALLINT, INTEGER,"
                " BIGINT, FLOAT, DOUBLE, STRING, CHAR, DECIMAL, DATE, TIME, TIMESTAMP,"
                " and TIMESTAMP_LTZ."
            )


def is_reserved(name: str) -> bool:
    """Return whether a name is that of a column of Fluss's own."""
    return name in _RESERVED_COLUMNS


def check_columns(schema: Schema) -> None:
    """Refuse columns with the names of Fluss's own."""
    reserved = list(filter(is_reserved, schema.get_column_names()))
    if reserved:
        raise invalid_table(
            f"{', '.join(reserved)} cannot be used as column names, because they are reserved"
            " system columns in Fluss. Please use other names for these columns. The reserved"
            f" system columns are: {', '.join(_RESERVED_COLUMNS)}"
        )


def partition_values(
    path: str, keys: Sequence[str], spec: Mapping[str, str], *, creating: bool
) -> list[str]:
    """Return the values of a partition in the order of the table's keys.

    Raises ``PARTITION_SPEC_INVALID_EXCEPTION`` for other keys, or values that are no names.
    """

    def invalid(message: str) -> FlussError:
        return FlussError(message, ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION)

    if len(spec) != len(keys):
        raise invalid(
            f"PartitionSpec size is not equal to partition keys size for partitioned table {path}."
        )
    for key in keys:
        if key not in spec:
            shown = ", ".join(f"{k}={v}" for k, v in spec.items())
            raise invalid(
                f"PartitionSpec PartitionSpec{{{{{shown}}}}} does not contain partition key"
                f" '{key}' for partitioned table {path}."
            )
    values = [spec[key] for key in keys]
    for value in values:
        problem = name_problem(value, reserved=creating)
        if problem:
            raise invalid(f"The partition value {value} is invalid: {problem}")
    return values

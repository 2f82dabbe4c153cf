"""How rows of a Paimon table stand in its files, and which tables are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.paimon.binary_rows import TEXTS
from fluss_df.lake.paimon.manifests import require_known
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import FieldType, LakeSchema, field_type, read_schema
from fluss_df.lake.paimon_writing.rows import KNOWN
from fluss_df.lake.rounds.lake_rows import FIELD_ID

# Paimon's own columns of files of primary-key tables: name, type, and id
_SEQUENCE: Final = ("_SEQUENCE_NUMBER", pa.int64(), 2147483646)
_KIND: Final = ("_VALUE_KIND", pa.int8(), 2147483645)
_KEY_PREFIX: Final = "_KEY_"
_KEY_IDS: Final = 1073741823
# partition columns of these types have one form in names of folders in all of Java's releases
_FOLDERS: Final = TEXTS | {"TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "BOOLEAN", "DATE"}
_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BYTES": pa.binary(),
}
# an option, its values that fluss_df can write, and its default
_KNOWN_OPTIONS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("file.format", ("parquet",), "parquet"),
    ("changelog-file.format", ("parquet",), "parquet"),
    ("manifest.format", ("avro",), "avro"),
    ("type", ("table",), "table"),
    ("branch", ("main",), "main"),
    ("row-tracking.enabled", ("false",), "false"),
    ("data-evolution.enabled", ("false",), "false"),
    ("changelog-producer", ("none", "input", "lookup", "full-compaction"), "none"),
    ("data-file.external-paths", ("",), ""),
    ("rowkind.field", ("",), ""),
)


@dataclass(frozen=True)
class WriteSchema:
    """A version of a table's schema, as its files are written.

    Attributes
    ----------
    lake
        What its schema file says.
    rows
        The columns of the table, with their ids.
    keys
        The columns of the primary key without those by which the table is partitioned.
    file
        The columns of files; those of primary-key tables have more.
    """

    lake: LakeSchema
    rows: pa.Schema
    keys: tuple[str, ...]
    file: pa.Schema

    @property
    def keyed(self) -> bool:
        """Whether it has a primary key."""
        return bool(self.lake.primary_keys)

    @property
    def buckets(self) -> int:
        """How many buckets; -1 for a table whose rows are all in one folder."""
        return int(self.lake.options.get("bucket", "-1"))

    @property
    def changelog(self) -> bool:
        """Whether all changes are written to files of their own, too."""
        return self.keyed and self.lake.options.get("changelog-producer") == "input"

    def kinds(self, names: tuple[str, ...]) -> list[FieldType]:
        """Return the types of columns."""
        return [self.lake.field(name).type for name in names]


def write_schema(table: TableFiles, content: bytes) -> WriteSchema:
    """Return how the rows of a version of a table's schema are written to files.

    Raises FlussError for a table that fluss_df cannot write, and names what it has.
    """
    lake = read_schema(content)
    _require_written(table, lake)
    given = {field["name"]: field["type"] for field in json.loads(content)["fields"]}
    rows = pa.schema([_field(field.name, given[field.name], field.id) for field in lake.fields])
    keys = tuple(key for key in lake.primary_keys if key not in lake.partition_keys)
    file = rows
    if lake.primary_keys:
        own = [
            _own(_KEY_PREFIX + key, rows.field(key).type, _KEY_IDS + lake.field(key).id)
            for key in keys
        ]
        file = pa.schema([*own, _own(*_SEQUENCE), _own(*_KIND), *rows])
    return WriteSchema(lake, rows, keys, file)


def _own(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={FIELD_ID: str(number).encode()})


def _field(name: str, given: Any, number: int) -> pa.Field:
    kind = given if isinstance(given, str) else given["type"]
    nullable = not kind.endswith(" NOT NULL")
    return pa.field(name, _type(given), nullable, {FIELD_ID: str(number).encode()})


def _type(given: Any) -> pa.DataType:
    if isinstance(given, Mapping):
        root = str(given["type"]).removesuffix(" NOT NULL")
        if root == "ARRAY":
            return pa.list_(pa.field("element", _type(given["element"])))
        if root == "MAP":
            return pa.map_(_type(given["key"]), _type(given["value"]))
        return pa.struct([pa.field(f["name"], _type(f["type"])) for f in given["fields"]])
    kind = field_type(given)
    if kind.root == "DECIMAL":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        unit = "ms" if kind.precision <= 3 else "us" if kind.precision <= 6 else "ns"
        return pa.timestamp(unit, "UTC" if kind.root == "TIMESTAMP_LTZ" else None)
    return _SIMPLE[kind.root]


def _require_written(table: TableFiles, lake: LakeSchema) -> None:
    require_known(table, lake)
    options = lake.options
    refused = [
        f"the option {name!r} with the value {options[name]!r}"
        for name, known, default in _KNOWN_OPTIONS
        if options.get(name, default).lower() not in known
    ]
    if lake.primary_keys and options.get("deletion-vectors.enabled") == "true":
        # rows become visible when Paimon has compacted them, and offsets that queries may read
        # would have to wait for that
        refused.append("the option 'deletion-vectors.enabled'")
    if int(options.get("bucket", "-1")) < -1 or (lake.primary_keys and "bucket" not in options):
        refused.append(f"the option 'bucket' with the value {options.get('bucket')!r}")
    for what, names, known in (
        ("partition", lake.partition_keys, _FOLDERS),
        ("primary key", lake.primary_keys, KNOWN),
    ):
        for name in names:
            root = lake.field(name).type.root
            if root not in known:
                refused.append(f"the {what} column {name!r} of type {root}")
    if refused:
        raise FlussError(
            f"lake table {table.path} has {' and '.join(refused)}, which fluss_df does not write:"
            " tier it with Flink's service",
            ErrorCode.UNSUPPORTED_VERSION,
        )

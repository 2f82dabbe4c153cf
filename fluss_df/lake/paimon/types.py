"""Paimon's schema files: columns, their ids and types, and the types as Polars reads them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

_TYPE: Final = re.compile(r"([A-Z_]+)(?:\((\d+)(?:,\s*(\d+))?\))?(.*)", re.DOTALL)
_SIMPLE: Final[dict[str, pl.DataType]] = {
    "BOOLEAN": pl.Boolean(),
    "TINYINT": pl.Int8(),
    "SMALLINT": pl.Int16(),
    "INT": pl.Int32(),
    "INTEGER": pl.Int32(),
    "BIGINT": pl.Int64(),
    "FLOAT": pl.Float32(),
    "DOUBLE": pl.Float64(),
    "DATE": pl.Date(),
    "TIME": pl.Time(),
    "CHAR": pl.String(),
    "VARCHAR": pl.String(),
    "STRING": pl.String(),
    "BINARY": pl.Binary(),
    "VARBINARY": pl.Binary(),
    "BYTES": pl.Binary(),
}
_DEFAULTS: Final = {"DECIMAL": 10, "TIMESTAMP": 6, "TIMESTAMP_LTZ": 6}


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type as a schema file has it.

    ``root`` is its name, as ``"BIGINT"``; TIMESTAMP WITH LOCAL TIME ZONE is ``"TIMESTAMP_LTZ"``.
    Precision and scale are 0 for types without them. ``polars`` is the type that Polars reads from
    a Parquet file.
    """

    root: str
    precision: int
    scale: int
    polars: pl.DataType


@dataclass(frozen=True, slots=True)
class Field:
    """A column."""

    id: int
    name: str
    type: FieldType


@dataclass(frozen=True, slots=True)
class LakeSchema:
    """A version of a table's schema."""

    id: int
    fields: tuple[Field, ...]
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: dict[str, str]

    def position(self, name: str) -> int | None:
        """Return where a column stands; None where there is no such column."""
        for position, field in enumerate(self.fields):
            if field.name == name:
                return position
        return None

    def field(self, name: str) -> Field:
        """Return a column that there is."""
        position = self.position(name)
        if position is None:
            raise ValueError(f"no column {name!r}")
        return self.fields[position]


def read_schema(content: bytes) -> LakeSchema:
    """Return what a schema file says.

    Raises ValueError, KeyError, TypeError for a file that is not one, or has a type that is not
    known.
    """
    found = json.loads(content)
    schema = LakeSchema(
        int(found["id"]),
        tuple(Field(f["id"], f["name"], field_type(f["type"])) for f in found["fields"]),
        tuple(found["partitionKeys"]),
        tuple(found["primaryKeys"]),
        dict(found["options"]),
    )
    for name in (*schema.partition_keys, *schema.primary_keys):
        schema.field(name)
    return schema


def field_type(given: Any) -> FieldType:
    """Return a type as a schema file has it: a text, or an object for nested ones.

    Raises ValueError for a type that is not known.
    """
    if isinstance(given, dict):
        root = str(given["type"]).removesuffix(" NOT NULL")
        return FieldType(root, 0, 0, _nested(root, given))
    matched = _TYPE.fullmatch(given)
    if matched is None:
        raise ValueError(f"the type {given!r} is not known")
    root, first, second, rest = matched.groups()
    if root == "TIMESTAMP" and "WITH LOCAL TIME ZONE" in rest:
        root = "TIMESTAMP_LTZ"
    precision = int(first) if first else _DEFAULTS.get(root, 0)
    scale = int(second or 0)
    if root in _SIMPLE:
        return FieldType(root, precision, scale, _SIMPLE[root])
    if root == "DECIMAL":
        return FieldType(root, precision, scale, pl.Decimal(precision, scale))
    if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        zone = "UTC" if root == "TIMESTAMP_LTZ" else None
        unit = "ms" if precision <= 3 else "us" if precision <= 6 else "ns"
        return FieldType(root, precision, scale, pl.Datetime(unit, zone))  # type: ignore[arg-type]
    raise ValueError(f"the type {given!r} is not known")


def _nested(root: str, given: dict[str, Any]) -> pl.DataType:
    if root == "ARRAY":
        return pl.List(field_type(given["element"]).polars)
    if root == "MAP":
        entry = {"key": field_type(given["key"]).polars, "value": field_type(given["value"]).polars}
        return pl.List(pl.Struct(entry))
    if root == "ROW":
        return pl.Struct({f["name"]: field_type(f["type"]).polars for f in given["fields"]})
    raise ValueError(f"the type {root!r} is not known")

"""Fluss data types, and their pairs in Arrow and in the JSON of Fluss.

A :class:`DataType` is a frozen value. Three conversions belong to it:

* :func:`to_arrow` gives the Arrow type that users see, :func:`from_arrow` the Fluss type of an
  Arrow type (for new tables),
* :func:`to_wire_arrow` gives the Arrow type whose buffers stand in a log batch,
* :func:`type_to_json` and :func:`type_from_json` speak the server's ``DataTypeJsonSerde``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fluss_df.errors import FlussError, ProtocolError

# Deeper types than this are refused: a peer's JSON must not exhaust the interpreter's stack.
_MAX_DEPTH = 64
_MAX_LENGTH = 2**31 - 1


class TypeRoot(enum.Enum):
    """The kinds of Fluss types; the value is the name in Fluss's JSON."""

    CHAR = "CHAR"
    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    BINARY = "BINARY"
    BYTES = "BYTES"
    DECIMAL = "DECIMAL"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIME_WITHOUT_TIME_ZONE = "TIME_WITHOUT_TIME_ZONE"
    TIMESTAMP_WITHOUT_TIME_ZONE = "TIMESTAMP_WITHOUT_TIME_ZONE"
    TIMESTAMP_WITH_LOCAL_TIME_ZONE = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"

    # Enum's own hash is written in Python, and types are looked up for every column of a batch
    __hash__ = object.__hash__


_R = TypeRoot

# root -> (name in SQL, default precision that is not printed)
_PRECISE: dict[TypeRoot, tuple[str, int]] = {
    _R.TIME_WITHOUT_TIME_ZONE: ("time", 0),
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: ("timestamp", 6),
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: ("timestamp_ltz", 6),
}
_SIMPLE_NAMES: dict[TypeRoot, str] = {
    _R.STRING: "string",
    _R.BOOLEAN: "boolean",
    _R.BYTES: "bytes",
    _R.TINYINT: "tinyint",
    _R.SMALLINT: "smallint",
    _R.INTEGER: "int",
    _R.BIGINT: "bigint",
    _R.FLOAT: "float",
    _R.DOUBLE: "double",
    _R.DATE: "date",
}
_SIMPLE_ARROW: dict[TypeRoot, pa.DataType] = {
    _R.CHAR: pa.string(),
    _R.STRING: pa.string(),
    _R.BOOLEAN: pa.bool_(),
    _R.BYTES: pa.binary(),
    _R.TINYINT: pa.int8(),
    _R.SMALLINT: pa.int16(),
    _R.INTEGER: pa.int32(),
    _R.BIGINT: pa.int64(),
    _R.FLOAT: pa.float32(),
    _R.DOUBLE: pa.float64(),
    _R.DATE: pa.date32(),
}


@dataclass(frozen=True, slots=True)
class DataType:
    """A Fluss data type.

    Parameters
    ----------
    root
        The kind.
    nullable
        Whether null is a value of the type.
    length
        Of CHAR (characters) and BINARY (bytes), from 1.
    precision
        Of DECIMAL (1 to 38), TIME and both TIMESTAMPs (0 to 9 digits of a second).
    scale
        Of DECIMAL, 0 to the precision.
    element
        The element type of an ARRAY.
    key, value
        The types of a MAP; a key is never null.
    fields
        The fields of a ROW.

    Raises
    ------
    FlussError
        When a parameter that the kind needs is missing or out of its range.

    Examples
    --------
    >>> str(DataType(TypeRoot.DECIMAL, nullable=False, precision=10, scale=2))
    'decimal(10,2) NOT NULL'
    """

    root: TypeRoot
    nullable: bool = True
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    element: DataType | None = None
    key: DataType | None = None
    value: DataType | None = None
    fields: tuple[DataField, ...] = ()

    def __post_init__(self) -> None:
        root = self.root
        if root in (_R.CHAR, _R.BINARY):
            self._require("length", self.length, 1, _MAX_LENGTH)
        elif root is _R.DECIMAL:
            self._require("precision", self.precision, 1, 38)
            self._require("scale", self.scale, 0, self.precision or 0)
        elif root in _PRECISE:
            self._require("precision", self.precision, 0, 9)
        elif root is _R.ARRAY and self.element is None:
            raise FlussError("an ARRAY needs an element type")
        elif root is _R.MAP and (self.key is None or self.value is None):
            raise FlussError("a MAP needs a key type and a value type")

    def _require(self, name: str, given: int | None, low: int, high: int) -> None:
        if given is None or not low <= given <= high:
            raise FlussError(
                f"{self.root.value} needs a {name} between {low} and {high}, not {given}"
            )

    def with_nullable(self, nullable: bool) -> DataType:
        """Return the same type with the given nullability."""
        if self.nullable == nullable:
            return self
        return DataType(
            self.root,
            nullable,
            self.length,
            self.precision,
            self.scale,
            self.element,
            self.key,
            self.value,
            self.fields,
        )

    def __str__(self) -> str:
        root = self.root
        if root in _SIMPLE_NAMES:
            text = _SIMPLE_NAMES[root]
        elif root in _PRECISE:
            text, silent = _PRECISE[root]
            if self.precision != silent:
                text = f"{text}({self.precision})"
        elif root is _R.DECIMAL:
            text = f"decimal({self.precision},{self.scale})"
        elif root is _R.ARRAY:
            text = f"array<{self.element}>"
        elif root is _R.MAP:
            text = f"map<{self.key},{self.value}>"
        elif root is _R.ROW:
            text = "row<" + ", ".join(f"{f.name}: {f.type}" for f in self.fields) + ">"
        else:
            text = f"{root.value.lower()}({self.length})"
        return text if self.nullable else f"{text} NOT NULL"


@dataclass(frozen=True, slots=True)
class DataField:
    """A field of a ROW; ``field_id`` is given by the server and follows the field when it moves."""

    name: str
    type: DataType
    description: str | None = None
    field_id: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; ``column_id`` is given by the server and survives a rename."""

    name: str
    type: DataType
    comment: str | None = None
    column_id: int | None = None
    aggregate: str | None = None
    aggregate_parameters: tuple[tuple[str, str], ...] = ()


_UNITS = ("s", "ms", "us", "ns")
_UNIT_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FROM_ARROW: dict[pa.DataType, TypeRoot] = {
    pa.bool_(): _R.BOOLEAN,
    pa.int8(): _R.TINYINT,
    pa.int16(): _R.SMALLINT,
    pa.int32(): _R.INTEGER,
    pa.int64(): _R.BIGINT,
    pa.float32(): _R.FLOAT,
    pa.float64(): _R.DOUBLE,
    pa.string(): _R.STRING,
    pa.large_string(): _R.STRING,
    pa.string_view(): _R.STRING,
    pa.binary(): _R.BYTES,
    pa.large_binary(): _R.BYTES,
    pa.binary_view(): _R.BYTES,
    pa.date32(): _R.DATE,
    pa.date64(): _R.DATE,
}
_WIDER: dict[pa.DataType, TypeRoot] = {
    pa.uint8(): _R.SMALLINT,
    pa.uint16(): _R.INTEGER,
    pa.uint32(): _R.BIGINT,
    pa.float16(): _R.FLOAT,
}
_WAY_OUT: dict[pa.DataType, str] = {
    pa.uint8(): "cast it to int16 (SMALLINT)",
    pa.uint16(): "cast it to int32 (INT)",
    pa.uint32(): "cast it to int64 (BIGINT)",
    pa.uint64(): "cast it to int64 (BIGINT) where it fits, else to decimal128(20, 0)",
    pa.float16(): "cast it to float32 (FLOAT)",
    pa.null(): "give the column a type",
}


def from_arrow(t: pa.DataType, nullable: bool = True, *, coerce: bool = False) -> DataType:
    """Return the Fluss type of an Arrow type, for creating a table.

    Parameters
    ----------
    t
        The Arrow type. Large and view strings and binaries, large lists, ``date64`` and
        dictionaries (the type of their values) are accepted besides the types that
        :func:`to_arrow` returns.
    nullable
        The nullability of the result.
    coerce
        Also accept what fits another type without loss: ``uint8``/``16``/``32`` become the next
        larger signed type, ``float16`` FLOAT, a fixed-size list ARRAY (tables made of a frame).

    Raises
    ------
    FlussError
        For an Arrow type that Fluss does not have; the message names the way out. An unsigned
        integer is refused (without ``coerce``): the official client maps it to the signed
        type of the same width, which turns large values negative.

    Examples
    --------
    >>> str(from_arrow(pa.list_(pa.int32()), nullable=False))
    'array<int> NOT NULL'
    """
    return _from_arrow(t, nullable, coerce, 0)


def _from_arrow(t: pa.DataType, nullable: bool, coerce: bool, depth: int) -> DataType:
    if depth > _MAX_DEPTH:
        raise FlussError(f"an Arrow type nested deeper than {_MAX_DEPTH} levels")
    root = _FROM_ARROW.get(t) or (_WIDER.get(t) if coerce else None)
    if root is not None:
        return DataType(root, nullable)
    if pa.types.is_dictionary(t):
        return _from_arrow(t.value_type, nullable, coerce, depth + 1)
    if pa.types.is_fixed_size_binary(t):
        return DataType(_R.BINARY, nullable, length=t.byte_width)
    if pa.types.is_decimal128(t) or pa.types.is_decimal32(t) or pa.types.is_decimal64(t):
        return DataType(_R.DECIMAL, nullable, precision=t.precision, scale=t.scale)
    if pa.types.is_time(t):
        return DataType(_R.TIME_WITHOUT_TIME_ZONE, nullable, precision=_UNIT_PRECISION[str(t.unit)])
    if pa.types.is_timestamp(t):
        zoned = _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE
        root = _R.TIMESTAMP_WITHOUT_TIME_ZONE if t.tz is None else zoned
        return DataType(root, nullable, precision=_UNIT_PRECISION[str(t.unit)])
    if (
        pa.types.is_list(t)
        or pa.types.is_large_list(t)
        or (coerce and (pa.types.is_fixed_size_list(t) or _is_list_view(t)))
    ):
        item = t.value_field
        element = _from_arrow(item.type, item.nullable, coerce, depth + 1)
        return DataType(_R.ARRAY, nullable, element=element)
    if pa.types.is_map(t):
        return DataType(
            _R.MAP,
            nullable,
            key=_from_arrow(t.key_type, False, coerce, depth + 1),
            value=_from_arrow(t.item_type, t.item_field.nullable, coerce, depth + 1),
        )
    if pa.types.is_struct(t):
        fields = tuple(
            DataField(f.name, _from_arrow(f.type, f.nullable, coerce, depth + 1)) for f in t
        )
        return DataType(_R.ROW, nullable, fields=fields)
    if isinstance(t, pa.BaseExtensionType):
        return _from_arrow(t.storage_type, nullable, coerce, depth + 1)
    raise FlussError(f"Arrow type {t} has no Fluss type: {_way_out(t)}")


def _is_list_view(t: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(t) or pa.types.is_large_list_view(t))


def _way_out(t: pa.DataType) -> str:
    if pa.types.is_duration(t):
        return "cast it to int64 (BIGINT) in the unit you choose"
    if pa.types.is_fixed_size_list(t) or _is_list_view(t):
        return "cast it to a list, or ask for coercion"
    if pa.types.is_decimal(t):
        return "cast it to decimal128 with a precision up to 38"
    return _WAY_OUT.get(t, "cast the column to a type that Fluss has")


def to_arrow(t: DataType) -> pa.DataType:
    """Return the Arrow type that users see; TIMESTAMP_LTZ carries the time zone ``UTC``.

    Examples
    --------
    >>> to_arrow(DataType(TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE, precision=6))
    TimestampType(timestamp[us, tz=UTC])
    """
    return _to_arrow(t, "UTC")


def to_wire_arrow(t: DataType) -> pa.DataType:
    """Return the Arrow type as servers write it: as :func:`to_arrow`, without time zones.

    The zone is no part of the buffers, so a batch may be read with either type.
    """
    return _to_arrow(t, None)


def _to_arrow(t: DataType, zone: str | None) -> pa.DataType:
    root = t.root
    simple = _SIMPLE_ARROW.get(root)
    if simple is not None:
        return simple
    if root is _R.BINARY:
        return pa.binary(t.length)
    if root is _R.DECIMAL:
        return pa.decimal128(t.precision, t.scale)
    if root in _PRECISE:
        precision = t.precision or 0
        unit = _UNITS[(precision + 2) // 3]
        if root is _R.TIME_WITHOUT_TIME_ZONE:
            return pa.time32(unit) if precision <= 3 else pa.time64(unit)
        return pa.timestamp(unit, zone if root is _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE else None)
    if t.element is not None:
        return pa.list_(pa.field("item", _to_arrow(t.element, zone), t.element.nullable))
    if t.key is not None and t.value is not None:
        key = pa.field("key", _to_arrow(t.key, zone), nullable=False)
        return pa.map_(key, pa.field("value", _to_arrow(t.value, zone), t.value.nullable))
    return pa.struct([pa.field(f.name, _to_arrow(f.type, zone), f.type.nullable) for f in t.fields])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema that users see for a table's columns."""
    return pa.schema([pa.field(c.name, to_arrow(c.type), c.type.nullable) for c in columns])


def wire_arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema as :func:`to_wire_arrow` gives it."""
    return pa.schema([pa.field(c.name, to_wire_arrow(c.type), c.type.nullable) for c in columns])


def type_to_json(t: DataType) -> dict[str, Any]:
    """Return the type as the server's JSON object.

    A ROW field without an id is written as -1, as the server does, which then numbers it.
    """
    result: dict[str, Any] = {"type": t.root.value}
    if not t.nullable:
        result["nullable"] = False
    if t.root in (_R.CHAR, _R.BINARY):
        result["length"] = t.length
    elif t.root is _R.DECIMAL:
        result["precision"] = t.precision
        result["scale"] = t.scale
    elif t.root in _PRECISE:
        result["precision"] = t.precision
    elif t.element is not None:
        result["element_type"] = type_to_json(t.element)
    elif t.key is not None and t.value is not None:
        result["key_type"] = type_to_json(t.key)
        result["value_type"] = type_to_json(t.value)
    elif t.root is _R.ROW:
        result["fields"] = [_field_to_json(f) for f in t.fields]
    return result


def _field_to_json(field: DataField) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": field.name, "field_type": type_to_json(field.type)}
    if field.description is not None:
        entry["description"] = field.description
    entry["field_id"] = -1 if field.field_id is None else field.field_id
    return entry


def type_from_json(obj: Mapping[str, Any]) -> DataType:
    """Read a type from the server's JSON object.

    Raises FlussError for a type that this version does not know, or JSON that is not a type.
    """
    return _type_from_json(obj, 0)


def _type_from_json(obj: object, depth: int) -> DataType:
    if depth > _MAX_DEPTH:
        raise ProtocolError(f"a data type nested deeper than {_MAX_DEPTH} levels")
    if not isinstance(obj, Mapping):
        raise ProtocolError(f"a data type is a JSON object, not {type(obj).__name__}")
    name = obj.get("type")
    try:
        root = TypeRoot(name)
    except ValueError:
        raise FlussError(
            f"this version of fluss_df does not know the Fluss type {name!r}; a newer one may"
        ) from None
    nullable = obj.get("nullable", True)
    if not isinstance(nullable, bool):
        raise ProtocolError(f"{name}: nullable is {nullable!r}, not a boolean")
    try:
        return DataType(
            root,
            nullable,
            length=_int(obj, "length") if root in (_R.CHAR, _R.BINARY) else None,
            precision=_int(obj, "precision") if root is _R.DECIMAL or root in _PRECISE else None,
            scale=_int(obj, "scale") if root is _R.DECIMAL else None,
            element=_child(obj, "element_type", depth) if root is _R.ARRAY else None,
            # the server keeps the nullability of a key; a null key is refused all the same
            key=_child(obj, "key_type", depth) if root is _R.MAP else None,
            value=_child(obj, "value_type", depth) if root is _R.MAP else None,
            fields=_fields(obj, depth) if root is _R.ROW else (),
        )
    except ProtocolError:
        raise
    except FlussError as error:
        raise ProtocolError(f"a data type that cannot be: {error.message}") from None


def _int(obj: Mapping[str, Any], name: str) -> int:
    value = obj.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{obj.get('type')} needs an integer {name}, not {value!r}")
    return value


def _child(obj: Mapping[str, Any], name: str, depth: int) -> DataType:
    return _type_from_json(obj.get(name), depth + 1)


def _fields(obj: Mapping[str, Any], depth: int) -> tuple[DataField, ...]:
    entries = obj.get("fields")
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        raise ProtocolError("the fields of a ROW are not a list of objects")
    fields = []
    for entry in entries:
        name, description = entry.get("name"), entry.get("description")
        field_id = entry.get("field_id", -1)
        if not isinstance(name, str) or not isinstance(description, str | None):
            raise ProtocolError("a field of a ROW without a name")
        if not isinstance(field_id, int):
            raise ProtocolError(f"field {name!r} of a ROW has the id {field_id!r}")
        fields.append(
            DataField(
                name,
                _child(entry, "field_type", depth),
                description,
                None if field_id < 0 else field_id,
            )
        )
    return tuple(fields)

"""The layout that Fluss gives the Iceberg table of a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import DataType, TypeRoot

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

_SYSTEM: Final = ("__bucket", "__offset", "__timestamp")
# custom properties with this prefix become properties of the Iceberg table, without the prefix
_OF_LAKE: Final = "iceberg."
_CODEC: Final = "write.parquet.compression-codec"
_CODECS: Final = ("zstd", "lz4", "snappy", "gzip", "brotli", "uncompressed")
#: Properties of Iceberg by which files are written to another place than the table's.
WRITTEN_TO: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path")
#: Properties of Iceberg that name classes of Python, which pyiceberg imports and calls.
RUN_AS_CODE: Final = ("py-io-impl", "write.py-location-provider.impl")


def lake_properties(path: TablePath, descriptor: TableDescriptor) -> dict[str, str]:
    """Return the properties of the Iceberg table that a table says, as Fluss takes them from it."""
    given = {
        name.removeprefix(_OF_LAKE): value
        for name, value in descriptor.custom_properties.items()
        if name.startswith(_OF_LAKE)
    }
    for name in (*WRITTEN_TO, *RUN_AS_CODE):
        if name in given:
            raise FlussError(
                f"table {path}: {_OF_LAKE}{name}={given[name]!r}: the lake of a folder is in the"
                " folder, and written by fluss_df itself; leave the property out",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
    codec = given.get(_CODEC, _CODECS[0])
    if codec not in _CODECS:
        raise FlussError(
            f"table {path}: {_OF_LAKE}{_CODEC}={codec!r}: expected one of {', '.join(_CODECS)}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return given


def layout(path: TablePath, descriptor: TableDescriptor) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the schema, and the columns and transforms of the partitions, as Fluss makes them."""
    from pyiceberg.schema import Schema as LakeSchema
    from pyiceberg.transforms import BucketTransform, IdentityTransform
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    schema, keys = descriptor.schema, descriptor.bucket_keys
    if len(keys) > 1:
        raise FlussError(
            f"table {path}: Iceberg format supports at most one bucket key, but got: {list(keys)}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    ids = itertools.count(1)
    columns: list[NestedField] = []
    for column in schema.columns:
        if column.name in _SYSTEM:
            raise FlussError(
                f"table {path}: Column '{column.name}' conflicts with a reserved system column.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        columns.append(
            NestedField(
                next(ids),
                column.name,
                _lake_type(column.type, ids),
                required=not column.type.nullable,
                doc=column.comment,
            )
        )
    kinds = {column.name: column.type for column in schema.columns}
    for key in descriptor.partition_keys:
        if kinds[key].root is not TypeRoot.STRING:
            raise FlussError(
                f"table {path}: Partition key only support string type for iceberg currently."
                f" Column `{key}` is not string type.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    for key in schema.primary_keys:
        if kinds[key].root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
            raise FlussError(
                f"table {path}: column '{key}' is of the primary key, and Iceberg has no keys of"
                f" {kinds[key]}; keep such numbers as DECIMAL, or leave the lake off",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    for name, kind in zip(_SYSTEM, (IntegerType(), LongType(), TimestamptzType()), strict=True):
        columns.append(NestedField(next(ids), name, kind, required=True))
    named = {column.name: column.field_id for column in columns}
    fields: list[tuple[str, Any]] = [
        (key, IdentityTransform()) for key in descriptor.partition_keys
    ]
    if keys:
        fields.append((keys[0], BucketTransform(descriptor.bucket_count or 1)))
    else:
        fields.append(("__bucket", IdentityTransform()))
    made = LakeSchema(*columns, identifier_field_ids=[named[key] for key in schema.primary_keys])
    return made, fields


def match_columns(table: Table, schema: Schema) -> None:
    """Give a lake table the columns of a table that has others by now, behind those it has.

    Columns that only the lake table has are of a change that was not completed: no row has them.
    """
    there = {field.name for field in table.schema().fields}
    wanted = {column.name for column in schema.columns}
    if there == wanted.union(_SYSTEM):
        return
    with table.update_schema() as update:
        for name in there - wanted - {*_SYSTEM}:
            update.delete_column((name,))
        for column in schema.columns:
            if column.name not in there:
                kind = _lake_type(column.type, itertools.count(1))
                update.add_column((column.name,), kind, doc=column.comment)
                update.move_before((column.name,), (_SYSTEM[0],))


def field_name(column: str, transform: Any) -> tuple[str]:
    """Return the name that Java's Iceberg gives a partition field."""
    from pyiceberg.transforms import IdentityTransform

    return (column if isinstance(transform, IdentityTransform) else f"{column}_bucket",)


def _lake_type(kind: DataType, ids: Iterator[int]) -> IcebergType:
    """Return the type that Fluss gives a column in Iceberg."""
    from pyiceberg import types as lake

    root = kind.root
    if root is TypeRoot.DECIMAL:
        return lake.DecimalType(kind.precision or 1, kind.scale or 0)
    if root is TypeRoot.ARRAY:
        assert kind.element is not None
        number = next(ids)
        element = _lake_type(kind.element, ids)
        return lake.ListType(number, element, element_required=not kind.element.nullable)
    if root is TypeRoot.MAP:
        assert kind.key is not None
        assert kind.value is not None
        first, second = next(ids), next(ids)
        key, value = _lake_type(kind.key, ids), _lake_type(kind.value, ids)
        return lake.MapType(first, key, second, value, value_required=not kind.value.nullable)
    if root is TypeRoot.ROW:
        return lake.StructType(
            *(
                lake.NestedField(
                    next(ids),
                    field.name,
                    _lake_type(field.type, ids),
                    required=not field.type.nullable,
                    doc=field.description,
                )
                for field in kind.fields
            )
        )
    plain: dict[TypeRoot, type[IcebergType]] = {
        TypeRoot.CHAR: lake.StringType,
        TypeRoot.STRING: lake.StringType,
        TypeRoot.BOOLEAN: lake.BooleanType,
        TypeRoot.BINARY: lake.BinaryType,
        TypeRoot.BYTES: lake.BinaryType,
        TypeRoot.TINYINT: lake.IntegerType,
        TypeRoot.SMALLINT: lake.IntegerType,
        TypeRoot.INTEGER: lake.IntegerType,
        TypeRoot.BIGINT: lake.LongType,
        TypeRoot.FLOAT: lake.FloatType,
        TypeRoot.DOUBLE: lake.DoubleType,
        TypeRoot.DATE: lake.DateType,
        TypeRoot.TIME_WITHOUT_TIME_ZONE: lake.TimeType,
        TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE: lake.TimestampType,
        TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE: lake.TimestamptzType,
    }
    return plain[root]()

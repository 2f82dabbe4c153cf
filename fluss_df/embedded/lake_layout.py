"""The layout that Fluss gives the Iceberg table of a table."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import WRITTEN_TO
from fluss_df.metadata import TablePath
from fluss_df.record.keys.keys_iceberg import BUCKETED, not_bucketed
from fluss_df.record.kv.primary_key import refuse_keys_finer_than_iceberg
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import DataType, TypeRoot

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as LakeSchema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

_SYSTEM: Final = ("__bucket", "__offset", "__timestamp")
# custom properties with this prefix become properties of the Iceberg table, without the prefix
_OF_LAKE: Final = "iceberg."
_CODEC: Final = "write.parquet.compression-codec"
_CODECS: Final = ("zstd", "lz4", "snappy", "gzip", "brotli", "uncompressed")
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


@contextlib.contextmanager
def lake_errors(path: TablePath) -> Iterator[None]:
    """Name the table in what pyiceberg, SQLite or the disk say, without the text of a query."""
    try:
        yield
    except FlussError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0]
        if _refuses(error):
            raise _invalid(
                f"table {path}: Iceberg does not take it: {said}; give what it names another name"
                " or type, or make the table without a lake"
            ) from error
        raise FlussError(
            f"table {path}: the lake of the folder does not take it: {said}; try again",
            ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        ) from error


def _refuses(error: Exception) -> bool:
    """Whether pyiceberg refuses a table as it is, so that to try again is of no use.

    It raises plain ValueErrors for that. Those of files that cannot be read are of other classes.
    """
    from pyiceberg.exceptions import ValidationError

    return type(error) is ValueError or isinstance(error, ValidationError)


def layout(path: TablePath, descriptor: TableDescriptor) -> tuple[LakeSchema, PartitionSpec]:
    """Return the schema and the partitions of the Iceberg table, as Fluss makes them.

    Raises ``INVALID_TABLE_EXCEPTION`` for a table that Iceberg cannot have, or that nobody could
    write to.
    """
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.schema import index_by_name
    from pyiceberg.transforms import BucketTransform, IdentityTransform

    schema, keys = descriptor.schema, descriptor.bucket_keys
    if len(keys) > 1:
        raise _invalid(
            f"table {path}: Iceberg format supports at most one bucket key, but got: {list(keys)}"
        )
    _check_keys(path, descriptor)
    made = lake_schema(path, schema)
    fields: list[tuple[str, Any]] = [
        (key, IdentityTransform()) for key in descriptor.partition_keys
    ]
    if keys:
        fields.append((keys[0], BucketTransform(descriptor.bucket_count or 1)))
        bucket = _field_name(*fields[-1])
        if bucket in index_by_name(made):
            raise _invalid(
                f"table {path}: column '{bucket}' has the name that Iceberg gives the buckets of"
                f" column '{keys[0]}'; give the column another name, or make the table without a"
                " lake"
            )
    else:
        fields.append(("__bucket", IdentityTransform()))
    named = {field.name: field.field_id for field in made.fields}
    spec = PartitionSpec(
        *(
            PartitionField(
                source_id=named[column],
                field_id=PARTITION_FIELD_ID_START + place,
                transform=transform,
                name=_field_name(column, transform),
            )
            for place, (column, transform) in enumerate(fields)
        )
    )
    return made, spec


def lake_schema(path: TablePath, schema: Schema) -> LakeSchema:
    """Return the schema of the Iceberg table.

    Raises ``INVALID_TABLE_EXCEPTION`` for columns that Iceberg cannot have beside each other.
    """
    from pyiceberg.schema import Schema as LakeSchema
    from pyiceberg.schema import index_by_name
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    ids = itertools.count(1)
    columns: list[NestedField] = []
    for column in schema.columns:
        if column.name in _SYSTEM:
            raise _invalid(
                f"table {path}: Column '{column.name}' conflicts with a reserved system column."
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
    for name, kind in zip(_SYSTEM, (IntegerType(), LongType(), TimestamptzType()), strict=True):
        columns.append(NestedField(next(ids), name, kind, required=True))
    named = {column.name: column.field_id for column in columns}
    keys = [named[key] for key in schema.primary_keys]
    try:
        made = LakeSchema(*columns, identifier_field_ids=keys)
        index_by_name(made)
    except ValueError as error:
        # an example is a column 'a.b' beside the field 'b' of a row 'a'
        raise _invalid(
            f"table {path}: two of its columns and fields have one name in Iceberg, where the field"
            f" 'b' of a row 'a' is 'a.b' ({error}); give one of them another name, or make the"
            " table without a lake"
        ) from error
    return made


def _check_keys(path: TablePath, descriptor: TableDescriptor) -> None:
    kinds = {column.name: column.type for column in descriptor.schema.columns}
    for key in descriptor.partition_keys:
        if kinds[key].root is not TypeRoot.STRING:
            raise _invalid(
                f"table {path}: Partition key only support string type for iceberg currently."
                f" Column `{key}` is not string type."
            )
    for key in descriptor.schema.primary_keys:
        if kinds[key].root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
            raise _invalid(
                f"table {path}: column '{key}' is of the primary key, and Iceberg has no keys of"
                f" {kinds[key]}; keep such numbers as DECIMAL, or leave the lake off"
            )
    refuse_keys_finer_than_iceberg(path, descriptor)
    for key in descriptor.bucket_keys:
        # servers of 0.9.1 take TINYINT, SMALLINT and TIMESTAMP_LTZ, and then no client can write to
        # the table, neither here nor in Java
        if kinds[key].root not in BUCKETED:
            raise _invalid(not_bucketed(f"table {path}: ", key, kinds[key]))


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_TABLE_EXCEPTION)


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


def _field_name(column: str, transform: Any) -> str:
    """Return the name that Java's Iceberg gives a partition field."""
    from pyiceberg.transforms import IdentityTransform

    return column if isinstance(transform, IdentityTransform) else f"{column}_bucket"


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

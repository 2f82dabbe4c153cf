"""Where a sink writes to: an existing table, or one to create in the image of the frame."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.sinks.evolution import add_columns, new_columns, require_schema_mode
from fluss_df.metadata import METADATA_COLUMNS, TablePath, nearest, require_columns, require_table
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.types import Column, from_arrow

MODES = ("auto", "append", "upsert", "delete", "partial_update")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Keys, buckets and properties of a table, as far as a sink was given them."""

    primary_keys: str | Sequence[str] | None = None
    partition_keys: str | Sequence[str] | None = None
    bucket_keys: str | Sequence[str] | None = None
    bucket_count: int | None = None
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Take a text for one name, not for the names of its letters."""
        for name in ("primary_keys", "partition_keys", "bucket_keys"):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, (given,))
            elif given is not None:
                listed = isinstance(given, Iterable)
                if not listed or not all(isinstance(key, str) for key in given):
                    raise FlussError(f"{name}={given!r}: expected a name, or a list of names")
                # taken now, because an iterator can be read only once
                object.__setattr__(self, name, tuple(given))
        if not isinstance(self.properties, Mapping | None):
            raise FlussError(f"properties={self.properties!r}: expected a dict of key to value")


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a sink writes to.

    Parameters
    ----------
    connection, path
        Where, and its name.
    descriptor
        What it is, or will be.
    info
        What the server says of it; None for a table that is still to be created.
    mode
        ``"append"``, ``"upsert"``, ``"delete"`` or ``"partial_update"``.
    columns
        The columns that are written.
    change_type_column
        The column of a frame that says what its rows do, or None.
    added
        The columns that the table is to get before the first row is written.
    merges
        Whether nullable columns that a frame lacks are written as null.
    """

    connection: FlussConnection
    path: TablePath
    descriptor: TableDescriptor
    info: TableInfo | None
    mode: str
    columns: tuple[Column, ...]
    change_type_column: str | None = None
    added: tuple[Column, ...] = ()
    merges: bool = False

    @property
    def existing(self) -> TableInfo:
        """The server's description of the table, which must exist already."""
        assert self.info is not None
        return self.info

    def partition_columns(self) -> list[Column]:
        """Return the partition columns, in order."""
        by_name = {column.name: column for column in self.descriptor.schema.columns}
        return [by_name[key] for key in self.descriptor.partition_keys]

    def partitions(self) -> set[str]:
        """Return the names of the partitions that exist."""
        if self.info is None or not self.descriptor.partition_keys:
            return set()
        admin = self.connection.get_admin()
        return {p.partition_name for p in admin.list_partition_infos(self.path)}

    def create(self) -> TableInfo:
        """Return the table, which is created first where it does not exist, and gets columns."""
        if self.info is not None:
            return add_columns(self.connection, self.info, self.added) if self.added else self.info
        admin = self.connection.get_admin()
        # another writer may have been quicker
        admin.create_table(self.path, self.descriptor, ignore_if_exists=True)
        return self.connection.get_table(self.path).get_table_info()


def find_target(
    connection: FlussConnection,
    target: str | TablePath,
    schema: pl.Schema,
    layout: TableLayout,
    *,
    mode: str,
    create_if_not_exists: bool,
    change_type_column: str | None = None,
    schema_mode: str | None = None,
) -> Target:
    """Return the table that a frame is to be written to.

    Raises FlussError when the table does not exist and is not to be created, has another layout
    than given, or does not take what the mode does. Raises SchemaMismatchError when it is to be
    created, and Fluss has no type for a column.
    """
    path = TablePath.parse(target, connection.default_database)
    if mode == "overwrite":
        raise FlussError(
            f"mode='overwrite': table {path} cannot be overwritten by a sink, which only adds to"
            " it: INSERT OVERWRITE of SQL, and insert(overwrite=True) of Ibis, replace its rows"
        )
    if mode not in MODES:
        raise FlussError(
            f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}"
            f"{nearest(str(mode), MODES)}"
        )
    require_schema_mode(schema_mode, path, mode)
    try:
        info = connection.get_table(path).get_table_info()
    except FlussError as error:
        if error.error_code != ErrorCode.TABLE_NOT_EXIST:
            raise
        if not create_if_not_exists:
            raise FlussError(
                f"{error.message}; create_if_not_exists=True creates it", error.error_code
            ) from None
        info = None
    if info is None:
        descriptor = describe(path, schema, layout, change_type_column)
    else:
        require_table(path, info.descriptor.custom_properties)
        check_layout(info, layout)
        descriptor = info.descriptor
    mode = resolve_mode(path, descriptor, mode, change_type_column)
    added: tuple[Column, ...] = ()
    if schema_mode is not None and info is not None:
        existing = set(info.get_column_names())
        if change_type_column is not None:
            existing |= {change_type_column, *METADATA_COLUMNS}
        added = new_columns(path, arrow_types(path, schema), schema, existing)
    new = {column.name for column in added}
    names = [name for name in schema.names() if name not in new]
    columns = (*written_columns(path, descriptor, mode, names), *added)
    return Target(
        connection,
        path,
        descriptor,
        info,
        mode,
        columns,
        change_type_column,
        added,
        merges=schema_mode is not None,
    )


def describe(
    path: TablePath,
    schema: pl.Schema,
    layout: TableLayout,
    change_type_column: str | None = None,
    *,
    required: Collection[str] = (),
    comment: str | None = None,
) -> TableDescriptor:
    """Return the table to create for the columns of a frame; keys and ``required`` are NOT NULL."""
    keys = tuple(layout.primary_keys or ())
    columns = []
    for field in arrow_types(path, schema):
        if field.name == change_type_column:
            continue
        if change_type_column is not None and field.name in METADATA_COLUMNS:
            continue  # what a scan of a changelog says of its rows besides
        try:
            nullable = field.name not in keys and field.name not in required
            kind = from_arrow(field.type, nullable, coerce=True)
        except FlussError as error:
            raise SchemaMismatchError(
                f"table {path} cannot be created: column '{field.name}'"
                f" ({schema[field.name]}): {error.message}"
            ) from None
        columns.append(Column(field.name, kind))
    if not columns:
        raise SchemaMismatchError(f"table {path} cannot be created: the frame has no columns")
    return TableDescriptor(
        Schema.from_columns(columns, keys),
        partition_keys=layout.partition_keys,
        bucket_keys=layout.bucket_keys,
        bucket_count=layout.bucket_count,
        comment=comment,
        properties=layout.properties,
    )


def arrow_types(path: TablePath, schema: pl.Schema) -> pa.Schema:
    """Return the Arrow types that a frame's columns are written with."""
    fields = []
    # a cache of plain types, for wide frames with thousands of columns
    known: dict[pl.DataType, pa.DataType] = {}
    for name, kind in schema.items():
        if kind == pl.Object:
            # Polars would write the memory addresses of the objects
            raise SchemaMismatchError(
                f"table {path}: column '{name}' (Object) holds Python objects: convert them first"
            )
        if kind in (pl.Int128, pl.UInt128):
            raise SchemaMismatchError(
                f"table {path}: column '{name}' ({kind}) has no Arrow type: cast it to"
                " pl.Decimal(38, 0), or to pl.Int64 where it fits"
            )
        if kind in known:
            fields.append(pa.field(name, known[kind]))
            continue
        try:
            made = pl.Series(name, [], dtype=kind).to_arrow().type
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaMismatchError(
                f"table {path}: column '{name}' ({kind}) has no Arrow type: {error}"
            ) from None
        if kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Date):
            known[kind] = made
        fields.append(pa.field(name, made))
    return pa.schema(fields)


def check_layout(info: TableInfo, layout: TableLayout) -> None:
    """Raise when an existing table is not as the sink was told to create it."""
    given: list[tuple[str, object, object]] = [
        (name, list(keys), found)
        for name, keys, found in (
            ("primary_keys", layout.primary_keys, info.get_primary_keys()),
            ("partition_keys", layout.partition_keys, info.get_partition_keys()),
            ("bucket_keys", layout.bucket_keys, info.get_bucket_keys()),
        )
        if keys is not None
    ]
    # compared in the form in which servers keep them: values as texts, and buckets separately
    wanted = TableDescriptor(
        info.schema, bucket_count=layout.bucket_count, properties=layout.properties
    )
    if wanted.bucket_count is not None:
        given.append(("bucket_count", wanted.bucket_count, info.num_buckets))
    if wanted.bucket_keys:
        given.append(("bucket_keys", list(wanted.bucket_keys), info.get_bucket_keys()))
    properties = info.get_properties()
    for key, value in wanted.properties.items():
        given.append((f"properties['{key}']", value, properties.get(key)))
    for name, asked, found in given:
        if asked != found:
            raise FlussError(
                f"table {info.table_path} exists with {name}={found!r}, not {asked!r}:"
                " leave the argument out to write to it as it is",
                ErrorCode.TABLE_ALREADY_EXIST,
            )


def resolve_mode(
    path: TablePath, descriptor: TableDescriptor, mode: str, change_type_column: str | None
) -> str:
    """Return the mode of a write to a table; raise when the table does not permit it."""
    keys = ", ".join(descriptor.schema.primary_keys)
    if mode == "auto":
        mode = "upsert" if keys else "append"
    if keys and mode == "append":
        raise FlussError(
            f"mode='append': table {path} has a primary key ({keys}), and rows can be appended to"
            " tables without primary key only; mode='upsert' writes to it",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    if not keys and mode != "append":
        raise FlussError(
            f"mode={mode!r}: table {path} has no primary key, so rows can only be appended;"
            " use mode='append'",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    if change_type_column is not None and mode != "upsert":
        raise FlussError(
            f"change_type_column={change_type_column!r}: changes are written to primary-key tables"
            f" with mode='upsert', not with mode={mode!r} to table {path}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return mode


def written_columns(
    path: TablePath, descriptor: TableDescriptor, mode: str, names: Collection[str]
) -> tuple[Column, ...]:
    """Return the columns of a table that a frame with these has to have, or may have."""
    columns = descriptor.schema.columns
    if mode == "delete":
        by_name = {column.name: column for column in columns}
        return tuple(by_name[key] for key in descriptor.schema.primary_keys)
    if mode == "partial_update":
        require_columns(names, [column.name for column in columns], f"table {path}:")
        given = frozenset(names)
        return tuple(column for column in columns if column.name in given)
    numbered = set(descriptor.schema.auto_increment)
    return tuple(column for column in columns if column.name not in numbered)

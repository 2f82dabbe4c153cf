"""Changes of databases, and of tables: properties, and columns behind the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from fluss_df.engine.catalog.validation import (
    as_fluss_keeps_it,
    check_properties,
    is_reserved,
    require_field_name,
)
from fluss_df.engine.tables import options
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import DatabaseDescriptor
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.schema import Schema, TableDescriptor, descriptor_with
from fluss_df.types import Column, type_from_json

_SET: Final = 0
_DELETE: Final = 1
_LAST: Final = 0


def altered_database(
    old: DatabaseDescriptor, request: pb.AlterDatabaseRequest
) -> DatabaseDescriptor | None:
    """Return what a database is to become; None where nothing changes.

    Raises FlussError for a change that is neither to set a property nor to remove it.
    """
    custom = old.get_custom_properties()
    removed = []
    for change in request.config_changes:
        _check_operation(change)
        if change.op_type == _SET:
            custom[change.config_key] = change.config_value
        else:
            removed.append(change.config_key)
    for key in removed:
        custom.pop(key, None)
    if custom == old.get_custom_properties() and not request.HasField("comment"):
        return None
    # an empty comment is none
    comment = (request.comment or None) if request.HasField("comment") else old.comment
    return DatabaseDescriptor(comment, custom)


def _check_operation(change: pb.AlterConfig) -> None:
    if change.op_type not in (_SET, _DELETE):
        raise FlussError(
            f"Unsupported alter configs op type {change.op_type}", ErrorCode.UNKNOWN_SERVER_ERROR
        )


def checked_columns(request: pb.AlterTableRequest) -> list[Column]:
    """Check what does not depend on the table, before it is looked for; return the new columns.

    Raises ``INVALID_ALTER_TABLE_EXCEPTION`` and others as Fluss has them.
    """
    for change in request.config_changes:
        _check_operation(change)
    added = [_added_column(column) for column in request.add_columns]
    if request.config_changes and _changes_columns(request):
        raise _invalid(
            "Table alteration can only be applied to one of the following: table properties or"
            " table schema."
        )
    return added


def altered(
    table: Table, request: pb.AlterTableRequest, added: Sequence[Column]
) -> TableDescriptor | None:
    """Return what a table is to become by a checked request; None where nothing changes.

    Raises ``INVALID_ALTER_TABLE_EXCEPTION`` and others as Fluss has them.
    """
    if request.config_changes:
        return _with_properties(table.descriptor, request)
    if _changes_columns(request):
        return _with_columns(table, request, added)
    return None


def _changes_columns(request: pb.AlterTableRequest) -> bool:
    return bool(
        request.add_columns
        or request.drop_columns
        or request.rename_columns
        or request.modify_columns
    )


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)


def _with_properties(old: TableDescriptor, request: pb.AlterTableRequest) -> TableDescriptor | None:
    properties, custom = dict(old.properties), dict(old.custom_properties)
    for change in request.config_changes:
        key = change.config_key
        ours = key.startswith("table.")
        if ours and key not in options.ALTERABLE + options.ALTERABLE_LOCAL:
            raise _invalid(f"The option '{key}' is not supported to alter yet.")
        if change.op_type == _SET:
            (properties if ours else custom)[key] = change.config_value
    # a key that is both set and removed is removed, whichever comes first
    for change in request.config_changes:
        if change.op_type == _DELETE:
            properties.pop(change.config_key, None)
            custom.pop(change.config_key, None)
    if properties == old.properties and custom == old.custom_properties:
        return None
    enabled = options.DATALAKE_ENABLED
    if enabled in old.properties and enabled not in properties:
        raise _invalid(
            f"The option '{enabled}' cannot be removed: rows that expired from the log are in the"
            " lake alone."
        )
    for key in properties.keys() & {change.config_key for change in request.config_changes}:
        if key == enabled and options.boolean(old.properties, enabled):
            raise _invalid(
                f"The option '{key}' cannot be altered for a table that has a data lake: rows that"
                " expired from the log are in the lake alone. Copy the rows into a table without a"
                " lake."
            )
        if key == enabled:
            raise _invalid(
                f"The option '{key}' cannot be altered for tables that were created before the"
                " Fluss cluster enabled datalake."
            )
        options.check_option(key, properties[key])
    check_properties(properties, bool(old.schema.primary_keys))
    return descriptor_with(old, properties=properties, custom_properties=custom)


def _added_column(added: pb.AddColumn) -> Column:
    """Return a new column, without an id."""
    if added.column_position_type != _LAST:
        raise FlussError(
            f"Unsupported ColumnPositionType: {added.column_position_type}",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    require_field_name(added.column_name)
    try:
        value = json.loads(added.data_type_json)
        as_fluss_keeps_it(value, added=True)
        kind = type_from_json(value)
    except (ValueError, TypeError, AttributeError, RecursionError, FlussError) as error:
        raise FlussError(
            f"The type of the column {added.column_name} cannot be read: {error}",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ) from None
    comment = added.comment if added.HasField("comment") else None
    return Column(added.column_name, kind, comment, None)


def _with_columns(
    table: Table, request: pb.AlterTableRequest, added: Sequence[Column]
) -> TableDescriptor:
    old = table.descriptor
    for kind, changes in (
        ("drop", request.drop_columns),
        ("rename", request.rename_columns),
        ("modify", request.modify_columns),
    ):
        if changes:
            raise FlussError(f"Not support {kind} column now.", ErrorCode.UNKNOWN_SERVER_ERROR)
    columns = list(old.schema.columns)
    has_lake = options.boolean(old.properties, options.DATALAKE_ENABLED)
    for new in added:
        # Fluss takes such a column into a table without a lake. A lake has columns of these names
        # already: the values would be overwritten there, or the table could not be read
        if has_lake and is_reserved(new.name):
            raise _invalid(
                f"Column {new.name} cannot be added to table {table.path}, which has a data lake:"
                " it is the name of a system column of Fluss. Give the column another name."
            )
        if any(column.name == new.name for column in columns):
            raise _invalid(f"Column {new.name} already exists.")
        if not new.type.nullable:
            raise FlussError(f"Column {new.name} must be nullable.", ErrorCode.UNKNOWN_SERVER_ERROR)
        columns.append(new)
    value = old.schema.to_json()
    schema = Schema.from_columns(
        columns,
        old.schema.primary_keys,
        auto_increment=old.schema.auto_increment,
        highest_field_id=value["highest_field_id"],
    )
    # gives the new columns their ids
    schema = Schema.from_json(schema.to_json())
    return descriptor_with(old, schema=schema)

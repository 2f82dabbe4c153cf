"""Requests of :class:`~fluss_df.client.admin.FlussAdmin`: what goes in, when, what comes out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import LakeSnapshot, OffsetSpec, PartitionInfo, TablePath, check_name
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of, path_message
from fluss_df.schema import TableDescriptor, TableInfo
from fluss_df.types import Column, from_arrow, type_to_json

_SET = 0
_DELETE = 1
_LAST = 0

# how often this process dropped or altered tables; what it remembered of them before may be wrong
_changes = 0


def changes() -> int:
    """Return how often this process dropped or altered tables, on any server."""
    return _changes


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Take note of a change, also of one that failed: it may have happened."""
    global _changes
    try:
        yield
    finally:
        _changes += 1


def checked(path: TablePath) -> TablePath:
    """Return a path whose names Fluss allows."""
    return TablePath.parse(path)


def table_info_request(path: TablePath) -> pb.GetTableInfoRequest:
    """Return the question what a table is."""
    return pb.GetTableInfoRequest(table_path=path_message(checked(path)))


def table_info_of(path: TablePath, response: pb.GetTableInfoResponse) -> TableInfo:
    """Return what a table is, by the answer."""
    return TableInfo(
        table_path=checked(path),
        table_id=response.table_id,
        schema_id=response.schema_id,
        descriptor=TableDescriptor.from_json(response.table_json),
        created_time=response.created_time,
        modified_time=response.modified_time,
        remote_data_dir=response.remote_data_dir or None,
    )


def partition_infos_request(
    path: TablePath, spec: Mapping[str, str] | None
) -> pb.ListPartitionInfosRequest:
    """Return the question which partitions a table has; only those of some values, where given."""
    request = pb.ListPartitionInfosRequest(table_path=path_message(checked(path)))
    if spec is not None:
        request.partial_partition_spec.CopyFrom(partition_spec_message(spec))
    return request


def partition_infos_of(response: pb.ListPartitionInfosResponse) -> list[PartitionInfo]:
    """Return the partitions of an answer, sorted by name."""
    infos = []
    for partition in response.partitions_info:
        pairs = partition.partition_spec.partition_key_values
        name = "$".join(pair.value for pair in pairs)
        spec = {pair.key: pair.value for pair in pairs}
        count = partition.bucket_count or None
        infos.append(PartitionInfo(partition.partition_id, name, spec, count))
    return sorted(infos, key=lambda info: info.partition_name)


def lake_snapshot_request(path: TablePath, *, readable: bool) -> pb.GetLakeSnapshotRequest:
    """Return the question for the newest lake snapshot of a table, or the newest readable one."""
    request = pb.GetLakeSnapshotRequest(table_path=path_message(checked(path)))
    if readable:
        request.readable = True
    return request


def lake_snapshot_of(response: pb.GetLakeSnapshotResponse) -> LakeSnapshot:
    """Return the lake snapshot of an answer."""
    return LakeSnapshot(
        response.snapshot_id,
        {
            bucket_of(response.table_id, entry): entry.log_offset
            for entry in response.bucket_snapshots
        },
    )


def partition_spec_message(spec: Mapping[str, str]) -> pb.PartitionSpec:
    """Return the message of a partition, given as column -> value."""
    if not isinstance(spec, Mapping):
        raise FlussError(
            f"invalid partition {spec!r}: expected a dict of column to value",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    for key, value in spec.items():
        if not isinstance(key, str):
            raise FlussError(
                f"invalid partition {spec!r}: {key!r} is no name of a column",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        check_name(value, "partition")
    return pb.PartitionSpec(
        partition_key_values=[pb.KeyValue(key=key, value=value) for key, value in spec.items()]
    )


def offset_spec_of(spec: OffsetSpec | int | None, kind: str | None, ts: int | None) -> OffsetSpec:
    """Return the offset asked for, in each of the ways that clients spell it."""
    if isinstance(spec, OffsetSpec):
        return spec
    name = str(kind if kind is not None else spec).lower()
    if name in ("earliest", "0"):
        return OffsetSpec.earliest()
    if name in ("latest", "1"):
        return OffsetSpec.latest()
    if name in ("timestamp", "2") and ts is not None:
        return OffsetSpec.timestamp(ts)
    if name in ("timestamp", "2"):
        raise FlussError("invalid offset 'timestamp': it needs a timestamp, in ms since 1970")
    raise FlussError(
        f"invalid offset {name!r}: expected OffsetSpec.earliest(), OffsetSpec.latest() or"
        " OffsetSpec.timestamp(ms)"
    )


def config_changes(
    set_properties: Mapping[str, object] | None,
    reset_properties: Iterable[str],
    *,
    what: str = "properties",
) -> list[pb.AlterConfig]:
    """Return the messages of properties, or configs, to set and to reset.

    Raises FlussError for settings that are not a dict of strings, keys that are not a list, or a
    key in both.
    """
    if isinstance(reset_properties, str) or not isinstance(reset_properties, Iterable):
        raise FlussError(
            f"reset_{what}: expected a list of keys, not the"
            f" {'string' if isinstance(reset_properties, str) else 'value'} {reset_properties!r}"
        )
    if not isinstance(set_properties, Mapping | None):
        raise FlussError(f"set_{what}: expected a dict of key to value, not {set_properties!r}")
    changes = []
    for key, value in (set_properties or {}).items():
        if not isinstance(value, (str, int, float)):
            raise FlussError(f"invalid value {value!r} of the property '{key}': expected a string")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        changes.append(
            pb.AlterConfig(config_key=_utf8(key), config_value=_utf8(text, of=key), op_type=_SET)
        )
    for key in reset_properties:
        if key in (set_properties or {}):
            raise FlussError(f"the property '{key}' is both to be set and to be reset")
        changes.append(pb.AlterConfig(config_key=_utf8(key), op_type=_DELETE))
    return changes


def _utf8(text: object, *, of: str | None = None) -> str:
    """Return a text that the protocol can carry."""
    if isinstance(text, str):
        with contextlib.suppress(UnicodeEncodeError):
            text.encode()
            return text
    what = "the key of a property" if of is None else f"the value of the property '{of}'"
    raise FlussError(f"invalid text {text!r} as {what}: expected a string of Unicode characters")


def columns_to_add(
    path: TablePath, columns: pa.Schema | Sequence[Column] | None
) -> list[pb.AddColumn]:
    """Return the messages of columns that a table is to get."""
    if columns is None:
        return []
    if isinstance(columns, pa.Schema):
        columns = [_column(field) for field in columns]
    elif not isinstance(columns, Iterable) or not all(isinstance(c, Column) for c in columns):
        raise FlussError(
            f"add_columns takes a pyarrow.Schema or a list of Column, not {type(columns).__name__}"
        )
    result = []
    for column in columns:
        if not column.type.nullable:
            raise FlussError(
                f"column '{column.name}' cannot be added to table {path} as NOT NULL: the rows that"
                " are there have no value of it",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
        result.append(
            pb.AddColumn(
                column_name=column.name,
                data_type_json=json.dumps(type_to_json(column.type)).encode(),
                comment=column.comment,
                column_position_type=_LAST,
            )
        )
    return result


def _column(field: pa.Field) -> Column:
    try:
        return Column(field.name, from_arrow(field.type, field.nullable))
    except FlussError as error:
        raise FlussError(f"column '{field.name}': {error.message}", error.error_code) from None

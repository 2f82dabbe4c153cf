"""The keys of primary-key tables: which columns, how encoded, and where they are."""

from __future__ import annotations

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.record.kv.kv_batch import primary_key_format
from fluss_df.schema import TableDescriptor, TableInfo
from fluss_df.types import Column, TypeRoot

_FORMAT_VERSION = "table.kv.format-version"
_TIMESTAMPS = (TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE)
_MICROSECONDS = 6


def check_primary_key(info: TableInfo) -> None:
    """Raise a FlussError where a table has no primary key."""
    if not info.has_primary_key():
        raise FlussError(
            f"table {info.table_path} has no primary key: it takes appends and scans only",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )


def key_columns(info: TableInfo) -> list[Column]:
    """Return the columns that name a row within its partition, in the order of the key."""
    by_name = {column.name: column for column in info.schema.columns}
    partition = set(info.get_partition_keys())
    return [by_name[name] for name in info.get_primary_keys() if name not in partition]


def key_lake_format(info: TableInfo) -> str | None:
    """Return the lake format that keys are encoded for; None for Fluss's own encoding."""
    version = info.get_properties().get(_FORMAT_VERSION, "1")
    if version not in ("1", "2"):
        raise FlussError(
            f"table {info.table_path} has the {_FORMAT_VERSION} {version}; this client knows 1"
            " and 2",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return primary_key_format(
        info.lake_format,
        kv_format_version=int(version),
        default_bucket_key=info.get_bucket_keys() == [c.name for c in key_columns(info)],
    )


def refuse_keys_finer_than_iceberg(path: TablePath, descriptor: TableDescriptor) -> None:
    """Raise a FlussError where rows of different keys would be one row in an Iceberg table.

    An example: the primary key is ``(id, at)`` with ``at TIMESTAMP(9)``, and the bucket key is
    ``id``. Fluss keeps a row for each nanosecond. Iceberg's timestamps are microseconds, so only
    one of the rows of a microsecond would be in the lake, and a delete of one would delete all.

    Where ``at`` alone is the primary key, it is the bucket key, too. Fluss then encodes it as
    Iceberg does, in microseconds: in Fluss itself the rows of a microsecond are one row.
    """
    partition = set(descriptor.partition_keys)
    keys = [name for name in descriptor.schema.primary_keys if name not in partition]
    if keys == list(descriptor.bucket_keys):
        return
    for column in descriptor.schema.columns:
        kind = column.type
        if (
            column.name in keys
            and kind.root in _TIMESTAMPS
            and (kind.precision or 0) > _MICROSECONDS
        ):
            raise FlussError(
                f"table {path}: column '{column.name}' of the primary key is"
                f" {kind.with_nullable(True)}, and timestamps in Iceberg are microseconds: rows of"
                " one microsecond, which Fluss keeps apart, would be one row in the lake; give the"
                f" column a precision of {_MICROSECONDS}, or the table no lake",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )

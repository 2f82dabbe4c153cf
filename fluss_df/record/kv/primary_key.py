"""The keys of primary-key tables: which columns, how encoded, and where they are."""

from __future__ import annotations

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.kv_batch import primary_key_format
from fluss_df.schema import TableInfo
from fluss_df.types import Column

_FORMAT_VERSION = "table.kv.format-version"


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

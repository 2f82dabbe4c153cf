"""The arguments of a scan, checked, as plain values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import PartitionInfo, TablePath
from fluss_df.pushdown.plan import Split
from fluss_df.record.change_tables import ChangeTable
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.schema import TableInfo
from fluss_df.types import to_arrow

Offset: TypeAlias = "str | int | dt.datetime | dt.timedelta | Mapping[int | tuple[str, int], int]"
PartitionsArgument: TypeAlias = "str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]"

#: A partition's name, or values of some partition columns as (column, text) pairs.
PartitionChoice: TypeAlias = "str | tuple[tuple[str, str], ...]"
#: "earliest", "latest", an offset, ms since 1970 in a tuple, how long before the query, or offsets
#: by (partition, bucket).
OffsetChoice: TypeAlias = (
    "str | int | tuple[int] | dt.timedelta | frozenset[tuple[tuple[str | None, int], int]]"
)

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Halves(enum.Enum):
    """Which halves of a table a scan reads, where a tiering service moves rows into a lake."""

    LOG = "log"
    LAKE = "lake"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class ScanSource:
    """A scan as it was asked for, before any query.

    Pickles carry no password (see :class:`FlussConnection`).

    Parameters
    ----------
    connection, table
        Where, and what.
    columns, metadata_columns
        The columns of the frame.
    schema
        Their Arrow types, as promised when the frame was made.
    partitions, buckets
        Which ones; None for all.
    start, stop
        From which offsets to which.
    pinned
        Exactly these offsets of exactly these buckets, whatever the others say; None as usual.
    keyed
        Whether the table has a primary key.
    changes
        How its changes are shown, where these are read rather than its rows.
    halves
        Whether rows of the data lake are read.
    """

    connection: FlussConnection
    table: TablePath
    columns: tuple[str, ...]
    metadata_columns: tuple[str, ...]
    schema: pa.Schema
    partitions: tuple[PartitionChoice, ...] | None = None
    buckets: tuple[int, ...] | None = None
    start: OffsetChoice = "earliest"
    stop: OffsetChoice = "latest"
    pinned: tuple[Split, ...] | None = None
    keyed: bool = False
    changes: ChangeTable | None = None
    halves: Halves = Halves.LOG

    def __setstate__(self, state: Sequence[Any]) -> None:
        # a frame that was pickled by an earlier release has fewer fields
        given = dict(zip((field.name for field in dataclasses.fields(self)), state, strict=False))
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, given.get(field.name, field.default))

    def same_rows(self, other: object) -> bool:
        """Whether a query may read once for both."""
        return (
            isinstance(other, ScanSource)
            and self.connection.config == other.connection.config
            and (self.table, self.columns, self.metadata_columns, self.schema)
            == (other.table, other.columns, other.metadata_columns, other.schema)
            and (self.partitions, self.buckets) == (other.partitions, other.buckets)
            and (self.start, self.stop) == (other.start, other.stop)
            and (self.pinned, self.changes, self.halves)
            == (other.pinned, other.changes, other.halves)
        )


def parse_partitions(
    info: TableInfo, argument: PartitionsArgument | None
) -> tuple[PartitionChoice, ...] | None:
    """Return the argument ``partitions`` as choices.

    Raises ``TABLE_NOT_PARTITIONED_EXCEPTION`` for a table without partitions,
    ``PARTITION_SPEC_INVALID_EXCEPTION`` for what names no partition.
    """
    if argument is None:
        return None
    if not info.is_partitioned():
        raise FlussError(
            f"partitions={argument!r}: table {info.table_path} has no partitions",
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
        )
    items = [argument] if isinstance(argument, (str, Mapping)) else argument
    if not isinstance(items, Iterable):
        raise _bad_partition(info, argument)
    return tuple(_partition_choice(info, item) for item in items)


def _partition_choice(info: TableInfo, item: object) -> PartitionChoice:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping) or not item:
        raise _bad_partition(info, item)
    types = {column.name: column.type for column in info.schema.columns}
    pairs = []
    for key, value in item.items():
        if key not in info.get_partition_keys():
            raise _bad_partition(info, item, f"'{key}' is no partition column")
        if isinstance(value, str):
            text = value
        else:
            try:
                array = pa.array([value], to_arrow(types[key]))
                text = partition_names([array], [types[key]], names=[key])[0].as_py()
            except (pa.ArrowException, FlussError) as error:
                raise _bad_partition(info, item, str(error)) from None
        pairs.append((key, text))
    return tuple(pairs)


def _bad_partition(info: TableInfo, item: object, why: str = "") -> FlussError:
    keys = info.get_partition_keys()
    example = ", ".join(f"'{key}': ..." for key in keys)
    return FlussError(
        f"partitions: {item!r} names no partition of table {info.table_path}"
        f"{': ' + why if why else ''}; expected a name such as '{'$'.join(keys)}' with values,"
        f" or a dict {{{example}}}",
        ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
    )


def is_chosen(partition: PartitionInfo, choice: PartitionChoice) -> bool:
    """Whether a choice names a partition."""
    if isinstance(choice, str):
        return partition.partition_name == choice
    return all(partition.spec.get(key) == value for key, value in choice)


def choose_partitions(
    info: TableInfo,
    partitions: Iterable[PartitionInfo],
    choices: tuple[PartitionChoice, ...] | None,
) -> list[PartitionInfo]:
    """Return the partitions that are chosen, each once, in their order.

    Raises ``PARTITION_NOT_EXISTS`` for a choice without a partition, naming what there is.
    """
    there = list(partitions)
    if choices is None:
        return there
    chosen: set[str] = set()
    for choice in choices:
        found = [p for p in there if is_chosen(p, choice)]
        if not found:
            names = [p.partition_name for p in there]
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise FlussError(
                f"table {info.table_path} has no partition"
                f" {choice if isinstance(choice, str) else dict(choice)!r}"
                f" (partitions: {shown or 'none'})",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        chosen.update(p.partition_name for p in found)
    return [p for p in there if p.partition_name in chosen]


class BucketBounds:
    """How many buckets a partition may have: servers may let it have more than its table.

    ``partitions`` returns the partitions that exist. It is called once, where a bucket is named
    that the table's number does not allow. ``choices`` are the partitions that are read, None for
    all.
    """

    def __init__(
        self,
        info: TableInfo,
        partitions: Callable[[], Iterable[PartitionInfo]] = tuple,
        choices: tuple[PartitionChoice, ...] | None = None,
    ) -> None:
        self.info = info
        self._partitions = partitions
        self._choices = choices

    @functools.cached_property
    def _counts(self) -> dict[str, int]:
        usual = self.info.num_buckets
        chosen = choose_partitions(self.info, self._partitions(), self._choices)
        return {p.partition_name: p.num_buckets or usual for p in chosen}

    def check(self, where: str, item: object, partition: str | None = None) -> None:
        """Raise FlussError if ``item`` is not the number of a bucket of the table or partition."""
        most = self.info.num_buckets
        is_number = isinstance(item, int) and not isinstance(item, bool)
        if is_number and item >= most and self.info.is_partitioned():  # type: ignore[operator]
            counts = self._counts
            most = max(counts.values(), default=most)
            if partition is not None:
                most = counts.get(partition, most)
        if not is_number or not 0 <= item < most:  # type: ignore[operator]
            of_partition = "" if partition is None else f" of its partition '{partition}'"
            raise FlussError(
                f"{where}: table {self.info.table_path} has no bucket {item!r}{of_partition};"
                f" its buckets are 0 to {most - 1}",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )


def parse_buckets(
    info: TableInfo, argument: int | Iterable[int] | None, bounds: BucketBounds | None = None
) -> tuple[int, ...] | None:
    """Return the argument ``buckets`` as numbers, ascending, each once."""
    if argument is None:
        return None
    bounds = bounds or BucketBounds(info)
    items = [argument] if isinstance(argument, int) else list(argument)
    for item in items:
        bounds.check("buckets", item)
    return tuple(sorted(set(items)))


def parse_offset(
    info: TableInfo, name: str, argument: Offset, bounds: BucketBounds | None = None
) -> OffsetChoice:
    """Return the argument ``start`` or ``stop``.

    Raises FlussError for what is no offset, a datetime without time zone, or a bucket that does not
    exist.
    """
    if isinstance(argument, str):
        if argument in ("earliest", "latest"):
            return argument
    elif isinstance(argument, dt.datetime):
        if argument.tzinfo is None:
            raise FlussError(
                f"{name}={argument!r}: a datetime needs a time zone here,"
                f" as in {name}=datetime(..., tzinfo=timezone.utc)"
            )
        # rounded up to the next whole millisecond: rows of the one before were committed earlier
        return (-((_EPOCH - argument) // dt.timedelta(milliseconds=1)),)
    elif isinstance(argument, dt.timedelta):
        if argument < dt.timedelta(0):
            raise FlussError(f"{name}={argument!r}: expected how long ago, not a time to come")
        return argument
    elif isinstance(argument, Mapping):
        known = bounds or BucketBounds(info)
        return frozenset(_bucket_offset(known, name, k, v) for k, v in argument.items())
    elif isinstance(argument, int) and not isinstance(argument, bool) and argument >= 0:
        return argument
    raise FlussError(
        f"{name}={argument!r}: expected 'earliest', 'latest', an offset from 0, a datetime with"
        " time zone, a timedelta (how long ago), or a dict of offsets by bucket"
    )


def _bucket_offset(
    bounds: BucketBounds, name: str, key: object, value: object
) -> tuple[tuple[str | None, int], int]:
    info = bounds.info
    partition, bucket = key if isinstance(key, tuple) and len(key) == 2 else (None, key)
    if info.is_partitioned() != isinstance(partition, str):
        form = "(partition name, bucket)" if info.is_partitioned() else "the bucket's number"
        raise FlussError(f"{name}: key {key!r} for table {info.table_path}: expected {form}")
    bounds.check(name, bucket, partition)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FlussError(f"{name}: offset {value!r} of bucket {key!r}: expected a number from 0")
    return (partition, cast("int", bucket)), value

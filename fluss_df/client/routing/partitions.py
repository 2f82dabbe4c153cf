"""Which partition and bucket a row goes to."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from fluss_df.client.cluster.partition_names import limits
from fluss_df.client.cluster.table_creation import create_partition
from fluss_df.client.routing.one_row import values_of
from fluss_df.client.table_questions import TableQuestions
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from fluss_df.record.keys.partition_names import PartitionData, split_by_partition
from fluss_df.record.rows.single import bucket_id, key_encoder
from fluss_df.schema import TableInfo
from fluss_df.types import Column

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

#: Returns how many buckets a partition has.
CountOf: TypeAlias = Callable[[int | None], int]


class Assigner(Protocol):
    """Gives rows their buckets; ``spread`` is over how many it spreads the rows of a batch."""

    spread: int

    def __call__(
        self, batch: pa.RecordBatch, partition_id: int | None
    ) -> Iterable[tuple[TableBucket, pa.RecordBatch]]:
        """Return the buckets of the rows of a batch."""

    def of_one(self, row: Sequence[Any], partition_id: int | None) -> TableBucket | None:
        """Return the bucket of one row; None where its values are not plain."""


class PartitionRouter:
    """Splits data over partitions, and knows which there are."""

    def __init__(self, connection: ClientContext, info: TableInfo, *, create: bool) -> None:
        self._connection = connection
        self._info = info
        self._create = create
        self._ids: dict[str, int] = {}

    def split(self, data: pa.Table) -> list[tuple[str | None, int | None, pa.Table]]:
        """Return (partition name, partition id, rows) for each partition of the data.

        Raises ``PARTITION_NOT_EXISTS`` naming the partitions that are missing; nothing is sent
        then.
        """
        if not self._info.is_partitioned():
            return [(None, None, data)]
        parts = self._parts(data)
        while True:
            # another thread may learn meanwhile that a partition is gone
            ids = self._ids
            missing = {part.name: part.spec for part in parts if part.name not in ids}
            if not missing:
                return [(part.name, ids[part.name], part.data) for part in parts]
            self._find(missing)

    def split_existing(self, data: pa.Table) -> list[tuple[str | None, int | None, pa.Table]]:
        """As :meth:`split`, without the rows of partitions that do not exist."""
        if not self._info.is_partitioned():
            return [(None, None, data)]
        parts = self._parts(data, any_text=True)
        if any(part.name not in self._ids for part in parts):
            self._refresh()
        ids = self._ids
        return [(p.name, ids[p.name], p.data) for p in parts if p.name in ids]

    def known_id(self, name: str) -> int | None:
        """Return the id of a partition that was met before."""
        return self._ids.get(name)

    def buckets_of(self, partition_id: int | None) -> int:
        """Return how many buckets a partition has that was met."""
        return self._connection.cluster.buckets_of(self._info, partition_id)

    def learn(self, name: str, partition_id: int | None) -> None:
        """Take note of the id that a partition has now; None where it is gone; in any thread."""
        ids = {known: of for known, of in self._ids.items() if known != name}
        self._ids = ids if partition_id is None else {**ids, name: partition_id}

    def forget(self, partition_id: int | None) -> None:
        """Have a partition asked for again, which may have been dropped."""
        self._ids = {name: known for name, known in self._ids.items() if known != partition_id}

    def _parts(self, data: pa.Table, *, any_text: bool = False) -> list[PartitionData]:
        keys = self._info.get_partition_keys()
        columns = [c for key in keys for c in self._info.schema.columns if c.name == key]
        path = str(self._info.table_path)
        return split_by_partition(data, columns, table=path, any_text=any_text)

    def _find(self, missing: dict[str, dict[str, str]]) -> None:
        path = self._info.table_path
        self._refresh()
        absent = {name: spec for name, spec in missing.items() if name not in self._ids}
        if absent and self._create:
            self._require_room(len(absent))
            for spec in absent.values():
                work = create_partition(self._connection.cluster, path, spec, ignore_if_exists=True)
                self._connection.io.run(work)
            self._refresh()
            absent = {name: spec for name, spec in absent.items() if name not in self._ids}
        if absent:
            names = ", ".join(f"'{name}'" for name in sorted(absent)[:10])
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            raise FlussError(
                f"table {path} has no partition {names}{more}: create it with"
                " admin.create_partition(...), or write with create_partitions=True",
                ErrorCode.PARTITION_NOT_EXISTS,
            )

    def _require_room(self, more: int) -> None:
        """Refuse too many partitions before the first is created: servers refuse only the last."""
        if more == 1:
            return
        there = len(self._ids)
        allowed = self._connection.io.run(limits(self._connection.cluster))
        for limit, what, each in [
            (allowed.partitions, "partitions (max.partition.num)", 1),
            (allowed.buckets, "buckets (max.bucket.num)", self._info.num_buckets),
        ]:
            if limit is not None and (there + more) * each > limit:
                raise FlussError(
                    f"table {self._info.table_path} has {there} partitions, and the rows need"
                    f" {more} more, of {self._info.num_buckets} buckets each: its servers allow"
                    f" {limit} {what}; no partition was created and nothing written: partition by"
                    " a column of fewer values, or raise that on the servers",
                    ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
                )

    def _refresh(self) -> None:
        infos = TableQuestions(self._connection).list_partition_infos(self._info.table_path)
        self._ids = {info.partition_name: info.partition_id for info in infos}


def bucket_assigner(
    info: TableInfo, config: Config, columns: Sequence[Column] | None = None, *, count_of: CountOf
) -> Assigner:
    """Return what gives rows their buckets.

    A bucket key always decides; without one, the configured assigner does.

    ``columns`` are those of a row that comes alone; None for all of the table. ``count_of`` returns
    how many buckets a partition has; it gets None where the table has no partitions.
    """
    if info.get_bucket_keys():
        return _HashAssigner(info, info.schema.columns if columns is None else columns, count_of)
    if config.writer_bucket_no_key_assigner == "round_robin":
        return _RoundRobinAssigner(info, count_of)
    return _StickyAssigner(info, count_of)


def named_key(info: TableInfo) -> str:
    """Return the table and the columns of its bucket key, as errors name them."""
    return f"table {info.table_path}, bucket key '{', '.join(info.get_bucket_keys())}'"


class _StickyAssigner:
    """A random bucket for each batch, another one than the last."""

    spread = 1

    def __init__(self, info: TableInfo, count_of: CountOf) -> None:
        self._info = info
        self._count_of = count_of
        self._last = -1

    def __call__(
        self, batch: pa.RecordBatch, partition_id: int | None
    ) -> Iterator[tuple[TableBucket, pa.RecordBatch]]:
        yield self.of_one((), partition_id), batch

    def of_one(self, row: Sequence[Any], partition_id: int | None) -> TableBucket:
        count = self._count_of(partition_id)
        bucket = random.randrange(count)
        if bucket == self._last and count > 1:
            bucket = (bucket + random.randrange(1, count)) % count
        self._last = bucket
        return TableBucket(self._info.table_id, bucket, partition_id)


class _RoundRobinAssigner:
    """Row after row the next bucket, from a random one on."""

    def __init__(self, info: TableInfo, count_of: CountOf) -> None:
        self._info = info
        self._count_of = count_of
        self.spread = info.num_buckets
        self._next = random.randrange(info.num_buckets)

    def __call__(
        self, batch: pa.RecordBatch, partition_id: int | None
    ) -> Iterator[tuple[TableBucket, pa.RecordBatch]]:
        buckets = self._count_of(partition_id)
        rows = batch.num_rows
        for first in range(min(buckets, rows)):
            bucket = TableBucket(self._info.table_id, (self._next + first) % buckets, partition_id)
            part = batch if buckets == 1 else batch.take(pa.array(np.arange(first, rows, buckets)))
            yield bucket, part
        self._next = (self._next + rows) % buckets

    def of_one(self, row: Sequence[Any], partition_id: int | None) -> TableBucket:
        count = self._count_of(partition_id)
        bucket = TableBucket(self._info.table_id, self._next % count, partition_id)
        self._next = (self._next + 1) % count
        return bucket


class _HashAssigner:
    """The bucket that the hash of the bucket key says."""

    def __init__(self, info: TableInfo, columns: Sequence[Column], count_of: CountOf) -> None:
        self._info = info
        self._count_of = count_of
        self.spread = info.num_buckets
        by_name = {column.name: column for column in info.schema.columns}
        self._keys = [by_name[name] for name in info.get_bucket_keys()]
        self._key_of_one = key_encoder(self._keys, info.lake_format)
        self._key_values = values_of(self._keys, columns)

    def of_one(self, row: Sequence[Any], partition_id: int | None) -> TableBucket | None:
        key = None if self._key_of_one is None else self._key_of_one(self._key_values(row))
        bucket = None if key is None else bucket_id(key, self._count_of(partition_id))
        return None if bucket is None else TableBucket(self._info.table_id, bucket, partition_id)

    def __call__(
        self, batch: pa.RecordBatch, partition_id: int | None
    ) -> Iterator[tuple[TableBucket, pa.RecordBatch]]:
        info = self._info
        keys = encode_keys(
            [batch.column(column.name) for column in self._keys],
            [column.type for column in self._keys],
            info.lake_format,
            names=[column.name for column in self._keys],
            table=str(info.table_path),
        )
        count = self._count_of(partition_id)
        buckets = bucket_ids(keys, count, info.lake_format, of=named_key(info))
        # NumPy sorts numbers of up to 16 bits by their digits, in a fifth of the time
        small = buckets.astype(np.uint16) if count < 2**16 else buckets
        order = np.argsort(small, kind="stable")
        counts = np.bincount(buckets, minlength=count)
        ends = np.cumsum(counts)
        sorted_rows = batch if len(np.flatnonzero(counts)) == 1 else batch.take(pa.array(order))
        for bucket, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if end > start:
                yield (
                    TableBucket(info.table_id, bucket, partition_id),
                    sorted_rows.slice(start, end - start),
                )

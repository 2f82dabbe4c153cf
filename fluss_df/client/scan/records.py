"""Results of scanners: records and batches, with their buckets and offsets."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from fluss_df.client.runtime.awaitable import Ready
from fluss_df.metadata import ChangeType, TableBucket
from fluss_df.record.python.dicts import dicts_of

if TYPE_CHECKING:
    from fluss_df.client.fetch.position import Position
    from fluss_df.record.log.log_decode import DecodedBatch


@dataclass(frozen=True, slots=True)
class ScanRecord:
    """One record of a log.

    Parameters
    ----------
    offset
        Its offset in the bucket.
    timestamp
        When it was committed, in ms since 1970.
    change_type
        Whether it inserts, updates or deletes; ``AppendOnly`` in log tables.
    row
        Its values by column.
    """

    offset: int
    timestamp: int
    change_type: ChangeType
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One log batch as Arrow, with its bucket and offsets.

    Parameters
    ----------
    batch
        The rows.
    bucket
        Where they come from.
    base_offset
        The offset of the first record.
    filtered_last_offset
        The offset of the last record, where a filter left records out; None where row ``i`` has
        the offset ``base_offset + i``.
    """

    batch: pa.RecordBatch
    bucket: TableBucket
    base_offset: int
    filtered_last_offset: int | None = None

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        if self.filtered_last_offset is not None:
            return self.filtered_last_offset
        rows: int = self.batch.num_rows
        return self.base_offset + rows - 1


def record_batches(taken: Sequence[tuple[Position, DecodedBatch]]) -> list[RecordBatch]:
    """Return decoded batches as users see them."""
    return [
        RecordBatch(
            decoded.batch,
            position.bucket,
            decoded.base_offset,
            None if decoded.offsets is None else decoded.offsets[-1].as_py(),
        )
        for position, decoded in taken
    ]


class _Part:
    """A decoded batch whose rows become records when they are looked at."""

    def __init__(self, decoded: DecodedBatch) -> None:
        self._decoded = decoded
        self._records: list[ScanRecord] | None = None

    def __len__(self) -> int:
        rows: int = self._decoded.batch.num_rows
        return rows

    @property
    def records(self) -> list[ScanRecord]:
        if self._records is None:
            decoded = self._decoded
            rows = dicts_of(decoded.batch)
            kinds: Sequence[int]
            if decoded.change_types is None:
                kinds = [0] * len(rows)
            else:
                kinds = decoded.change_types.to_pylist()
            offsets: Sequence[int] = range(decoded.base_offset, decoded.base_offset + len(rows))
            if decoded.offsets is not None:
                offsets = decoded.offsets.to_pylist()
            self._records = [
                ScanRecord(offset, decoded.timestamp, ChangeType(kind), row)
                for offset, kind, row in zip(offsets, kinds, rows, strict=True)
            ]
        return self._records


class ScanRecords(Ready):
    """Records of one poll, grouped by bucket: a sequence of records and a mapping of buckets.

    Iteration, ``len()`` and whole numbers are those of records, bucket after bucket; ``keys()``,
    ``items()``, ``in`` and a :class:`TableBucket` as index are those of buckets. Rows are turned
    into Python values when they are looked at.
    """

    def __init__(self, batches: Sequence[tuple[Position, DecodedBatch]] = ()) -> None:
        self._buckets: dict[TableBucket, list[_Part]] = {}
        for position, decoded in batches:
            self._buckets.setdefault(position.bucket, []).append(_Part(decoded))
        self._parts = [part for parts in self._buckets.values() for part in parts]
        self._ends = list(itertools.accumulate(len(part) for part in self._parts))

    def buckets(self) -> list[TableBucket]:
        """Return the buckets that have records."""
        return list(self._buckets)

    def records(self, bucket: TableBucket) -> list[ScanRecord]:
        """Return the records of a bucket, in order; empty where there are none."""
        return [record for part in self._buckets.get(bucket, ()) for record in part.records]

    def count(self) -> int:
        """Return the number of records."""
        return self._ends[-1] if self._ends else 0

    def is_empty(self) -> bool:
        """Whether there are no records."""
        return not self._ends

    def keys(self) -> list[TableBucket]:
        """Return the buckets; as :meth:`buckets`."""
        return self.buckets()

    def values(self) -> Iterator[list[ScanRecord]]:
        """Iterate over the records of each bucket."""
        return (self.records(bucket) for bucket in self._buckets)

    def items(self) -> Iterator[tuple[TableBucket, list[ScanRecord]]]:
        """Iterate over buckets and their records."""
        return ((bucket, self.records(bucket)) for bucket in self._buckets)

    def __len__(self) -> int:
        return self.count()

    @overload
    def __getitem__(self, key: int) -> ScanRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[ScanRecord]: ...
    @overload
    def __getitem__(self, key: TableBucket) -> list[ScanRecord]: ...
    def __getitem__(self, key: int | slice | TableBucket) -> ScanRecord | list[ScanRecord]:
        if isinstance(key, TableBucket):
            return self.records(key)
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        index = key + len(self) if key < 0 else key
        if not 0 <= index < len(self):
            raise IndexError(f"record {key} of {len(self)}")
        part = bisect.bisect_right(self._ends, index)
        first = self._ends[part - 1] if part else 0
        return self._parts[part].records[index - first]

    def __contains__(self, bucket: object) -> bool:
        return bucket in self._buckets

    def __iter__(self) -> Iterator[ScanRecord]:
        for part in self._parts:
            yield from part.records

    def __repr__(self) -> str:
        return f"ScanRecords({self.count()} records in {len(self._buckets)} buckets)"

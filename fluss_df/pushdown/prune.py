"""Which partitions, buckets and offsets can hold rows that a filter keeps."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import FlussError, ProtocolError
from fluss_df.metadata import (
    BUCKET_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    PARTITION_COLUMN,
    PartitionInfo,
)
from fluss_df.pushdown.evaluate import combinations, evaluate, project, selected_values
from fluss_df.pushdown.plan import Bucket, Split
from fluss_df.pushdown.predicate import Constant, Predicate, UnsupportedExpression, conjuncts
from fluss_df.pushdown.window import ANY, MAX_VALUE, Window, window_of
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from fluss_df.record.keys.partition_names import partition_scalars
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot, to_arrow

# the most combinations of bucket key values that are hashed
_MAX_KEYS = 65_536
#: More keys than this are not looked up one by one.
MAX_LOOKUPS = 10_000
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)

Mask = npt.NDArray[np.bool_]


class Conjunct(ABC):
    """One of the conditions that all have to be true for a row to be kept.

    ``text`` is the condition, for people. ``columns`` are those that it looks at. ``predicate`` is
    its meaning, bound to the types of the scan's columns; None where it is not understood.
    """

    text: str
    columns: frozenset[str]
    predicate: Predicate | None

    @abstractmethod
    def matches(self, rows: pa.Table) -> Mask:
        """Return for each row whether the condition is true; ``rows`` has all its columns.

        Raises UnsupportedExpression when that cannot be said.
        """


class PredicateConjunct(Conjunct):
    """A condition that is a bound predicate."""

    def __init__(self, predicate: Predicate) -> None:
        self.text = str(predicate)
        self.columns = predicate.columns()
        self.predicate = predicate

    @classmethod
    def of(cls, predicate: Predicate | None) -> list[Conjunct]:
        """Return the conditions that a bound predicate consists of."""
        return [] if predicate is None else [cls(part) for part in conjuncts(predicate)]

    def matches(self, rows: pa.Table) -> Mask:
        """Evaluate the predicate."""
        assert self.predicate is not None
        return _mask(self.predicate, rows)


@dataclass(frozen=True, slots=True)
class Pruned:
    """The buckets that are left to read, and how they were found.

    Attributes
    ----------
    buckets
        In the order they came.
    low, high
        Only offsets from ``low`` up to, not including, ``high`` are needed.
    since
        Only rows with a commit timestamp from this on are needed, in ms since 1970.
    pushed
        The conditions that were used, as text.
    residual
        The conditions that are not implied by reading only this.
    """

    buckets: tuple[Bucket, ...]
    low: int
    high: int
    since: int
    pushed: tuple[str, ...]
    residual: tuple[str, ...]


def all_buckets(info: TableInfo, partitions: Sequence[PartitionInfo]) -> tuple[Bucket, ...]:
    """Return all buckets in the order of rows: partition name, then bucket."""
    if not info.is_partitioned():
        return tuple(Bucket(None, None, number) for number in range(info.num_buckets))
    return tuple(
        Bucket(partition.partition_id, partition.partition_name, number, partition.num_buckets)
        for partition in sorted(partitions, key=lambda p: p.partition_name)
        for number in range(partition.num_buckets or info.num_buckets)
    )


def count_buckets(info: TableInfo, partitions: Iterable[PartitionInfo]) -> int:
    """Return how many buckets :func:`all_buckets` returns."""
    if not info.is_partitioned():
        return info.num_buckets
    return sum(partition.num_buckets or info.num_buckets for partition in partitions)


def prune(
    info: TableInfo,
    buckets: Sequence[Bucket],
    conditions: Sequence[Conjunct],
    metadata_columns: Sequence[str] = (),
) -> Pruned:
    """Return the buckets and offsets that can hold rows for which all conditions are true.

    A condition on partition columns (and on ``_partition`` and ``_bucket``, where they are columns
    of the scan) is evaluated for each bucket; of other conditions, the part that speaks of those
    columns. Equalities on all bucket keys leave the buckets that these keys hash to.

    ``buckets`` are those to choose from, ``conditions`` what the query asks of a row.
    ``metadata_columns`` are those of the scan. A condition on ``_bucket`` means the metadata column
    where it is among them, else a column of the table that happens to have the name.
    """
    frame = _KnownRows(info, buckets, metadata_columns)
    keep: Mask = np.ones(len(buckets), bool)
    pushed: list[str] = []
    residual: list[str] = []
    low, high, since = 0, MAX_VALUE, 0
    for condition in conditions:
        if condition.columns <= frame.names:
            try:
                keep &= condition.matches(frame.table) | frame.unreadable
                pushed.append(condition.text)
                if frame.unreadable.any():
                    residual.append(condition.text)
                continue
            except UnsupportedExpression:
                residual.append(condition.text)
                continue
        window = _window(condition, LOG_OFFSET_COLUMN, metadata_columns)
        low, high = max(low, window.low), min(high, window.high)
        time = _window(condition, COMMIT_TIMESTAMP_COLUMN, metadata_columns)
        since = max(since, time.low)
        if window.exact:
            pushed.append(condition.text)
            continue
        if window != ANY:
            pushed.append(f"{LOG_OFFSET_COLUMN} in {window}")
        if time.low > 0:
            pushed.append(f"{COMMIT_TIMESTAMP_COLUMN} from {time.low} ms on")
        residual.append(condition.text)
        if condition.predicate is not None:
            part = project(condition.predicate, frame.names)
            if part != Constant(True):
                keep &= _mask(part, frame.table) | frame.unreadable
                pushed.append(str(part))
    predicates = [c.predicate for c in conditions if c.predicate is not None]
    ids = np.array([bucket.bucket_id for bucket in buckets], np.int32)
    counts = np.array([bucket.count or info.num_buckets for bucket in buckets], np.int32)
    # each partition has its own number of buckets, where servers let them differ
    for count in np.unique(counts):
        chosen = _hashed_buckets(info, predicates, int(count))
        if chosen is None:
            break
        numbers, text = chosen
        keep &= (counts != count) | np.isin(ids, numbers)
        if text not in pushed:
            pushed.append(text)
    left = tuple(itertools.compress(buckets, keep))
    return Pruned(left, low, high, since, tuple(pushed), tuple(residual))


def make_splits(
    buckets: Sequence[Bucket],
    starts: Mapping[Bucket, int],
    stops: Mapping[Bucket, int],
    low: int = 0,
    high: int = MAX_VALUE,
) -> tuple[Split, ...]:
    """Return the splits of the buckets that are not empty, in the buckets' order."""
    splits = (
        Split(
            bucket.partition_id,
            bucket.partition_name,
            bucket.bucket_id,
            max(starts[bucket], low),
            min(stops[bucket], high),
        )
        for bucket in buckets
    )
    return tuple(split for split in splits if split.rows)


def _window(condition: Conjunct, column: str, metadata_columns: Sequence[str]) -> Window:
    """Return the values of a metadata column for which a condition can be true."""
    if condition.predicate is None or column not in metadata_columns:
        return ANY
    return window_of(condition.predicate, column)


def _mask(predicate: Predicate, rows: pa.Table) -> Mask:
    mask = evaluate(predicate, rows).fill_null(False)
    result: Mask = mask.to_numpy().astype(bool)
    return result


class _KnownRows:
    """What is known of the rows of each bucket without reading them: a row for each bucket.

    The table is made when a condition needs it. Most conditions are on other columns, and the first
    array that PyArrow makes of Python objects imports pandas where it is installed: 0.1 s.
    """

    def __init__(
        self, info: TableInfo, buckets: Sequence[Bucket], metadata_columns: Sequence[str]
    ) -> None:
        self._info = info
        self._buckets = buckets
        self._metadata_columns = metadata_columns

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns that conditions can be evaluated on."""
        if self._info.is_partitioned():
            return frozenset(self.table.column_names) - {""}
        return frozenset({BUCKET_COLUMN} & set(self._metadata_columns))

    @functools.cached_property
    def unreadable(self) -> Mask:
        """Of which buckets the partition's name does not read back as values: any may match."""
        odd = {name for name, values in self._partitions.items() if values is None}
        return np.array([bucket.partition_name in odd for bucket in self._buckets], bool)

    @functools.cached_property
    def _keys(self) -> list[Column]:
        columns = {column.name: column for column in self._info.schema.columns}
        return [columns[key] for key in self._info.get_partition_keys()]

    @functools.cached_property
    def _partitions(self) -> dict[str | None, tuple[pa.Scalar, ...] | None]:
        names = dict.fromkeys(bucket.partition_name for bucket in self._buckets)
        return {name: _partition_values(name, self._keys) for name in names if name is not None}

    @functools.cached_property
    def table(self) -> pa.Table:
        """The rows, with a nameless column, so that a condition without columns has rows too."""
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        if self._info.is_partitioned():
            names = pa.array([bucket.partition_name for bucket in self._buckets], pa.string())
            encoded = names.dictionary_encode()
            rows = [self._partitions[name] for name in encoded.dictionary.to_pylist()]
            for key, values in _partition_columns(rows, self._keys).items():
                columns[key] = values.take(encoded.indices)
            if PARTITION_COLUMN in self._metadata_columns:
                columns[PARTITION_COLUMN] = names
        numbers = pa.array([bucket.bucket_id for bucket in self._buckets], pa.int32())
        frame = pa.table({"": numbers, **columns})
        if BUCKET_COLUMN in self._metadata_columns:
            frame = frame.append_column(BUCKET_COLUMN, numbers)
        return frame


def _partition_values(name: str, keys: Sequence[Column]) -> tuple[pa.Scalar, ...] | None:
    """Return the values of a partition; None where its name does not read back as values."""
    try:
        return partition_scalars(name, keys)
    except (FlussError, ProtocolError):
        return None


def _partition_columns(
    rows: Sequence[tuple[pa.Scalar, ...] | None], keys: Sequence[Column]
) -> dict[str, pa.Array]:
    """Return the values of partitions as columns, null where a name does not read back."""
    found: dict[str, pa.Array] = {}
    for i, key in enumerate(keys):
        # a TIME finer than milliseconds is not in the name to its last digit
        if key.type.root is TypeRoot.TIME_WITHOUT_TIME_ZONE and (key.type.precision or 0) > 3:
            continue
        values = [None if row is None else row[i] for row in rows]
        found[key.name] = pa.array(values, to_arrow(key.type))
    return found


def _hashed_buckets(
    info: TableInfo, predicates: Sequence[Predicate], of_buckets: int
) -> tuple[npt.NDArray[np.int32], str] | None:
    """Return the buckets of the bucket keys that the predicates name, and what was used."""
    keys = [c for key in info.get_bucket_keys() for c in info.schema.columns if c.name == key]
    # -0.0 equals 0.0, and hashes to another bucket
    if not keys or any(key.type.root in _FLOATS for key in keys):
        return None
    values = [selected_values(predicates, key.name) for key in keys]
    known = [v for v in values if v is not None]
    columns = combinations(known, _MAX_KEYS) if len(known) == len(keys) else None
    if columns is None:
        return None
    count = len(columns[0])
    text = f"bucket key {', '.join(key.name for key in keys)}: {count} hashed"
    if not count:
        return np.empty(0, np.int32), text
    try:
        encoded = encode_keys(columns, [key.type for key in keys], info.lake_format)
        numbers = bucket_ids(encoded, of_buckets, info.lake_format)
    except FlussError:
        # a lake format whose hash is not known here
        return None
    return np.unique(numbers), text


def selected_keys(
    info: TableInfo, conditions: Sequence[Conjunct], names: Sequence[str] | None = None
) -> pa.Table | None:
    """Return the values of key columns that conditions name; None where they leave one open.

    ``names`` are the key columns; None for the primary key.
    """
    predicates = [c.predicate for c in conditions if c.predicate is not None]
    by_name = {column.name: column for column in info.schema.columns}
    values = {}
    for name in info.get_primary_keys() if names is None else names:
        # -0.0 equals 0.0, and is another key
        found = selected_values(predicates, name)
        if found is None or by_name[name].type.root in _FLOATS:
            return None
        # what is equal to null is never true, and no key has one
        found = found.drop_null().unique()
        kind = by_name[name].type
        if kind.root is TypeRoot.CHAR:
            # no key has a longer one, and a lookup refuses it
            found = found.filter(pc.less_equal(pc.utf8_length(found), kind.length))
        values[name] = found
    columns = combinations(list(values.values()), MAX_LOOKUPS)
    return None if columns is None else pa.table(dict(zip(values, columns, strict=True)))

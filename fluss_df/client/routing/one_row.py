"""Keys of plain values to where their rows are, one at a time."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fluss_df.metadata import TableBucket
from fluss_df.record.rows.single import bucket_id, key_encoder
from fluss_df.schema import TableInfo
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot

Values = Callable[[Sequence[Any]], Sequence[Any]]


def values_of(wanted: Sequence[Column], columns: Sequence[Column]) -> Values:
    """Return a function that takes the values of the wanted columns out of a row of columns."""
    names = [column.name for column in columns]
    places = [names.index(column.name) for column in wanted]
    if len(places) == 1:
        return lambda values: (values[places[0]],)
    return operator.itemgetter(*places)


class PlainPartitions:
    """Names the partitions of rows with plain values, as ``record.keys.partition_names`` does.

    ``usable`` is false where the partition columns have types whose values this never names.
    """

    def __init__(self, info: TableInfo, columns: Sequence[Column]) -> None:
        by_name = {column.name: column for column in columns}
        keys = [by_name[name] for name in info.get_partition_keys()]
        self._values = values_of(keys, columns)
        texts = [_text_of(column.type) for column in keys]
        self._texts = [text for text in texts if text is not None]
        self.usable = None not in texts

    def name(self, row: Sequence[Any]) -> str | None:
        """Return the name of a row's partition; None where a value is not plain."""
        if not self.usable:
            return None
        parts = []
        for text, value in zip(self._texts, self._values(row), strict=True):
            part = text(value)
            if part is None:
                return None
            parts.append(part)
        return "$".join(parts)


Text = Callable[[Any], str | None]


def _text_of(t: DataType) -> Text | None:
    """Return what makes a value the text of it in names of partitions."""
    if t.root is _R.CHAR:
        most = t.length or 0
        return lambda value: value if type(value) is str and len(value) <= most else None
    return _TEXTS.get(t.root)


def _string(value: Any) -> str | None:
    return value if type(value) is str else None


def _integer(value: Any) -> str | None:
    return str(value) if type(value) is int else None


def _boolean(value: Any) -> str | None:
    return ("true" if value else "false") if type(value) is bool else None


def _date(value: Any) -> str | None:
    return value.isoformat() if type(value) is dt.date else None


_TEXTS: Final[Mapping[TypeRoot, Text]] = {
    _R.STRING: _string,
    _R.BOOLEAN: _boolean,
    _R.TINYINT: _integer,
    _R.SMALLINT: _integer,
    _R.INTEGER: _integer,
    _R.BIGINT: _integer,
    _R.DATE: _date,
}


class PlainKeys:
    """Says in which bucket the row of a key is, and as what bytes the key goes there.

    This is the quick way for one key with plain values. All others take the vectorised way.

    ``columns`` are those of a key as users give it. ``encoded`` are those of them that are encoded
    as the key, in the encoding of ``lake_format`` (None for Fluss's own).

    ``bucket_columns`` decide the bucket. ``one_encoding`` says whether the encoded key also decides
    the bucket, so that nothing else has to be encoded.
    """

    def __init__(
        self,
        info: TableInfo,
        columns: Sequence[Column],
        encoded: Sequence[Column],
        lake_format: str | None,
    ) -> None:
        self._table_id = info.table_id
        self._buckets = info.num_buckets
        self._names = [column.name for column in columns]
        by_name = {column.name: column for column in columns}
        bucket_columns = [by_name[name] for name in info.get_bucket_keys()]
        self._key = key_encoder(encoded, lake_format)
        self._key_values = values_of(encoded, columns)
        self.bucket_columns = bucket_columns
        self.one_encoding = list(encoded) == bucket_columns and lake_format == info.lake_format
        self._bucket_key = key_encoder(bucket_columns, info.lake_format)
        self._bucket_values = values_of(bucket_columns, columns)
        self._partitions = PlainPartitions(info, columns) if info.is_partitioned() else None
        self._usable = self._key is not None and self._bucket_key is not None
        self._usable &= self._partitions is None or self._partitions.usable

    def place(
        self,
        key: Mapping[str, Any] | Sequence[Any],
        partition_id_of: Callable[[str], int | None],
        count_of: Callable[[int | None], int],
    ) -> tuple[TableBucket, bytes] | None:
        """Return the bucket of a key that has the right names or length, and the bytes of the key.

        ``partition_id_of`` returns the id of a partition by its name, or None where it is not
        known. ``count_of`` returns how many buckets a partition has. The result is None where the
        key is not plain, or its partition not known.
        """
        if not self._usable or self._key is None or self._bucket_key is None:
            return None
        values = [key.get(name) for name in self._names] if isinstance(key, Mapping) else key
        encoded = self._key(self._key_values(values))
        hashed = encoded if self.one_encoding else self._bucket_key(self._bucket_values(values))
        if encoded is None or hashed is None:
            return None
        partition_id = None
        if self._partitions is not None:
            name = self._partitions.name(values)
            partition_id = None if name is None else partition_id_of(name)
            if partition_id is None:
                return None
        buckets = self._buckets if partition_id is None else count_of(partition_id)
        bucket = bucket_id(hashed, buckets)
        if bucket is None:
            return None
        return TableBucket(self._table_id, bucket, partition_id), encoded

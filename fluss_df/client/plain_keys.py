"""Keys of plain values to where their rows are, one at a time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fluss_df.metadata import TableBucket
from fluss_df.record.single import bucket_id, key_encoder
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot

_R = TypeRoot
# whose values str() makes the names of partitions of
_NAMING: Final[Mapping[TypeRoot, type]] = {
    _R.STRING: str,
    _R.TINYINT: int,
    _R.SMALLINT: int,
    _R.INTEGER: int,
    _R.BIGINT: int,
}

Values = Callable[[Sequence[Any]], Sequence[Any]]


class PlainKeys:
    """Says in which bucket the row of a key is, and as what bytes the key goes there.

    For keys that take no more than a glance; others are for the vectorised way.

    Parameters
    ----------
    info
        The table.
    columns
        The columns of a key as users give it.
    encoded
        Those of them that are encoded as the key.
    lake_format
        The lake format of that encoding; None for Fluss's own.

    Attributes
    ----------
    bucket_columns
        The columns that decide the bucket.
    one_encoding
        Whether the key decides it, as it is encoded.
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
        partition = [by_name[name] for name in info.get_partition_keys()]
        self._key = key_encoder(encoded, lake_format)
        self._key_values = self._taking(encoded)
        self.bucket_columns = bucket_columns
        self.one_encoding = list(encoded) == bucket_columns and lake_format == info.lake_format
        self._bucket_key = key_encoder(bucket_columns, info.lake_format)
        self._bucket_values = self._taking(bucket_columns)
        self._partition_values = self._taking(partition) if partition else None
        self._partition_kinds = [_NAMING.get(column.type.root) for column in partition]
        self._usable = self._key is not None and self._bucket_key is not None
        self._usable &= None not in self._partition_kinds

    def _taking(self, columns: Sequence[Column]) -> Values:
        places = [self._names.index(column.name) for column in columns]
        if len(places) == 1:
            return lambda values: (values[places[0]],)
        return operator.itemgetter(*places)

    def place(
        self, key: Mapping[str, Any] | Sequence[Any], partition_id_of: Callable[[str], int | None]
    ) -> tuple[TableBucket, bytes] | None:
        """Return the bucket of a key that has the right names or length, and the bytes of the key.

        Parameters
        ----------
        key
            The key, as users give it.
        partition_id_of
            Returns the id of a partition, where it is known.
        """
        if not self._usable or self._key is None or self._bucket_key is None:
            return None
        values = [key.get(name) for name in self._names] if isinstance(key, Mapping) else key
        encoded = self._key(self._key_values(values))
        hashed = encoded if self.one_encoding else self._bucket_key(self._bucket_values(values))
        if encoded is None or hashed is None:
            return None
        bucket = bucket_id(hashed, self._buckets)
        if bucket is None:
            return None
        partition_id = None
        if self._partition_values is not None:
            parts = self._partition_values(values)
            if [type(part) for part in parts] != self._partition_kinds:
                return None
            partition_id = partition_id_of("$".join(map(str, parts)))
            if partition_id is None:
                return None
        return TableBucket(self._table_id, bucket, partition_id), encoded

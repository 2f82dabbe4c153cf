"""Folding a changelog into the rows that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss_df.metadata import ChangeType
from fluss_df.record.keys.keys import Keys, encode_keys
from fluss_df.record.layout.taking import take_rows
from fluss_df.types import Column

# how many changes are gathered before the rows that they replaced are given up
_FOLD_ROWS = 1 << 18


class ChangeFold:
    """The last change of each key; holds these in memory, and a few more changes.

    ``key_columns`` are those of the key within a partition, encoded as
    :func:`fluss_df.record.keys.keys.encode_keys` does for ``lake_format``. ``schema`` is that of
    the changes, which have the columns of the key.
    """

    def __init__(
        self, key_columns: Sequence[Column], lake_format: str | None, schema: pa.Schema
    ) -> None:
        self._key_columns = key_columns
        self._lake_format = lake_format
        self._schema = schema
        self._keys: list[pa.Array] = []
        self._deleted: list[pa.Array] = []
        self._rows: list[pa.Table] = []
        self._count = 0
        self._folded = 0

    def add(self, rows: pa.Table, changes: pa.ChunkedArray) -> None:
        """Add changes, which are later than all that were added before."""
        kinds = changes.to_numpy()
        wanted = kinds != ChangeType.UpdateBefore.value
        if not wanted.all():
            rows, kinds = rows.filter(pa.array(wanted)), kinds[wanted]
        if not rows.num_rows:
            return
        self._rows.append(rows)
        self._keys.append(self.encode(rows))
        self._deleted.append(pa.array(kinds == ChangeType.Delete.value))
        self._count += rows.num_rows
        if self._count > 2 * self._folded + _FOLD_ROWS:
            self._fold()

    def encode(self, rows: pa.Table) -> pa.Array:
        """Return the key of each row."""
        keys = encode_keys(
            [rows.column(column.name) for column in self._key_columns],
            [column.type for column in self._key_columns],
            self._lake_format,
            names=[column.name for column in self._key_columns],
        )
        return key_array(keys)

    def _fold(self) -> None:
        keys = pa.chunked_array(self._keys, pa.large_binary())
        index = pa.array(np.arange(len(keys)))
        groups = pa.table([keys, index], names=["key", "index"]).group_by("key", use_threads=False)
        last = groups.aggregate([("index", "max")]).column("index_max").combine_chunks().sort()
        deleted = pa.chunked_array(self._deleted, pa.bool_())
        self._rows = [take_rows(pa.concat_tables(self._rows), last).combine_chunks()]
        self._keys = [keys.take(last).combine_chunks()]
        self._deleted = [deleted.take(last).combine_chunks()]
        self._count = self._folded = len(last)

    def finish(self) -> tuple[pa.Array, pa.Table]:
        """Return the keys that changed, and the rows of those that were not deleted last."""
        if not self._rows:
            return pa.array([], pa.large_binary()), pa.Table.from_batches([], self._schema)
        self._fold()
        deleted = self._deleted[0].to_numpy(zero_copy_only=False)
        return self._keys[0], self._rows[0].filter(pa.array(~deleted))


def key_array(keys: Keys) -> pa.Array:
    """Return encoded keys as an Arrow array."""
    offsets = pa.py_buffer(np.ascontiguousarray(keys.offsets, np.int64))
    data = pa.py_buffer(np.ascontiguousarray(keys.data))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(keys), [None, offsets, data])

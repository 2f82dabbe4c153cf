"""Writes the tasks of a round into a Paimon table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.context import ClientContext
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.files import KeyedWriter, LogWriter, PaimonFiles
from fluss_df.lake.paimon_writing.rows import binary_row
from fluss_df.lake.paimon_writing.schema import WriteSchema
from fluss_df.lake.paimon_writing.statistics import row_value
from fluss_df.lake.rounds.lake_rows import to_lake
from fluss_df.lake.rounds.split import Split, where
from fluss_df.lake.rounds.split_reader import SplitReader
from fluss_df.lake.rounds.tasks import WriteTask, Written
from fluss_df.metadata import (
    CHANGE_TYPE_COLUMN,
    CHANGELOG_COLUMNS,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
)
from fluss_df.record.keys.partition_names import partition_scalars
from fluss_df.schema import TableInfo

# what changes are, in the order of their numbers in Paimon
_KINDS: Final = pa.array(["+I", "-U", "+U", "-D"])
# a binary row of the partition, and a bucket -> the greatest sequence number there
Sequences = Mapping[tuple[bytes, int], int]


class PaimonTaskWriter:
    """Writes the tasks of one table's round; see :class:`TaskWriter`.

    The round was planned with the lake snapshot ``snapshot_id``, None before the first one. Of
    a primary-key table, ``sequences`` has the greatest sequence numbers in that snapshot.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        table: TableFiles,
        schema: WriteSchema,
        snapshot_id: int | None,
        sequences: Sequences,
    ) -> None:
        self.info = info
        self.snapshot_id = snapshot_id
        self._path = info.table_path
        self._schema = schema
        self._files = PaimonFiles(table, schema)
        self._sequences = sequences
        self._reader = SplitReader(connection, info)

    def write(self, task: WriteTask) -> Written:
        """Write a task's files; where that raises, none of them is left."""
        assert task.split is not None
        try:
            if not self._schema.keyed:
                return self._append(task.split)
            if task.split.snapshot:
                return self._rows(task.split)
            return self._changes(task.split)
        except OSError as error:
            raise FlussError(
                f"table {self._path}: the files of its lake table cannot be written: {error};"
                " nothing of the round was committed"
            ) from error

    def _partition(self, split: Split) -> bytes:
        """Return the values of a partition as a row."""
        keys = self._schema.lake.partition_keys
        if not keys or split.partition_name is None:
            return binary_row([], [])
        columns = {column.name: column for column in self.info.schema.columns}
        scalars = partition_scalars(split.partition_name, [columns[key] for key in keys])
        return binary_row([row_value(value) for value in scalars], self._schema.kinds(keys))

    def _append(self, split: Split) -> Written:
        result = Written(offsets={split.key: split.stop})
        bucket = split.bucket.bucket_id
        # where a lake has no buckets, all rows of a partition are in the folder of the first
        place = bucket if self._schema.buckets > 0 else 0
        writer = LogWriter(self._files, self._partition(split), place)
        columns = (LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN)
        with undoing(writer.abort):
            for rows in self._reader.log(split, columns, result):
                if not rows.num_rows:
                    continue
                offsets = rows.column(LOG_OFFSET_COLUMN)
                made = to_lake(rows, self._schema.rows, bucket, self._path)
                writer.write(made, offsets[0].as_py(), offsets[-1].as_py())
            result.added = writer.close()
        return result

    def _changes(self, split: Split) -> Written:
        """Write the changes of a bucket.

        Sequence numbers are offsets, as they are in Flink's service. They are larger than the
        offsets only where a partition was dropped and created again. Its offsets begin at 0 again,
        and its new rows need larger numbers than the rows that the lake has.
        """
        result = Written(offsets={split.key: split.stop})
        partition, bucket = self._partition(split), split.bucket.bucket_id
        above = max(self._sequences.get((partition, bucket), -1) + 1 - split.start, 0)
        writer = KeyedWriter(self._files, partition, bucket)
        with undoing(writer.abort):
            for rows in self._reader.log(split, CHANGELOG_COLUMNS, result):
                kinds = rows.column(CHANGE_TYPE_COLUMN).cast(pa.string())
                writer.write(
                    to_lake(rows, self._schema.rows, bucket, self._path),
                    pc.index_in(kinds, _KINDS).cast(pa.int8()),
                    pc.add(rows.column(LOG_OFFSET_COLUMN), above),
                )
            result.added = writer.close()
        return result

    def _rows(self, split: Split) -> Written:
        """Write the current rows of a bucket, in place of its changes.

        Its first changes have expired, or it has more changes than one round reads.
        """
        result = Written()
        partition, bucket = self._partition(split), split.bucket.bucket_id
        first = self._sequences.get((partition, bucket), -1) + 1
        if first and split.partition_name is None:
            raise FlussError(
                f"table {self._path}, {where(split.bucket, split.partition_name)}: the lake"
                " has rows of a bucket of which Fluss knows no offset; the lake table belongs"
                " to an older table of that name. Drop it first"
            )
        writer = KeyedWriter(self._files, partition, bucket)
        with undoing(writer.abort):
            for rows in self._reader.current_rows(split, result, ends=True):
                count = rows.num_rows
                writer.write(
                    to_lake(rows, self._schema.rows, bucket, self._path),
                    pa.repeat(pa.scalar(0, pa.int8()), count),
                    pa.array(np.arange(first, first + count, dtype=np.int64)),
                )
                first += count
            result.added = writer.close()
        return result

"""The interface of row codecs, :class:`RowCodec`: one codec is for logs and one for keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from fluss_df.protocol.produce import WriteApi
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.record.python.row_collector import Gathered, RowCollector
from fluss_df.types import Column


class RowCodec(ABC):
    """Rows of a table as a writer takes them, keeps them, and sends them.

    A *frame* is what waits and is encoded: the columns, and what the kind of table adds. Any thread
    may call the methods.

    Attributes
    ----------
    columns
        The columns that rows have.
    rows
        Checks rows that come one by one.
    frame_schema
        The Arrow schema of a frame.
    api
        The request that carries batches.
    most_rows
        The most rows of a batch.
    frame
        Returns a user's table as a frame, or raises SchemaMismatchError.
    encode
        Returns the bytes of a batch.
    """

    columns: Sequence[Column]
    rows: RowCollector
    frame_schema: pa.Schema
    api: WriteApi
    most_rows: int
    frame: Callable[[pa.Table], pa.Table]
    encode: Callable[[pa.RecordBatch], StampedBatch]

    @abstractmethod
    def frame_of_rows(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows that were added one by one as a frame.

        ``gathered`` has the keys of rows to delete. ``values`` are the values of the other rows,
        row after row.
        """

    @abstractmethod
    def one_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], StampedBatch] | None:
        """Return the values, by column, and the bytes of a row that nothing else waits with.

        None where its values are not plain: it goes the way of many then, which costs a row
        0.2 ms.
        """

    def frame_bytes(self, target_bytes: int) -> int:
        """Return about how many bytes the batches have that a large frame is cut into."""
        return target_bytes

"""Reading ahead: a thread that receives, threads that decode, and the one that hands frames on."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.client.encode_pool import encode_pool
from fluss_df.client.log_decode import TableDecoder
from fluss_df.client.log_fetch import Chunk, Position
from fluss_df.client.metrics import Metrics
from fluss_df.client.reader import OrderedRead, positions_of
from fluss_df.io.arrow import to_polars
from fluss_df.pushdown.plan import Split
from fluss_df.schema import TableInfo

# so many chunks are decoded ahead of the one that is handed on
_CHUNKS_AHEAD = max(1, min(4, (os.cpu_count() or 1) // 2))
# A chunk of few distinct values is a few MB here, and gigabytes when decoded: only so much of it is
# decoded ahead.
_BYTES_AHEAD = 8 << 20
# Polars keeps some frames of each source: they are cut, without a copy, to about this size
_FRAME_BYTES = 2 << 20
# the longest wait without giving the caller a chance to stop
_WAIT_S = 0.2

# frames of a chunk, and the pieces that are still to decode
_Begun: TypeAlias = tuple[deque[pl.DataFrame], Iterator[pa.Table] | None]
_Future: TypeAlias = concurrent.futures.Future[_Begun]


class ReadAhead:
    """Reads splits in their order; iterate it once, in a ``with`` statement.

    The next chunks are received and decoded while a frame is used, so that one bucket alone keeps
    several cores busy. Yields None when nothing came for a while. Leaving the ``with`` statement
    ends the read at once, also when a server is silent.

    Parameters
    ----------
    connection, info
        The table.
    columns, metadata_columns
        What to read.
    metrics
        What is counted.
    splits
        Where to read.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        columns: Sequence[str],
        metadata_columns: Sequence[str],
        metrics: Metrics,
        splits: Sequence[Split],
    ) -> None:
        decoder = _DecodesAhead(connection, info, columns, metadata_columns, metrics)
        positions = positions_of(info.table_id, splits)
        self._read = OrderedRead(connection, info, decoder, positions, metrics)
        self._changed = threading.Condition()
        self._begun: deque[_Future] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._receive, name="fluss-df-fetch", daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            ended = self._ended
            for begun in self._begun:
                begun.cancel()
            self._begun.clear()
            self._changed.notify_all()
        if not ended:
            self._read.abort()

    def _receive(self) -> None:
        error: BaseException | None = None
        read = cast("Iterator[_Future]", iter(self._read))
        try:
            while self._has_room():
                begun = next(read, None)
                if begun is None:
                    break
                with self._changed:
                    self._begun.append(begun)
                    self._changed.notify_all()
        except BaseException as caught:
            error = caught
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until another chunk may be decoded; return False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._begun) < _CHUNKS_AHEAD)
            return not self._closed

    def __iter__(self) -> Iterator[pl.DataFrame | None]:
        begun: _Future | None = None
        while True:
            if begun is None:
                begun = self._next_chunk()
            if begun is None:
                if self._ended and not self._begun:
                    break
                yield None
                continue
            if not concurrent.futures.wait([begun], _WAIT_S).done:
                yield None
                continue
            frames, pieces = begun.result()
            begun = None if pieces is None else encode_pool().submit(_decode_some, pieces)
            # what was handed on is not kept
            while frames:
                yield frames.popleft()
        if self._error is not None:
            raise self._error

    def _next_chunk(self) -> _Future | None:
        """Return the next chunk in the order of the read; None when it did not come yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun or self._ended, _WAIT_S)
            if not self._begun:
                return None
            self._changed.notify_all()
            return self._begun.popleft()


class _DecodesAhead(TableDecoder):
    """Decodes on the threads of the process, and converts to Polars there."""

    def decode(self, position: Position, chunk: Chunk) -> Iterator[Any]:
        """Yield the future of a chunk's first frames."""
        yield encode_pool().submit(_decode_some, super().decode(position, chunk))


def _decode_some(pieces: Iterator[pa.Table]) -> _Begun:
    """Decode until it is much; what is left of the pieces comes with it."""
    frames: deque[pl.DataFrame] = deque()
    size = 0
    for piece in pieces:
        # by the size that Arrow knows: Polars would look at every string for its own
        count = max(1, -(-piece.nbytes // _FRAME_BYTES))
        rows = max(1, -(-piece.num_rows // count))
        frames += to_polars(piece).iter_slices(rows)
        size += piece.nbytes
        if size > _BYTES_AHEAD:
            return frames, pieces
    return frames, None

"""Bounded reads by several threads: offset ranges of buckets, in order, in bounded memory.

A thread that is free decodes what was received, the first in the order of the result first; when
there is nothing to decode it receives. So buckets are never waited for while others could be
worked on, and the last part of the last bucket keeps all cores busy: a scan of four buckets by
four threads with a bucket each took a tenth longer.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

import pyarrow as pa

from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.encoders import compute_threads
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.hooks import ExitStep, ForkStep, after_fork, at_exit
from fluss_df.record.log.log_batch import Compression
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext
    from fluss_df.pushdown.server_filter import ServerFilter

T = TypeVar("T")

# So much decoded data is held for a caller that uses it more slowly than it comes. Behind it is one
# answer for each lane, and the next one of the first while the last of it is decoded.
AHEAD_BYTES = 32 << 20
# A caller that waits for every part takes it at once: what is held for it is of later buckets, and
# with more room for them no thread is idle while an answer for the first one comes.
_EAGER_FACTOR = 1.5
# a piece is decoded sooner
_EXIT_WAIT_S = 2.0
# the longest wait without giving the caller a chance to stop
_WAIT_S = 0.2
# Fewer rows are not worth a thread or a lane of their own: neighbouring buckets with together so
# many are read by one, and a request asks for many buckets.
_FEW_ROWS = 1 << 16


class ParallelRead(Generic[T]):
    """Reads positions in their order; iterate it once, in a ``with`` statement.

    Yields None when nothing came for a while. Leaving the ``with`` statement ends the read at once,
    also when a server is silent.

    Parameters
    ----------
    connection, info
        The table.
    columns, metadata_columns
        What to read.
    positions
        Where, each with a stop offset, in the order of the result.
    metrics
        What is counted.
    convert
        What is made of each decoded table, on the thread that decoded it.
    ahead_bytes
        How much decoded data is held that was not taken yet, while the caller takes it more slowly
        than it comes, and half as much again while the caller waits for it; None for no limit.
    server_filter
        By what servers may leave out log batches.
    views
        Whether ``convert`` gets strings and binary data of Arrow batches as views.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[str],
        metadata_columns: Sequence[str],
        positions: Sequence[Position],
        metrics: Metrics,
        convert: Callable[[pa.Table], T],
        *,
        ahead_bytes: int | None = AHEAD_BYTES,
        server_filter: ServerFilter | None = None,
        views: bool = False,
    ) -> None:
        self._decoder = TableDecoder(
            connection, info, columns, metadata_columns, metrics, views=views
        )
        self.schema = self._decoder.schema
        servers = len({connection.cluster.known_leader(p.bucket) for p in positions})
        self._lanes = max(1, connection.config.scanner_fetch_connections * max(1, servers))
        self._threads = min(
            max(compute_threads(), self._lanes), -(-sum(map(_rows, positions)) // _FEW_ROWS)
        )
        # An engine in this process answers at once: a few rows are here before a thread has begun,
        # and where nothing is to be computed threads would only wait for each other's GIL.
        self._at_once = connection.cluster.engine is not None and (
            self._threads == 1 or _lies_ready(info, self.schema)
        )
        self._groups = deque(
            _Group(
                ChunkRead(
                    connection,
                    info,
                    self._decoder.projection,
                    group,
                    metrics,
                    server_filter=server_filter,
                )
            )
            for group in _grouped(positions)
        )
        self._convert = convert
        self._ahead_bytes = ahead_bytes
        self._held = 0
        # whether the caller waited for what it took last
        self._eager = False
        self._lock = threading.Lock()
        # What the caller waits for and what threads wait for are told apart: each that is woken
        # takes the interpreter lock, and with many cores most would find nothing.
        self._can_go_on = threading.Condition(self._lock)
        self._may_work = threading.Condition(self._lock)
        self._decoding = 0
        self._closed = False

    def __enter__(self) -> Self:
        # They wait for the lock: a first one that goes to work at once does not let go of the GIL,
        # and the second one was there 5 ms later.
        with self._lock:
            for number in range(0 if self._at_once else self._threads):
                name = f"fluss-df-read-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        ended_at_exit(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            groups = list(self._groups)
            self._groups.clear()
            self._can_go_on.notify_all()
            self._may_work.notify_all()
        for group in groups:
            group.read.abort()

    def end(self, timeout_s: float) -> None:
        """End the read, and wait until nothing is being decoded."""
        self._close()
        with self._lock:
            self._can_go_on.wait_for(lambda: not self._decoding, timeout_s)

    def __iter__(self) -> Iterator[T | None]:
        while True:
            if self._at_once:
                self._work_here()
            with self._lock:
                self._eager = not self._can_take()
                if self._eager and not self._at_once:
                    # more may be held now
                    self._may_work.notify()
                    self._can_go_on.wait_for(self._can_take, _WAIT_S)
                if not self._groups:
                    return
                if not self._can_take():
                    taken = None
                else:
                    group = self._groups[0]
                    if not group.pieces:
                        # it has ended
                        if group.error is not None:
                            raise group.error
                        self._groups.popleft()
                        self._may_work.notify()
                        continue
                    piece = group.pieces.popleft()
                    if piece.error is not None:
                        raise piece.error
                    self._held -= piece.size
                    self._may_work.notify()
                    if piece.result is None:
                        continue
                    taken = cast("T", piece.result[0])
            yield taken

    def _can_take(self) -> bool:
        """Whether there is something for the caller: a decoded piece, an end or an error."""
        if not self._groups:
            return True
        group = self._groups[0]
        return group.pieces[0].done if group.pieces else group.ended

    # ---- the threads

    def _work(self) -> None:
        while True:
            with self._lock:
                task = self._next_task()
                while task is None:
                    if self._closed or not self._groups:
                        return
                    self._may_work.wait(_WAIT_S)
                    task = self._next_task()
                # who finds work wakes one more: there may be more of it
                self._may_work.notify()
            # the lock is not held meanwhile
            self._do(task)

    def _work_here(self) -> None:
        """Do on the caller's thread what it would wait for, as long as that comes at once."""
        going_on = True
        while going_on:
            with self._lock:
                task = None if self._can_take() else self._next_task()
            if task is None:
                return
            self._do(task)
            going_on = isinstance(task, _Piece) or bool(task.pieces) or task.ended

    def _do(self, task: _Piece | _Group) -> None:
        if isinstance(task, _Piece):
            self._decode(task)
        else:
            self._receive(task)

    def _next_task(self) -> _Piece | _Group | None:
        """Return what is to be done next; the lock is held."""
        if self._closed:
            return None
        if self._groups and self._runs_dry(self._groups[0]):
            self._groups[0].receiving = True
            return self._groups[0]
        piece = self._next_piece()
        if piece is not None:
            piece.begun = True
            self._decoding += 1
            return piece
        receiving = sum(group.receiving for group in itertools.islice(self._groups, self._lanes))
        for number, group in enumerate(self._groups):
            if number >= self._lanes or receiving >= self._lanes:
                break
            if group.receiving or group.ended:
                continue
            if self._full(number) and (number or group.pieces):
                break
            group.receiving = True
            return group
        return None

    def _next_piece(self) -> _Piece | None:
        """Return what is to be decoded next; the lock is held.

        None where only a later group has something that it may not hold: the first one is to
        receive then, or nobody would ever take what is held.
        """
        for number, group in enumerate(itertools.islice(self._groups, self._lanes)):
            full = self._full(number)
            for place, piece in enumerate(group.pieces):
                if not piece.begun:
                    # without the first one the caller waits, however much is held
                    return None if full and (number or place) else piece
        return None

    def _runs_dry(self, front: _Group) -> bool:
        """Whether more is to be received of the first group although there is work left.

        While the last piece of an answer is decoded by another thread, the next answer comes: else
        that thread, when it is done, has nothing that the caller waits for.
        """
        if front.receiving or front.ended or not self._decoding or self._full(0):
            return False
        return sum(not piece.begun for piece in front.pieces) == 1

    def _full(self, number: int) -> bool:
        """Whether enough is held for a group; the lock is held.

        Later groups may fill half: what they hold is not taken before the first group has ended,
        which one thread alone would have to decode if they filled all.
        """
        if self._ahead_bytes is None:
            return False
        limit = self._ahead_bytes * (_EAGER_FACTOR if self._eager else 1)
        return self._held > (limit / 2 if number else limit)

    def _receive(self, group: _Group) -> None:
        pieces: list[_Piece] = []
        ended, error = False, cast("BaseException | None", None)
        try:
            step = next(group.steps)
            if step is not None:
                pieces = [_Piece(decode) for decode in self._decoder.pieces(*step)]
        except StopIteration:
            ended = True
        except BaseException as caught:
            ended, error = True, caught
            group.steps.close()
        with self._lock:
            group.receiving = False
            group.ended, group.error = ended, error
            group.pieces.extend(pieces)
            self._may_work.notify()
            self._tell_caller()

    def _decode(self, piece: _Piece) -> None:
        decode, piece.decode = piece.decode, None
        assert decode is not None
        try:
            table = decode()
            if table.num_rows:
                piece.size = table.nbytes
                piece.result = (self._convert(table),)
        except BaseException as caught:
            piece.error = caught
        # the received bytes are let go of
        del decode
        with self._lock:
            self._held += piece.size
            self._decoding -= 1
            piece.done = True
            self._tell_caller()

    def _tell_caller(self) -> None:
        """Wake the caller where there is something for it, or where it waits for the end."""
        if self._can_take():
            self._can_go_on.notify_all()


class _Piece:
    """A part of a chunk, to be decoded once, and what came of it."""

    __slots__ = ("begun", "decode", "done", "error", "result", "size")

    def __init__(self, decode: Callable[[], pa.Table]) -> None:
        self.decode: Callable[[], pa.Table] | None = decode
        self.begun = self.done = False
        self.size = 0
        # in a tuple; None for no rows
        self.result: tuple[object] | None = None
        self.error: BaseException | None = None


class _Group:
    """Positions that one lane reads one after the other, and what came of them."""

    def __init__(self, read: ChunkRead) -> None:
        self.read = read
        self.steps = read.steps()
        self.pieces: deque[_Piece] = deque()
        self.receiving = False
        self.ended = False
        self.error: BaseException | None = None


def _lies_ready(info: TableInfo, schema: pa.Schema) -> bool:
    """Whether a table's log, where it is mapped, has columns as Arrow has them.

    Strings are checked the first time, and made views for Polars, which is worth several threads.
    """
    codec = Compression.from_properties(info.get_properties()).codec
    as_arrow = info.log_format == "arrow" and codec == "none"
    return as_arrow and all(pa.types.is_primitive(kind) for kind in schema.types)


def _rows(position: Position) -> int:
    return max(0, (position.stop or 0) - position.offset)


def _grouped(positions: Sequence[Position]) -> list[list[Position]]:
    """Cut positions into groups for lanes: large ones alone, small neighbours together."""
    groups: list[list[Position]] = []
    rows = 0
    for position in positions:
        rows += _rows(position)
        if groups and rows <= _FEW_ROWS:
            groups[-1].append(position)
        else:
            groups.append([position])
            rows = _rows(position)
    return groups


def read_table(
    connection: ClientContext,
    info: TableInfo,
    columns: Sequence[str],
    positions: Sequence[Position],
    metrics: Metrics,
    metadata_columns: Sequence[str] = (),
    server_filter: ServerFilter | None = None,
) -> pa.Table:
    """Read positions with several threads, into one table in their order."""
    read = ParallelRead[pa.Table](
        connection,
        info,
        columns,
        metadata_columns,
        positions,
        metrics,
        lambda table: table,
        ahead_bytes=None,
        server_filter=server_filter,
    )
    with read:
        tables = [table for table in read if table is not None]
    # not empty_table(): it would import pandas, where that is installed, for a third of a second
    return pa.concat_tables([pa.Table.from_batches([], read.schema), *tables])


class Ending(Protocol):
    """A read with threads of its own."""

    def end(self, timeout_s: float) -> None:
        """End the read, and wait until nothing is being decoded."""


_live: weakref.WeakSet[Ending] = weakref.WeakSet()


def ended_at_exit(read: Ending) -> None:
    """Have a read ended at the end of the program, where it still runs then."""
    _live.add(read)


def _end_reads() -> None:
    """End reads that nobody ended: a thread that the interpreter's end meets in Arrow aborts.

    The threads are daemons, as one of them may wait for a server that is silent.
    """
    for read in list(_live):
        read.end(_EXIT_WAIT_S)


at_exit(ExitStep.READS, _end_reads)


# the parent's threads do not exist in a child
after_fork(ForkStep.READS, _live.clear)

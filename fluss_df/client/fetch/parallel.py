"""Bounded reads by several threads: offset ranges of buckets, in order, in bounded memory.

A free thread decodes the piece that comes first in the order of the result. If no piece waits to be
decoded, the thread receives the next answer. So no thread waits for one bucket while there is work
for another, and all cores share the last bucket: with a thread of its own for each bucket, a scan
of four buckets took 10 % longer.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

import pyarrow as pa

from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import PIECE_BYTES, TableDecoder
from fluss_df.client.runtime.encoders import compute_threads
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import FlussError
from fluss_df.hooks import ExitStep, ForkStep, after_fork, at_exit, undoing
from fluss_df.metadata import TableBucket
from fluss_df.record.log.log_batch import Compression
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext
    from fluss_df.pushdown.server_filter import ServerFilter

T = TypeVar("T")

# Bytes of decoded data that a read holds for each of its threads: two pieces, of which the consumer
# takes one while the other is decoded. Twice as much made no scan quicker (12 M rows on two cores).
_AHEAD_BYTES_BY_THREAD = 2 * PIECE_BYTES
# For a consumer that waits for each piece, this many times as much may be held. It takes pieces of
# the first bucket at once, so the pieces held are those of later buckets; with more room for them,
# no thread is idle while the next answer of the first bucket is on its way.
_EAGER_FACTOR = 1.5
# how long the end of the program waits for pieces that are being decoded, which take less
_EXIT_WAIT_S = 2.0
# the longest wait after which the caller may stop, as by Ctrl-C
_WAIT_S = 0.2
# Fewer rows are not worth a thread or a lane of their own: neighbouring buckets that have
# no more together are read by one lane, whose requests ask for all of them.
_FEW_ROWS = 1 << 16


def default_ahead_bytes() -> int:
    """Return how many bytes of decoded data a read holds for a slow consumer.

    Besides, each lane may have one answer that is not decoded, and the first lane the next answer
    while the last piece of this one is decoded.
    """
    return _AHEAD_BYTES_BY_THREAD * max(2, compute_threads())


class ParallelRead(Generic[T]):
    """Reads positions in their order; iterate it once, in a ``with`` statement.

    It yields None when a wait of 0.2 s brought no result, so that the caller can stop. Leaving the
    ``with`` statement ends the read at once, even while a server is silent.

    Parameters
    ----------
    positions
        The buckets, each with its first offset and its stop offset, in the order of the result.
    convert
        Makes the result of each decoded table, on the thread that decoded it.
    ahead_bytes
        Bytes of decoded data held for a caller that takes it more slowly than it comes; 1.5 times
        as many while the caller waits. None for no limit.
    server_filter
        The filter by which servers may leave out log batches.
    views
        Whether ``convert`` gets strings and binary data of Arrow batches as views.
    rows_by_bucket
        Gets the number of decoded rows of each bucket, where it is a dict.
    apart
        Whether each table that ``convert`` gets has rows of one bucket only. Otherwise small
        buckets are decoded together, which is three times as quick.
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
        ahead_bytes: int | None,
        server_filter: ServerFilter | None = None,
        views: bool = False,
        apart: bool = False,
        rows_by_bucket: dict[TableBucket, int] | None = None,
    ) -> None:
        self._decoder = TableDecoder(
            connection,
            info,
            columns,
            metadata_columns,
            metrics,
            views=views,
            # what is being decoded counts as held, so it may be half of that at the most
            piece_bytes=PIECE_BYTES
            if ahead_bytes is None
            else min(PIECE_BYTES, ahead_bytes // 2 + 1),
        )
        self._decoder.rows_by_bucket = rows_by_bucket
        self.schema = self._decoder.schema
        servers = len({connection.cluster.known_leader(p.bucket) for p in positions})
        self._lanes = max(1, connection.config.scanner_fetch_connections * max(1, servers))
        self._threads = min(
            max(compute_threads(), self._lanes), -(-sum(map(_rows, positions)) // _FEW_ROWS)
        )
        # An engine in this process answers at once. A few rows are read before a thread has begun,
        # and columns that need no decoding leave threads nothing to do but wait for the GIL.
        self._at_once = connection.cluster.engine is not None and (
            self._threads == 1 or _needs_no_decoding(info, self.schema)
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
                    apart=apart,
                )
            )
            for group in _grouped(positions)
        )
        self._convert = convert
        self._ahead_bytes = ahead_bytes
        self._held = 0
        # whether the caller had to wait for the last piece that it took
        self._eager = False
        self._lock = threading.Lock()
        # The caller and the threads wait on conditions of their own: each thread that is woken
        # takes the interpreter lock, and with many cores most would find nothing to do.
        self._can_go_on = threading.Condition(self._lock)
        self._may_work = threading.Condition(self._lock)
        self._decoding = 0
        self._closed = False
        self._process = os.getpid()

    def __enter__(self) -> Self:
        # The threads start while the lock is held, and wait for it. A first thread that began its
        # work at once would keep the GIL, so that the second one started 5 ms later.
        # Where the system has no room for one more, those that run end again.
        with undoing(self._close), self._lock:
            for number in range(0 if self._at_once else self._threads):
                name = f"fluss-df-read-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        ended_at_exit(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if os.getpid() != self._process:
            # In a forked child: the parent reads on. Its threads are not here, and one of them may
            # have held the lock.
            for group in self._groups:
                group.read.abort()
            return
        with self._lock:
            self._closed = True
            groups = list(self._groups)
            self._groups.clear()
            self._can_go_on.notify_all()
            self._may_work.notify_all()
        for group in groups:
            group.read.abort()

    def end(self, timeout_s: float) -> None:
        """End the read, and wait up to ``timeout_s`` until no piece is being decoded."""
        self._close()
        with self._lock:
            self._can_go_on.wait_for(lambda: not self._decoding, timeout_s)

    def __iter__(self) -> Iterator[T | None]:
        while True:
            if os.getpid() != self._process:
                raise FlussError("the read was begun by the parent process: begin it again")
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
        """Whether the caller need not wait: there is a decoded piece, an error, or the end."""
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
                # a thread that finds work wakes one more: there may be more of it
                self._may_work.notify()
            # without the lock
            self._do(task)

    def _work_here(self) -> None:
        """Receive and decode on the caller's thread, as long as the engine answers at once."""
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
        """Return the piece to decode or the group to receive next, if any; the lock is held."""
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
        """Return the piece to decode next; the lock is held.

        None when only later groups have pieces and the room for those is used up. The first group
        must then receive: the caller takes pieces in order, so only its pieces make room again.
        """
        for number, group in enumerate(itertools.islice(self._groups, self._lanes)):
            full = self._full(number)
            for place, piece in enumerate(group.pieces):
                if not piece.begun:
                    # the very first piece is decoded whatever is held: the caller waits for it
                    return None if full and (number or place) else piece
        return None

    def _runs_dry(self, front: _Group) -> bool:
        """Whether to receive for the first group although pieces of it wait to be decoded.

        That is when one piece is left: the next answer then comes while the last pieces are
        decoded, and the threads find new pieces of the first group when they are done.
        """
        if front.receiving or front.ended or not self._decoding or self._full(0):
            return False
        return sum(not piece.begun for piece in front.pieces) == 1

    def _full(self, number: int) -> bool:
        """Whether no more may be decoded ahead for a group; the lock is held.

        Groups behind the first one may use half of the room. The caller takes their pieces only
        when the first group has ended. If they used all room, no piece of the first group could be
        decoded ahead, and one thread would do all its work.
        """
        if self._ahead_bytes is None:
            return False
        limit = self._ahead_bytes * (_EAGER_FACTOR if self._eager else 1)
        return self._held > (limit / 2 if number else limit)

    def _receive(self, group: _Group) -> None:
        pieces: list[_Piece] = []
        ended, error = False, cast("BaseException | None", None)
        try:
            pieces = [_Piece(decode) for decode in self._decoder.pieces(next(group.steps))]
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
        # frees the received bytes before the lock is taken
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
    """A part of a chunk, which is decoded once, and its result or error."""

    __slots__ = ("begun", "decode", "done", "error", "result", "size")

    def __init__(self, decode: Callable[[], pa.Table]) -> None:
        self.decode: Callable[[], pa.Table] | None = decode
        self.begun = self.done = False
        self.size = 0
        # the result in a tuple, as it may be None itself; None for a piece without rows
        self.result: tuple[object] | None = None
        self.error: BaseException | None = None


class _Group:
    """Positions that one lane reads one after the other, and their pieces."""

    def __init__(self, read: ChunkRead) -> None:
        self.read = read
        self.steps = read.steps()
        self.pieces: deque[_Piece] = deque()
        self.receiving = False
        self.ended = False
        self.error: BaseException | None = None


def _needs_no_decoding(info: TableInfo, schema: pa.Schema) -> bool:
    """Whether columns need no decoding: they are used where the log is mapped into memory.

    That is so for numbers that are not compressed. Strings are checked once and converted to views
    for Polars, which is enough work for several threads.
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
    given_up: threading.Event | None = None,
    rows_by_bucket: dict[TableBucket, int] | None = None,
) -> pa.Table:
    """Read positions with several threads, into one table in their order.

    ``rows_by_bucket``, where it is a dict, gets how many rows each bucket has. Raises FlussError
    within 0.2 s after ``given_up`` was set.
    """
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
        rows_by_bucket=rows_by_bucket,
    )
    with read:
        tables = []
        for table in read:
            if given_up is not None and given_up.is_set():
                raise FlussError("the read was ended, as its scanner was closed")
            if table is not None:
                tables.append(table)
    # not schema.empty_table(): it imports pandas if that is installed, which takes 0.3 s
    return pa.concat_tables([pa.Table.from_batches([], read.schema), *tables])


class Ending(Protocol):
    """A read with threads of its own."""

    def end(self, timeout_s: float) -> None:
        """End the read, and wait up to ``timeout_s`` until no piece is being decoded."""


_live: weakref.WeakSet[Ending] = weakref.WeakSet()


def ended_at_exit(read: Ending) -> None:
    """Have a read ended at the end of the program, if it still runs then."""
    _live.add(read)


def _end_reads() -> None:
    """End the reads that still run when the program ends.

    Their threads are daemons, as one may wait for a silent server. A daemon that is in Arrow when
    the interpreter ends would abort the process.
    """
    for read in list(_live):
        read.end(_EXIT_WAIT_S)


at_exit(ExitStep.READS, _end_reads)


# the parent's threads do not exist in a child
after_fork(ForkStep.READS, _live.clear)

"""Reads of many buckets by several threads: in their order, in bounded memory, begun again alone.

What log scans read are offset ranges, which ``fetch/parallel.py`` cuts as it likes. A bucket of a
primary-key table is read whole by one thread: its server has a scan open for it, or its changes are
folded.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Generic, TypeVar

import pyarrow as pa

from fluss_df.client.fetch.parallel import default_ahead_bytes, ended_at_exit
from fluss_df.client.runtime.retry import Backoff
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing

T = TypeVar("T")
Tables = Generator[pa.Table, None, None]

# the longest wait without giving the caller a chance to stop
_WAIT_S = 0.2
# Servers end a scan that nobody went on with for ten minutes. One that has to wait for the buckets
# before it is given up long before that, and begun again when it is its turn.
_STALL_S = 60.0
# what a table counts for at least: a small one has as many Python objects as a large one
_LEAST_BYTES = 1024


class _Bucket(Generic[T]):
    """One bucket, and what was read of it."""

    def __init__(self, target: T) -> None:
        self.target = target
        self.pieces: deque[pa.Table] = deque()
        self.nbytes = 0
        self.begun = False
        self.ended = False
        # whether it waits until all before it are read
        self.later = False
        # whether the caller has something of it
        self.taken = False
        self.error: BaseException | None = None


class _GivenUpError(Exception):
    """The thread has something to do that comes before reading this bucket."""


class OneRead:
    """A read that happens once, and ends early where nobody waits for it any more.

    ``what`` is what is read, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._given_up = threading.Event()
        self.begun = False

    def begin(self) -> None:
        """Begin it; raises FlussError for a second time."""
        if self.begun:
            raise FlussError("a snapshot scanner reads once: create a new one")
        self.begun = True

    def give_up(self) -> None:
        """Have it end with the rows that are decoded next."""
        self._given_up.set()

    def check(self) -> None:
        """Raise FlussError where it was given up."""
        if self._given_up.is_set():
            raise FlussError(f"the read of {self._what} was given up: its call was cancelled")

    def again(self) -> None:
        """Allow it to begin again: nobody got what was read, and its threads have ended."""
        self._given_up = threading.Event()
        self.begun = False


class BucketReads(Generic[T]):
    """Reads buckets, once, and yields their tables in the order of the buckets.

    Up to 32 MB are held for a caller that uses them more slowly than they come; buckets behind the
    one that is its turn fill half of that.

    Parameters
    ----------
    targets
        The buckets, in the order of the result.
    read
        Reads one bucket from its beginning.
    pause
        Called with a bucket, the error that ended its read, and the backoff, which knows for how
        long that has been tried. It waits before the read is begun again, or raises.
    interrupted
        Makes the error for a bucket of which the caller has something already.
    retry_ms
        For how long an interrupted read is begun again.
    threads
        The most buckets that are read at once.
    whole
        Whether the caller gets nothing of a bucket before it is read to its end. Then the read can
        always be begun again, and memory has no bound.
    """

    def __init__(
        self,
        targets: Sequence[T],
        read: Callable[[T], Tables],
        pause: Callable[[T, FlussError, Backoff], None],
        interrupted: Callable[[T, FlussError], FlussError],
        *,
        retry_ms: float,
        threads: int,
        whole: bool = False,
    ) -> None:
        self._read = read
        self._pause = pause
        self._interrupted = interrupted
        self._retry_ms = retry_ms
        self._whole = whole
        self._buckets = deque(_Bucket(target) for target in targets)
        self._todo = deque(self._buckets)
        self._limit = default_ahead_bytes()
        self._held = 0
        self._changed = threading.Condition()
        self._closed = False
        self._process = os.getpid()
        self._threads = min(threads, len(targets))
        self._at_work = 0

    def __enter__(self) -> BucketReads[T]:
        # threads that run end again where the system has no room for one more
        with undoing(self._close), self._changed:
            for number in range(self._threads):
                name = f"fluss-df-kv-scan-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._at_work += 1
        ended_at_exit(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        if os.getpid() != self._process:
            # in a forked child: threads of the parent, which reads on, may have held the lock
            return
        with self._changed:
            self._closed = True
            self._buckets.clear()
            self._todo.clear()
            self._changed.notify_all()

    def end(self, timeout_s: float) -> None:
        """End the read, and wait until its threads have ended."""
        self._close()
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work, timeout_s)

    def together(self) -> Tables:
        """Read all buckets by the threads."""
        with self:
            yield from self._taken()

    def alone(self) -> Tables:
        """Read bucket after bucket on this thread."""
        for bucket in self._buckets:
            backoff = Backoff(self._retry_ms)
            while not bucket.ended:
                begun = False
                try:
                    with closing(self._read(bucket.target)) as tables:
                        some = list(tables) if self._whole else tables
                        for table in some:
                            begun = True
                            yield table
                    bucket.ended = True
                except FlussError as error:
                    if begun:
                        raise self._interrupted(bucket.target, error) from error
                    self._pause(bucket.target, error, backoff)

    def _taken(self) -> Tables:
        while True:
            if os.getpid() != self._process:
                raise FlussError("the scan was begun by the parent process: begin it again")
            with self._changed:
                while not self._can_take():
                    self._changed.wait_for(self._can_take, _WAIT_S)
                if not self._buckets:
                    return
                front = self._buckets[0]
                if front.error is not None:
                    raise front.error
                if not front.pieces:
                    self._buckets.popleft()
                    self._changed.notify_all()
                    continue
                front.taken = True
                table = front.pieces.popleft()
                self._hold(front, -_size(table))
                self._changed.notify_all()
            yield table

    def _can_take(self) -> bool:
        if not self._buckets:
            return True
        front = self._buckets[0]
        return front.ended or bool(front.pieces and not self._whole)

    def _hold(self, bucket: _Bucket[T], size: int) -> None:
        bucket.nbytes += size
        self._held += size

    # ---- the threads

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    bucket = self._next()
                    while bucket is None:
                        if self._closed or not self._todo:
                            return
                        self._changed.wait(_WAIT_S)
                        bucket = self._next()
                    bucket.begun = True
                self._read_bucket(bucket)
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def _next(self) -> _Bucket[T] | None:
        """Return the bucket to begin next; the lock is held."""
        while self._todo and self._todo[0].begun:
            self._todo.popleft()
        if self._closed or not self._todo:
            return None
        front = self._buckets[0]
        if not front.begun:
            return front
        if not self._whole and self._held > self._limit // 2:
            return None
        return next((b for b in self._todo if not b.begun and not b.later), None)

    def _read_bucket(self, bucket: _Bucket[T]) -> None:
        backoff = Backoff(self._retry_ms)
        error: BaseException | None = None
        while True:
            try:
                with closing(self._read(bucket.target)) as tables:
                    for table in tables:
                        self._add(bucket, table)
            except _GivenUpError:
                with self._changed:
                    self._discard(bucket)
                    bucket.begun, bucket.later = False, True
                    self._todo.appendleft(bucket)
                    self._changed.notify_all()
                return
            except FlussError as caught:
                try:
                    with self._changed:
                        if bucket.taken:
                            raise self._interrupted(bucket.target, caught) from caught
                        self._discard(bucket)
                        closed = self._closed
                    if not closed:
                        self._pause(bucket.target, caught, backoff)
                        continue
                except FlussError as final:
                    error = final
            except BaseException as caught:
                error = caught
            break
        with self._changed:
            bucket.error, bucket.ended = error, True
            self._changed.notify_all()

    def _discard(self, bucket: _Bucket[T]) -> None:
        bucket.pieces.clear()
        self._hold(bucket, -bucket.nbytes)

    def _add(self, bucket: _Bucket[T], table: pa.Table) -> None:
        """Hand a table on; wait where enough is held."""
        with self._changed:
            bucket.pieces.append(table)
            self._hold(bucket, _size(table))
            self._changed.notify_all()
            end = time.monotonic() + _STALL_S
            while not self._closed and not self._whole and self._full(bucket):
                first = self._buckets[0]
                if bucket is not first and (not first.begun or time.monotonic() > end):
                    # else no thread would read the bucket that the caller waits for, or the server
                    # would give the scan up
                    raise _GivenUpError
                self._changed.wait(_WAIT_S)
            if self._closed:
                raise _GivenUpError

    def _full(self, bucket: _Bucket[T]) -> bool:
        if bucket is self._buckets[0]:
            return bucket.nbytes > self._limit // 2
        return self._held > self._limit // 2


def _size(table: pa.Table) -> int:
    return max(_LEAST_BYTES, int(table.nbytes))

"""Counters that a user can read: what was asked of servers, received, retried, waited for."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from fluss_df.observe.counters import Counts, Durations, OfTable, Tables


class Metrics:
    """Counters that only grow, shared by threads.

    Counters of ``parent`` get the same additions: those of a scan are counted for its connection
    too.

    Counters
    --------
    requests, retries, errors
        Requests sent, requests sent again, requests that failed for good.
    bytes_sent, bytes_received
        Bytes of whole frames.
    record_bytes
        Bytes of the log batches among what was received.
    rows, batches
        Rows and log batches decoded, or written.
    wait_seconds
        Time that callers waited for a server, or for room in a buffer.
    remote_segments, remote_bytes
        Log segments read from remote storage.
    connections
        Connections made.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.add(requests=1, bytes_sent=100)
    >>> metrics.requests, metrics.as_dict()["bytes_sent"]
    (1, 100)
    """

    NAMES = (
        "requests",
        "retries",
        "errors",
        "bytes_sent",
        "bytes_received",
        "record_bytes",
        "rows",
        "batches",
        "wait_seconds",
        "remote_segments",
        "remote_bytes",
        "connections",
    )

    requests: int
    retries: int
    errors: int
    bytes_sent: int
    bytes_received: int
    record_bytes: int
    rows: int
    batches: int
    wait_seconds: float
    remote_segments: int
    remote_bytes: int
    connections: int

    def __init__(self, parent: Metrics | None = None) -> None:
        self._lock = threading.Lock()
        self._parent = parent
        # the first of them is the connection's, and counts for its scans
        self._durations: Durations = (
            Durations("requests", self._lock) if parent is None else parent._durations
        )
        self._tables: Tables = Tables() if parent is None else parent._tables
        for name in self.NAMES:
            setattr(self, name, 0)

    def add(self, **amounts: float) -> None:
        """Add to counters, by name."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)
        if self._parent is not None:
            self._parent.add(**amounts)

    def sent(self, size: int) -> None:
        """Count a request that was sent, and its bytes; quicker than :meth:`add`."""
        with self._lock:
            self.requests += 1
            self.bytes_sent += size
        if self._parent is not None:
            self._parent.sent(size)

    def answered(
        self, request: str, seconds: float, failed: bool, size: int = 0, waited: float = 0.0
    ) -> None:
        """Count an answer, or a request that got none; quicker than :meth:`add`.

        ``seconds`` passed from its sending until the answer was taken, and the caller waited for it
        for ``waited`` seconds. ``size`` is the bytes of the answer.
        """
        with self._lock:
            self.bytes_received += size
            self.wait_seconds += waited
            if self._parent is None:
                self._durations.add_locked(request, seconds, failed)
                return
        self._parent.answered(request, seconds, failed, size, waited)

    def after_fork(self) -> None:
        """Go on in a forked child: a thread of the parent may have held a lock."""
        self._lock = threading.Lock()
        self._durations.after_fork(self._lock)
        self._tables.after_fork()

    def of_table(self, table: object) -> OfTable:
        """Return the counters of a table, by its path; all scans of a connection share them."""
        return self._tables.of(table)

    def counts(self) -> Counts:
        """Return all counters, those of requests and tables too, as their exporter takes them."""
        counts: Counts = {(name,): value for name, value in self.as_dict().items()}
        return counts | self._durations.counts() | self._tables.counts()

    def as_dict(self) -> Mapping[str, float]:
        """Return all counters as they are now."""
        with self._lock:
            return {name: getattr(self, name) for name in self.NAMES}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:g}" for name, value in self.as_dict().items() if value)
        return f"{type(self).__name__}({shown})"


class ScanMetrics(Metrics):
    """The counters of one scan."""

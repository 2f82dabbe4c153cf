"""The common context of a client: settings, I/O thread and cluster."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.open_clusters import open_cluster, release
from fluss_df.client.runtime.io_thread import IOThread, io_thread, reset_after_fork
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.config import Config
from fluss_df.errors import FlussError
from fluss_df.observe.counters import clients


class Writer(Protocol):
    """A writer, which is closed with its connection."""

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of its buffer are in use."""

    def close(self) -> object:
        """Flush, and free all resources."""


class ClientContext:
    """A connection as scanners, writers and lookups see it; for any number of threads.

    :class:`~fluss_df.client.connection.FlussConnection` is one, with what users call.

    Attributes
    ----------
    config
        Its settings.
    metrics
        Counters of requests, bytes, retries and waits.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._closed = False
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Begin again in a forked child: sockets and threads stay with the parent."""
        self._lock = threading.Lock()
        self.metrics.after_fork()
        self._cluster = None
        # writers that the child uses are flushed with its connection
        self._writers = weakref.WeakSet(self._writers)

    @property
    def io(self) -> IOThread:
        """The I/O thread of this process."""
        return io_thread()

    @property
    def cluster(self) -> Cluster:
        """The process's metadata of the cluster."""
        if self._closed:
            raise FlussError("the connection is closed: open a new one")
        with self._lock:
            if self._cluster is None:
                self._cluster = open_cluster(self.config, self.metrics)
                weakref.finalize(self, release, self._cluster).atexit = False
                clients.enter(self, self.metrics)
            return self._cluster

    def register_writer(self, writer: Writer) -> None:
        """Have a writer closed with this connection."""
        with self._lock:
            self._writers.add(writer)

    def buffered_bytes(self) -> int:
        """Return the bytes of batches that its writers have not got acknowledged yet."""
        with self._lock:
            writers = list(self._writers)
        return sum(writer.buffered_bytes for writer in writers)

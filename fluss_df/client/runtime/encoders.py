"""The threads of the process that encode and decode batches: Arrow's codecs release the GIL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from fluss_df.client.runtime.processors import processors
from fluss_df.hooks import ForkStep, after_fork

# each holds a few MB of a read or a write
_MAX_THREADS = 16

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def compute_threads() -> int:
    """Return how many threads one read or write keeps busy.

    Compression is nearly all of the work; more threads than processors only fill memory.
    """
    return min(_MAX_THREADS, processors())


def encode_pool() -> ThreadPoolExecutor:
    """Return the pool of this process; start it on first use."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(compute_threads(), thread_name_prefix="fluss-df-encode")
        return _pool


def _after_fork_in_child() -> None:
    global _pool, _lock
    _lock = threading.Lock()
    _pool = None


after_fork(ForkStep.ENCODERS, _after_fork_in_child)

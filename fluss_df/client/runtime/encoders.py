"""The threads of the process that encode and decode batches: Arrow's codecs release the GIL."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from fluss_df.hooks import ForkStep, after_fork

# Compression is all of the work of an append; more threads than cores only fill memory.
MAX_THREADS = 8

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def encode_pool() -> ThreadPoolExecutor:
    """Return the pool of this process; start it on first use."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(
                min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="fluss-df-encode"
            )
        return _pool


def _after_fork_in_child() -> None:
    global _pool, _lock
    _lock = threading.Lock()
    _pool = None


after_fork(ForkStep.ENCODERS, _after_fork_in_child)

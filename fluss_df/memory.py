"""The memory of received and decoded data: its pool, and how buffers are allocated."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

# milliseconds for which jemalloc keeps freed memory for the next use, in the whole process
_KEEP_MS = 10_000
# jemalloc returns blocks of 8 MiB and more to the system at once; its next smaller size is 7 MiB
_KEPT_BYTES = 7 << 20
# a request up to this size is received into a bytearray: allocating by Arrow releases Python's
# lock, which a computing thread may then keep for 5 ms
_SMALL_REQUEST = 16 << 10
# a larger request has an mmap of its own, which is unmapped when it is freed: mimalloc kept the
# memory of several (4 connections that sent 100 MB each took 1.9 GB), and so does glibc
_LARGE_REQUEST = 16 << 20


@functools.cache
def data_pool() -> pa.MemoryPool:
    """Return the Arrow memory pool for what is received and decoded.

    It is jemalloc where PyArrow has it, and Arrow's default otherwise or where the environment
    sets ``ARROW_DEFAULT_MEMORY_POOL``. Data is allocated on one thread and freed on another here,
    after which the system's allocator keeps much of it: a streamed table of 4 GiB grew a process
    by 400 to 560 MiB with it, by 230 MiB with mimalloc and by 190 MiB with jemalloc, which is also
    the quickest of them by a tenth.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        try:
            pool = pa.jemalloc_memory_pool()
        except NotImplementedError:
            return pa.default_memory_pool()
        # pages given back between two reads cost the second one a tenth of its time
        pa.jemalloc_set_decay_ms(_KEEP_MS)
        return pool
    return pa.default_memory_pool()


def allocate(size: int) -> pa.Buffer:
    """Return ``size`` bytes of memory for data, not zeroed.

    What jemalloc would give back at once comes from Arrow's default pool: new pages of the system
    for each answer of a server were a third of the processor time of reading it.
    """
    pool = data_pool() if size <= _KEPT_BYTES else pa.default_memory_pool()
    return pa.allocate_buffer(size, memory_pool=pool)


def allocate_request(size: int) -> pa.Buffer:
    """Return ``size`` bytes for the body of a request that a server receives."""
    if size <= _SMALL_REQUEST:
        return pa.py_buffer(bytearray(size))
    if size > _LARGE_REQUEST:
        return pa.py_buffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return allocate(size)


def joined(parts: Sequence[bytes | bytearray | memoryview | pa.Buffer]) -> pa.Buffer:
    """Return bytes put together; those of one part as they are, without a copy.

    Other threads go on meanwhile: ``bytes.join`` keeps the interpreter lock while it copies.
    """
    if len(parts) == 1:
        return pa.py_buffer(parts[0])
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    if size <= _SMALL_REQUEST:
        return pa.py_buffer(b"".join(parts))
    made = allocate_request(size)
    out = np.frombuffer(made, np.uint8)
    at = 0
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        out[at : at + len(data)] = data
        at += len(data)
    return made


# parameters of glibc's mallopt
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def reuse_large_blocks() -> None:
    """Have glibc keep freed blocks of up to 8 MiB for the next ones, about 16 MiB together.

    For processes that make such blocks all the time. By itself glibc gives each back to the system:
    the messages of a stream of 1 GB had 120,000 pages made for them, a fifth of the server's
    processor time. Counts for the whole process. Where there is no glibc, nothing happens.
    """
    try:
        mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 8 << 20)
    mallopt(_M_TRIM_THRESHOLD, 16 << 20)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's function that gives freed memory back; None where there is none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


def give_memory_back() -> None:
    """Give memory that was freed in small pieces back to the system; of glibc alone.

    Takes some milliseconds: for after work that took tens of megabytes.
    """
    trim = _trim()
    if trim is not None:
        trim(0)

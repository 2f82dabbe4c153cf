"""Large requests: others get their turn meanwhile, and the memory comes back at once.

Python's lock changes hands every 5 ms at the least, unless a thread gives it up itself. Here it
does not change hands otherwise, so what others are able to do is what they are given.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.requests.request_limits import check_entries
from fluss_df.engine.requests.row_requests import parse_rows
from fluss_df.errors import FlussError
from fluss_df.memory import allocate_request
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.frames import Request
from tests.embedded import attacking
from tests.embedded.attacking import MB, make_tables
from tests.waiting import wait_until


@pytest.fixture
def own_turns() -> Iterator[None]:
    """Have no thread run while another one computes, unless that gives its turn away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def turns_beside(work: Callable[[], object]) -> int:
    """Return how many turns another thread got while something was done."""
    turns = 0
    done = threading.Event()
    begun = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            begun.set()
            time.sleep(0.00001)
            turns += 1

    other = threading.Thread(target=count)
    other.start()
    begun.wait()
    before = turns
    try:
        work()
    finally:
        found = turns - before
        done.set()
        other.join()
    return found


def _refused(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with pytest.raises(FlussError):
            work()

    return run


@pytest.mark.usefixtures("own_turns")
@pytest.mark.parametrize("key", [b"", b"abc"])
def test_others_run_while_entries_are_counted(key: bytes) -> None:
    bucket = pb.LookupRequestForBucket(bucket_id=0, keys=[key] * 200_000)
    body = pa.py_buffer(pb.LookupRequest(table_id=1, buckets_req=[bucket]).SerializeToString())
    assert turns_beside(_refused(lambda: check_entries(api.LOOKUP, body))) > 100


@pytest.mark.usefixtures("own_turns")
@pytest.mark.parametrize("buckets", [10_000, 100_000])
def test_others_run_while_buckets_are_read(buckets: int) -> None:
    parts = [pb.ProduceLogRequestForBucket(bucket_id=7, records=b"")] * buckets
    asked = pb.ProduceLogRequest(acks=-1, table_id=1, timeout_ms=1, buckets_req=parts)
    body = pa.py_buffer(asked.SerializeToString())

    def read() -> None:
        parse_rows(pb.ProduceLogRequest(), "PRODUCE_LOG", 4, body)

    assert turns_beside(read if buckets == 10_000 else _refused(read)) > 20


@pytest.mark.parametrize(
    ("key", "make"),
    [
        (api.PRODUCE_LOG.key, attacking._claims),
        (api.PRODUCE_LOG.key, attacking._tiny_batches),
        (api.PUT_KV.key, attacking._tiny_rows),
        (api.LOOKUP.key, attacking._lookup(200_000, 3)),
        (api.FETCH_LOG.key, attacking._fetch(200_000)),
        (api.LIST_OFFSETS.key, attacking._offsets(200_000)),
    ],
)
def test_a_refused_request_is_forgotten_at_once(
    tmp_path: Path, key: int, make: Callable[[int, int], bytes]
) -> None:
    with EmbeddedFluss(tmp_path / "d", port=0) as engine:
        rows, log = make_tables(engine.address, False)
        data = np.frombuffer(make(rows, log), np.uint8).copy()
        known = weakref.ref(data)
        request = Request(key, 0, 1, pa.py_buffer(data))
        del data
        gc.collect()
        gc.disable()
        try:
            answer = engine.submit(request)
            del request
            answer.result(60)
            wait_until(lambda: known() is None, 20)
            assert known() is None
        finally:
            gc.enable()


def test_memory_of_large_requests_goes_back_to_the_system() -> None:
    def held() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))

    before = held()
    bodies = [allocate_request(40 * MB) for _ in range(5)]
    for body in bodies:
        np.frombuffer(body, np.uint8)[:] = 1
    assert held() - before > 190 * MB
    del body
    # freed in another thread than the one that received them
    worker = threading.Thread(target=bodies.clear)
    worker.start()
    worker.join()
    assert held() - before < 40 * MB

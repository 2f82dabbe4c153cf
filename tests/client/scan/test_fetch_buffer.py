"""The fetch buffer: requests, decoded batches, and rows that a poll did not hand over.

Leaders and the decoder are the test's; a lane is one end of a pair of sockets, readable when its
leader answers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from fluss_df.client.context import ClientContext
from fluss_df.client.fetch.position import Chunk, Position
from fluss_df.client.fetch.row_filter import RowFilter
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.fetch_buffer import FetchBuffer, Handover, Taken
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.errors import DeadlineExceededError, FlussError
from fluss_df.metadata import ChangeType, TableBucket
from fluss_df.record.layout.headers import LogHeaders
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.schema import TableInfo


class PlayedLane:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._mine, self._leaders = socket.socketpair()
        self.failed = self.overdue = self.closed = False
        self.busy = True

    def fileno(self) -> int:
        return self._mine.fileno()

    def answer(self) -> None:
        self._leaders.send(b"\0")

    def silence(self) -> DeadlineExceededError:
        return DeadlineExceededError("silent")

    def close(self) -> None:
        self.closed = True
        self._mine.close()
        self._leaders.close()


class Leaders:
    """Plays the fetcher: a leader answers each request at once with the rows that it has."""

    def __init__(self) -> None:
        # bucket -> its leader, and the end of its log
        self.leader_of: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.batch_rows = 10
        # buckets of each request, and the lanes that are in use
        self.requests: list[list[int]] = []
        self.lanes: list[PlayedLane] = []
        self.mute = False
        self.failing: BaseException | None = None
        self.failures: list[tuple[list[int], FlussError]] = []

    def endpoint(self, position: Position) -> Endpoint:
        return Endpoint("127.0.0.1", self.leader_of[position.bucket.bucket_id], None)

    def lane(self, endpoint: Endpoint, positions: list[Position]) -> PlayedLane:
        self.lanes.append(PlayedLane(endpoint))
        return self.lanes[-1]

    def send(self, lane: PlayedLane, positions: list[Position]) -> bool:
        self.requests.append([position.bucket.bucket_id for position in positions])
        has_rows = any(self.ends[p.bucket.bucket_id] > p.offset for p in positions)
        if has_rows and not self.mute:
            lane.answer()
        return True

    def receive(self, lane: PlayedLane, positions: list[Position]) -> None:
        if self.failing is not None:
            # Ctrl-C may come when a chunk is in nobody's hands
            positions[0].advance(self.ends[positions[0].bucket.bucket_id])
            raise self.failing
        lane.busy = False
        for position in positions:
            start, end = position.offset, self.ends[position.bucket.bucket_id]
            if end > start:
                chunk = Chunk(pa.py_buffer(b""), cast(LogHeaders, None), start, False)
                position.ready.append(chunk)
                position.advance(min(end, start + self.batch_rows))

    def failed(self, positions: list[Position], error: FlussError) -> None:
        self.failures.append(([position.bucket.bucket_id for position in positions], error))


class Decoder:
    """Makes a batch of each chunk, whose rows are their offsets."""

    projection = None

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self.refuse: set[int] = set()
        self.updates = False

    def decode_batches(self, position: Position, chunk: Chunk) -> list[DecodedBatch]:
        bucket = position.bucket.bucket_id
        if bucket in self.refuse:
            raise FlussError(f"bucket {bucket} cannot be decoded")
        end = min(self._leaders.ends[bucket], chunk.start + self._leaders.batch_rows)
        offsets = range(chunk.start, end)
        changes = None
        if self.updates:
            pair = [ChangeType.UpdateBefore, ChangeType.UpdateAfter]
            changes = pa.array([pair[offset % 2] for offset in offsets], pa.uint8())
        rows = pa.record_batch({"x": pa.array(offsets, pa.int64())})
        return [DecodedBatch(rows, chunk.start, 0, changes)]


class Scan:
    """A fetch buffer, and what is around it."""

    def __init__(self, *buckets: int) -> None:
        self.leaders = Leaders()
        self.decoder = Decoder(self.leaders)
        self.positions = [Position(TableBucket(1, bucket, None), None, 0) for bucket in buckets]
        for bucket in buckets:
            self.leaders.leader_of[bucket] = self.leaders.ends[bucket] = 10
        info = cast(TableInfo, None)
        self.buffer = FetchBuffer(
            cast(ClientContext, SimpleNamespace()),
            info,
            cast(TableDecoder, self.decoder),
            RowFilter(info, ["x"], None),
            ScanMetrics(),
        )
        self.buffer._fetcher = lambda: self.leaders  # type: ignore[assignment, method-assign, return-value]

    def fill(self, timeout_ms: float = 5_000, given_up: threading.Event | None = None) -> None:
        self.buffer.fill(self.positions, timeout_ms, (given_up or threading.Event()).is_set)

    def offer(self, most: int | None = None, *, handed: bool = True) -> list[int]:
        """Offer rows to a poll, which has them or never will; return them."""
        handover = Handover(threading.get_ident())
        taken = self.buffer.offer(handover, most, lambda: None)
        handover.handed, handover.withdrawn = handed, not handed
        return rows(taken)

    def poll(self, most: int | None = None, *, handed: bool = True) -> list[int]:
        assert self.buffer.end_last_poll(threading.get_ident(), 0)
        self.fill()
        return self.offer(most, handed=handed)


def rows(taken: Taken) -> list[int]:
    return [row for _, decoded in taken for row in decoded.batch["x"].to_pylist()]


@pytest.fixture
def scan() -> Iterator[Callable[..., Scan]]:
    made: list[Scan] = []

    def make(*buckets: int) -> Scan:
        made.append(Scan(*buckets))
        return made[-1]

    yield make
    for each in made:
        each.buffer.close_sockets()


Make = Callable[..., Scan]


# ---- requests


def test_each_leader_is_asked_once_and_again_before_rows_are_handed_over(scan: Make) -> None:
    one = scan(0, 1, 2)
    one.leaders.leader_of[2] = 11
    one.leaders.ends = dict.fromkeys((0, 1, 2), 20)
    one.fill()
    # two leaders, each with its buckets in one request; the next ones are on their way already
    assert one.leaders.requests[:2] == [[0, 1], [2]]
    assert [0, 1] in one.leaders.requests[2:]
    assert len(one.buffer._lanes) == 2
    assert {position.offset for position in one.positions[:2]} == {10}
    # nothing more is asked for while nobody takes the rows
    asked = len(one.leaders.requests)
    one.fill()
    assert len(one.leaders.requests) == asked


def test_a_bucket_whose_answer_had_no_whole_batch_is_asked_for_alone(scan: Make) -> None:
    one = scan(0, 1, 2)
    one.positions[1].starved = True
    one.fill(0)
    assert one.leaders.requests[0] == [1]


def test_projected_and_whole_buckets_are_not_in_one_request(scan: Make) -> None:
    one = scan(0, 1, 2)
    one.positions[1].projected = True
    one.fill(0)
    assert one.leaders.requests[0] == [0, 2]


def test_a_bucket_is_not_asked_for_twice_when_its_leader_moves(scan: Make) -> None:
    one = scan(0)
    one.leaders.mute = True
    one.fill(0)
    one.leaders.leader_of[0] = 11
    one.fill(0)
    assert one.leaders.requests == [[0]]


def test_a_bucket_that_pauses_is_not_asked_for(scan: Make) -> None:
    one = scan(0, 1)
    one.positions[0].retry.not_before = float("inf")
    one.fill()
    assert {bucket for request in one.leaders.requests for bucket in request} == {1}


def test_a_leader_that_is_silent_for_too_long_fails_its_buckets(scan: Make) -> None:
    one = scan(0, 1)
    one.leaders.mute = True
    one.fill(0)
    (lane,) = one.leaders.lanes
    lane.overdue = True
    one.fill(0)
    assert lane.closed
    ((failed, error),) = one.leaders.failures
    assert failed == [0, 1]
    assert isinstance(error, DeadlineExceededError)


def test_the_wait_ends_when_nobody_wants_the_rows_any_more(scan: Make) -> None:
    one, given_up = scan(0), threading.Event()
    one.leaders.mute = True
    given_up.set()
    began = time.monotonic()
    one.fill(60_000, given_up)
    assert time.monotonic() - began < 30
    assert one.offer() == []


# ---- rows that are handed over


def test_rows_are_taken_out_once_the_caller_has_them(scan: Make) -> None:
    one = scan(0)
    one.leaders.ends[0] = 25
    assert one.poll(most=7) == list(range(7))
    assert one.poll(most=7) == list(range(7, 10))
    assert one.poll() == list(range(10, 20))
    assert one.poll() == list(range(20, 25))


def test_rows_of_a_poll_that_was_interrupted_come_again(scan: Make) -> None:
    one, undone = scan(0), []
    one.fill()
    handover = Handover(threading.get_ident())
    assert rows(one.buffer.offer(handover, 4, lambda: undone.append(1))) == [0, 1, 2, 3]
    handover.withdrawn = True
    assert one.poll(most=6) == list(range(6))
    assert undone == [1]


def test_an_update_is_not_cut_in_two(scan: Make) -> None:
    one = scan(0)
    one.decoder.updates = True
    # one row more than asked for, so that the new row comes with the old one
    assert one.poll(most=3) == [0, 1, 2, 3]
    assert one.poll(most=5) == [4, 5, 6, 7, 8, 9]


def test_another_thread_waits_until_rows_are_handed_over(scan: Make) -> None:
    one = scan(0)
    one.fill()
    handover = Handover(-1)
    one.buffer.offer(handover, 4, lambda: None)
    assert not one.buffer.end_last_poll(threading.get_ident(), 5)
    handover.handed = True
    assert one.buffer.end_last_poll(threading.get_ident(), 5)
    assert one.offer() == [4, 5, 6, 7, 8, 9]


# ---- rows that are given up, and asked for again


@pytest.mark.parametrize("bad", [0, 1])
def test_a_batch_that_cannot_be_decoded_is_asked_for_again_and_others_are_kept(
    scan: Make, bad: int
) -> None:
    one = scan(0, 1)
    one.leaders.leader_of[1] = 11
    one.decoder.refuse = {bad}
    assert one.poll() == list(range(10))
    with pytest.raises(FlussError, match=f"bucket {bad} cannot"):
        one.poll()
    one.decoder.refuse = set()
    assert one.poll() == list(range(10))
    assert [position.offset for position in one.positions] == [10, 10]


def test_a_bucket_that_failed_is_told_behind_rows_of_others_that_are_here(scan: Make) -> None:
    one = scan(0, 1)
    one.leaders.leader_of[1], one.leaders.ends[1] = 11, 15
    one.decoder.refuse = {0}
    assert one.poll() == list(range(10))
    # by the next poll at the latest: others may have rows for ever
    with pytest.raises(FlussError, match="bucket 0 cannot"):
        one.poll()
    one.decoder.refuse = set()
    assert sorted(one.poll() + one.poll()) == sorted([*range(10), *range(10, 15)])


def test_rows_of_a_remote_segment_that_ends_too_early_are_asked_for_again(scan: Make) -> None:
    one = scan(0)
    position = one.positions[0]

    class TooShort:
        """Takes rows, and finds that the file has no more; see ``RemoteRead.take``."""

        done = True

        def take(self, timeout_s: float) -> None:
            position.offset = 7
            raise FlussError("the segment ends at offset 7, not 10")

        def close(self) -> None:
            return

    one.buffer._remote[position] = TooShort()  # type: ignore[assignment]
    with pytest.raises(FlussError, match="ends at offset 7"):
        one.poll()
    assert position.offset == 0
    assert one.poll() == list(range(10))


def test_an_answer_that_was_not_taken_is_asked_for_again(scan: Make) -> None:
    one = scan(0, 1)
    one.leaders.failing = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        one.fill()
    one.leaders.failing = None
    assert sorted(one.poll()) == sorted([*range(10), *range(10)])
    # the lane of the first request was busy, and nobody has it any more
    assert one.leaders.lanes[0].closed


def test_clearing_goes_back_to_the_first_row_that_nobody_has(scan: Make) -> None:
    one = scan(0, 1)
    assert one.poll(most=13) == [*range(10), 0, 1, 2]
    one.buffer.clear(one.positions)
    assert [position.offset for position in one.positions] == [10, 3]
    assert all(lane.closed for lane in one.leaders.lanes)
    one.positions[0].move(0)
    assert one.poll() == [*range(10), *range(3, 10)]


def test_rows_of_a_bucket_that_is_forgotten_do_not_come(scan: Make) -> None:
    one = scan(0, 1)
    assert one.poll(most=3) == [0, 1, 2]
    # also those that stay behind an offer
    one.buffer.forget(one.positions[0])
    del one.positions[0]
    assert one.poll() == list(range(10))


def test_a_forked_child_goes_on_with_the_rows_that_nobody_has(scan: Make) -> None:
    one = scan(0)
    one.leaders.ends[0] = 25
    assert one.poll(most=3) == [0, 1, 2]
    one.buffer.after_fork()
    assert all(lane.closed for lane in one.leaders.lanes)
    assert not one.buffer._lanes
    assert one.poll() == list(range(3, 10))
    # received by the parent, and asked for again
    assert one.poll() == list(range(10, 20))


def test_a_forked_child_has_the_rows_of_a_thread_that_polled_at_that_moment(scan: Make) -> None:
    one = scan(0)
    one.fill()
    one.buffer.offer(Handover(-1), None, lambda: None)
    one.buffer.after_fork()
    assert one.poll() == list(range(10))

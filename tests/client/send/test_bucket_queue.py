"""The batches of one bucket: every transition of its table, and what a server ends up with."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from fluss_df.client.send.batch import WriteBatch, WriteResultHandle
from fluss_df.client.send.bucket_queue import NEXT, UNCERTAIN, BucketQueue, Event, Hold, State
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.metadata import TableBucket
from fluss_df.record.layout.stamped import StampedBatch

BUCKET = TableBucket(7, 3)
PASSES = FlussError("not here", ErrorCode.NOT_LEADER_OR_FOLLOWER)
FINAL = FlussError("too large", ErrorCode.RECORD_TOO_LARGE_EXCEPTION)
OUT_OF_ORDER = FlussError("gap", ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
DUPLICATE = FlussError("again", ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION)
UNKNOWN_WRITER = FlussError("who", ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)


class Stamped(StampedBatch):
    """The bytes of a batch, as far as a queue cares."""

    def __init__(self) -> None:
        super().__init__(bytearray(10), pa.py_buffer(b""), 1)
        self.stamps: list[tuple[int, int]] = []

    def stamp(self, writer_id: int, sequence: int) -> None:
        self.stamps.append((writer_id, sequence))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(created: float = 100.0) -> WriteBatch:
    made = WriteBatch(BUCKET, None, 1, 10, WriteResultHandle())
    made.encoded = Stamped()
    made.created = created
    return made


def queue_of(
    waiting: int, *, clock: Clock | None = None, **options: str
) -> tuple[BucketQueue, list[WriteBatch]]:
    """Return a queue under writer 5, and its batches."""
    config = Config({key.replace("_", "."): value for key, value in options.items()})
    queue = BucketQueue(BUCKET, None, config, clock or Clock())
    queue.start_sequences(5, 0)
    batches = [batch() for _ in range(waiting)]
    queue.waiting.extend(batches)
    return queue, batches


def in_state(state: State) -> BucketQueue:
    """Return a queue in a state, with a batch in flight where there may be one."""
    queue, (first, second, *_) = queue_of(6)
    if state is State.SENDING:
        queue.take()
        return queue
    if state is State.PROBING:
        queue.take()
        assert not queue.failed_once(first, FINAL)
        assert queue.take() is second
        return queue
    queue.take()
    queue.take()
    assert queue.failed_once(first, PASSES)
    if state is State.BACKING_OFF:
        queue.acknowledged(second)
        assert queue.put_failed_back()
    return queue


def let(queue: BucketQueue, event: Event) -> None:
    """Have something happen, by the call of the sender that stands for it."""
    sent = next(iter(queue.in_flight.values()), None) or batch()
    if event is Event.ACKNOWLEDGED:
        queue.acknowledged(sent)
    elif event is Event.FAILED:
        queue.send_again(sent)
    elif event is Event.GIVEN_UP:
        queue.failed_once(sent, FINAL)
    elif event is Event.DRAINED:
        queue.in_flight.clear()
        assert queue.put_failed_back()
    else:
        queue.rested()


# a line for each state: what follows an acknowledged batch, a failed one, one that is given up,
# the last answer, and the end of the pause; "-" for what cannot happen
TABLE = """
sending      sending  draining  probing   -            -
draining     draining draining  draining  backing-off  -
backing-off  -        -         -         -            probing
probing      sending  draining  probing   -            -
"""


@pytest.mark.parametrize("line", TABLE.split("\n")[1:-1], ids=lambda line: line.split()[0])
def test_every_state_and_event(line: str) -> None:
    start, *following = line.split()
    states = {state.value.replace(" ", "-"): state for state in State}
    for event, then in zip(Event, following, strict=True):
        queue = in_state(states[start])
        assert queue.state is states[start]
        if then != "-":
            let(queue, event)
            assert queue.state is states[then], event
            assert NEXT[states[start], event] is states[then]
        elif event is Event.DRAINED:
            # nothing to be put back
            assert not queue.put_failed_back()
            assert queue.state is states[start]
        else:
            with pytest.raises(RuntimeError, match=f"{start.replace('-', ' ')}$"):
                let(queue, event)
            assert (states[start], event) not in NEXT


def test_batches_go_in_order_and_as_many_as_may() -> None:
    queue, batches = queue_of(7, writer_max_inflight__requests__per__bucket="5")
    sent = []
    while queue.sendable() is not None:
        sent.append(queue.take())
    assert sent == batches[:5]
    assert [b.sequence for b in sent] == [0, 1, 2, 3, 4]
    assert [b.encoded.stamps for b in sent if isinstance(b.encoded, Stamped)] == [
        [(5, number)] for number in range(5)
    ]
    queue.acknowledged(sent[2])
    assert queue.sendable() is batches[5]
    queue.acknowledged(sent[0])
    assert queue.take() is batches[5]
    assert batches[5].sequence == 5


def test_a_batch_that_is_still_encoded_holds_up_those_behind_it() -> None:
    queue, (first, second) = queue_of(2)
    ready, first.encoded = first.encoded, None
    assert queue.sendable() is None
    first.encoded = ready
    assert queue.take() is first
    assert queue.take() is second


def test_nothing_goes_while_it_waits_for_something() -> None:
    for holds in itertools.permutations(Hold):
        queue, (first,) = queue_of(1)
        for hold in holds:
            queue.hold(hold)
        for hold in holds:
            assert queue.sendable() is None
            assert queue.is_held(hold)
            queue.release(hold)
        assert queue.sendable() is first


def test_a_wait_does_not_cut_a_pause_short() -> None:
    """The leader is found while the bucket backs off: the pause goes on."""
    queue = in_state(State.BACKING_OFF)
    queue.hold(Hold.LEADER)
    queue.release(Hold.LEADER)
    assert queue.sendable() is None
    queue.rested()
    assert queue.sendable() is not None


def test_a_rest_ends_by_the_clock() -> None:
    clock = Clock()
    queue, (first,) = queue_of(1, clock=clock)
    assert queue.rest(2.0)
    assert not queue.rest(1.0)
    assert queue.sendable() is None
    clock.now += 1.9
    assert queue.sendable() is None
    clock.now += 0.2
    assert queue.sendable() is first


def test_after_a_failure_the_lowest_sequence_goes_first_and_alone() -> None:
    queue, batches = queue_of(4)
    sent = [queue.take() for _ in range(3)]
    assert queue.failed_once(sent[1], PASSES)
    assert queue.sendable() is None
    assert not queue.put_failed_back()  # two are outstanding
    assert queue.failed_once(sent[2], OUT_OF_ORDER)
    queue.acknowledged(sent[0])
    assert queue.put_failed_back()
    queue.rested()
    assert queue.take() is batches[1]
    assert (batches[1].sequence, batches[1].attempts) == (1, 2)
    assert queue.sendable() is None  # one at a time
    queue.acknowledged(batches[1])
    assert [queue.take(), queue.take()] == batches[2:]
    assert [b.sequence for b in batches] == [0, 1, 2, 3]


def test_a_gap_is_followed_by_a_new_writer_id_when_nothing_is_in_flight() -> None:
    queue, batches = queue_of(4)
    sent = [queue.take(), queue.take()]
    assert not queue.failed_once(sent[0], FINAL)
    assert queue.renew_writer
    assert queue.sendable() is None  # one is in flight under the old id
    assert queue.failed_once(sent[1], OUT_OF_ORDER)
    assert queue.put_failed_back()
    queue.rested()
    assert queue.sendable() is batches[1]
    queue.forget_writer()
    queue.start_sequences(9, 0)
    assert queue.take() is batches[1]
    assert (batches[1].writer_id, batches[1].sequence) == (9, 0)


def test_what_may_be_written_is_asked_for_under_its_own_writer_id() -> None:
    """The server may have it: under another id it would be written twice."""
    queue, _ = queue_of(3)
    sent = [queue.take(), queue.take()]
    for lost in sent:
        lost.uncertain = True
    assert queue.failed_once(sent[1], NetworkError("lost"))
    assert not queue.failed_once(sent[0], FINAL)
    assert queue.put_failed_back()
    queue.rested()
    assert not queue.needs_writer_id
    assert queue.take() is sent[1]
    assert (sent[1].writer_id, sent[1].sequence) == (5, 1)
    assert queue.was_written(sent[1], DUPLICATE)
    queue.acknowledged(sent[1])
    assert queue.needs_writer_id


def test_an_older_duplicate_is_known_by_its_sequence() -> None:
    queue, (first, second) = queue_of(2)
    queue.take()
    queue.take()
    assert queue.was_written(first, DUPLICATE)
    assert not queue.was_written(first, OUT_OF_ORDER)
    queue.acknowledged(second)
    assert queue.was_written(first, OUT_OF_ORDER)


def test_a_server_that_forgot_the_writer_is_asked_once_more() -> None:
    queue, (first, *_) = queue_of(2)
    queue.take()
    assert queue.failed_once(first, UNKNOWN_WRITER)
    assert not queue.renew_writer
    queue.put_failed_back()
    queue.rested()
    queue.take()
    assert queue.failed_once(first, UNKNOWN_WRITER)
    assert queue.renew_writer
    assert queue.put_failed_back()
    queue.rested()
    assert queue.needs_writer_id


def test_old_batches_and_many_attempts_are_given_up() -> None:
    clock = Clock()
    queue, batches = queue_of(2, clock=clock, writer_retries="1")
    queue.take()
    assert queue.failed_once(batches[0], PASSES)
    queue.put_failed_back()
    queue.rested()
    queue.take()
    assert not queue.failed_once(batches[0], PASSES)
    queue.take()
    clock.now += 1 + Config().writer_delivery_timeout_ms / 1000
    assert queue.expired(batches[1])
    assert not queue.failed_once(batches[1], PASSES)


def test_without_idempotence_what_may_be_written_is_given_up() -> None:
    queue, (first, second) = queue_of(2, writer_enable__idempotence="false")
    queue.take()
    queue.take()
    first.uncertain = True
    assert not queue.failed_once(first, NetworkError("lost"))
    assert queue.failed_once(second, PASSES)
    assert not queue.renew_writer


def test_parts_go_under_a_new_id_with_what_was_behind_them() -> None:
    queue, (first, second, third) = queue_of(3)
    for _ in range(3):
        queue.take()
    parts = [batch(), batch()]
    for part in parts:
        part.sequence = first.sequence
    queue.send_parts(first, parts)
    # lost, but written it cannot be: the server refused the one before it
    second.uncertain = True
    assert queue.failed_once(second, NetworkError("lost"))
    assert queue.failed_once(third, OUT_OF_ORDER)
    assert queue.put_failed_back()
    assert list(queue.waiting) == [*parts, second, third]
    assert {b.sequence for b in queue.waiting} == {-1}
    assert queue.renew_writer


def test_a_partition_that_was_created_again() -> None:
    queue, batches = queue_of(3)
    queue.take()
    assert not queue.failed_once(batches[0], FINAL)
    new = TableBucket(7, 3, 12)
    queue.move(new)
    assert not queue.renew_writer
    assert queue.take().sequence == 0
    assert [b.bucket for b in batches] == [BUCKET, new, new]


# ---- a server in a few lines, and a network that loses and delays


@dataclass
class Server:
    """One bucket: takes batches of a writer in the order of their sequences.

    Of a writer that it forgot it takes nothing. (A real one takes sequence 0 again: what no client
    can notice is left out.)
    """

    log: list[WriteBatch] = field(default_factory=list)
    writers: dict[int, list[int]] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)

    def forget(self) -> None:
        self.forgotten |= self.writers.keys()
        self.writers.clear()

    def take(self, sent: WriteBatch, stamp: tuple[int, int]) -> FlussError | None:
        writer, sequence = stamp
        if writer in self.forgotten:
            return UNKNOWN_WRITER
        known = self.writers.get(writer, [])
        if sequence in known[-5:]:
            return DUPLICATE
        if sequence != (known[-1] + 1 if known else 0):
            return OUT_OF_ORDER
        self.writers.setdefault(writer, []).append(sequence)
        self.log.append(sent)
        return None


@pytest.mark.parametrize("block", range(4))
def test_whatever_the_network_does_acknowledged_batches_are_there_once_and_in_order(
    block: int,
) -> None:
    for seed in range(block * 250, block * 250 + 250):
        simulate(random.Random(seed))


def simulate(choose: random.Random) -> None:
    queue, batches = queue_of(choose.randrange(1, 30))
    server = Server()
    writer_ids = itertools.count(6)
    on_the_wire: list[tuple[WriteBatch, tuple[int, int]]] = []
    late: list[tuple[WriteBatch, tuple[int, int]]] = []
    acknowledged: list[WriteBatch] = []
    given_up: list[WriteBatch] = []

    def answer(sent: WriteBatch, error: FlussError | None) -> None:
        if error is None or queue.was_written(sent, error):
            queue.acknowledged(sent)
            acknowledged.append(sent)
        else:
            sent.uncertain |= error.error_code in UNCERTAIN
            if not queue.failed_once(sent, error):
                given_up.append(sent)
        if queue.put_failed_back():
            queue.rested()

    while len(acknowledged) + len(given_up) < len(batches):
        while queue.sendable() is not None:
            if queue.needs_writer_id:
                queue.forget_writer()
                queue.start_sequences(next(writer_ids), 0)
            sent = queue.take()
            on_the_wire.append((sent, (sent.writer_id, sent.sequence)))
        if late and choose.random() < 0.3:
            server.take(*late.pop(choose.randrange(len(late))))
        what = choose.random()
        if what < 0.6:
            sent, stamp = on_the_wire.pop(0)
            answer(sent, server.take(sent, stamp))
        elif what < 0.75:
            answer(on_the_wire.pop(0)[0], PASSES)
        elif what < 0.77:
            answer(on_the_wire.pop(0)[0], FINAL)
        elif what < 0.79:
            server.forget()
        else:
            # the connection breaks: of what was under way the server got the first few, and
            # perhaps gets others later
            broken, on_the_wire = on_the_wire, []
            got = choose.randrange(len(broken) + 1)
            for sent, stamp in broken[:got]:
                server.take(sent, stamp)
            late += [one for one in broken[got:] if choose.random() < 0.5]
            for sent, _ in broken:
                answer(sent, NetworkError("the connection broke"))
    for one in late:
        server.take(*one)

    assert not queue.waiting
    assert not queue.in_flight
    place = {id(b): number for number, b in enumerate(batches)}
    stored = [place[id(b)] for b in server.log]
    assert len(stored) == len(set(stored)), "written twice"
    kept = {place[id(b)] for b in acknowledged}
    assert kept <= set(stored), "acknowledged, and not there"
    assert [number for number in stored if number in kept] == sorted(kept), "out of order"


def test_pauses_do_not_become_none_with_the_age_of_a_writer() -> None:
    queue, (first, *_) = queue_of(3, writer_delivery_timeout_ms="1")
    time.sleep(0.01)
    pauses = [queue.backoff.next_pause() for _ in range(10)]
    assert all(pause > 0 for pause in pauses)
    assert pauses[-1] > 0.7
    queue.take()
    queue.acknowledged(first)
    assert queue.backoff.next_pause() < 0.02

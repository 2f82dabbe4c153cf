"""The sender, with servers and connections that the test plays: no socket, no thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.send.batch import BufferMemory, WriteBatch, WriteResultHandle
from fluss_df.client.send.bucket_queue import BucketQueue, Hold
from fluss_df.client.send.sender import Sender
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.metadata import ServerNode, TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.frames import TYPE_OK, Response
from fluss_df.protocol.produce import ProduceLog
from fluss_df.protocol.wire import Buffer
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.schema import TableInfo

Answer = Callable[[Response | FlussError], None]
INFO = TableInfo(
    fluss.TablePath("db", "t"),
    7,
    1,
    fluss.TableDescriptor(fluss.Schema(pa.schema([("a", pa.int64())])), bucket_count=3),
    0,
    0,
)
NODES = [ServerNode(number, "h", 9000 + number, "TabletServer") for number in range(2)]
LOST = NetworkError("the connection broke")


class Bytes(StampedBatch):
    """An encoded batch: its number and what was stamped on it."""

    def __init__(self, number: int, nbytes: int = 100) -> None:
        super().__init__(bytearray(), pa.py_buffer(b""), 2)
        self.number, self.nbytes = number, nbytes
        self.stamps: list[tuple[int, int]] = []

    @property
    def buffers(self) -> list[memoryview]:
        return [memoryview(bytes([self.number]))]

    def stamp(self, writer_id: int, sequence: int) -> None:
        self.stamps.append((writer_id, sequence))


class Sent:
    """A request that a server got: the number of the batch of each bucket, and how to answer it."""

    def __init__(self, node: ServerNode, body: Sequence[Buffer], answer: Answer) -> None:
        message = pb.ProduceLogRequest.FromString(b"".join(bytes(part) for part in body))
        self.node, self._message = node, message
        self.batches = {b.bucket_id: b.records[0] for b in message.buckets_req}
        self._answer = answer

    def take(self, offsets: Mapping[int, int] | None = None) -> None:
        response = pb.ProduceLogResponse()
        for bucket in self.batches:
            response.buckets_resp.add(bucket_id=bucket, base_offset=(offsets or {}).get(bucket, 0))
        self._answer(Response(0, TYPE_OK, pa.py_buffer(response.SerializeToString())))

    def take_partitions(self, offset: int = 0) -> None:
        response = pb.ProduceLogResponse()
        for asked in self._message.buckets_req:
            response.buckets_resp.add(
                bucket_id=asked.bucket_id, partition_id=asked.partition_id, base_offset=offset
            )
        self._answer(Response(0, TYPE_OK, pa.py_buffer(response.SerializeToString())))

    def refuse(self, code: int) -> None:
        response = pb.ProduceLogResponse()
        for bucket in self.batches:
            response.buckets_resp.add(bucket_id=bucket, error_code=code, error_message="no")
        self._answer(Response(0, TYPE_OK, pa.py_buffer(response.SerializeToString())))

    def lose(self) -> None:
        self._answer(LOST)


class Servers:
    """Two servers, as far as a sender asks a cluster for them."""

    def __init__(self) -> None:
        self.requests: list[Sent] = []
        self.leaders = {number: NODES[number % 2] for number in range(3)}
        self.bucket_counts: dict[int | None, int] = {}
        self.unknown: set[int] = set()
        self.retries: list[FlussError] = []
        self.writer_ids = 40

    def known_leader(self, bucket: TableBucket) -> ServerNode | None:
        return None if bucket.bucket_id in self.unknown else self.leaders[bucket.bucket_id]

    async def leader(self, path: object, bucket: TableBucket) -> ServerNode:
        await asyncio.sleep(0)
        self.unknown.discard(bucket.bucket_id)
        return self.leaders[bucket.bucket_id]

    def forget_leader(self, bucket: TableBucket) -> None:
        self.unknown.add(bucket.bucket_id)

    def note_retry(self, error: FlussError) -> None:
        self.retries.append(error)

    async def request_tablet_server(self, api: object, request: object) -> pb.InitWriterResponse:
        await asyncio.sleep(0)
        self.writer_ids += 1
        return pb.InitWriterResponse(writer_id=self.writer_ids)

    def open_connection_to(self, node: ServerNode) -> Any:
        class Connection:
            address = f"{node.host}:{node.port}"

            @staticmethod
            def send(_: object, body: Sequence[Buffer], timeout_ms: int, answered: Answer) -> None:
                self.requests.append(Sent(node, body, answered))

        return Connection()

    async def next(self) -> Sent:
        """Return the next request, once it is there."""
        for _ in range(500):
            if self.requests:
                return self.requests.pop(0)
            await asyncio.sleep(0.001)
        raise AssertionError("nothing was sent")

    async def silent(self) -> None:
        """See that nothing more is sent for a while."""
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not self.requests


class Writing:
    """A sender, and batches for it."""

    def __init__(self, servers: Servers, **options: str) -> None:
        config = fluss.Config(
            {key.replace("__", "-").replace("_", "."): value for key, value in options.items()}
        )
        self.sender = Sender(
            cast(Cluster, servers),
            INFO,
            config,
            Metrics(),
            BufferMemory(1 << 20),
            ProduceLog(INFO.table_id),
            create_partitions=False,
            partition_moved=lambda name, partition_id: None,
        )
        self.handles: list[WriteResultHandle] = []

    def give(self, *buckets: int, nbytes: int = 100) -> list[WriteBatch]:
        """Enqueue a batch for each of some buckets; batches are numbered from 0."""
        batches = []
        for bucket in buckets:
            handle = WriteResultHandle()
            batch = WriteBatch(TableBucket(7, bucket), None, 2, 0, handle)
            batch.encoded = Bytes(len(self.handles), nbytes)
            handle.expect(1)
            handle.seal()
            self.handles.append(handle)
            batches.append(batch)
        self.sender.enqueue(batches, self)
        return batches

    def fate(self, number: int) -> str:
        future = self.handles[number].future
        if not future.done():
            return "open"
        return "acknowledged" if future.exception() is None else str(future.exception())

    async def drained(self) -> None:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.sender.tell_when_all_done(future)
        await asyncio.wait_for(asyncio.wrap_future(future), 5)


@pytest.fixture
def servers() -> Servers:
    return Servers()


async def test_one_request_for_a_leader_with_one_batch_of_each_bucket(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0, 1, 2, 0)
    first, second, third = [await servers.next() for _ in range(3)]
    assert (first.node, first.batches) == (NODES[0], {0: 0, 2: 2})
    assert (second.node, second.batches) == (NODES[1], {1: 1})
    assert (third.node, third.batches) == (NODES[0], {0: 3})
    for request in (first, second, third):
        request.take()
    await writing.drained()
    assert [writing.fate(number) for number in range(4)] == ["acknowledged"] * 4
    assert writing.sender.done_rows == 8


async def test_requests_are_no_larger_than_the_option_says(servers: Servers) -> None:
    writing = Writing(servers, writer_request__max__size="1024")
    writing.give(0, 2, nbytes=700)
    first, second = await servers.next(), await servers.next()
    assert (first.batches, second.batches) == ({0: 0}, {2: 1})


async def test_a_batch_that_no_server_takes_is_refused_before_it_is_sent(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0, nbytes=200 << 20)
    await writing.drained()
    assert "more than servers accept in a request" in writing.fate(0)
    assert "bucket 0" in writing.fate(0)
    assert not servers.requests


async def test_a_leader_that_is_not_known_is_asked_for(servers: Servers) -> None:
    servers.unknown = {1}
    writing = Writing(servers)
    writing.give(1)
    (await servers.next()).take()
    await writing.drained()
    assert writing.fate(0) == "acknowledged"


async def test_what_a_new_leader_is_needed_for_goes_again_in_order(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0, 0, 0)
    first, second, third = [await servers.next() for _ in range(3)]
    first.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    servers.leaders[0] = NODES[1]
    second.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    third.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    again = await servers.next()
    assert (again.node, again.batches) == (NODES[1], {0: 0})
    await servers.silent()  # one at a time, until one is taken
    again.take()
    behind = [await servers.next(), await servers.next()]
    assert [request.batches[0] for request in behind] == [1, 2]
    for number, request in enumerate(behind, 1):
        request.take({0: 2 * number})
    await writing.drained()
    assert [writing.fate(number) for number in range(3)] == ["acknowledged"] * 3
    result = writing.sender.acknowledged.results()[0]
    assert (result.base_offset, result.end_offset, result.rows) == (0, 6, 6)


async def test_a_lost_answer_behind_a_batch_that_is_given_up_is_asked_for_again(
    servers: Servers,
) -> None:
    """The server has it: under another writer id it would be written twice."""

    writing = Writing(servers, writer_delivery__timeout__ms="60000")
    old, new = writing.give(0, 0)
    first, second = await servers.next(), await servers.next()
    # both were written, and neither answer comes; the first is too old to be sent again
    old.created -= 61
    first.lose()
    second.lose()
    again = await servers.next()
    assert again.batches == {0: 1}
    assert isinstance(new.encoded, Bytes)
    assert new.encoded.stamps == [(41, 1)]
    again.refuse(ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION)
    await writing.drained()
    assert "2 rows were not acknowledged: the connection broke" in writing.fate(0)
    assert writing.fate(1) == "acknowledged"
    # what nobody can have goes under a new id
    (batch,) = writing.give(0)
    assert isinstance(batch.encoded, Bytes)
    request = await servers.next()
    assert batch.encoded.stamps == [(42, 0)]
    request.take({0: 4})
    await writing.drained()
    assert writing.fate(2) == "acknowledged"


async def test_what_may_be_written_is_said_where_the_server_lost_track(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0)
    (await servers.next()).lose()
    for _ in range(2):
        (await servers.next()).refuse(ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)
    await writing.drained()
    assert "2 rows may or may not have been written" in writing.fate(0)


@pytest.mark.parametrize(
    "code", [ErrorCode.CORRUPT_RECORD_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR]
)
async def test_what_fails_for_good_names_its_bucket(code: int, servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(2)
    (await servers.next()).refuse(code)
    await writing.drained()
    assert "2 rows were not acknowledged" in writing.fate(0)
    assert "table db.t, bucket 2" in writing.fate(0)
    told = writing.sender.failures.take()
    assert told is not None
    assert told.batches == 1


async def test_an_answer_without_one_of_its_buckets_is_not_believed(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0, 2)
    request = await servers.next()
    del request.batches[2]
    request.take()
    again = await servers.next()
    assert again.batches == {2: 1}
    again.take()
    await writing.drained()
    assert [writing.fate(number) for number in range(2)] == ["acknowledged"] * 2


async def test_a_caller_cannot_cancel_what_is_on_its_way(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0, 2)
    waiting = asyncio.wrap_future(writing.handles[0].future)
    waiting.cancel()
    assert not writing.handles[0].future.cancel()
    (await servers.next()).take()
    # the other batch of the answer, and a flush, are settled all the same
    await writing.drained()
    assert [writing.fate(number) for number in range(2)] == ["acknowledged"] * 2


@pytest.mark.parametrize("pressure", [-1e6, float("nan"), float("-inf")])
async def test_a_pressure_that_cannot_be_asks_for_no_rest(
    pressure: float, servers: Servers
) -> None:
    writing = Writing(servers)
    writing.give(0)
    (await servers.next()).take()
    writing.sender._throttle(writing.sender._queues[None, 0], pressure)
    writing.give(0)
    (await servers.next()).take()
    await writing.drained()


async def test_rows_that_a_server_lost_are_noticed(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0)
    (await servers.next()).take({0: 100})
    await writing.drained()
    writing.give(0)
    (await servers.next()).take({0: 50})
    await writing.drained()
    told = writing.sender.failures.take()
    assert told is not None
    lost, batches, rows = told
    assert batches == 1
    assert (lost.error_code, rows) == (ErrorCode.LOG_STORAGE_EXCEPTION, 0)
    assert "was written up to offset 102" in str(lost)


async def test_a_flush_waits_for_what_came_before_it(servers: Servers) -> None:
    writing = Writing(servers)
    flushes: list[concurrent.futures.Future[None]] = [concurrent.futures.Future() for _ in range(4)]

    def flush(number: int) -> None:
        writing.sender.tell_when_all_done(flushes[number])

    writing.give(0)
    flush(0)
    flush(1)
    writing.give(1)
    flush(2)
    requests = [await servers.next() for _ in range(2)]
    of_bucket = {bucket: each for each in requests for bucket in each.batches}
    writing.give(2)
    third = await servers.next()
    # done in another order than they came
    of_bucket[1].take()
    assert not any(future.done() for future in flushes)
    of_bucket[0].take()
    assert [future.done() for future in flushes] == [True, True, True, False]
    flush(3)
    assert not flushes[3].done()
    third.take()
    await writing.drained()
    assert flushes[3].done()


async def test_flushes_that_were_given_up_are_not_kept(servers: Servers) -> None:
    writing = Writing(servers)
    writing.give(0)
    for _ in range(100):
        given_up: concurrent.futures.Future[None] = concurrent.futures.Future()
        writing.sender.tell_when_all_done(given_up)
        given_up.cancel()
    rounds = writing.sender._open._rounds
    assert sum(len(each.waiting) for each in rounds) == 1
    (await servers.next()).take()
    await writing.drained()
    assert len(rounds) == 1
    assert not rounds[0].waiting


async def test_buckets_that_have_nothing_to_send_are_not_looked_at(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(servers)
    partitions = 50
    for partition in range(partitions):
        handle = WriteResultHandle()
        batch = WriteBatch(TableBucket(7, 0, partition), f"p{partition}", 2, 0, handle)
        batch.encoded = Bytes(partition)
        handle.expect(1)
        handle.seal()
        writing.sender.enqueue([batch], writing)
    for _ in range(partitions):
        if not writing.sender._open.count:
            break
        (await servers.next()).take_partitions()
    await writing.drained()
    looked: list[BucketQueue] = []
    sendable = BucketQueue.sendable

    def look(queue: BucketQueue) -> WriteBatch | None:
        looked.append(queue)
        return sendable(queue)

    monkeypatch.setattr(BucketQueue, "sendable", look)
    writing.give(1)
    request = await servers.next()
    assert {queue.bucket for queue in looked} == {TableBucket(7, 1)}
    # what is to be sent again is
    request.refuse(ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION)
    (await servers.next()).take()
    await writing.drained()
    assert {queue.bucket for queue in looked} == {TableBucket(7, 1)}
    # under its sequence number
    again = WriteBatch(TableBucket(7, 0, 3), "p3", 2, 0, WriteResultHandle())
    encoded = again.encoded = Bytes(3)
    again.handle.expect(1)
    writing.sender.enqueue([again], writing)
    (await servers.next()).take_partitions(2)
    await writing.drained()
    assert encoded.stamps == [(41, 1)]
    assert writing.sender.failures.first is None


class OddServers(Servers):
    """Servers of which a question ends in a way that nobody thought of, for some time."""

    def __init__(self, question: str, times: int) -> None:
        super().__init__()
        self._question = question
        self._times = times

    def _fail(self, question: str) -> None:
        if question == self._question and self._times:
            self._times -= 1
            raise OSError("too many open files")

    async def leader(self, path: object, bucket: TableBucket) -> ServerNode:
        self._fail("leader")
        return await super().leader(path, bucket)

    async def request_tablet_server(self, api: object, request: object) -> pb.InitWriterResponse:
        self._fail("a writer id")
        return await super().request_tablet_server(api, request)


@pytest.mark.parametrize("question", ["leader", "a writer id"])
async def test_a_fault_that_nobody_thought_of_fails_batches_and_holds_up_none(
    question: str,
) -> None:
    servers = OddServers(question, 1)
    servers.unknown.add(0)
    writing = Writing(servers)
    writing.give(0)
    await writing.drained()
    assert "too many open files" in writing.fate(0)
    assert question in writing.fate(0)
    writing.give(0)
    (await servers.next()).take()
    await writing.drained()
    assert writing.fate(1) == "acknowledged"


async def test_a_move_that_fails_in_a_way_that_nobody_thought_of_holds_up_none(
    servers: Servers,
) -> None:
    writing = Writing(servers)
    handles = []
    for partition in (1, 2):
        batch = WriteBatch(TableBucket(7, 0, partition), "p", 2, 0, WriteResultHandle())
        batch.encoded = Bytes(partition)
        batch.handle.expect(1)
        batch.handle.seal()
        handles.append(batch.handle)
        # the servers here have no partitions: to ask for one is an AttributeError
        writing.sender.enqueue([batch], writing)
    await writing.drained()
    for handle in handles:
        assert "AttributeError" in str(handle.future.exception())
    queue = writing.sender._queues["p", 0]
    assert not any(queue.is_held(reason) for reason in Hold)

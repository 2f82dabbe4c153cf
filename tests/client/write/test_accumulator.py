"""The accumulator, with a sender and a router that the test plays: no server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.context import ClientContext
from fluss_df.client.routing.row_router import RowRouter
from fluss_df.client.runtime.io_thread import io_thread
from fluss_df.client.send.batch import RoutedBatch, WriteBatch, WriteResultHandle
from fluss_df.client.send.failures import Failures
from fluss_df.client.send.sender import Sender
from fluss_df.client.write.accumulator import Accumulator
from fluss_df.client.write.codec import RowCodec
from fluss_df.client.write.key_codec import KeyCodec
from fluss_df.client.write.log_codec import LogCodec
from fluss_df.config import Config
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.metadata import TableBucket
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.schema import TableInfo

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
BUCKET = TableBucket(7, 0, None)


def table_info(*keys: str) -> TableInfo:
    schema = fluss.Schema(SCHEMA, list(keys) or None)
    descriptor = fluss.TableDescriptor(schema, bucket_count=1)
    return TableInfo(fluss.TablePath("db", "t"), 7, 1, descriptor, 0, 0)


class Encoded(StampedBatch):
    """Rows that were encoded, as they are."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__(bytearray(), pa.py_buffer(b""), rows.num_rows)
        self.rows = rows


class Router:
    """Puts each frame into one bucket, as a whole."""

    def __init__(self) -> None:
        self.refuse: Exception | None = None
        self.places = True

    def routes(self, data: pa.Table, target_bytes: int) -> Iterator[RoutedBatch]:
        if self.refuse is not None:
            raise self.refuse
        return iter([RoutedBatch(BUCKET, None, data.combine_chunks().to_batches()[0])])

    def place(self, row: Sequence[Any]) -> tuple[TableBucket, None] | None:
        return (BUCKET, None) if self.places else None


class Sent:
    """Takes the batches of an accumulator in the place of a sender."""

    def __init__(self) -> None:
        self._batches: list[WriteBatch] = []
        self.failures = Failures()
        self.event = threading.Event()

    def enqueue(self, batches: Sequence[WriteBatch], owner: object) -> None:
        self._batches += batches
        self.event.set()

    def wake(self) -> None:
        """Do nothing: a batch is encoded."""

    @property
    def batches(self) -> list[WriteBatch]:
        """What was sent up to now."""

        async def turn() -> None:
            """Come behind what waits for the I/O thread."""

        io_thread().run(turn())
        return self._batches

    @property
    def frames(self) -> list[pa.RecordBatch]:
        """The rows of each frame, in its order."""
        found = []
        for batch in self.batches:
            encoder = threading.Event()
            while batch.encoded is None:
                encoder.wait(0.001)
            if isinstance(batch.encoded, Encoded):
                found.append(batch.encoded.rows)
        return found

    @property
    def lone(self) -> list[StampedBatch]:
        """Rows that went alone, without arrays."""
        encoded = [batch.encoded for batch in self.batches]
        return [each for each in encoded if each is not None and not isinstance(each, Encoded)]

    def ids(self) -> list[list[int]]:
        """The ids of each frame that was sent."""
        return [frame.column("id").to_pylist() for frame in self.frames]


class Writer:
    """An accumulator, and what it sent."""

    def __init__(self, info: TableInfo, **settings: Any) -> None:
        # nothing lingers, but where a test asks for it
        config = Config({"writer.batch-timeout": "3600000", **settings})
        self.codec: RowCodec = (
            KeyCodec(info, info.get_column_names(), config)
            if info.has_primary_key()
            else LogCodec(info, config)
        )
        self.codec.encode = Encoded  # type: ignore[method-assign]
        self.sent, self.router = Sent(), Router()
        self.accumulator = Accumulator(
            ClientContext(config),
            "db.t",
            self.codec,
            cast("RowRouter", self.router),
            lambda _: cast("Sender", self.sent),
            self,
        )
        self.put = self.accumulator.put_row

    def frame(self, *ids: int) -> WriteResultHandle | None:
        """Add a frame of rows with these ids."""
        rows = pa.table({"id": ids, "text": ["x"] * len(ids)}, schema=SCHEMA)
        data = self.codec.frame(rows)
        return self.accumulator.add_frame(data, data.nbytes)


@pytest.fixture
def log() -> Writer:
    return Writer(table_info())


@pytest.fixture
def keyed() -> Writer:
    return Writer(table_info("id"))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "text": "x"}


def test_rows_wait_and_share_a_handle(log: Writer) -> None:
    handles = [log.put(row(n)) for n in range(5)]
    assert len(set(handles)) == 1
    assert log.accumulator.rows == 5
    assert log.sent.frames == []
    log.accumulator.drain()
    assert log.sent.ids() == [[0, 1, 2, 3, 4]]
    assert log.accumulator.rows == 0
    # what comes now is for another batch
    assert log.put(row(5)) is not handles[0]


def test_draining_nothing_sends_nothing(log: Writer) -> None:
    log.accumulator.drain()
    log.put(row(1))
    log.accumulator.drain()
    log.accumulator.drain()
    assert log.accumulator.given_rows == 1


def test_a_row_that_waits_alone_goes_without_arrays(log: Writer) -> None:
    log.put(row(7))
    log.accumulator.drain()
    assert (len(log.sent.lone), log.sent.frames) == (1, [])
    assert log.sent.lone[0].num_rows == 1


def test_one_without_a_known_place_goes_the_way_of_many(log: Writer) -> None:
    log.router.places = False
    log.put(row(7))
    log.accumulator.drain()
    assert (log.sent.lone, log.sent.ids()) == ([], [[7]])


def test_rows_and_frames_keep_their_order(log: Writer) -> None:
    log.put(row(1))
    log.frame(2, 3)
    log.put(row(4))
    log.put({"text": "later", "id": 5})
    log.frame(6)
    log.put([7, "as a list"])
    log.accumulator.drain()
    assert log.sent.ids() == [[1, 2, 3, 4, 5, 6, 7]]


def test_deletes_keep_their_place_among_upserts(keyed: Writer) -> None:
    codec = cast("KeyCodec", keyed.codec)
    keyed.accumulator.delete(codec.deletes.values({"id": 9}))
    keyed.put(row(1))
    keyed.accumulator.delete(codec.deletes.values([1]))
    keyed.put(row(1))
    keyed.frame(2)
    keyed.accumulator.delete(codec.deletes.values([2]))
    keyed.accumulator.drain()
    assert keyed.sent.ids() == [[9, 1, 1, 1, 2, 2]]
    assert keyed.sent.frames[0].column(2).to_pylist() == [True, False, True, False, False, True]


def test_enough_rows_are_sent_by_who_adds_the_last() -> None:
    log = Writer(table_info(), **{"writer.batch-size": "1024"})
    for n in range(8191):
        log.put(row(n))
    assert log.sent.frames == []
    log.put(row(8191))
    assert log.sent.ids() == [list(range(8192))]
    # its size is known now: a batch is of about a kilobyte from here on
    rows_a_batch = 0
    while len(log.sent.frames) == 1:
        log.put(row(rows_a_batch))
        rows_a_batch += 1
    assert log.sent.frames[1].num_rows == rows_a_batch
    assert 20 < rows_a_batch < 120


def test_a_frame_does_not_wait_where_there_is_enough() -> None:
    log = Writer(table_info(), **{"writer.batch-size": "1024"})
    assert log.frame(*range(20)) is not None
    assert log.frame(*range(100)) is None
    assert log.accumulator.rows == 20


def test_a_row_that_does_not_fit_is_refused_alone(log: Writer) -> None:
    log.put(row(1))
    for wrong in ({"id": "x"}, {"id": None, "text": "x"}, {"id": 1, "other": 2}, [1], 5):
        with pytest.raises(SchemaMismatchError):
            log.put(cast("Any", wrong))
    log.put(row(2))
    log.accumulator.drain()
    assert log.sent.ids() == [[1, 2]]


def test_what_cannot_be_sent_is_told_once_with_its_rows(log: Writer) -> None:
    log.router.refuse = FlussError("no partition")
    handle = log.put(row(1))
    log.put(row(2))
    log.frame(3)
    log.accumulator.drain()
    assert (str(log.sent.failures.first), log.sent.failures.rows) == ("no partition", 3)
    with pytest.raises(FlussError, match="no partition"):
        handle.wait()
    log.router.refuse = None
    log.put(row(4))
    log.put(row(5))
    log.accumulator.drain()
    assert log.sent.ids() == [[4, 5]]


def test_a_lone_row_without_room_is_told() -> None:
    settings = {"writer.buffer.memory-size": str(1 << 20), "writer.buffer.wait-timeout": "1"}
    log = Writer(table_info(), **settings)
    log.accumulator.memory.take_at_once(1 << 20)
    handle = log.put(row(1))
    log.accumulator.drain()
    assert log.sent.failures.rows == 1
    with pytest.raises(FlussError, match="no room"):
        handle.wait()


def test_it_takes_nothing_once_it_is_closed(log: Writer) -> None:
    log.put(row(1))
    log.accumulator.close()
    with pytest.raises(FlussError, match=r"table db\.t is closed"):
        log.put(row(2))
    with pytest.raises(FlussError, match="closed"):
        log.frame(3)
    # what waited is for a flush
    assert log.accumulator.rows == 1


def test_what_lingered_long_enough_is_sent_by_itself() -> None:
    log = Writer(table_info(), **{"writer.batch-timeout": "10"})
    log.put(row(1))
    log.put(row(2))
    assert log.sent.event.wait(30)
    assert log.accumulator.given_rows == 2


def test_who_waits_for_a_handle_does_not_linger(log: Writer) -> None:
    log.put(row(1))
    handle = log.put(row(2))
    with pytest.raises(TimeoutError):
        # nobody acknowledges yet
        handle.wait(timeout_ms=50)
    assert log.sent.ids() == [[1, 2]]
    log.sent.batches[0].handle.batch_done()
    handle.wait()


def test_threads_lose_and_double_no_row() -> None:
    log = Writer(table_info(), **{"writer.batch-size": "2048"})
    threads, each = 8, 4_000
    done = threading.Event()

    def add(first: int) -> None:
        for n in range(first, first + each):
            log.put(row(n))

    def drain() -> None:
        while not done.is_set():
            log.accumulator.drain()

    adding = [threading.Thread(target=add, args=(i * each,)) for i in range(threads)]
    draining = threading.Thread(target=drain)
    for thread in (*adding, draining):
        thread.start()
    for thread in adding:
        thread.join()
    done.set()
    draining.join()
    log.accumulator.drain()
    found = [n for frame in log.sent.ids() for n in frame]
    # rows that went alone have no arrays to look into
    assert len(found) + len(log.sent.lone) == threads * each
    assert len(set(found)) == len(found)
    for first in range(0, threads * each, each):
        own = [n for n in found if first <= n < first + each]
        assert own == sorted(own)

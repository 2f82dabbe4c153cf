"""Answers to fetches that a server should not give: asked again for a while, and then an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.fetch import fetcher
from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.fetcher import LogFetcher
from fluss_df.client.fetch.position import Position, RetryState
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.fetch import FetchedBucket, parse_fetch_response
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.record.layout.headers import scan_headers
from tests.record.batches import rows, stored

ROWS = list(range(10))
FILTER = ServerFilter(pb.Predicate(), 1, "x > 0")
Answers = Callable[[list[FetchedBucket], int], list[FetchedBucket]]


@pytest.fixture(scope="module")
def connection() -> Iterator[fluss.FlussConnection]:
    """A connection by TCP, which tries again for 0.4 s."""
    with EmbeddedFluss(port=0) as engine:
        options = {"bootstrap.servers": engine.address, "retry-timeout": 400}
        with fluss.connect(options) as connection:
            yield connection


def filled(connection: fluss.FlussConnection, name: str, buckets: int = 1) -> fluss.FlussTable:
    """A table of log batches of five rows: two in one bucket, or many in several."""
    path = fluss.TablePath("fluss", name)
    schema = fluss.Schema(pa.schema([("x", pa.int64())]))
    descriptor = fluss.TableDescriptor(schema, bucket_count=buckets)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
        for _ in range(1 if buckets == 1 else 8 * buckets):
            for half in (ROWS[:5], ROWS[5:]):
                writer.write_arrow(pa.table({"x": half}))
                writer.flush()
    return table


@pytest.fixture(scope="module")
def table(connection: fluss.FlussConnection) -> fluss.FlussTable:
    return filled(connection, "t")


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], None]:
    """What makes other answers of those of the server; it fails where these are asked for ever."""
    parse = parse_fetch_response

    def play(change: Answers) -> None:
        calls = 0

        def parsed(body: Any, most: int) -> list[FetchedBucket]:
            nonlocal calls
            calls += 1
            assert calls < 200, "the server is asked for ever"
            return change(list(parse(body, most)), calls)

        monkeypatch.setattr(fetcher, "parse_fetch_response", parsed)

    return play


def read(table: fluss.FlussTable) -> list[int]:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    try:
        found: list[int] = scanner.to_arrow()["x"].to_pylist()
        return found
    finally:
        scanner.close()


def test_a_bucket_that_is_not_answered_for_is_asked_for_again(
    table: fluss.FlussTable, answered: Callable[[Answers], None]
) -> None:
    answered(lambda buckets, call: buckets if call > 2 else [])
    assert read(table) == ROWS
    answered(lambda buckets, call: [])
    with pytest.raises(NetworkError, match=r"did not answer for table fluss\.t, bucket 0"):
        read(table)


def test_batches_from_before_the_offset_are_not_taken_for_ever(
    table: fluss.FlussTable, answered: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first answer has the first batch alone
    monkeypatch.setattr(fetcher, "_FIRST_BYTES", 1)
    first: list[FetchedBucket] = []

    def change(buckets: list[FetchedBucket], call: int) -> list[FetchedBucket]:
        first[:] = first or buckets
        return first

    answered(change)
    with pytest.raises(FlussError, match="up to offset 5 where offset 5 was asked for"):
        read(table)


def failed(buckets: list[FetchedBucket]) -> list[FetchedBucket]:
    """The answer of a server that failed, and does not say how."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    return [
        replace(one, error_code=code, error_message="ClosedChannel", records=None)
        for one in buckets
    ]


def test_a_failure_that_the_server_does_not_name_passes_or_is_told(
    table: fluss.FlussTable, answered: Callable[[Answers], None]
) -> None:
    # as 0.9.1 answers while it deletes a segment that moved to remote storage
    answered(lambda buckets, call: failed(buckets) if call < 4 else buckets)
    assert read(table) == ROWS
    answered(lambda buckets, call: failed(buckets))
    with pytest.raises(FlussError, match="ClosedChannel") as told:
        read(table)
    assert told.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_dropped_table_is_named_where_the_server_fails_at_it(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None]
) -> None:
    """As 0.9.1 does while a replica is closed, and not removed yet."""
    table = filled(connection, "dropped")
    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.poll_arrow(10_000).num_rows
        connection.get_admin().drop_table(table.get_table_path())
        answered(lambda buckets, call: failed(buckets))
        with pytest.raises(FlussError, match=r"table fluss\.dropped") as told:
            _ = [scanner.poll_arrow(500) for _ in range(60)]
    assert told.value.error_code == ErrorCode.TABLE_NOT_EXIST


# ---- answers without rows


@pytest.mark.parametrize("first", [True, False])
def test_a_bucket_for_which_an_answer_had_no_room_is_asked_again_at_once(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None], first: bool
) -> None:
    """A server fills an answer from one bucket, of which the client does not know which it is."""
    table = filled(connection, f"many_{first}", buckets=3)
    alone: list[int] = []

    def change(buckets: list[FetchedBucket], call: int) -> list[FetchedBucket]:
        if len(buckets) == 1:
            alone.append(call)
            return buckets
        return [
            bucket if first and not place else replace(bucket, records=None)
            for place, bucket in enumerate(buckets)
        ]

    answered(change)
    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(3), fluss.EARLIEST_OFFSET))
        assert scanner.to_arrow().num_rows == 48 * 5
        assert scanner.metrics.retries == 0
    assert alone


def accepting(
    connection: fluss.FlussConnection,
    table: fluss.FlussTable,
    stop: int | None,
    server_filter: ServerFilter | None = None,
) -> tuple[Position, Callable[..., int]]:
    """A position, and what gives it an answer."""
    info = table.get_table_info()
    reader = LogFetcher(
        connection.cluster, info, None, Metrics(), max_wait_ms=0, server_filter=server_filter
    )
    here = Position(TableBucket(info.table_id, 0, None), None, 0, stop)

    def accept(*others: Position, **answer: Any) -> int:
        fetched = FetchedBucket(info.table_id, bucket_id=0, **answer)
        return reader._accept(here, fetched, False, [*others, here])

    return here, accept


def test_a_failure_long_after_another_is_the_first_again(
    connection: fluss.FlussConnection, table: fluss.FlussTable
) -> None:
    """Between them a scanner waited at the end of the log, where no rows came."""
    here, accept = accepting(connection, table, None)
    for code in (ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR):
        accept(error_code=code, error_message="a server restarts")
        assert here.retry != RetryState(not_before=here.retry.not_before)
        accept()
        assert here.retry == RetryState(not_before=here.retry.not_before)


def test_a_bounded_read_gives_up_a_bucket_that_alone_gets_nothing(
    connection: fluss.FlussConnection, table: fluss.FlussTable
) -> None:
    here, accept = accepting(connection, table, 10)
    other = Position(TableBucket(1, 1, None), None, 0, 10)
    accept(other)
    assert (here.starved, here.retry) == (False, RetryState())
    accept()
    assert here.starved
    assert here.retry.not_before


def test_a_bucket_that_pauses_is_waited_for_while_another_has_rows(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None]
) -> None:
    table = filled(connection, "paused", buckets=2)
    code = ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION

    def change(buckets: list[FetchedBucket], call: int) -> list[FetchedBucket]:
        if call > 5:
            return buckets
        return [
            replace(one, error_code=code, records=None) if one.bucket_id == 0 else one
            for one in buckets
        ]

    answered(change)
    info = table.get_table_info()
    positions = [
        Position(TableBucket(info.table_id, bucket, None), None, 0, 10) for bucket in range(2)
    ]
    # a batch of each bucket at a time, so that the second one is not over
    read = ChunkRead(connection, info, None, positions, Metrics(), bucket_bytes=1)
    steps = list(read.steps())
    order = [position.bucket.bucket_id for step in steps for position, _ in step]
    assert order == [0, 0, 1, 1]
    # one turn for each of the five pauses, and a few more where a timer is early
    assert steps.count([]) < 30


def test_a_bucket_that_is_gone_does_not_hold_up_others(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None]
) -> None:
    table = filled(connection, "half", buckets=2)
    code = ErrorCode.AUTHORIZATION_EXCEPTION

    def change(buckets: list[FetchedBucket], call: int) -> list[FetchedBucket]:
        return [
            replace(one, error_code=code, records=None) if one.bucket_id == 0 else one
            for one in sorted(buckets, key=lambda one: one.bucket_id)
        ]

    answered(change)
    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(2), fluss.EARLIEST_OFFSET))
        rows = [scanner.poll_arrow(10_000).num_rows]
        with pytest.raises(FlussError) as told:
            rows.extend(scanner.poll_arrow(10_000).num_rows for _ in range(100))
        assert told.value.error_code == code
        with table.new_scan().create_record_batch_log_scanner() as other:
            other.subscribe(1, fluss.EARLIEST_OFFSET)
            assert 0 < sum(rows) == other.to_arrow().num_rows


def test_a_server_that_has_nothing_and_holds_no_fetch_is_left_alone_for_a_moment(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None]
) -> None:
    table = filled(connection, "idle")
    # of every bucket, as if by a filter
    answered(lambda buckets, _: [replace(one, records=None) for one in buckets])
    info = table.get_table_info()
    reader = LogFetcher(connection.cluster, info, None, Metrics(), max_wait_ms=0)
    here = Position(TableBucket(info.table_id, 0, None), None, 0, None)
    endpoint = reader.endpoint(here)
    assert endpoint is not None
    lane = reader.lane(endpoint, [here])
    assert lane is not None
    assert reader.send(lane, [here])
    reader.receive(lane, [here])
    assert here.retry.not_before == lane.sent_at + fetcher._IDLE_S
    # an answer with rows is followed by the next question
    here.retry.not_before = 0.0
    answered(lambda buckets, _: buckets)
    assert reader.send(lane, [here])
    reader.receive(lane, [here])
    assert here.offset == 10
    assert here.retry.not_before == 0.0
    lane.close()


def test_an_end_of_the_filter_that_is_no_progress_is_nothing(
    connection: fluss.FlussConnection, table: fluss.FlussTable
) -> None:
    here, accept = accepting(connection, table, 10, FILTER)
    accept(filtered_end_offset=0)
    assert here.offset == 0
    assert here.starved
    assert here.retry.not_before > 0
    accept(filtered_end_offset=3)
    assert here.offset == 3


def test_only_where_there_is_a_filter_may_a_server_leave_out_rows(
    connection: fluss.FlussConnection, table: fluss.FlussTable
) -> None:
    here, accept = accepting(connection, table, 10)
    accept(filtered_end_offset=3)
    assert here.offset == 0
    late = pa.py_buffer(stored(rows(2, 3), 2))
    hole = pa.py_buffer(stored(rows(0, 2), 0) + stored(rows(5, 5), 5))
    for records in (late, hole):
        here, accept = accepting(connection, table, 10)
        accept(records=records, filtered_end_offset=9)
        assert (here.offset, list(here.ready)) == (0, [])
        assert here.retry.not_before > 0
        here, accept = accepting(connection, table, 10, FILTER)
        accept(records=records)
        assert here.offset == (5 if records is late else 10)


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (slice(0, 1), "with log batches from offset 5 on where offset 0 was asked for"),
        (slice(1, 2), "with log batches that lack 5 offsets from 0 to 15"),
    ],
)
def test_batches_that_are_missing_in_an_answer_are_told(
    connection: fluss.FlussConnection, answered: Callable[[Answers], None], lost: slice, told: str
) -> None:
    table = filled(connection, f"lost_{lost.start}")
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"x": ROWS[:5]}))

    def change(buckets: list[FetchedBucket], call: int) -> list[FetchedBucket]:
        changed = []
        for one in buckets:
            assert one.records is not None
            headers = scan_headers(one.records)
            kept = list(range(len(headers)))
            del kept[lost]
            spans = [(int(headers.position[i]), int(headers.size[i])) for i in kept]
            data = b"".join(bytes(one.records)[at : at + size] for at, size in spans)
            changed.append(replace(one, records=pa.py_buffer(data)))
        return changed

    answered(change)
    with pytest.raises(FlussError, match=told):
        read(table)


def test_only_whole_reads_in_this_process_ask_for_more_at_once() -> None:
    """A scanner that polls holds what it got; of some columns, an engine looks at more."""
    with EmbeddedFluss(port=0) as engine, engine.connection() as here:
        table = filled(here, "limits")
        info = table.get_table_info()

        def limit(cluster: Cluster, **options: Any) -> int:
            made = LogFetcher(cluster, info, options.pop("only", None), Metrics(), **options)
            return made._bucket_bytes

        bounded: dict[str, Any] = {"max_wait_ms": 0, "begin_small": True}
        assert limit(here.cluster, **bounded) == 32 << 20
        assert limit(here.cluster, max_wait_ms=0) == 8 << 20
        assert limit(here.cluster, **bounded, only=[0]) == 8 << 20
        assert limit(here.cluster, **bounded, server_filter=FILTER) == 8 << 20
        with fluss.connect(engine.address) as there:
            assert limit(there.cluster, **bounded) == 8 << 20


def test_a_server_is_asked_to_hold_a_fetch_for_less_than_it_may_be_silent() -> None:
    with EmbeddedFluss(port=0) as engine:
        options = {
            "bootstrap.servers": engine.address,
            "scanner.log.fetch.wait-max-time": 60_000,
            "request-timeout": 300,
        }
        with fluss.connect(options) as connection:
            table = filled(connection, "held")
            with table.new_scan().create_record_batch_log_scanner() as scanner:
                scanner.subscribe(0, 10)
                connections = connection.metrics.connections
                assert scanner.poll_arrow(1000).num_rows == 0
                assert scanner.poll_arrow(100).num_rows == 0
                assert scanner.metrics.retries == 0
                assert connection.metrics.connections == connections + 1

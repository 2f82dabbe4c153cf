"""Answers to fetches that a server should not give: asked again for a while, and then an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch import fetcher
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.protocol.fetch import FetchedBucket, parse_fetch_response

ROWS = list(range(10))
Answers = Callable[[list[FetchedBucket], int], list[FetchedBucket]]


@pytest.fixture(scope="module")
def connection() -> Iterator[fluss.FlussConnection]:
    """A connection by TCP, which tries again for 0.4 s."""
    with EmbeddedFluss(port=0) as engine:
        options = {"bootstrap.servers": engine.address, "retry-timeout": 400}
        with fluss.connect(options) as connection:
            yield connection


def filled(connection: fluss.FlussConnection, name: str) -> fluss.FlussTable:
    """A table of two log batches in one bucket."""
    path = fluss.TablePath("fluss", name)
    schema = fluss.Schema(pa.schema([("x", pa.int64())]))
    descriptor = fluss.TableDescriptor(schema, bucket_count=1)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
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

        def parsed(body: Any) -> list[FetchedBucket]:
            nonlocal calls
            calls += 1
            assert calls < 200, "the server is asked for ever"
            return change(list(parse(body)), calls)

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

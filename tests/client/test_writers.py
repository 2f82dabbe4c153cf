"""Writers: order, acknowledgement, back-pressure, threads."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from tests.client.support import Tables, close_failed, soon
from tests.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def frame(rows: int, start: int = 0, width: int = 10) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"n": numbers, "text": [f"{i:0{width}}" for i in numbers]}, schema=SCHEMA)


@contextmanager
def writer_with(
    address: str, table: fluss.FlussTable, **settings: Any
) -> Iterator[fluss.AppendWriter]:
    """Give a writer of a connection with settings of its own."""
    config = fluss.Config({"bootstrap.servers": address}).copy(**settings)
    with fluss.connect(config) as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            yield writer


def numbers(tables: Tables, table: fluss.FlussTable) -> list[int]:
    found: list[int] = tables.read(table).column("n").to_pylist()
    return found


def test_order_within_a_bucket(tables: Tables) -> None:
    """Rows, small frames and large frames in turn: encoded by several threads, sent in order."""
    table = tables(SCHEMA)
    total = 0
    with table.new_append().create_writer() as writer:
        for _, size in zip(range(60), itertools.cycle([1, 7, 30_000, 500, 1]), strict=False):
            if size == 1:
                writer.append({"n": total, "text": ""})
            else:
                writer.write_arrow(frame(size, total))
            total += size
    assert numbers(tables, table) == list(range(total))


def test_wait_does_not_linger(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    with writer_with(address, table, writer_batch_timeout_ms=60_000) as writer:
        handle = writer.append((1, "a"))
        time.sleep(0.1)
        assert numbers(tables, table) == []
        assert "pending" in repr(handle)
        soon(handle.wait)
        assert "acknowledged" in repr(handle)
        assert numbers(tables, table) == [1]
        handle.wait()  # once more is nothing new
        assert handle.future.done()


def test_rows_that_linger_share_a_batch(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        for i in range(100):
            writer.append((i, "x"))
    scanner = tables.scanner(table)
    batches = scanner.poll_record_batch(1000)
    assert [batch.batch.num_rows for batch in batches] == [100]


def test_lingering_rows_are_sent_by_themselves(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.append((1, "a"))
        wait_until(lambda: numbers(tables, table), 10)
        assert numbers(tables, table) == [1]
        assert writer.unflushed_rows == 0


def test_flush_and_what_is_not_flushed(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        assert writer.unflushed_rows == 0
        writer.append((1, "a"))
        writer.write_arrow(frame(10))
        assert writer.unflushed_rows == 11
        assert "unflushed_rows=11" in repr(writer)
        writer.flush()
        assert writer.unflushed_rows == 0
        writer.flush()
        assert len(numbers(tables, table)) == 11


def test_close_flushes_and_refuses_more(tables: Tables) -> None:
    table = tables(SCHEMA)
    writer = table.new_append().create_writer()
    writer.append((1, "a"))
    writer.close()
    writer.close()
    assert numbers(tables, table) == [1]
    with pytest.raises(FlussError, match="is closed: create a new one"):
        writer.append((2, "b"))
    with pytest.raises(FlussError, match="is closed"):
        writer.write_arrow(frame(1))
    assert numbers(tables, table) == [1]


def test_closing_the_connection_flushes_its_writers(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    connection = fluss.connect(address)
    writer = connection.get_table(table.get_table_path()).new_append().create_writer()
    writer.append((1, "a"))
    connection.close()
    assert numbers(tables, table) == [1]
    with pytest.raises(FlussError, match="closed"):
        writer.append((2, "b"))


def test_with_flushes_also_after_an_error(tables: Tables) -> None:
    table = tables(SCHEMA)
    with pytest.raises(KeyError), table.new_append().create_writer() as writer:  # noqa: PT012
        writer.append((1, "a"))
        raise KeyError
    assert numbers(tables, table) == [1]


def test_many_threads_on_one_writer(tables: Tables) -> None:
    table = tables(SCHEMA, bucket_count=3)
    failures: list[BaseException] = []
    with table.new_append().create_writer() as writer:

        def work(thread: int) -> None:
            try:
                for i in range(200):
                    number = thread * 1000 + i
                    if i % 20 == 0:
                        writer.write_arrow(frame(1, number)).wait()
                    else:
                        writer.append((number, "x"))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
    expected = [t * 1000 + i for t in range(8) for i in range(200)]
    assert sorted(numbers(tables, table)) == expected


def test_several_writers_and_scanners_on_one_connection(tables: Tables) -> None:
    table = tables(SCHEMA, bucket_count=2)
    scanner = tables.scanner(table)
    writers = [table.new_append().create_writer() for _ in range(4)]
    for round_ in range(5):
        for i, writer in enumerate(writers):
            writer.write_arrow(frame(100, (round_ * 4 + i) * 100))
    assert all(scanner.poll_arrow(0).schema == SCHEMA for _ in range(3))
    for writer in writers:
        writer.close()
    assert sorted(numbers(tables, table)) == list(range(2000))


def test_offsets(tables: Tables) -> None:
    table = tables(SCHEMA, bucket_count=2)
    tables.write(table, frame(5))
    before = dict(enumerate(0 for _ in range(2)))
    before |= tables.connection.get_admin().list_offsets(
        table.get_table_path(), [0, 1], fluss.OffsetSpec.latest()
    )
    with table.new_append().create_writer() as writer:
        assert writer.offsets() == []
        for i in range(4):  # sticky: the other bucket each time
            writer.write_arrow(frame(10, i * 10)).wait()
        found = writer.offsets()
    assert [result.bucket_id for result in found] == [0, 1]
    for result in found:
        assert result.partition_name is None
        assert result.rows == 20
        assert result.base_offset == before[result.bucket_id]
        assert result.end_offset == result.base_offset + 20


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("idempotence", [True, False])
def test_acks(address: str, tables: Tables, acks: str, idempotence: bool) -> None:
    table = tables(SCHEMA)
    settings = {"writer_acks": acks, "writer_enable_idempotence": idempotence}
    with writer_with(address, table, **settings) as writer:
        for i in range(20):
            writer.write_arrow(frame(100, i * 100))
        writer.append((2000, "")).wait()
    found: list[int] = []
    scanner = tables.scanner(table)
    end = time.monotonic() + 10
    while len(found) < 2001 and time.monotonic() < end:  # acks=0 is answered before it is done
        found += scanner.poll_arrow(100).column("n").to_pylist()
    assert found == list(range(2001))


def test_back_pressure_bounds_memory_and_loses_nothing(address: str, tables: Tables) -> None:
    table = tables(SCHEMA, properties={"table.log.arrow.compression.type": "NONE"})
    size = 1 << 20
    settings = {"writer_buffer_memory_size": size, "writer_batch_size": size // 8}
    with writer_with(address, table, **settings) as writer:
        part = frame(1000, width=100)  # about 0.1 MB
        most = 0
        for i in range(300):
            writer.write_arrow(frame(1000, i * 1000, width=100))
            most = max(most, writer.unflushed_rows)
    assert most * part.nbytes / 1000 < size * 1.5
    assert most > 1000, "batches must overlap"
    assert numbers(tables, table) == list(range(300_000))


def test_rows_wait_for_room_too(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    settings = {"writer_buffer_memory_size": 1 << 20, "writer_batch_size": 1 << 16}
    with writer_with(address, table, **settings) as writer:
        for i in range(40_000):
            writer.append((i, "x" * 100))
            if i % 1000 == 0:
                assert writer.unflushed_rows * 100 < 4 << 20
    assert numbers(tables, table) == list(range(40_000))


def test_no_room_in_time(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    settings = {
        "writer_buffer_memory_size": 1 << 20,
        "writer_buffer_wait_timeout_ms": 0,
        "writer_batch_timeout_ms": 0,  # nothing lingers: the write that finds no room fails
    }
    config = fluss.Config({"bootstrap.servers": address}).copy(**settings)
    with fluss.connect(config) as connection:
        writer = connection.get_table(table.get_table_path()).new_append().create_writer()
        part = frame(8000, width=100)
        taken = 0
        with pytest.raises(FlussError, match=r"no room for \d+ rows of table") as raised:  # noqa: PT012
            for _ in range(1000):
                writer.write_arrow(part)
                taken += 1
        assert raised.value.error_code == ErrorCode.REQUEST_TIME_OUT
        assert "1048576 bytes within 0 ms" in raised.value.message
        writer.flush()
        # it goes on
        writer.write_arrow(frame(5)).wait()
        writer.close()
    assert len(numbers(tables, table)) == taken * 8000 + 5


def test_a_row_larger_than_the_buffer_goes_alone(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    with writer_with(address, table, writer_buffer_memory_size=1 << 20) as writer:
        writer.append((1, "x" * (3 << 20)))
        writer.append((2, "y"))
    assert tables.read(table).column("text").to_pylist() == ["x" * (3 << 20), "y"]


def test_large_frames_are_cut(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, frame(400_000, width=30))
    scanner = tables.scanner(table)
    sizes: list[int] = []
    while sum(sizes) < 400_000:
        sizes += [batch.batch.num_rows for batch in scanner.poll_record_batch(1000)]
    assert len(sizes) > 3
    assert max(sizes) < 1.2 * min(sizes)


def test_dropped_table_while_writing(tables: Tables) -> None:
    table = tables(SCHEMA)
    writer = table.new_append().create_writer()
    writer.append((1, "a")).wait()
    tables.connection.get_admin().drop_table(table.get_table_path())
    # a server under load takes its time to hear that a table is dropped
    until = time.monotonic() + 90
    with pytest.raises(FlussError) as raised:  # noqa: PT012
        while time.monotonic() < until:
            writer.append((2, "b")).wait()
            time.sleep(0.02)
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    assert str(table.get_table_path()) in raised.value.message
    assert "1 rows were not acknowledged" in raised.value.message
    close_failed(writer, "not acknowledged")


def test_table_dropped_and_created_again(tables: Tables) -> None:
    """A writer of the old table must not write into the new one."""
    table = tables(SCHEMA)
    path, admin = table.get_table_path(), tables.connection.get_admin()
    writer = table.new_append().create_writer()
    writer.append((1, "a")).wait()
    admin.drop_table(path)
    admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
    until = time.monotonic() + 90
    with pytest.raises(FlussError, match="dropped and created again") as raised:  # noqa: PT012
        while time.monotonic() < until:
            writer.append((2, "b")).wait()
            time.sleep(0.02)
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    close_failed(writer)
    new = tables.connection.get_table(path)
    assert numbers(tables, new) == []

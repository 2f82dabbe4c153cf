"""What could not be written is told once: by its handle or by a flush; of many, only the number."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.aio import writer as aio_writer
from fluss_df.client.send.batch import WriteResultHandle
from fluss_df.client.send.failures import _MOST_KEPT, Failures
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError

SCHEMA = pa.schema([("id", pa.int64())])


def failed(failures: Failures, number: int, *, rows: int = 2) -> WriteResultHandle:
    """The handle of rows that failed."""
    handle, error = WriteResultHandle(), FlussError(f"error {number}")
    failures.note(error, rows, handle)
    handle.seal(error)
    return handle


def test_what_a_handle_told_is_not_told_again() -> None:
    failures = Failures()
    handles = [failed(failures, number) for number in range(3)]
    assert failures.rows == 6
    for _ in range(2):
        with pytest.raises(FlussError, match="error 0"):
            handles[0].wait()
        assert failures.rows == 4
    assert str(failures.first) == "error 1"
    told = failures.take()
    assert told is not None
    assert (str(told.first), told.batches, told.rows) == ("error 1", 2, 4)
    # a handle that tells it behind the flush does not count against what fails now
    failed(failures, 9)
    with pytest.raises(FlussError, match="error 1"):
        handles[1].wait()
    assert failures.rows == 2
    assert failures.take() is not None
    assert failures.take() is None


def test_of_many_errors_only_the_first_are_kept() -> None:
    failures = Failures()
    count = 3 * _MOST_KEPT
    handles = [failed(failures, number) for number in range(count)]
    assert len(failures._untold.kept) == _MOST_KEPT
    assert failures.rows == 2 * count
    # as many as are kept, and one of the others
    for handle in handles[: _MOST_KEPT + 1]:
        with pytest.raises(FlussError):
            handle.wait()
    told = failures.take()
    assert told is not None
    assert (told.batches, told.rows) == (count - _MOST_KEPT - 1, 2 * (count - _MOST_KEPT - 1))
    assert str(told.first) == f"error {count - 1}"


def test_threads_that_fail_and_tell_at_once_lose_no_count() -> None:
    failures = Failures()
    told: list[int] = []

    def fail() -> None:
        for number in range(2000):
            failed(failures, number)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(told) < 8000:
        taken = failures.take()
        if taken is not None:
            told += [2] * taken.batches
            assert taken.rows == 2 * taken.batches
    for thread in threads:
        thread.join()
    assert failures.take() is None


# ---- of a writer whose table is gone


@pytest.fixture
def writer() -> Iterator[fluss.AppendWriter]:
    with EmbeddedFluss(port=0) as engine:
        options = {"bootstrap.servers": engine.address, "retry-timeout": 200}
        path = fluss.TablePath("fluss", "gone")
        with fluss.connect(options) as connection, fluss.connect(options) as other:
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
            connection.get_admin().create_table(path, descriptor)
            made = connection.get_table(path).new_append().create_writer()
            other.get_admin().drop_table(path)
            yield made
            made.close()


def test_a_flush_tells_what_no_handle_did(writer: fluss.AppendWriter) -> None:
    for _ in range(3):
        handle = writer.append({"id": 1})
        with pytest.raises(FlussError, match="1 rows were not acknowledged"):
            handle.wait()
    assert writer.failed_rows == 0
    writer.flush()
    writer.append({"id": 2})
    with pytest.raises(FlussError, match="1 rows were not acknowledged"):
        writer.flush()
    writer.flush()


def test_so_it_is_of_coroutines(writer: fluss.AppendWriter) -> None:
    async def work() -> None:
        here = aio_writer.AppendWriter(writer)
        with pytest.raises(FlussError, match="1 rows were not acknowledged"):
            await here.append({"id": 1}).wait()
        await here.flush()
        here.append({"id": 2})
        with pytest.raises(FlussError, match="1 rows were not acknowledged"):
            await here.flush()

    asyncio.run(work())

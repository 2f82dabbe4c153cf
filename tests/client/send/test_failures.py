"""What could not be written is told by the next flush, however much it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.aio import writer as aio_writer
from fluss_df.client.send.failures import Failures
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError

SCHEMA = pa.schema([("id", pa.int64())])


def test_the_first_error_is_kept_and_the_others_are_counted() -> None:
    failures = Failures()
    assert failures.first is None
    assert failures.take() is None
    for number in range(3):
        failures.note(FlussError(f"error {number}"), 2)
    assert (str(failures.first), failures.rows) == ("error 0", 6)
    failed = failures.take()
    assert failed is not None
    assert (str(failed.first), failed.batches, failed.rows) == ("error 0", 3, 6)
    assert (failures.take(), failures.rows) == (None, 0)


def test_threads_that_fail_and_flush_at_once_lose_no_count() -> None:
    failures = Failures()
    error = FlussError("no")

    def fail() -> None:
        for _ in range(2000):
            failures.note(error, 2)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    batches = rows = 0
    while batches < 8000:
        failed = failures.take()
        if failed is not None:
            batches += failed.batches
            rows += failed.rows
    for thread in threads:
        thread.join()
    assert (batches, rows) == (8000, 16_000)
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


def test_a_flush_tells_what_handles_told_too(writer: fluss.AppendWriter) -> None:
    """Rows appended one by one have a handle in common, and another thread may have the others."""
    for _ in range(3):
        handle = writer.append({"id": 1})
        with pytest.raises(FlussError, match="1 rows were not acknowledged"):
            handle.wait()
    assert writer.failed_rows == 3
    with pytest.raises(FlussError, match="3 batches with 3 rows"):
        writer.flush()
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
        here.append({"id": 2})
        with pytest.raises(FlussError, match="2 batches with 2 rows"):
            await here.flush()
        await here.flush()

    asyncio.run(work())

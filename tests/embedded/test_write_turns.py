"""Writes of large requests: side by side for several buckets, in their order for one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.kv.kv_tablet import KvTablet
from fluss_df.engine.requests import row_requests
from fluss_df.engine.write_turns import WriteTurns
from fluss_df.metadata import TableBucket
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.raw import RawClient
from tests.waiting import settled

BUCKETS = [TableBucket(1, number) for number in range(8)]


class Writes:
    """Writes that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> Any:
        self._ends[name] = asyncio.Event()

        async def write() -> str:
            self.begun.append(name)
            await self._ends[name].wait()
            return name

        return write

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settled()


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss_df.engine.write_turns._AT_ONCE", 3)


async def test_one_bucket_has_one_write_at_a_time_in_order() -> None:
    turns, writes = WriteTurns(), Writes()
    assert turns.are_over(BUCKETS)
    tasks = [turns.enter(BUCKETS[:1], writes.of(name)) for name in "abc"]
    other = turns.enter(BUCKETS[1:2], writes.of("other"))
    await settled()
    assert writes.begun == ["a", "other"]
    assert not turns.are_over(BUCKETS[:1])
    assert turns.are_over(BUCKETS[2:])
    await writes.end("other")
    assert turns.are_over(BUCKETS[1:2])
    for name in "abc":
        await writes.end(name)
    assert writes.begun == ["a", "other", "b", "c"]
    assert [await task for task in (*tasks, other)] == ["a", "b", "c", "other"]
    assert turns.are_over(BUCKETS)


async def test_a_write_to_several_buckets_waits_for_each_and_holds_each_up() -> None:
    turns, writes = WriteTurns(), Writes()
    turns.enter(BUCKETS[:1], writes.of("first"))
    turns.enter(BUCKETS[1:2], writes.of("second"))
    turns.enter(BUCKETS[:2], writes.of("both"))
    turns.enter(BUCKETS[1:2], writes.of("behind"))
    await settled()
    assert writes.begun == ["first", "second"]
    await writes.end("second")
    assert writes.begun == ["first", "second"]
    await writes.end("first")
    assert writes.begun == ["first", "second", "both"]
    await writes.end("both")
    assert writes.begun[-1] == "behind"
    await writes.end("behind")
    assert turns.are_over(BUCKETS)


async def test_no_more_at_once_than_there_is_room_for() -> None:
    turns, writes = WriteTurns(), Writes()
    for number, bucket in enumerate(BUCKETS):
        turns.enter([bucket], writes.of(str(number)))
    await settled()
    assert writes.begun == ["0", "1", "2"]
    await writes.end("1")
    assert writes.begun == ["0", "1", "2", "3"]
    for number in range(8):
        await writes.end(str(number))
    assert sorted(writes.begun) == [str(number) for number in range(8)]


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is cancelled before it begins"])
async def test_what_ends_badly_holds_nothing_up(how: str) -> None:
    turns, writes = WriteTurns(), Writes()

    async def failing() -> None:
        raise ValueError("no")

    before = turns.enter(BUCKETS[:1], writes.of("before"))
    bad: asyncio.Task[Any]
    bad = turns.enter(BUCKETS[:2], failing if how == "fails" else writes.of("bad"))
    behind = turns.enter(BUCKETS[1:2], writes.of("behind"))
    await settled()
    if how == "is cancelled before it begins":
        bad.cancel()
    await writes.end("before")
    if how == "is cancelled":
        bad.cancel()
    await settled()
    assert writes.begun[-1] == "behind"
    await writes.end("behind")
    assert await before == "before"
    assert await behind == "behind"
    with pytest.raises(ValueError if how == "fails" else asyncio.CancelledError):
        await bad
    assert turns.are_over(BUCKETS)


# ---- by the engine


def test_batches_of_several_buckets_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes of one connection are within RocksDB's part at the same time."""
    meeting = threading.Barrier(2)
    whole = KvTablet.put

    def put(self: KvTablet, *given: Any, **named: Any) -> Any:
        # fails after a minute where the other one waits for the end of this one
        meeting.wait(60)
        return whole(self, *given, **named)

    monkeypatch.setattr(KvTablet, "put", put)
    monkeypatch.setattr(row_requests, "_LARGE_BYTES", 0)
    with EmbeddedFluss(tmp_path, port=0) as engine:
        rows = pl.select(id=pl.int_range(2000), word=pl.lit("some"))
        options: dict[str, Any] = {"create_if_not_exists": True, "primary_keys": ["id"]}
        fluss.write_fluss(rows, "t", connection=engine.address, bucket_count=2, **options)
        assert not meeting.broken
        assert fluss.read_fluss("t", connection=engine.address).sort("id").equals(rows)


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_many_batches_in_flight_stay_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    """Small and large requests take turns; what was written last is what is there."""
    monkeypatch.setattr(row_requests, "_LARGE_BYTES", 2000)
    settings = {"writer.batch-timeout": 0, "writer.batch-size": 4096}
    with EmbeddedFluss(tmp_path, port=0) as engine:
        place = {"bootstrap.servers": engine.address, **settings}
        with fluss.connect(place) as connection:
            schema = pa.schema([("id", pa.int64()), ("version", pa.int64())])
            path = fluss.TablePath("fluss", "t")
            connection.get_admin().create_table(
                path, fluss.TableDescriptor(fluss.Schema(schema, keys), bucket_count=3)
            )
            table = connection.get_table(path)
            made = table.new_upsert() if keys else table.new_append()
            writer = made.create_writer()
            for version in range(300):
                # of one row and of many
                count = 1 if version % 3 else 400
                ids = [number % 40 for number in range(count)]
                writer.write_arrow(pa.table({"id": ids, "version": [version] * count}))
            writer.flush()
            rows = fluss.read_fluss("t", connection=connection, include_metadata=not keys)
    if keys:
        newest = dict.fromkeys(range(40), 297) | {0: 299}
        assert dict(rows.select("id", "version").rows()) == newest
    else:
        assert rows.height == 100 * 400 + 200
        for _, part in rows.group_by("_bucket"):
            assert part.sort("_log_offset")["version"].is_sorted()


def test_requests_of_one_connection_without_sequences_stay_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_requests, "_LARGE_BYTES", 2000)
    schema = pa.schema([("version", pa.int64())])
    path = fluss.TablePath("fluss", "t")
    with (
        EmbeddedFluss(tmp_path, port=0) as engine,
        engine.connection() as connection,
        RawClient(engine.address) as client,
    ):
        connection.get_admin().create_table(
            path, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=2)
        )
        table_id = connection.get_table(path).get_table_info().table_id
        sent: dict[int, int] = {}
        for version in range(60):
            # the first of three is written by and by, and what comes behind it waits for it
            rows = pa.record_batch([[version] * (1 if version % 3 else 20_000)], schema=schema)
            batch = encode_log_batch(rows, schema_id=1, compression=Compression("none"))
            batch.stamp(-1, -1)
            parts = [
                pb.ProduceLogRequestForBucket(bucket_id=bucket, records=batch.to_bytes())
                for bucket in ([0, 1] if version % 2 else [0])
            ]
            request = pb.ProduceLogRequest(
                acks=-1, table_id=table_id, timeout_ms=10_000, buckets_req=parts
            )
            body = request.SerializeToString()
            sent[client.send(api.PRODUCE_LOG.key, 0, body)] = version
        for _ in range(len(sent)):
            answer = client.receive()
            assert answer.type == 0
            said = pb.ProduceLogResponse.FromString(answer.body).buckets_resp
            version = sent.pop(answer.request_id)
            assert [part.bucket_id for part in said] == ([0, 1] if version % 2 else [0])
            assert not any(part.error_code for part in said)
        assert not sent
        for bucket, versions in ((0, range(60)), (1, range(1, 60, 2))):
            found = fluss.read_fluss(path, connection=connection, buckets=bucket)
            expected = [v for v in versions for _ in range(1 if v % 3 else 20_000)]
            assert found["version"].to_list() == expected

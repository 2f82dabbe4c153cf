"""Reads of the process that owns the engine: no socket between the two."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.in_process_lane import DirectLane, direct_lane
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.address import local_host
from fluss_df.protocol.api import DATABASE_EXISTS, FETCH_LOG, GET_DATABASE_INFO
from fluss_df.protocol.fetch import parse_fetch_response
from fluss_df.protocol.frames import Request, parse_response
from tests.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
PATH = fluss.TablePath("fluss", "t")


def endpoint_of(engine: EmbeddedFluss) -> Endpoint:
    host, port = local_host(engine.socket_path)
    return Endpoint(host, port, None)


def lane_to(engine: EmbeddedFluss) -> DirectLane:
    lane = direct_lane(endpoint_of(engine), 5000)
    assert isinstance(lane, DirectLane)
    return lane


def test_an_answer_that_is_taken_meanwhile_is_not_given_up(engine: EmbeddedFluss) -> None:
    class Taken(DirectLane):
        @property
        def _inherited(self) -> bool:
            # the thread that waited for the answer goes on here
            self._answer = None
            return False

    made = lane_to(engine)
    lane = Taken(made.endpoint, made._engine, 5000)
    lane.send(
        DATABASE_EXISTS,
        [pb.DatabaseExistsRequest(database_name="fluss").SerializeToString()],
        Metrics(),
    )
    lane.abort()
    assert lane.failed


def test_requests_and_errors(engine: EmbeddedFluss) -> None:
    lane = lane_to(engine)
    metrics = Metrics()
    for name, expected in (("fluss", True), ("nope", False)):
        request = pb.DatabaseExistsRequest(database_name=name)
        lane.send(DATABASE_EXISTS, [request.SerializeToString()], metrics)
        assert lane.busy
        assert lane.readable(5)
        answer = parse_response(DATABASE_EXISTS, lane.receive(metrics), lane.address)
        assert answer.exists == expected
        assert not lane.busy
    missing = pb.GetDatabaseInfoRequest(database_name="nope")
    lane.send(GET_DATABASE_INFO, [missing.SerializeToString()], metrics)
    with pytest.raises(FlussError) as caught:
        parse_response(GET_DATABASE_INFO, lane.receive(metrics), lane.address)
    assert caught.value.error_code == ErrorCode.DATABASE_NOT_EXIST
    lane.close()


def test_scans_pass_through_no_socket(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2)
        connection.get_admin().create_table(PATH, descriptor)
        rows = pa.table({"n": range(5000), "text": [f"{i}" for i in range(5000)]}, schema=SCHEMA)
        with connection.get_table(PATH).new_append().create_writer() as writer:
            writer.write_arrow(rows)
        monkeypatch.setattr("fluss_df.client.transport.blocking._connect", None)
        found = fluss.scan_fluss(PATH, connection=connection).collect()
        assert sorted(found["n"].to_list()) == list(range(5000))
        only = fluss.scan_fluss(PATH, connection=connection).select("text").collect()
        assert only.height == 5000


def test_a_small_scan_waits_for_no_other_thread(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2)
        connection.get_admin().create_table(PATH, descriptor)
        rows = pa.table({"n": range(50), "text": [f"{i}" for i in range(50)]}, schema=SCHEMA)
        with connection.get_table(PATH).new_append().create_writer() as writer:
            writer.write_arrow(rows)
        # to open a bucket takes its time, which is spent elsewhere
        assert fluss.read_fluss(PATH, connection=connection).height == 50
        release = threading.Event()
        engine._loop.call_soon_threadsafe(release.wait)
        connection.io.call(release.wait)
        try:
            found = fluss.scan_fluss(PATH, connection=connection).collect()
            assert sorted(found["n"].to_list()) == list(range(50))
            scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(2), fluss.EARLIEST_OFFSET))
            assert scanner.to_arrow().num_rows == 50
        finally:
            release.set()
        # what goes wrong is found out on the I/O thread
        connection.get_admin().drop_table(PATH)
        with pytest.raises(FlussError, match="does not exist"):
            connection.get_table(PATH)


def test_a_fetch_that_waits(engine: EmbeddedFluss) -> None:
    """It is ended by new records, by its reader, and by the end of the engine."""
    with engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(PATH, descriptor)
        table = connection.get_table(PATH)
        fetch = pb.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=1 << 20,
            max_wait_ms=30_000,
            min_bytes=1,
            tables_req=[
                pb.FetchLogRequestForTable(
                    table_id=table.get_table_info().table_id,
                    projection_pushdown_enabled=False,
                    buckets_req=[
                        pb.FetchLogRequestForBucket(
                            bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20
                        )
                    ],
                )
            ],
        ).SerializeToString()
        metrics = Metrics()
        # a peer that is gone at once, before its fetch took a step
        engine.submit(Request(FETCH_LOG.key, 0, 1, pa.py_buffer(fetch))).cancel()
        first, second = lane_to(engine), lane_to(engine)
        second.send(FETCH_LOG, [fetch], metrics)
        assert not second.readable(0.2)
        second.abort()
        with pytest.raises(FlussError):
            second.receive(metrics)
        second.close()
        first.send(FETCH_LOG, [fetch], metrics)
        assert not first.readable(0)
        with table.new_append().create_writer() as writer:
            writer.append((1, "x"))
        assert first.readable(5)
        answer = first.receive(metrics)
        assert answer.fetched is not None
        (bucket,) = answer.fetched.received()
        assert bucket.records is not None
        assert len(bucket.records) > 100
        # nothing was made to be sent
        assert list(answer.fetched) == []
        # what a peer is sent that is another process
        third = Lane(endpoint_of(engine), 5000, 5000)
        third.send(FETCH_LOG, [fetch], metrics)
        assert third.readable(5)
        (parsed,) = parse_fetch_response(third.receive(metrics).body)
        third.close()
        assert bucket.checked is not None
        assert dataclasses.replace(bucket, checked=None, headers=None) == parsed
        first.close()


def ends_of(pipe: int) -> int:
    """Return how many open files of this process are a pipe; others may come and go meanwhile."""
    found = 0
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found += os.fstat(int(number)).st_ino == pipe
    return found


def test_an_answer_that_comes_while_its_lane_is_closed_is_written_to_no_file(
    engine: EmbeddedFluss, tmp_path: Path
) -> None:
    lane = lane_to(engine)
    pipe = os.fstat(lane.fileno()).st_ino
    assert ends_of(pipe) == 2
    request = pb.DatabaseExistsRequest(database_name="fluss").SerializeToString()
    lane.send(DATABASE_EXISTS, [request], Metrics())
    assert lane.readable(5)
    answer = lane._answer
    assert answer is not None
    # what the engine's thread calls, a moment after the reader saw the answer
    announcements = list(answer._done_callbacks)  # type: ignore[attr-defined]
    lane.close()
    # one of these gets the number of a file that was closed
    files = [(tmp_path / str(number)).open("wb") for number in range(8)]
    try:
        for announce in announcements:
            announce(answer)
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * len(files)
    finally:
        for file in files:
            file.close()
    # nothing is left open, once the engine's thread is past its own call
    del lane, answer, announce, announcements
    wait_until(lambda: not ends_of(pipe), 10)
    assert ends_of(pipe) == 0


def test_polls_that_do_not_wait(engine: EmbeddedFluss) -> None:
    host, port = local_host(engine.socket_path)
    config = {"bootstrap.servers": f"{host}:{port}", "scanner.log.fetch.wait-max-time": 0}
    with fluss.connect(config) as connection:
        path = fluss.TablePath("fluss", "polled")
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append((1, "x"))
        scanner = table.new_scan().create_log_scanner()
        scanner.subscribe(0, 0)
        assert [record.offset for record in scanner.poll(10_000)] == [0]


@pytest.mark.parametrize("codec", ["NONE", "ZSTD"])
@pytest.mark.parametrize("columns", [["n", "text"], ["n"], ["text"]])
def test_large_batches_are_read_where_they_are(
    engine: EmbeddedFluss, codec: str, columns: list[str]
) -> None:
    """The rows are those written, also after the engine dropped the table and its files."""
    path = fluss.TablePath("fluss", f"large_{codec}_{len(columns)}_{columns[0]}".lower())
    properties = {"table.log.arrow.compression.type": codec}
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    # numbers that hardly compress
    numbers = np.random.default_rng(5).integers(0, 2**62, 200_000)
    rows = pa.table([numbers, [f"text {i}" for i in numbers.tolist()]], schema=schema)
    with engine.connection() as connection:
        admin = connection.get_admin()
        descriptor = fluss.TableDescriptor(
            fluss.Schema(schema), bucket_count=1, properties=properties
        )
        admin.create_table(path, descriptor)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(rows)
        scan = table.new_scan().project_by_name(columns)
        scanner = scan.create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        read = scanner.to_arrow()
        frame = fluss.read_fluss(path, connection=connection, columns=columns)
        admin.drop_table(path)
    assert read.equals(rows.select(columns))
    assert frame.to_arrow().cast(read.schema).equals(read)


def test_columns_picked_in_place_are_those_sent(engine: EmbeddedFluss) -> None:
    """Rows and counted bytes are the same in this process and by a socket.

    Batches of two schemas, small and large, of which some columns are nested.
    """
    path = fluss.TablePath("fluss", "picked")
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("list", pa.list_(pa.struct([("a", pa.string()), ("b", pa.int16())]))),
            ("map", pa.map_(pa.string(), pa.float64())),
            ("text", pa.string()),
        ]
    )
    with engine.connection() as inside:
        admin = inside.get_admin()
        admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1))
        for size in (1, 1000, 150_000):
            rows = pa.table(
                [
                    np.arange(size),
                    [[{"a": str(i), "b": i % 100}] * (i % 3) for i in range(size)],
                    [{"k": i / 2} if i % 2 else None for i in range(size)],
                    [f"text {i}" for i in range(size)],
                ],
                schema=schema,
            )
            with inside.get_table(path).new_append().create_writer() as writer:
                writer.write_arrow(rows)
        admin.alter_table(path, add_columns=pa.schema([("later", pa.string())]))
        with inside.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({**{f: [None] for f in schema.names}, "later": ["x"]}))
        # another process has no lane but the socket
        code = """
import pickle, sys
import fluss_df
frames = []
for columns in pickle.loads(bytes.fromhex(sys.argv[2])):
    frame = fluss_df.read_fluss("fluss.picked", connection=sys.argv[1], columns=columns)
    frames.append((frame.to_arrow(), fluss_df.last_scan().bytes))
sys.stdout.write(pickle.dumps(frames).hex())
"""
        wanted = [["n"], ["text"], ["list", "n"], ["map", "later"], ["later"], None]
        host, port = local_host(engine.socket_path)
        command = [sys.executable, "-c", code, f"{host}:{port}", pickle.dumps(wanted).hex()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        for columns, (sent, size) in zip(
            wanted, pickle.loads(bytes.fromhex(done.stdout)), strict=True
        ):
            frame = fluss.read_fluss(path, connection=inside, columns=columns)
            picked = fluss.last_scan()
            assert picked is not None
            assert frame.height == 151_002
            assert frame.to_arrow().equals(sent)
            if columns is None or "later" not in columns:
                assert picked.bytes == size


def test_the_end_of_the_engine_ends_its_readers(tmp_path: Path) -> None:
    engine = EmbeddedFluss(tmp_path / "d")
    address = "{}:{}".format(*local_host(engine.socket_path))
    connection = fluss.connect({"bootstrap.servers": address, "retry-timeout": 1000})
    connection.get_admin().create_table(
        PATH, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
    )
    scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 0)
    threading.Timer(0.3, engine.close).start()
    began = time.monotonic()

    def follow() -> None:
        while time.monotonic() - began < 30:
            scanner.poll_arrow(1000)

    with pytest.raises(FlussError):
        follow()
    connection.close()
    assert direct_lane(endpoint_of(engine), 5000) is None

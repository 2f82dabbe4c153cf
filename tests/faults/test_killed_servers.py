"""Killing and restarting servers while rows are appended and scanned: nothing lost or doubled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster.metadata import _Leader
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.metadata import TableBucket
from tests.faults.rest import Rest, forget, wait_for_checkpoint

BUCKETS = 4
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture(scope="module")
def three_servers(fluss_cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    with fluss_cluster_factory(tablet_servers=3) as cluster:
        yield cluster


def make_table(
    connection: fluss.FlussConnection, name: str, buckets: int = BUCKETS
) -> fluss.FlussTable:
    admin = connection.get_admin()
    admin.create_database("faults", ignore_if_exists=True)
    path = fluss.TablePath("faults", name)
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=buckets)
    admin.create_table(path, descriptor)
    return connection.get_table(path)


def batch(start: int, rows: int) -> pa.RecordBatch:
    ids = list(range(start, start + rows))
    return pa.record_batch({"id": ids, "text": [f"text-{i}" for i in ids]}, schema=SCHEMA)


def read_all(table: fluss.FlussTable) -> pa.Table:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    return scanner.to_arrow()


def assert_exactly(result: pa.Table, rows: int) -> None:
    ids = result.column("id").to_pylist()
    assert len(ids) == rows
    assert sorted(ids) == list(range(rows))
    assert result.column("text").to_pylist() == [f"text-{i}" for i in ids]


def append_while(
    table: fluss.FlussTable,
    disturb: Callable[[], None],
    *,
    step: int = 500,
    rest: Rest | None = None,
) -> tuple[int, float]:
    """Append until the disturbance is over and a while longer; return rows and longest stall."""
    done = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            disturb()
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    written = 0
    longest = 0.0
    with table.new_append().create_writer() as writer:
        last = time.monotonic()
        after = 0
        while not done.is_set() or after < 20:
            after += done.is_set()
            if rest is not None:
                rest.here(writer.flush)
                last = time.monotonic()
            writer.write_arrow_batch(batch(written, step)).wait()
            written += step
            now = time.monotonic()
            longest = max(longest, now - last)
            last = now
    thread.join()
    assert not failure
    return written, longest


@pytest.mark.parametrize("kill", ["kill", "stop"])
def test_append_while_the_only_server_restarts(one_server: LocalCluster, kill: str) -> None:
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, f"append_{kill}")
        rest = Rest(one_server, table)

        def disturb() -> None:
            for _ in range(2):
                time.sleep(0.5)
                if kill == "kill":
                    rest.kill()
                else:
                    one_server.stop_tablet_server(0)
                one_server.start_tablet_server(0)

        rows, _ = append_while(table, disturb, rest=rest)
        assert connection.metrics.retries > 0
        assert_exactly(read_all(table), rows)


def test_pipelined_append_while_the_only_server_restarts(one_server: LocalCluster) -> None:
    """Many batches wait for the server when it comes back: order and count hold."""
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "pipelined")
        written = 0
        with table.new_append().create_writer() as writer:
            for round_ in range(2):
                for i in range(400):
                    if i == 100:
                        writer.flush()
                        wait_for_checkpoint(one_server, table)
                        one_server.kill_tablet_server(0)
                        restart = threading.Thread(target=one_server.start_tablet_server, args=(0,))
                        restart.start()
                    # large enough not to be put together
                    writer.write_arrow(pa.Table.from_batches([batch(written, 2000)]))
                    written += 2000
                    time.sleep(0.002)
                restart.join()
                writer.flush()
                assert sum(result.rows for result in writer.offsets()) == written, round_
        # what was on its way when the server was killed was sent again
        assert connection.metrics.retries > 0
        result = read_all(table)
        assert_exactly(result, written)


def test_scan_while_the_only_server_restarts(one_server: LocalCluster) -> None:
    config = {
        "bootstrap.servers": one_server.bootstrap_servers,
        "scanner.log.fetch.max-bytes-for-bucket": 200_000,
    }
    with fluss.connect(config) as connection:
        table = make_table(connection, "scanned")
        rows = 1_000_000
        with table.new_append().create_writer() as writer:
            for start in range(0, rows, 20_000):
                writer.write_arrow(pa.Table.from_batches([batch(start, 20_000)]))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        reader = scanner.to_arrow_batch_reader()
        batches = [reader.read_next_batch()]
        wait_for_checkpoint(one_server, table)
        one_server.kill_tablet_server(0)
        restart = threading.Thread(target=one_server.start_tablet_server, args=(0,))
        restart.start()
        batches += list(reader)
        restart.join()
        assert scanner.metrics.retries > 0
        assert_exactly(pa.Table.from_batches(batches), rows)


def test_polling_goes_on_over_a_restart(one_server: LocalCluster) -> None:
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "polled")
        with table.new_append().create_writer() as writer:
            scanner = table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            seen: list[int] = []
            for start in range(0, 3000, 1000):
                writer.write_arrow_batch(batch(start, 1000)).wait()
                if start == 1000:
                    wait_for_checkpoint(one_server, table)
                    one_server.kill_tablet_server(0)
                    one_server.start_tablet_server(0)
                end = time.monotonic() + 30
                while len(seen) < start + 1000 and time.monotonic() < end:
                    seen += scanner.poll_arrow(500).column("id").to_pylist()
            assert sorted(seen) == list(range(3000))


def test_lost_acknowledged_rows_are_noticed(one_server: LocalCluster) -> None:
    """The server forgets what it acknowledged; the writer finds out with its next batch."""
    with fluss.connect(one_server.bootstrap_servers) as connection:
        table = make_table(connection, "forgotten", buckets=1)
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(batch(0, 100)).wait()
        one_server.kill_tablet_server(0)
        forget(one_server, table)
        one_server.start_tablet_server(0)
        writer.write_arrow_batch(batch(100, 100)).wait()
        with pytest.raises(fluss.FlussError, match="lost rows that it had acknowledged") as error:
            writer.flush()
        assert error.value.error_code == fluss.ErrorCode.LOG_STORAGE_EXCEPTION


def test_a_leader_dies_among_three(three_servers: LocalCluster) -> None:
    """Each server is killed in turn under append; the coordinator too."""
    with fluss.connect(three_servers.bootstrap_servers) as connection:
        table = make_table(connection, "replicated")

        def disturb() -> None:
            for server in range(3):
                time.sleep(0.5)
                three_servers.kill_tablet_server(server)
                time.sleep(4)
                three_servers.start_tablet_server(server)
                time.sleep(2)
            three_servers.kill_coordinator()
            three_servers.start_coordinator()

        rows, longest = append_while(table, disturb, step=50)
        assert_exactly(read_all(table), rows)
        assert longest < 20


def test_a_leader_that_was_away_is_not_believed(three_servers: LocalCluster) -> None:
    """A follower tells an offset all the same, one of the past when it has just come back."""
    with fluss.connect(three_servers.bootstrap_servers) as connection:
        table = make_table(connection, "moved")
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.Table.from_batches([batch(0, 10_000)]))
        path, cluster = table.get_table_path(), connection.cluster
        buckets = [TableBucket(table.get_table_info().table_id, n) for n in range(BUCKETS)]
        leaders = [connection.io.run(cluster.leader(path, bucket)).id for bucket in buckets]
        # as this client knew it before it was idle for a while
        for bucket, leader in zip(buckets, leaders, strict=True):
            cluster._leaders[bucket] = _Leader((leader + 1) % 3, time.monotonic() - 1000)
        connection.get_admin().list_offsets(path, range(BUCKETS), fluss.OffsetSpec.latest())
        known = [cluster.known_leader(bucket) for bucket in buckets]
        assert [node.id for node in known if node is not None] == leaders


def test_no_server_left_is_reported(fluss_cluster_factory: ClusterFactory) -> None:
    with fluss_cluster_factory(tablet_servers=1) as cluster:
        config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "writer.delivery-timeout": 1500,
            "retry-timeout": 1500,
            "request-timeout": 1000,
        }
        connection = fluss.connect(config)
        table = make_table(connection, "gone")
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(batch(0, 10)).wait()
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        cluster.kill_tablet_server(0)
        handle = writer.write_arrow_batch(batch(10, 10))
        began = time.monotonic()
        with pytest.raises(fluss.FlussError, match="10 rows were not acknowledged"):
            handle.wait()
        assert time.monotonic() - began < 15
        with pytest.raises(fluss.FlussError):
            writer.flush()
        with pytest.raises(fluss.FlussError):
            scanner.to_arrow()
        connection.close()

"""Connections that break or fall silent: nothing lost or doubled, everything has a deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.metadata import ServerNode
from tests.faults.fault_proxy import FETCH_LOG, PRODUCE_LOG, FaultProxy, Rule

SCHEMA = pa.schema([("id", pa.int64())])


@dataclass
class Proxied:
    cluster: LocalCluster
    proxy: FaultProxy
    tables: int = 0

    def connect(self, **config: object) -> fluss.FlussConnection:
        return fluss.connect({"bootstrap.servers": self.cluster.bootstrap_servers, **config})

    def table(self, connection: fluss.FlussConnection, buckets: int = 1) -> fluss.FlussTable:
        self.tables += 1
        path = fluss.TablePath("fluss", f"t{self.tables}")
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=buckets)
        connection.get_admin().create_table(path, descriptor)
        return connection.get_table(path)


@pytest.fixture(scope="module")
def proxied_cluster(fluss_cluster_factory: ClusterFactory) -> Iterator[Proxied]:
    with FaultProxy() as proxy, fluss_cluster_factory(tablet_servers=1) as cluster:
        proxy.target = lambda: ("127.0.0.1", cluster.tablet_servers[0].port)
        yield Proxied(cluster, proxy)


@pytest.fixture
def proxied(proxied_cluster: Proxied, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxied]:
    """Send what is for the tablet server through the proxy, as a broken network would."""
    direct = Cluster.endpoint
    server = proxied_cluster.cluster.tablet_servers[0].port

    def redirected(cluster: Cluster, node: ServerNode) -> Endpoint:
        endpoint = direct(cluster, node)
        if endpoint.port != server:
            return endpoint
        return dataclasses.replace(endpoint, port=proxied_cluster.proxy.port)

    monkeypatch.setattr(Cluster, "endpoint", redirected)
    proxied_cluster.proxy.rules.clear()
    yield proxied_cluster
    proxied_cluster.proxy.rules.clear()


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": range(start, start + rows)}, schema=SCHEMA)


def ids(table: fluss.FlussTable, buckets: int = 1) -> list[int]:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    result: list[int] = scanner.to_arrow().column("id").to_pylist()
    return result


@pytest.mark.parametrize("action", ["reset before", "reset after"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_reset_while_batches_are_in_flight(proxied: Proxied, action: str, skip: int) -> None:
    """Before or after the server applied the batch: each row once, in order."""
    with proxied.connect() as connection:
        table = proxied.table(connection)
        rule = Rule(PRODUCE_LOG, action, skip=skip)
        proxied.proxy.rules.append(rule)
        rows = 60_000
        with table.new_append().create_writer() as writer:
            for start in range(0, rows, 5000):
                writer.write_arrow_batch(batch(start, 5000)).send_now()
        assert rule.hits == 1
        assert ids(table) == list(range(rows))
        assert connection.metrics.retries > 0


def test_many_resets(proxied: Proxied) -> None:
    with proxied.connect() as connection:
        table = proxied.table(connection, buckets=3)
        proxied.proxy.rules += [
            Rule(PRODUCE_LOG, "reset after", times=4, skip=2),
            Rule(PRODUCE_LOG, "reset before", times=4, skip=5),
        ]
        rows = 200_000
        with table.new_append().create_writer() as writer:
            for start in range(0, rows, 2000):
                writer.write_arrow_batch(batch(start, 2000)).send_now()
        assert [rule.hits for rule in proxied.proxy.rules] == [4, 4]
        assert sorted(ids(table, 3)) == list(range(rows))


def test_without_idempotence_an_uncertain_batch_is_not_sent_twice(proxied: Proxied) -> None:
    config: dict[str, object] = {"writer.enable-idempotence": False}
    with proxied.connect(**config) as connection:
        table = proxied.table(connection)
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(batch(0, 10)).wait()
        proxied.proxy.rules.append(Rule(PRODUCE_LOG, "reset after"))
        with pytest.raises(fluss.FlussError, match="10 rows were not acknowledged"):
            writer.write_arrow_batch(batch(10, 10)).wait()
        with pytest.raises(fluss.FlussError):
            writer.flush()
        assert ids(table) == list(range(20))


def test_a_silent_server_meets_the_deadline_of_a_write(proxied: Proxied) -> None:
    with proxied.connect(**{"request-timeout": 500}) as connection:
        table = proxied.table(connection)
        proxied.proxy.rules.append(Rule(PRODUCE_LOG, "silent"))
        began = time.monotonic()
        with table.new_append().create_writer() as writer:
            writer.write_arrow_batch(batch(0, 10)).wait()
        assert 0.5 <= time.monotonic() - began < 5
        assert ids(table) == list(range(10))


def test_rows_that_threads_wait_for_one_by_one(proxied: Proxied) -> None:
    """Each row once, and those of a thread in its order, whichever way a row went."""
    with proxied.connect(**{"request-timeout": 500}) as connection:
        table = proxied.table(connection)
        proxied.proxy.rules += [
            Rule(PRODUCE_LOG, "reset after", times=4, skip=20),
            Rule(PRODUCE_LOG, "reset before", times=4, skip=60),
            Rule(PRODUCE_LOG, "silent", skip=100),
        ]
        threads, rows = 3, 90
        with table.new_append().create_writer() as writer:

            def write(thread: int) -> None:
                for n in range(thread * rows, (thread + 1) * rows):
                    if n % 10 == 3:
                        writer.write_arrow_batch(batch(n, 1))
                    else:
                        writer.append((n,)).wait()

            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(write, range(threads)))
            # given up while its fate is open
            proxied.proxy.rules.append(Rule(PRODUCE_LOG, "silent"))
            handle = writer.append((threads * rows,))
            with pytest.raises(TimeoutError):
                handle.wait(50)
            handle.wait()
        assert all(rule.hits == rule.times for rule in proxied.proxy.rules)
        found = ids(table)
        assert sorted(found) == list(range(threads * rows + 1))
        for thread in range(threads):
            own = [n for n in found if n // rows == thread]
            assert own == sorted(own)


@pytest.mark.parametrize("action", ["silent", "reset before", "reset after"])
def test_a_scan_goes_on(proxied: Proxied, action: str) -> None:
    config: dict[str, object] = {
        "request-timeout": 500,
        "scanner.log.fetch.max-bytes-for-bucket": 10_000,
    }
    with proxied.connect(**config) as connection:
        table = proxied.table(connection)
        with table.new_append().create_writer() as writer:
            for start in range(0, 50_000, 1000):
                writer.write_arrow_batch(batch(start, 1000)).send_now()
        rule = Rule(FETCH_LOG, action, times=2, skip=2)
        proxied.proxy.rules.append(rule)
        assert ids(table) == list(range(50_000))
        assert rule.hits == 2


def test_polling_goes_on(proxied: Proxied) -> None:
    with proxied.connect(**{"request-timeout": 1500}) as connection:
        table = proxied.table(connection)
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        proxied.proxy.rules += [
            Rule(FETCH_LOG, "silent", skip=1),
            Rule(FETCH_LOG, "reset after", skip=2),
            Rule(FETCH_LOG, "reset before", skip=4),
        ]
        seen: list[int] = []
        with table.new_append().create_writer() as writer:
            end = time.monotonic() + 30
            for start in range(0, 100, 10):
                writer.write_arrow_batch(batch(start, 10)).wait()
                while len(seen) < start + 10 and time.monotonic() < end:
                    seen += scanner.poll_arrow(200).column("id").to_pylist()
        assert seen == list(range(100))
        assert [rule.hits for rule in proxied.proxy.rules] == [1, 1, 1]


def test_a_slow_server_holds_the_writer_back(proxied: Proxied) -> None:
    """The buffer is small and answers are slow: the caller waits, memory does not grow."""
    config: dict[str, object] = {"writer.buffer.memory-size": 1 << 20, "writer.batch-size": 1 << 18}
    with proxied.connect(**config) as connection:
        table = proxied.table(connection)
        proxied.proxy.rules.append(Rule(PRODUCE_LOG, "delay", times=1000, seconds=0.05))
        before = pa.total_allocated_bytes()
        grown = 0
        with table.new_append().create_writer() as writer:
            for start in range(0, 1_000_000, 20_000):
                writer.write_arrow_batch(batch(start, 20_000))
                grown = max(grown, pa.total_allocated_bytes() - before)
        assert ids(table) == list(range(1_000_000))
        assert grown < 8 << 20


def test_no_room_in_time_is_an_error(proxied: Proxied) -> None:
    config: dict[str, object] = {
        "writer.buffer.memory-size": 1 << 20,
        "writer.batch-size": 1 << 19,
        "writer.buffer.wait-timeout": 200,
    }
    with proxied.connect(**config) as connection:
        table = proxied.table(connection)
        proxied.proxy.rules.append(Rule(PRODUCE_LOG, "delay", times=1000, seconds=1.0))
        writer = table.new_append().create_writer()

        def write_too_much() -> None:
            for start in range(0, 5_000_000, 100_000):
                writer.write_arrow_batch(batch(start, 100_000))

        with pytest.raises(fluss.FlussError, match=r"no room for .* rows") as error:
            write_too_much()
        assert error.value.error_code == fluss.ErrorCode.REQUEST_TIME_OUT
        proxied.proxy.rules.clear()
        writer.close()

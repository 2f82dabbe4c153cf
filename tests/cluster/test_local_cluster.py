"""LocalCluster with real servers."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df
from fluss_df.cluster import ClusterAlreadyRunningError, ClusterError, LocalCluster, PortInUseError
from fluss_df.cluster.processes.ports import HOST, PortChooser
from fluss_df.cluster.processes.processes import identify, wait_until_gone
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.cluster.servers import servers
from fluss_df.cluster.servers.probe import TabletServerNode, tablet_server_nodes
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.protocol.handshake import Credentials
from tests.stderr import unexpected
from tests.waiting import wait_until


def nodes(cluster: LocalCluster, credentials: Credentials | None = None) -> set[int]:
    """Return the ids of the tablet servers that a client sees."""
    host, port = cluster.bootstrap_servers.split(":")
    return {node.id for node in tablet_server_nodes(host, int(port), credentials, 5)}


def pids(cluster: LocalCluster) -> list[int]:
    return [process.pid for process in cluster.status().processes if process.pid is not None]


def crash(cluster: LocalCluster) -> None:
    processes = [process for process in map(identify, pids(cluster)) if process]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    assert wait_until_gone(processes, 10) == []


def test_a_started_cluster_serves_clients(fluss_cluster: LocalCluster) -> None:
    status = fluss_cluster.status()
    assert status.health == "healthy"
    assert status.problem is None
    assert status.bootstrap_servers == fluss_cluster.bootstrap_servers
    assert status.server_version == fluss_cluster.server_version != "unknown"
    assert status.users == ()
    assert [process.name for process in status.processes] == [
        "zookeeper",
        "coordinator",
        "tablet-server-0",
    ]
    assert all(process.log.exists() for process in status.processes)
    (server,) = fluss_cluster.tablet_servers
    assert server.id == 0
    assert server.pid == status.processes[2].pid
    assert server.port in status.processes[2].ports
    assert server.data_dir.is_dir()
    with fluss_df.connect(fluss_cluster.bootstrap_servers) as connection:
        seen = connection.get_admin().get_server_nodes()
    assert server.address in {f"{node.host}:{node.port}" for node in seen}


@pytest.mark.skipif(sys.platform != "linux", reason="needs 127.0.0.2")
def test_every_listener_is_on_the_loopback(fluss_cluster: LocalCluster) -> None:
    for process in fluss_cluster.status().processes:
        for port in process.ports:
            with pytest.raises(OSError, match="in use"), socket.socket() as taken:
                taken.bind((HOST, port))
            with socket.socket() as elsewhere:  # a wildcard listener would hold it here too
                elsewhere.bind(("127.0.0.2", port))


def test_a_temporary_cluster_leaves_nothing(fluss_cluster_factory: ClusterFactory) -> None:
    port = PortChooser().choose()
    with fluss_cluster_factory(port=port) as cluster:
        assert cluster.bootstrap_servers == f"127.0.0.1:{port}"
        folder = cluster.dir
        processes = [identify(pid) for pid in pids(cluster)]
        assert folder.is_dir()
        with pytest.raises(ClusterAlreadyRunningError, match="already running at 127"):
            cluster.start()
        assert cluster.status().health == "healthy"
    assert not folder.exists()
    assert len(processes) == 3
    assert not any(process and process.is_alive for process in processes)
    cluster.stop()
    with pytest.raises(ClusterError, match="not been started"):
        cluster.status()


@pytest.fixture(scope="module")
def three(fluss_cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    with fluss_cluster_factory(tablet_servers=3) as cluster:
        yield cluster


def test_three_tablet_servers_come_and_go(three: LocalCluster) -> None:
    before = three.tablet_servers
    assert [server.id for server in before] == [0, 1, 2]
    assert len({server.port for server in before}) == 3
    assert nodes(three) == {0, 1, 2}

    three.kill_tablet_server(1)
    assert three.tablet_servers[1].pid is None
    assert three.status().health == "unhealthy"
    assert three.status().problem == "not running: tablet-server-1"
    with pytest.raises(ClusterError, match="tablet-server-1 is not running"):
        three.kill_tablet_server(1)
    with pytest.raises(ClusterError, match="tablet-server-1 is not running"):
        three.stop_tablet_server(1)
    wait_until(lambda: nodes(three) == {0, 2})
    three.start_tablet_server(1)
    assert nodes(three) == {0, 1, 2}

    # faults may be injected from any thread
    stopper = threading.Thread(target=three.stop_tablet_server, args=(2,))
    stopper.start()
    stopper.join()
    wait_until(lambda: nodes(three) == {0, 1})
    three.start_tablet_server(2)
    assert three.status().health == "healthy"
    after = three.tablet_servers
    assert [server.address for server in after] == [server.address for server in before]
    assert after[0].pid == before[0].pid
    assert after[1].pid != before[1].pid

    with pytest.raises(ClusterError, match="tablet-server-0 is running already"):
        three.start_tablet_server(0)
    with pytest.raises(ClusterError, match="no tablet server 3; there is 0 to 2"):
        three.kill_tablet_server(3)


def test_the_coordinator_comes_and_goes(three: LocalCluster) -> None:
    address = three.bootstrap_servers
    three.kill_coordinator()
    assert three.status().problem == "not running: coordinator"
    with pytest.raises(NetworkError, match="cannot connect"):
        nodes(three)
    three.start_coordinator()
    assert three.bootstrap_servers == address
    assert nodes(three) == {0, 1, 2}
    assert three.status().health == "healthy"


PASSWORDS = {"admin": 'it\'s "quoted"; a\\b #1: {x} 5', "ursula": "Grüße 1€"}


def test_sasl_users_data_and_addresses_outlive_a_stop(
    fluss_cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "my cluster"
    cluster = fluss_cluster_factory(dir=folder, sasl=PASSWORDS)
    for user, password in PASSWORDS.items():
        assert nodes(cluster, Credentials(user, password)) == {0}
    for user, password in [("admin", "wrong"), ("admin", PASSWORDS["ursula"]), ("eve", "x")]:
        with pytest.raises(FlussError) as refused:
            nodes(cluster, Credentials(user, password))
        assert refused.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    with pytest.raises(FlussError, match="not completed authentication"):
        nodes(cluster)
    assert cluster.status().users == ("admin", "ursula")
    for path in folder.rglob("*"):
        if path.is_file() and any(
            word in path.read_bytes() for word in (b"quoted", b"Gr\\u00fc", "Grüße".encode())
        ):
            assert path.name in ("server.yaml", "cluster.json")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for pid in pids(cluster):
        line = subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, check=True
        ).stdout
        assert b"quoted" not in line

    address = cluster.bootstrap_servers
    options = {
        "bootstrap.servers": address,
        "security.protocol": "sasl",
        "security.sasl.username": "admin",
        "security.sasl.password": PASSWORDS["admin"],
    }
    with fluss_df.connect(options) as connection:
        connection.get_admin().create_database("kept")
    cluster.stop()
    assert cluster.status().health == "stopped"
    assert cluster.bootstrap_servers == address

    with LocalCluster(folder) as again:
        assert again.bootstrap_servers == address
        assert again.status().users == ("admin", "ursula")
        with fluss_df.connect(options) as connection:
            assert "kept" in connection.get_admin().list_databases()

        crash(again)  # of everything at once
        assert again.status().health == "stopped"
        again.start()
        assert again.status().health == "healthy"
        with fluss_df.connect(options) as connection:
            assert "kept" in connection.get_admin().list_databases()
        crash(again)


def test_a_server_that_dies_while_starting_is_an_error_at_once(
    fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster = LocalCluster(tmp_path, server_options={"default.bucket.number": "many"})
    start = time.monotonic()
    with pytest.raises(ClusterError, match="died while it was starting") as caught:
        cluster.start()
    assert time.monotonic() - start < 20
    assert "default.bucket.number" in str(caught.value)
    assert str(tmp_path / "logs") in str(caught.value)
    assert cluster.status().health == "stopped"
    cluster.stop()


def test_a_server_that_never_serves_is_an_error_with_the_reason(
    fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster = LocalCluster(tmp_path, start_timeout=0.2)
    with pytest.raises(ClusterError, match=r"not ready within 0\.2 seconds: .*logs are in"):
        cluster.start()
    assert cluster.status().health == "stopped"


def test_a_port_that_is_taken_is_an_error_where_it_was_asked_for(
    fluss_cluster: LocalCluster,
) -> None:
    port = int(fluss_cluster.bootstrap_servers.split(":")[1])
    with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use"):
        LocalCluster(port=port).start()


def test_a_port_that_is_lost_while_starting_is_replaced(
    fluss_cluster_factory: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    thieves: list[socket.socket] = []

    class Robbed(PortChooser):
        """Another program takes a port between the choice and the server's bind: ZooKeeper's."""

        chosen = 0

        def choose(self, preferred: int | None = None) -> int:
            port = super().choose(preferred)
            self.chosen += 1
            if self.chosen == 3 and not thieves:
                thieves.append(socket.create_server((HOST, port)))
            return port

    monkeypatch.setattr(servers, "PortChooser", Robbed)
    with fluss_cluster_factory() as cluster:
        assert nodes(cluster) == {0}
        stolen = thieves[0].getsockname()[1]
        assert all(stolen not in process.ports for process in cluster.status().processes)
    thieves[0].close()


OWNER = """
import time
from fluss_df.cluster import LocalCluster

cluster = LocalCluster().start()
print(cluster.dir, *[process.pid for process in cluster.status().processes], flush=True)
input()
"""


@pytest.mark.parametrize("end", ["kill -9", "return"])
def test_servers_end_with_the_process_that_started_them(
    fluss_cluster: LocalCluster, end: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder, *numbers = owner.stdout.readline().split()
        processes = [process for process in map(identify, map(int, numbers)) if process]
        assert len(processes) == 3
        if end == "kill -9":
            owner.kill()
        else:
            owner.communicate("\n", timeout=30)
            assert owner.returncode == 0
        assert wait_until_gone(processes, 10) == []
    wait_until(lambda: not Path(folder).exists())


FORGETFUL = """
import sys
import pyarrow as pa
import fluss_df as fluss
from fluss_df.cluster import LocalCluster

cluster = LocalCluster(sys.argv[1]).start()
connection = fluss.connect(cluster.bootstrap_servers)
schema = fluss.Schema(pa.schema([("n", pa.int64())]))
path = fluss.TablePath("fluss", "forgotten")
connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
writer = connection.get_table(path).new_append().create_writer()
for number in range(1000):
    writer.append((number,))
"""


def test_what_a_program_forgets_is_written_before_its_servers_end(
    fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    folder = str(tmp_path / "c")
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL, folder], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, unexpected(ended.stderr)) == (0, "")
    with LocalCluster(folder) as cluster:
        rows = fluss_df.read_fluss("fluss.forgotten", connection=cluster.bootstrap_servers)
    assert sorted(rows["n"].to_list()) == list(range(1000))


def test_the_probe_sees_addresses(fluss_cluster: LocalCluster) -> None:
    (server,) = fluss_cluster.tablet_servers
    assert tablet_server_nodes(HOST, server.port, None, 5) == {
        TabletServerNode(0, HOST, server.port)
    }

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from fluss_df.cluster import ClusterError
from fluss_df.cluster.servers.configuration import command, heap_of, write_configuration
from fluss_df.cluster.servers.jars import ServerJars
from fluss_df.cluster.servers.settings import Folder, Ports, Settings

PORTS = {
    "zookeeper": Ports(1, 1),
    "coordinator": Ports(2, 3),
    "tablet-server-0": Ports(4, 5),
    "tablet-server-1": Ports(6, 7),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.create()
    return folder


def server_yaml(folder: Folder, name: str) -> dict[str, str]:
    """Read the file as the servers do."""
    options = {}
    for line in (folder.home(name) / "server.yaml").read_text().splitlines():
        key, value = line.split("#", 1)[0].strip().split(": ", 1)
        options[key] = value
    return options


def test_servers_find_each_other(folder: Folder) -> None:
    write_configuration(folder, Settings(2), PORTS)
    coordinator = server_yaml(folder, "coordinator")
    assert coordinator == {
        "bind.listeners": "INTERNAL://127.0.0.1:2, CLIENT://127.0.0.1:3",
        "data.dir": str(folder.path / "coordinator" / "data"),
        "zookeeper.address": "127.0.0.1:1",
        "internal.listener.name": "INTERNAL",
        "remote.data.dir": str(folder.path / "remote"),
        "default.bucket.number": "1",
        "default.replication.factor": "2",
        "log.replica.fetch.wait-max-time": "20ms",
        "zookeeper.client.session-timeout": "3s",
        "server.data-disk.write-limit-ratio": "1.0",
    }
    second = server_yaml(folder, "tablet-server-1")
    assert second["tablet-server.id"] == "1"
    assert second["bind.listeners"] == "INTERNAL://127.0.0.1:6, CLIENT://127.0.0.1:7"
    assert second["data.dir"] == str(folder.path / "tablet-server-1" / "data")
    zookeeper = (folder.path / "zookeeper" / "zk.properties").read_text()
    assert "clientPort=1\n" in zookeeper
    assert "clientPortAddress=127.0.0.1\n" in zookeeper


@pytest.mark.parametrize(("servers", "replicas"), [(1, "1"), (2, "2"), (3, "3"), (5, "3")])
def test_replication_fits_the_number_of_servers(
    folder: Folder, servers: int, replicas: str
) -> None:
    ports = {**PORTS, **{f"tablet-server-{n}": Ports(10 + n, 20 + n) for n in range(5)}}
    write_configuration(folder, Settings(servers), ports)
    assert server_yaml(folder, "coordinator")["default.replication.factor"] == replicas
    assert len(list(folder.path.glob("tablet-server-*"))) == servers


def test_options_go_to_the_servers_they_are_for(folder: Folder) -> None:
    settings = Settings(
        2,
        server_options={"default.bucket.number": "4"},
        coordinator_options={"only.coordinator": "1"},
        tablet_server_options={"only.tablet": "2", "default.bucket.number": "5"},
    )
    write_configuration(folder, settings, PORTS)
    coordinator, tablet = (server_yaml(folder, name) for name in ("coordinator", "tablet-server-0"))
    assert coordinator["default.bucket.number"] == "4"
    assert tablet["default.bucket.number"] == "5"
    assert "only.tablet" not in coordinator
    assert "only.coordinator" not in tablet


def test_passwords_stand_in_private_files_only(folder: Folder) -> None:
    settings = Settings(sasl={"alice": 'wonder"land', "bob": r"a\b#c: d;'e'"})
    folder.home("coordinator").mkdir()
    (folder.home("coordinator") / "server.yaml").write_text("from an earlier time")
    write_configuration(folder, settings, PORTS)
    options = server_yaml(folder, "coordinator")
    assert options["security.protocol.map"] == "CLIENT:SASL, INTERNAL:PLAINTEXT"
    assert options["security.sasl.plain.jaas.config"] == (
        "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required"
        ' user_alice="wonder\\042land"'
        " user_bob=\"a\\134b\\043c\\072\\040d;'e'\";"
    )
    for path in folder.path.rglob("*"):
        if path.is_file() and "wonder" in path.read_text():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for name in PORTS:
        line = command(folder, name, Path("/java"), ServerJars((Path("/a.jar"),), "1", None), "1g")
        assert "wonder" not in " ".join(line)


def test_the_command_line_of_a_server(folder: Folder) -> None:
    jars = ServerJars((Path("/a b/server.jar"), Path("/slf4j.jar")), "1", None)
    line = command(folder, "tablet-server-0", Path("/java"), jars, "256m")
    assert line[:2] == ["/java", "-Xmx256m"]
    assert line[line.index("-cp") + 1] == "/a b/server.jar:/slf4j.jar"
    assert line[-3:] == [
        "org.apache.fluss.server.tablet.TabletServer",
        "--configDir",
        str(folder.path / "tablet-server-0"),
    ]


def test_options_of_java_of_the_environment(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = ServerJars((Path("/a.jar"),), "1", None)
    monkeypatch.setenv("FLUSS_CLUSTER_JAVA_OPTIONS", "-Xms1g '-Da=b c'")
    line = command(folder, "coordinator", Path("/java"), jars, "256m")
    at = line.index("-cp")
    assert line[at - 2 : at] == ["-Xms1g", "-Da=b c"]
    monkeypatch.setenv("FLUSS_CLUSTER_JAVA_OPTIONS", "'-Da")
    with pytest.raises(ClusterError, match=r"FLUSS_CLUSTER_JAVA_OPTIONS cannot .*No closing quot"):
        command(folder, "coordinator", Path("/java"), jars, "256m")


def test_heaps() -> None:
    assert heap_of("tablet-server-0", Settings(1)) == "1g"
    assert heap_of("tablet-server-0", Settings(3)) == "256m"
    assert heap_of("tablet-server-0", Settings(3, heap="2g")) == "2g"
    assert heap_of("coordinator", Settings(3, heap="2g")) == "256m"


def test_java_reads_any_folder_from_its_properties(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "jürgen 😀\\n")
    folder.create()
    write_configuration(folder, Settings(1), PORTS)
    # as java.util.Properties does: Latin-1, with escapes
    text = (folder.home("zookeeper") / "zk.properties").read_bytes().decode("latin-1")
    value = text.splitlines()[0].removeprefix("dataDir=")
    assert value.isascii()
    units = re.sub(
        r"\\(u[0-9a-f]{4}|.)",
        lambda found: chr(int(found[1][1:], 16)) if found[1][0] == "u" else found[1],
        value,
    )
    read = units.encode("utf-16", "surrogatepass").decode("utf-16")
    assert read == str(folder.data("zookeeper"))

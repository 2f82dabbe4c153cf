from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from fluss_df.cluster import ClusterError, LocalCluster
from fluss_df.cluster.processes.processes import ProcessId
from fluss_df.cluster.servers import settings as settings_module
from fluss_df.cluster.servers.servers import merged_settings
from fluss_df.cluster.servers.settings import Folder, Ports, Settings, State

STATE = State(
    Settings(2, {"alice": "wonder"}, {"a.b": "1"}, {"c": "2"}, {"d": "3"}, "300m"),
    {"zookeeper": Ports(1, 1), "coordinator": Ports(2, 3)},
    {"zookeeper": ProcessId(2**30, "then")},
    "0.9.1",
    "/some/server.jar",
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tablet_servers": 0}, "tablet_servers must be a number from 1 to 32, not 0"),
        ({"tablet_servers": 33}, "from 1 to 32"),
        ({"tablet_servers": True}, "not True"),
        ({"tablet_servers": "3"}, "not '3'"),
        ({"port": 0}, "port must be a number from 1 to 65535, not 0"),
        ({"port": 65536}, "65536"),
        ({"port": "9123"}, "'9123'"),
        ({"heap": "lots"}, "such as '256m'"),
        ({"sasl": ["alice"]}, "sasl must be a dictionary, not list"),
        ({"sasl": {"al ice": "x"}}, "invalid user name 'al ice'"),
        ({"sasl": {"": "x"}}, "invalid user name"),
        ({"sasl": {"alice": ""}}, "password of user 'alice' must be"),
        ({"sasl": {"alice": "two\nlines"}}, "printable"),
        ({"sasl": {"alice": 5}}, "printable"),
        ({"server_options": "x"}, "server_options must be a dictionary, not str"),
        ({"server_options": {"a: b": "1"}}, "invalid server option 'a: b'"),
        ({"server_options": {"a.b": "1 # 2"}}, "without '#'"),
        ({"server_options": {"a.b": "1\n2"}}, "one line"),
        ({"server_options": {"a.b": ""}}, "one line"),
        ({"tablet_server_options": {"data.dir": "/x"}}, "'data.dir' is set by the local cluster"),
        ({"coordinator_options": {"bind.listeners": "x"}}, "set by the local cluster"),
        ({"detached": True}, "needs a folder"),
        ({"dir": "/tmp/a#b"}, "must not contain '#'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        LocalCluster(**options)


def test_an_error_about_a_password_does_not_show_it() -> None:
    with pytest.raises(ClusterError) as caught:
        LocalCluster(sasl={"alice": "secret\x07"})
    assert "secret" not in str(caught.value)
    with pytest.raises(ClusterError) as caught:
        LocalCluster(server_options={"datalake.iceberg.s3.secret-access-key": "ab#hidden"})
    assert "hidden" not in str(caught.value)
    assert "wonder" not in repr(STATE)


def test_a_cluster_that_was_not_started_says_so(tmp_path: Path) -> None:
    cluster = LocalCluster()
    for question in (
        lambda: cluster.dir,
        lambda: cluster.bootstrap_servers,
        lambda: cluster.tablet_servers,
        lambda: cluster.server_version,
        cluster.status,
        cluster.kill_coordinator,
        lambda: cluster.kill_tablet_server(0),
    ):
        with pytest.raises(ClusterError, match="not been started"):
            question()
    cluster.stop()
    LocalCluster(tmp_path / "never").stop()
    assert not (tmp_path / "never").exists()


def test_a_folder_remembers_what_it_was_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "deep" / "down")
    assert folder.load() is None
    folder.create()
    folder.save(STATE)
    assert folder.load() == STATE
    mode = (folder.path / "cluster.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert sorted(path.name for path in folder.path.iterdir()) == ["cluster.json", "logs", "remote"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1}'])
def test_a_file_that_is_not_ours_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ClusterError, match="not what a cluster wrote"):
        Folder(tmp_path).load()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"cannot make the folder .*file"):
        Folder(tmp_path / "file" / "cluster").create()
    with pytest.raises(ClusterError, match="there is no cluster in"):
        LocalCluster.open(tmp_path / "file" / "cluster")


def test_only_one_at_a_time_changes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_LOCK_SECONDS", 0.1)
    folder = Folder(tmp_path)
    with folder.lock(), pytest.raises(ClusterError, match="starting or stopping"), folder.lock():
        pass
    with folder.lock():
        pass


def test_settings_of_last_time_are_the_defaults() -> None:
    remembered = STATE.settings
    assert merged_settings(remembered, {}, None) == remembered
    assert merged_settings(remembered, {"sasl": {}}, None).sasl == {}
    assert merged_settings(remembered, {"tablet_servers": 3}, None).tablet_servers == 3
    with pytest.raises(ClusterError, match="has 2 tablet servers with data"):
        merged_settings(remembered, {"tablet_servers": 1}, None)

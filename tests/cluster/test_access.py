"""Clusters with an authorizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss_df.cluster import ClusterError, LocalCluster
from fluss_df.cluster.servers.configuration import write_configuration
from fluss_df.cluster.servers.settings import Folder, Settings, State
from tests.cluster.test_configuration import PORTS, server_yaml


@pytest.mark.parametrize(
    ("users", "lines"),
    [
        (None, {}),
        ((), {"authorizer.enabled": "true"}),
        (("admin",), {"authorizer.enabled": "true", "super.users": "User:admin"}),
        (
            ("admin", "ops.x"),
            {"authorizer.enabled": "true", "super.users": "User:admin;User:ops.x"},
        ),
    ],
)
def test_what_servers_are_told(
    tmp_path: Path, users: tuple[str, ...] | None, lines: dict[str, str]
) -> None:
    folder = Folder(tmp_path)
    folder.create()
    write_configuration(folder, Settings(2, super_users=users), PORTS)
    for server in ("coordinator", "tablet-server-1"):
        told = server_yaml(folder, server)
        assert {key: told[key] for key in told if key.split(".")[0] in ("authorizer", "super")} == (
            lines
        )


@pytest.mark.parametrize("users", [None, (), ("admin", "ops")])
def test_a_folder_remembers(tmp_path: Path, users: tuple[str, ...] | None) -> None:
    folder = Folder(tmp_path)
    folder.save(State(Settings(super_users=users)))
    loaded = folder.load()
    assert loaded is not None
    assert loaded.settings.super_users == users


@pytest.mark.parametrize("users", ["admin", ["a;b"], ["User:admin"], [7]])
def test_names_that_cannot_be(users: object) -> None:
    with pytest.raises(ClusterError, match=r"super_users|invalid user name"):
        LocalCluster(super_users=users)  # type: ignore[arg-type]

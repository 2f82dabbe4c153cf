"""Fixtures of the client's tests: a connection, tables, the official client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from tests.client.support import Official, Tables
from tests.engines import ENGINES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is about processes of a cluster there alone."""
    for item in list(items):
        engine = getattr(item, "callspec", None) and item.callspec.params.get("address")  # type: ignore[attr-defined]
        if engine == "embedded" and item.get_closest_marker("cluster_only"):
            items.remove(item)


@pytest.fixture(scope="session", params=ENGINES)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server: a Fluss cluster, then an embedded engine."""
    if request.param == "cluster":
        cluster: LocalCluster = request.getfixturevalue("fluss_cluster")
        yield cluster.bootstrap_servers
        return
    with EmbeddedFluss(tmp_path_factory.mktemp("embedded"), port=0) as engine:
        yield engine.address


@pytest.fixture(scope="session")
def connection(address: str) -> Iterator[fluss.FlussConnection]:
    """A connection that tests share."""
    with fluss.connect(address) as connection:
        yield connection


@pytest.fixture(scope="session")
def admin(connection: fluss.FlussConnection) -> fluss.FlussAdmin:
    return connection.get_admin()


@pytest.fixture(scope="session")
def database(admin: fluss.FlussAdmin) -> str:
    """A database of its own; pytest sets this up again each time the server changes."""
    name = f"client_{uuid.uuid4().hex[:12]}"
    admin.create_database(name)
    return name


@pytest.fixture(scope="session")
def tables(connection: fluss.FlussConnection, database: str) -> Tables:
    """Makes tables."""
    return Tables(connection, database)


@pytest.fixture(scope="session")
def official_client(address: str) -> Iterator[Official]:
    """The official client, connected to the same server."""
    client = Official(address)
    yield client
    client.close()

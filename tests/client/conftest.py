"""Fixtures of the client's tests: a connection, tables, the official client."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.client.support import Official, Tables


@pytest.fixture(scope="session")
def address(fluss_cluster: LocalCluster) -> str:
    """The address of a server."""
    return fluss_cluster.bootstrap_servers


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
    """A database of this run."""
    name = f"client_{os.getpid()}"
    admin.create_database(name)
    return name


@pytest.fixture(scope="session")
def tables(connection: fluss.FlussConnection, database: str) -> Iterator[Tables]:
    """Makes tables."""
    tables = Tables(connection, database)
    yield tables
    tables.close()


@pytest.fixture(scope="session")
def official_client(address: str) -> Iterator[Official]:
    """The official client, connected to the same server."""
    client = Official(address)
    yield client
    client.close()

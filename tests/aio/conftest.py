"""Fixtures: a connection in each façade to one server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.client.support import Tables


@pytest.fixture(scope="session")
def address(fluss_cluster: LocalCluster) -> str:
    return fluss_cluster.bootstrap_servers


@pytest.fixture(scope="module")
def tables(address: str) -> Iterator[Tables]:
    """Makes tables, by the synchronous façade."""
    with fluss.connect(address) as connection:
        database = f"aio_{uuid.uuid4().hex[:12]}"
        connection.get_admin().create_database(database)
        yield Tables(connection, database)

"""A backend on the session's cluster."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster


@pytest.fixture(scope="session")
def connection(fluss_cluster: LocalCluster) -> Iterator[FlussConnection]:
    with FlussConnection.create(fluss_cluster.bootstrap_servers) as made:
        made.get_admin().create_database("ibis", ignore_if_exists=True)
        yield made


@pytest.fixture
def con(connection: FlussConnection) -> Backend:
    made: Backend = Backend().connect(connection, database="ibis")
    return made


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Return a function that makes names of tables that do not exist."""
    return lambda: f"t_{uuid.uuid4().hex[:12]}"

"""A backend on an embedded engine and on the session's cluster, and names of tables."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from tests.backend import entry_point
from tests.engines import ENGINES
from tests.other_peoples import pages

DATABASE = "ibis"
# a clone without the documents has none of their statements
collect_ignore = [] if pages() else ["test_seed_statements.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks on what is taken from Ibis's tests."""
    for name in ("tpch", "notimpl", "notyet", "never", "xdist_group"):
        config.addinivalue_line("markers", f"{name}: of Ibis's tests")


@pytest.fixture(scope="session", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have Ibis find the backend."""
    entry_point.install(tmp_path_factory.mktemp("entry_point"))


@pytest.fixture(scope="session")
def cluster_connection(fluss_cluster: LocalCluster) -> Iterator[FlussConnection]:
    with FlussConnection.create(fluss_cluster.bootstrap_servers) as made:
        made.get_admin().create_database(DATABASE, ignore_if_exists=True)
        yield made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the embedded engine."""
    return tmp_path_factory.mktemp("fluss")


@pytest.fixture(scope="session", params=ENGINES)
def connection(request: pytest.FixtureRequest) -> Iterator[FlussConnection]:
    if request.param == "cluster":
        yield request.getfixturevalue("cluster_connection")
        return
    with FlussConnection.create(request.getfixturevalue("folder")) as made:
        made.get_admin().create_database(DATABASE, ignore_if_exists=True)
        yield made


def backend_on(connection: FlussConnection) -> Backend:
    made: Backend = Backend().connect(connection, database=DATABASE)
    return made


@pytest.fixture
def con(connection: FlussConnection) -> Backend:
    return backend_on(connection)


@pytest.fixture
def keyed_con(cluster_connection: FlussConnection) -> Backend:
    """A backend for primary-key tables."""
    return backend_on(cluster_connection)


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Return a function that makes names of tables that do not exist."""
    return lambda: f"t_{uuid.uuid4().hex[:12]}"

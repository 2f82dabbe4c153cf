"""A Flight SQL server over an embedded engine and over the session's cluster, and clients of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import adbc_driver_flightsql.dbapi as adbc
import pytest

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import ClusterAccess, FlightSqlServer, FolderAccess
from tests.engines import ENGINES

DATABASE = "flight"


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(None) as made:
        yield made


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[FlightSqlServer, FlussConnection]]:
    """The server, and a connection to the same tables."""
    access: ClusterAccess | FolderAccess
    if request.param == "cluster":
        address = request.getfixturevalue("fluss_cluster").bootstrap_servers
        connection = FlussConnection.create(address)
        connection.get_admin().create_database(DATABASE, ignore_if_exists=True)
        access = ClusterAccess(f"fluss://{address}/{DATABASE}", needs_password=False)
    else:
        engine = request.getfixturevalue("engine")
        access = FolderAccess(engine)
        connection = engine.connection()
    connection.default_database = DATABASE if request.param == "cluster" else "fluss"
    with connection, FlightSqlServer(access) as server:
        yield server, connection


@pytest.fixture
def server(served: tuple[FlightSqlServer, FlussConnection]) -> FlightSqlServer:
    return served[0]


@pytest.fixture
def con(served: tuple[FlightSqlServer, FlussConnection]) -> Backend:
    made: Backend = Backend().connect(served[1])
    return made


@pytest.fixture
def client(server: FlightSqlServer) -> Iterator[adbc.Connection]:
    with adbc.connect(server.url, autocommit=True) as made:
        yield made


@pytest.fixture
def cursor(client: adbc.Connection) -> Iterator[adbc.Cursor]:
    with client.cursor() as made:
        yield made


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Return a function that makes names of tables that do not exist."""
    return lambda: f"t_{uuid.uuid4().hex[:12]}"

"""The JDBC driver of Flight SQL, in a program of Java."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss_df.backend import Backend
from fluss_df.cluster.servers.jars import copy_artifact, made_once
from fluss_df.cluster.servers.java import find_java
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import FlightSqlServer, FolderAccess

DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
PROGRAM = Path(__file__).with_name("Jdbc.java")

# with Java there, Maven is: the server comes by it
pytestmark = pytest.mark.real_cluster


@pytest.fixture(scope="session")
def driver() -> Path:
    """The jar of the driver, which is kept."""
    folder = made_once(
        "flight-sql-jdbc-18.3.0", lambda made: copy_artifact(DRIVER, "fetch the driver", made)
    )
    (jar,) = folder.glob("*.jar")
    return jar


def asked(driver: Path, server: FlightSqlServer, *arguments: str) -> list[str]:
    url = f"jdbc:arrow-flight-sql://127.0.0.1:{server.port}/?useEncryption=false"
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    done = subprocess.run(
        [find_java(), opened, "-cp", driver, PROGRAM, url, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def expected(name: str, database: str) -> list[str]:
    return [
        'product|fluss_df|"|false|false|true|0|false|true|0',
        "catalogs|fluss",
        "catalogs ends",
        f"schemas|fluss|{database}",
        "schemas ends",
        "types|TABLE",
        "types ends",
        f"tables|{name}|TABLE",
        "tables ends",
        "columns|id|4|INT|10|NO",
        "columns|s|12|STRING|65536|YES",
        "columns|m|3|DECIMAL(10,2)|10|YES",
        "columns|d|91|DATE|10|YES",
        "columns|ts|93|TIMESTAMP(3)|23|YES",
        "columns ends",
        "keys|id|1",
        "keys ends",
        f"pattern|{name}",
        "pattern ends",
        # without rows, and without an error
        "types of SQL ends",
        "indexes ends",
        "procedures ends",
        "functions ends",
        "best row ends",
        "rights ends",
        "user types ends",
        "imported ends",
        "exported ends",
        "cross ends",
        "update|2",
        "insert|1",
        "query|7|seven|null|null|null",
        "query|8|null|null|null|null",
        "query|9|it's; -- ?|-7.25|2024-01-31|2024-01-31 12:00:00.5",
        "query ends",
        "prepared|9",
        "prepared ends",
    ]


def check(lines: list[str], name: str, database: str) -> None:
    # others may have databases of their own
    found = [line for line in lines if not line.startswith("schemas|") or database in line]
    wanted = expected(name, database)
    assert found[: len(wanted)] == wanted
    missing, begin, *rest = found[len(wanted) :]
    assert "nowhere does not exist" in missing
    assert "BEGIN: Fluss has no transactions" in begin
    assert rest == ["gone ends"]


STATEMENT = (
    "CREATE TABLE {} (id INT, s STRING, m DECIMAL(10,2), d DATE, ts TIMESTAMP(3), PRIMARY KEY (id))"
)


def test_a_program_asks_through_jdbc(
    driver: Path, server: FlightSqlServer, con: Backend, fresh: Callable[[], str]
) -> None:
    name = fresh()
    con.raw_sql(STATEMENT.format(name))
    check(asked(driver, server, name), name, con.current_database)


def test_a_program_signs_in(driver: Path) -> None:
    with (
        EmbeddedFluss(None, sasl={"bob": "b:secret"}) as engine,
        FlightSqlServer(FolderAccess(engine)) as server,
        engine.connection() as connection,
    ):
        con: Backend = Backend().connect(connection)
        con.raw_sql(STATEMENT.format("mine"))
        check(asked(driver, server, "mine", "bob", "b:secret"), "mine", "fluss")

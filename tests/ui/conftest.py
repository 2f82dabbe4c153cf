"""Consoles for tests: over a real cluster, and over a folder."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.ui import watch
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Limits, Settings
from tests.engines import ENGINES
from tests.ui.visiting import Visitor

VISITS = pl.DataFrame(
    {
        "id": range(300),
        "name": [None if n % 7 == 0 else f"<b onclick=\"x('{n}')\">&amp;" for n in range(300)],
        "day": ["mon", "tue", "wed"] * 100,
        "at": [dt.datetime(2026, 1, 1) + dt.timedelta(minutes=n) for n in range(300)],
        "seconds": [n / 2 for n in range(300)],
    }
)
PEOPLE = pl.DataFrame({"id": [1, 2, 3], "name": ["Ann", "Bob", None], "born": [1990, 1985, 2001]})


@pytest.fixture(params=ENGINES, scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An address of a cluster, and a folder of an embedded Fluss."""
    if request.param == "cluster":
        found: str = request.getfixturevalue("fluss_cluster").bootstrap_servers
        return found
    return str(tmp_path_factory.mktemp("ui") / "fluss")


@pytest.fixture(scope="module")
def connection(place: str) -> Iterator[FlussConnection]:
    with fluss_df.connect(place) as opened:
        yield opened


@pytest.fixture
def database(connection: FlussConnection) -> Iterator[str]:
    """A database with a log table, ``visits``, and one with keys, ``people``."""
    name = f"ui_{uuid.uuid4().hex[:8]}"
    admin = connection.get_admin()
    admin.create_database(name)
    fluss_df.write_fluss(
        VISITS,
        f"{name}.visits",
        connection=connection,
        create_if_not_exists=True,
        partition_keys=["day"],
        create_partitions=True,
    )
    fluss_df.write_fluss(
        PEOPLE,
        f"{name}.people",
        connection=connection,
        create_if_not_exists=True,
        primary_keys=["id"],
        bucket_count=2,
    )
    yield name
    admin.drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.fixture(scope="module")
def server(connection: FlussConnection, place: str) -> Iterator[ConsoleServer]:
    with pytest.MonkeyPatch.context() as patch:
        # rounds follow each other: on the cluster that tests share, a round goes through the tables
        # of all of them, and eight times as long would be a minute
        patch.setattr(watch, "_PAUSE_S", 0.2)
        patch.setattr(watch, "_SHARE", 1)
        with ConsoleServer(connection, Settings(), place) as started:
            yield started


@pytest.fixture
def visitor(server: ConsoleServer) -> Visitor:
    """Somebody who is logged in."""
    found = Visitor(server)
    assert found.sign_in().headers["location"] == "/"
    return found


# ---- where any server will do


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FlussConnection]:
    with fluss_df.connect(tmp_path / "fluss") as opened:
        fluss_df.write_fluss(
            PEOPLE, "people", connection=opened, create_if_not_exists=True, primary_keys=["id"]
        )
        yield opened


@pytest.fixture
def alone(folder: FlussConnection) -> Iterator[Visitor]:
    """Somebody who is logged in to a console over a folder."""
    settings = Settings(limits=Limits(receive_seconds=1.0, query_seconds=5.0))
    with ConsoleServer(folder, settings, "folder") as started:
        found = Visitor(started)
        found.sign_in()
        yield found


@pytest.fixture
def reader(folder: FlussConnection) -> Iterator[Visitor]:
    """Somebody who is logged in to a console that changes nothing."""
    with ConsoleServer(folder, Settings(read_only=True), "folder") as started:
        found = Visitor(started)
        found.sign_in()
        yield found

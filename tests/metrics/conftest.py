"""Fixtures: a connection to a cluster, and one to an engine that serves TCP, each in its turn."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.observe import counters
from tests.client.support import Tables
from tests.engines import ENGINES


@pytest.fixture(params=ENGINES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "cluster":
        cluster: LocalCluster = request.getfixturevalue("fluss_cluster")
        yield cluster.bootstrap_servers
        return
    with EmbeddedFluss(tmp_path / "embedded", port=0) as engine:
        yield engine.address


@pytest.fixture
def tables(address: str) -> Iterator[Tables]:
    database = f"metrics_{uuid.uuid4().hex[:8]}"
    with fluss.connect(address) as connection:
        connection.get_admin().create_database(database)
        yield Tables(connection, database)
        connection.get_admin().drop_database(database, cascade=True)


@pytest.fixture(autouse=True)
def nothing_else_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process have connections and engines, and used up names of tables."""
    monkeypatch.setattr(counters, "table_names", counters.Names())
    monkeypatch.setattr(counters, "run_names", counters.Names())
    for group in (counters.clients, counters.engines, counters.runs):
        monkeypatch.setattr(group, "_open", {})
        monkeypatch.setattr(group, "_closed", {})

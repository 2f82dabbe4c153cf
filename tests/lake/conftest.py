from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.embedded import EmbeddedFluss
from tests.lake.folders import BY_HAND
from tests.lake.tables_by_hand import Folder
from tests.lake_tables import dropped_after

# Flink asks for tables that are due as often: tests wait for it
SOON = {"fluss.tiering.poll.table.interval": "100ms"}


@pytest.fixture(autouse=True)
def no_tables_are_left() -> Iterator[None]:
    """Have nothing of a test tiered while others run; what a module shares, it drops itself."""
    with dropped_after():
        yield


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine:
        yield engine


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with (
        EmbeddedFluss(tmp_path / "folder", options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        yield Folder(connection)


@pytest.fixture(scope="session")
def tiering_cluster(fluss_cluster_factory: ClusterFactory) -> LocalCluster:
    """Return a cluster with an Iceberg lake, whose tables only these tests tier."""
    return fluss_cluster_factory(datalake="iceberg")


@pytest.fixture(scope="session")
def paimon_tiering(fluss_cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    """Return a cluster with a Paimon lake, while Flink's tiering service runs."""
    with fluss_cluster_factory(datalake="paimon") as cluster:
        cluster.start_flink_tiering(SOON)
        yield cluster
        cluster.stop_flink_tiering()


@pytest.fixture(scope="session", params=["iceberg", "paimon"])
def tiering(request: pytest.FixtureRequest) -> LocalCluster:
    """Return a cluster with a lake, of each format, while Flink's tiering service runs."""
    name = {"iceberg": "fluss_flink_tiering", "paimon": "paimon_tiering"}[request.param]
    return cast("LocalCluster", request.getfixturevalue(name))

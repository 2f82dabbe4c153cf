"""Clusters that several modules break; each leaves them as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from tests.faults.beside import Beside, beside

# Checkpoints of the high watermark are frequent, as tests wait for them before a kill (rest.py).
ONE_SERVER_OPTIONS = {"log.replica.high-watermark.checkpoint-interval": "50ms"}


@pytest.fixture(scope="package")
def one_server(fluss_cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    with fluss_cluster_factory(tablet_servers=1, server_options=ONE_SERVER_OPTIONS) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def server(fluss_cluster_factory: ClusterFactory) -> Iterator[Beside]:
    """A server whose traffic can be broken."""
    with beside(fluss_cluster_factory) as made:
        yield made

from __future__ import annotations

import pytest

from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory


@pytest.fixture(scope="session")
def tiering_cluster(fluss_cluster_factory: ClusterFactory) -> LocalCluster:
    """Return a cluster with an Iceberg lake, whose tables only these tests tier."""
    return fluss_cluster_factory(datalake="iceberg")

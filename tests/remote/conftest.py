"""Clusters that tier their logs after seconds: to a folder, and to S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fluss_df as fluss
from fluss_df.cluster import ClusterUnavailableError, LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory, _is_ci
from tests.client.support import Official
from tests.remote.plugins import s3_plugins
from tests.remote.s3_store import S3Store
from tests.remote.tiered import Tiered

_OPTIONS = {
    "log.segment.file-size": "1mb",
    "log.index.file-size": "64kb",
    "remote.log.task-interval-duration": "1s",
}


@pytest.fixture(scope="session")
def tiering_cluster(fluss_cluster_factory: ClusterFactory) -> LocalCluster:
    """A cluster whose remote storage is a folder."""
    return fluss_cluster_factory(server_options=_OPTIONS)


@pytest.fixture(scope="session")
def tiered(tiering_cluster: LocalCluster) -> Iterator[Tiered]:
    """Makes tables whose older part is in a folder."""
    with fluss.connect(tiering_cluster.bootstrap_servers) as connection:
        yield Tiered(connection)


@pytest.fixture(scope="session")
def official(tiering_cluster: LocalCluster) -> Iterator[Official]:
    client = Official(tiering_cluster.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture(scope="session")
def s3_running() -> Iterator[S3Store]:
    with S3Store() as store:
        yield store


@pytest.fixture
def s3(s3_running: S3Store) -> Iterator[S3Store]:
    """The store that the S3 cluster tiers to."""
    s3_running.calm()
    yield s3_running
    s3_running.calm()


@pytest.fixture(scope="session")
def s3_cluster(fluss_cluster_factory: ClusterFactory, s3_running: S3Store) -> LocalCluster:
    """A cluster that tiers to S3 by the server's plugin, and hands out tokens of STS."""
    try:
        plugins = s3_plugins()
    except ClusterUnavailableError as error:
        if _is_ci():
            # there, what is left out is not looked at by anybody
            pytest.fail(f"no S3 plugin: {error.message}", pytrace=False)
        pytest.skip(f"no S3 plugin: {error.message}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUSS_PLUGINS_DIR", str(plugins))
        return fluss_cluster_factory(server_options={**_OPTIONS, **s3_running.server_options()})


@pytest.fixture(scope="session")
def s3_tiered(s3_cluster: LocalCluster) -> Iterator[Tiered]:
    """Makes tables whose older part is in S3."""
    with fluss.connect(s3_cluster.bootstrap_servers) as connection:
        yield Tiered(connection)

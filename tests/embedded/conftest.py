"""An embedded engine, served by TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from tests.embedded.peers import Peer
from tests.embedded.raw import RawClient


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "data", port=0) as engine:
        yield engine


@pytest.fixture
def client(engine: EmbeddedFluss) -> Iterator[RawClient]:
    assert engine.address is not None
    with RawClient(engine.address) as made:
        yield made


@pytest.fixture(scope="session")
def real(fluss_cluster: LocalCluster) -> Iterator[Peer]:
    """A real server, to be asked the same as the embedded one."""
    peer = Peer(fluss_cluster.bootstrap_servers, fluss_cluster.server_version)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """An embedded engine, to be asked the same as the real server."""
    with EmbeddedFluss(tmp_path_factory.mktemp("beside") / "d", port=0) as engine:
        peer = Peer(engine.address)
        yield peer
        peer.close()

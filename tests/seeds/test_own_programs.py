"""Our own programs, which use every name that the client's documentation has, run."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from fluss_df.cluster import LocalCluster
from tests.engines import ENGINES
from tests.seeds import programs


@pytest.mark.parametrize("engine", ENGINES)
def test_programs_run(engine: str, request: pytest.FixtureRequest) -> None:
    address = ":memory:"
    if engine == "cluster":
        cluster: LocalCluster = request.getfixturevalue("fluss_cluster")
        address = cluster.bootstrap_servers
    programs.values()
    asyncio.run(programs.everything(address, f"own_{uuid.uuid4().hex[:8]}"))

"""The tiering service on a real cluster: what is in the lake is what was written."""

from __future__ import annotations

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.tiering import TieringService
from tests.lake.tiering.support import KINDS, LakeTable, tier_until_done


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_writes_updates_and_deletes(tiering_cluster: LocalCluster, kind: str) -> None:
    table = LakeTable(tiering_cluster, kind, f"rounds_{kind}").create()
    with (
        fluss.connect(tiering_cluster.bootstrap_servers) as connection,
        TieringService(connection, [f"fluss.{table.name}"]) as service,
    ):
        for version in range(4):
            start = version * 500
            table.write(list(range(start, start + 1000)), version)
            if table.keyed:
                table.delete(list(range(start, start + 1000, 7)))
            tier_until_done(service, [table])
            table.check()

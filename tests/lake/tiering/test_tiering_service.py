"""The tiering service on a real cluster: what is in the lake is what was written."""

from __future__ import annotations

import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.tiering import TieringService
from tests.lake.folders import AT_ONCE
from tests.lake.tiering.support import KINDS, LakeTable, tier_until_done


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_writes_updates_and_deletes(tiering_cluster: LocalCluster, kind: str) -> None:
    table = LakeTable(tiering_cluster, kind, f"rounds_{kind}", AT_ONCE).create()
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


def test_many_rounds_leave_few_files(tiering_cluster: LocalCluster) -> None:
    tables = [LakeTable(tiering_cluster, kind, f"many_{kind}", AT_ONCE).create() for kind in KINDS]
    names = [table.path for table in tables]
    with (
        fluss.connect(tiering_cluster.bootstrap_servers) as connection,
        TieringService(connection, names, max_rows=15, max_changes=15) as service,
    ):
        # what is tiered for the first time, and is more than a round, is read at once where it
        # has keys: so the first rows are few
        for first, last in ((0, 10), (10, 500)):
            for table in tables:
                table.write(list(range(first, last)), 0)
            tier_until_done(service, tables)
    for table in tables:
        table.check()
        lake = table.iceberg()
        assert len(lake.snapshots()) > 5
        if table.kind in ("log", "bucketed"):
            merged = [one for one in lake.snapshots() if "REPLACE" in str(one.summary)]
            assert merged
        partitions = lake.inspect.partitions().num_rows
        assert lake.inspect.data_files().num_rows <= 8 * partitions


def test_a_table_with_keys_that_is_large_is_read_as_it_is_first(
    tiering_cluster: LocalCluster,
) -> None:
    tables = [
        LakeTable(tiering_cluster, kind, f"large_{kind}", AT_ONCE).create()
        for kind in KINDS
        if "keys" in kind
    ]
    names = [table.path for table in tables]
    with (
        fluss.connect(tiering_cluster.bootstrap_servers) as connection,
        TieringService(connection, names, max_changes=50) as service,
    ):
        for table in tables:
            table.write(list(range(500)), 0)
            table.delete(list(range(0, 500, 3)))
        tier_until_done(service, tables)
        for table in tables:
            table.check()
            assert table.iceberg().scan(row_filter="__offset >= 0").count() == 0
            table.write(list(range(490, 510)), 1)
        tier_until_done(service, tables)
    for table in tables:
        table.check()

"""Logs on a real cluster whose segments expired once they were in the lake: the union has all."""

from __future__ import annotations

import time

from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.lake import TieringService
from tests.lake.tiering.support import LakeTable, tier_until_done

EXPIRING = {
    # rolled often, copied to remote storage at once, and deleted there by their age
    "log.segment.file-size": "64kb",
    "remote.log.task-interval-duration": "1s",
    "log.index.file-size": "64kb",
}


def test_segments_that_expired_are_read_from_the_lake(
    fluss_cluster_factory: ClusterFactory,
) -> None:
    with fluss_cluster_factory(datalake="iceberg", server_options=EXPIRING) as cluster:
        more = {"table.log.ttl": "3s", "table.log.tiered.local-segments": "1"}
        tables = [
            LakeTable(cluster, kind, f"old_{kind}", more).create() for kind in ("log", "keys")
        ]
        with fluss.connect(cluster.bootstrap_servers) as connection:
            with TieringService(connection, [table.path for table in tables]) as service:
                for version in range(8):
                    for table in tables:
                        table.write(list(range(version * 2000, version * 2000 + 3000)), version)
                tier_until_done(service, tables)
            # nothing is deleted that is not in the lake
            until = time.monotonic() + 90
            [log] = tables[:1]
            while not first(connection, log.path):
                assert time.monotonic() < until, "nothing expired"
                time.sleep(0.2)
            kept = fluss.scan_fluss(log.name, connection=connection, lake=False).collect().height
            assert kept < log.expected().height
            for table in tables:
                check(connection, table)
                table.write(list(range(5000, 5100)), 9)
                check(connection, table)


def check(connection: fluss.FlussConnection, table: LakeTable) -> None:
    """Hold a union read against the model."""
    expected = table.expected()
    found = fluss.scan_fluss(table.name, connection=connection).collect()
    assert_frame_equal(found.select(expected.columns).sort(expected.columns), expected)


def first(connection: fluss.FlussConnection, path: fluss.TablePath) -> int:
    """Return how many rows of a table's log are gone."""
    found = connection.get_admin().list_offsets(path, [0, 1], fluss.OffsetSpec.earliest())
    return sum(found.values())

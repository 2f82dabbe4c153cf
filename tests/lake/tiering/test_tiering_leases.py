"""Which tables a service holds; the command; and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.cli import app
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.lake.tiering import TieringService
from fluss_df.lake.tiering.coordinator import Coordinator, Lease
from tests.lake.tiering.support import LakeTable, tier_until_done


@pytest.fixture
def connection(tiering_cluster: LocalCluster) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(tiering_cluster.bootstrap_servers) as opened:
        yield opened


def due(cluster: LocalCluster, name: str) -> LakeTable:
    table = LakeTable(cluster, "log", name).create()
    table.write(list(range(10)), 0)
    return table


def held(connection: fluss.FlussConnection, table: LakeTable) -> Lease:
    """Return the table's lease; give back others."""
    coordinator = Coordinator(connection)
    while True:
        lease, _ = coordinator.heartbeat(request=True)
        if lease is not None:
            if lease.path == table.path:
                return lease
            coordinator.heartbeat(finished=[lease])


def test_the_command_tiers_what_is_due(tiering_cluster: LocalCluster) -> None:
    table = due(tiering_cluster, "by_command")
    arguments = ["--connection", tiering_cluster.bootstrap_servers, "--once"]
    while table.tiered() != table.ends():
        done = CliRunner().invoke(app, ["tier", *arguments, "--table", "fluss.by_command"])
        assert done.exit_code == 0, done.output
    assert "fluss.by_command: 10 rows in" in done.output
    table.check()


def test_other_tables_are_given_back(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    wanted, other = (due(tiering_cluster, name) for name in ("wanted", "other"))
    with TieringService(connection, ["fluss.wanted"]) as service:
        tier_until_done(service, [wanted])
    assert other.tiered() == {}
    with TieringService(connection, [other.path]) as service:
        tier_until_done(service, [other], seconds=20)


def test_an_old_lease_is_refused(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    lease = held(connection, due(tiering_cluster, "old_lease"))
    coordinator = Coordinator(connection)
    assert coordinator.heartbeat(tiering=[lease]) == (None, {})
    old = Lease(lease.table_id, lease.path, lease.coordinator_epoch, lease.tiering_epoch - 1)
    _, refused = coordinator.heartbeat(tiering=[old])
    assert list(refused) == [lease.table_id]
    assert "tiering epoch" in refused[lease.table_id]
    assert coordinator.heartbeat(failed=[lease]) == (None, {})


def test_what_a_killed_service_held_is_given_back(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster, tmp_path: Path
) -> None:
    table = due(tiering_cluster, "held_by_the_killed")
    lease = held(connection, table)
    file = tmp_path / "leases"
    file.write_text(
        f'[[{lease.table_id}, "fluss", "{table.name}", {lease.coordinator_epoch},'
        f" {lease.tiering_epoch}]]"
    )
    with TieringService(connection, [table.path], lease_file=file) as service:
        with pytest.raises(FlussError, match="give each its own"):
            TieringService(connection, lease_file=file)
        tier_until_done(service, [table], seconds=20)
    table.check()
    assert file.read_text() == "[]"


@pytest.mark.parametrize("option", ["workers", "tables_at_once", "max_rows", "max_changes"])
def test_numbers_below_one_are_refused(connection: fluss.FlussConnection, option: str) -> None:
    with pytest.raises(FlussError, match=f"{option} must be at least 1, not 0"):
        TieringService(connection, **{option: 0})  # type: ignore[arg-type]

"""What a round refuses to begin with: a log that was put back, and the lake of an older table."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import sys
from pathlib import Path

import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.iceberg_writing.tiered_table import newest_tiered
from fluss_df.lake.tiering import TieringService
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.lake.tiering.plan import RoundPlan
from tests.lake.folders import BY_HAND, assert_reads, table, tier
from tests.lake.tiering.support import tier_until_done


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_log_that_ends_before_the_lake_is_not_passed_over(tmp_path: Path, kind: str) -> None:
    with (
        EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        lake_table = table(engine, kind)
        lake_table.write(list(range(10)), 1)
        tier(engine)
        info = connection.get_table(lake_table.path).get_table_info()
        plan = RoundPlan(connection, info, 100)
        known = plan.known_offsets(newest_tiered(open_table(info)))
        assert plan.splits(known) == ([], True)
        with pytest.raises(
            FlussError, match=r"the lake ends at offset 17 and the log at \d+: .*back"
        ):
            plan.splits(dict.fromkeys(known, 17))


def test_the_lake_of_a_cluster_that_began_again_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "commit", lost)
            with pytest.raises(FlussError, match="the answer is lost"):
                tier(engine)
        info = connection.get_table(lake_table.path).get_table_info()
        lake = open_table(info)
        snapshot = lake.current_snapshot()
        assert snapshot is not None
        later = dataclasses.replace(info, created_time=snapshot.timestamp_ms + 1)
        with pytest.raises(FlussError, match="was tiered before the table was created"):
            RoundPlan(connection, later, 100).known_offsets(newest_tiered(lake))
        known = RoundPlan(connection, info, 100).known_offsets(newest_tiered(lake))
        assert sum(known.values()) == 10
        assert_reads(engine, lake_table)


def lost(*_: object) -> None:
    raise FlussError("the answer is lost")


def test_a_file_of_leases_that_cannot_be_written_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        with pytest.raises(FlussError, match=r"cannot be written to .*: name a file in a folder"):
            TieringService(connection, lease_file=tmp_path / "nowhere" / "leases")
        (tmp_path / ".leases.new").mkdir()
        with TieringService(connection, lease_file=tmp_path / "leases") as service:
            tier_until_done(service, [lake_table], seconds=30)
        assert "the tables that are held are not written" in caplog.text
        assert_reads(engine, lake_table)


def test_a_file_of_leases_needs_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without them, and a file system without them, are told apart from a neighbour."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    file = tmp_path / "leases"
    with (
        EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", no_locks)
            with pytest.raises(FlussError, match=r"no locks \(No locks.*name a file on a disk"):
                TieringService(connection, lease_file=file)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "fcntl", None)
            with pytest.raises(FlussError, match=f"{file}, as this system has no locks.*name no"):
                TieringService(connection, lease_file=file)
        with (
            TieringService(connection, lease_file=file),
            pytest.raises(FlussError, match="give each its own"),
        ):
            TieringService(connection, lease_file=file)

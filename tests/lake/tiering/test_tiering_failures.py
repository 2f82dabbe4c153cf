"""A tiering service that ends, or is not alone, at the worst moments: each row once in the lake."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.lake.tiering import TieringService
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.lake.tiering.table_round import TieringRound
from tests.lake.tiering.support import KINDS, LakeTable, one_round, run, tier_until_done
from tests.waiting import wait_until

_KILLS = int(os.environ.get("FLUSS_TIERING_KILLS", "3"))
_HAND_OVERS = int(os.environ.get("FLUSS_TIERING_HAND_OVERS", "2"))

# A table that a service was at when it ended is its own for two minutes more.
_TAKE_OVER_S = 200


@pytest.fixture
def connection(tiering_cluster: LocalCluster) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(tiering_cluster.bootstrap_servers) as opened:
        yield opened


def table_of(cluster: LocalCluster, kind: str, name: str) -> LakeTable:
    # not due by itself: the tests say when
    later = {"table.datalake.freshness": "1h"}
    table = LakeTable(cluster, kind, f"{name}_{kind}", later).create()
    table.write(list(range(1000)), 0)
    return table


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_service_that_ends_between_the_commits_is_resumed(
    connection: fluss.FlussConnection,
    tiering_cluster: LocalCluster,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(tiering_cluster, kind, "between")

    def end(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "commit", end)
        with pytest.raises(InterruptedError):
            run(connection, table)
    assert table.iceberg().current_snapshot() is not None
    assert table.tiered() == {}
    assert run(connection, table).snapshot_id is None  # nothing is left to tier
    table.check()
    table.write(list(range(500, 1500)), 1)
    run(connection, table)
    table.check()


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_commit_whose_answer_was_lost_counts_once(
    connection: fluss.FlussConnection,
    tiering_cluster: LocalCluster,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(tiering_cluster, kind, "lost_answer")
    real = Table._do_commit

    def lose(self: Table, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        raise ConnectionResetError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_do_commit", lose)
        with pytest.raises(FlussError, match="did not say what became of the commit"):
            run(connection, table)
    table.write(list(range(500, 1500)), 1)
    run(connection, table)
    table.check()


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_of_two_that_tier_the_same_rows_one_is_refused(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster, kind: str
) -> None:
    table = table_of(tiering_cluster, kind, "refused")
    late = one_round(connection, table)
    first: list[TieringRound] = []
    with pytest.raises(FlussError, match="another service or writer committed to the lake table"):
        late.run(lambda: first.append(run(connection, table)))
    assert first[0].snapshot_id is not None
    table.check()
    left = set(_parquet_files(tiering_cluster, table))
    assert left == {Path(row["file_path"]) for row in table.iceberg().inspect.files().to_pylist()}


def _parquet_files(cluster: LocalCluster, table: LakeTable) -> list[Path]:
    return list((cluster.dir / "lake" / "warehouse" / "fluss" / table.name).rglob("*.parquet"))


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_word_to_the_coordinator_that_comes_late_is_corrected(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster, kind: str
) -> None:
    table = table_of(tiering_cluster, kind, "late_word")
    old = run(connection, table).snapshot_id
    assert old is not None
    snapshot = table.iceberg().snapshot_by_id(old)
    assert snapshot is not None
    assert snapshot.summary is not None
    path = snapshot.summary["fluss-offsets"] or ""
    table.write(list(range(500, 1500)), 1)
    run(connection, table)
    info = connection.get_admin().get_table_info(table.path)
    # Fluss has deleted the file of the older snapshot by now
    Coordinator(connection).commit(info.table_id, table.path, old, path, {}, {})
    assert run(connection, table).snapshot_id is None
    table.check()


def test_the_lake_table_of_an_older_table_is_refused(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    table = table_of(tiering_cluster, "log", "older")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "commit", lambda *_: None)
        run(connection, table)
    again = one_round(connection, table)
    again._info = dataclasses.replace(again._info, table_id=again._info.table_id + 1)
    with pytest.raises(FlussError, match="tiered from an older table of that name"):
        again.run(lambda: None)


def test_a_service_without_the_lease_commits_nothing(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    table = table_of(tiering_cluster, "log", "no_lease")

    def refuse() -> None:
        raise FlussError("not this service's")

    with pytest.raises(FlussError, match="not this service's"):
        one_round(connection, table).run(refuse)
    assert table.iceberg().current_snapshot() is None
    assert _parquet_files(tiering_cluster, table) == []


def test_services_side_by_side_without_leases(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    tables = [table_of(tiering_cluster, kind, "side_by_side") for kind in KINDS]
    ended = threading.Event()
    committed: list[TieringRound] = []

    def tier() -> None:
        with fluss.connect(tiering_cluster.bootstrap_servers) as own:
            while not ended.is_set():
                for table in tables:
                    try:
                        done = run(own, table, max_rows=300, max_changes=300)
                    except FlussError:
                        continue  # the other one was first
                    if done.snapshot_id is not None:
                        committed.append(done)

    threads = [threading.Thread(target=tier) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 4):
        for table in tables:
            table.write(list(range(version * 300, version * 300 + 600)), version)
    wait_until(lambda: len(committed) > len(tables), 60)
    ended.set()
    for thread in threads:
        thread.join()
    for table in tables:
        while run(connection, table).snapshot_id is not None:
            pass
        table.check()


def test_two_services_share_the_tables(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    tables = [LakeTable(tiering_cluster, kind, f"shared_{kind}").create() for kind in KINDS]
    names = [f"fluss.{table.name}" for table in tables]
    with TieringService(connection, names) as first, TieringService(connection, names) as second:
        threads = [threading.Thread(target=service.run) for service in (first, second)]
        for thread in threads:
            thread.start()
        for version in range(3):
            for table in tables:
                table.write(list(range(version * 300, version * 300 + 600)), version)
            time.sleep(1)
        wait_until(lambda: all(table.tiered() == table.ends() for table in tables), 60)
        first.stop()
        second.stop()
        for thread in threads:
            thread.join()
    for table in tables:
        table.check()


@pytest.mark.timeout(300 + _TAKE_OVER_S)
def test_a_service_killed_at_random_moments(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster, tmp_path: Path
) -> None:
    tables = [LakeTable(tiering_cluster, kind, f"killed_{kind}").create() for kind in KINDS]
    lease_file = tmp_path / "leases"
    arguments = ["tier", "--connection", tiering_cluster.bootstrap_servers]
    arguments += ["--lease-file", str(lease_file)]
    for table in tables:
        arguments += ["--table", f"fluss.{table.name}"]
    chance = random.Random(_KILLS)
    for kill in range(_KILLS):
        for table in tables:
            table.write(list(range(kill * 300, kill * 300 + 1000)), kill)
            if table.keyed:
                table.delete(list(range(kill * 300, kill * 300 + 1000, 11)))
        program = "from fluss_df.cli import app; app()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1 + 2.5 * chance.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
    with TieringService(
        connection, [table.path for table in tables], lease_file=lease_file
    ) as service:
        # a kill between the coordinator's answer and its note in the file costs two minutes
        tier_until_done(service, tables, _TAKE_OVER_S)
    for table in tables:
        table.check()


@pytest.mark.timeout(300 + _TAKE_OVER_S * _HAND_OVERS)
def test_hand_overs_to_and_from_flink(
    connection: fluss.FlussConnection, tiering_cluster: LocalCluster
) -> None:
    tables = [LakeTable(tiering_cluster, kind, f"handed_{kind}").create() for kind in KINDS]
    names = [table.path for table in tables]
    version = 0

    def write() -> None:
        nonlocal version
        start = version * 300
        for table in tables:
            table.write(list(range(start, start + 1000)), version)
            if table.keyed:
                table.delete(list(range(start, start + 1000, 13)))
        version += 1

    for hand_over in range(_HAND_OVERS):
        if hand_over % 2 == 0:
            write()
            tiering_cluster.start_flink_tiering()
            try:
                # in two rounds, so that updates and deletes meet rows of its own
                for _ in range(2):
                    wait_until(
                        lambda: all(table.tiered() == table.ends() for table in tables),
                        _TAKE_OVER_S,
                    )
                    if _ == 0:
                        write()
            finally:
                tiering_cluster.stop_flink_tiering()
            # what pyiceberg and Polars refuse to read
            for table in tables:
                deletes = table.iceberg().inspect.delete_files().to_pylist()
                assert table.keyed == any(file["content"] == 2 for file in deletes)
        else:
            for _ in range(2):
                write()
                with TieringService(connection, names) as service:
                    tier_until_done(service, tables, _TAKE_OVER_S)
                for table in tables:
                    table.check()
    if _HAND_OVERS % 2:
        write()
        with TieringService(connection, names) as service:
            tier_until_done(service, tables, _TAKE_OVER_S)
        for table in tables:
            table.check()

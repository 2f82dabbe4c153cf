"""Tiering into Paimon on a real cluster, on which Flink's service tiers, too."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.lake.formats import open_tiered
from fluss_df.lake.paimon_writing import commit
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.lake.tiering.plan import RoundPlan
from fluss_df.lake.tiering.table_round import TieringRound
from tests.lake.test_lake_types import tables
from tests.lake.tiering.support import COLUMNS, KINDS, LAKE, LakeTable, one_round, run
from tests.lake_tables import create_lake_table
from tests.waiting import wait_until

# not due by itself, for Flink's service neither: the tests say when
LATER = {"table.datalake.freshness": "1h"}


@pytest.fixture
def connection(paimon_tiering: LocalCluster) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(paimon_tiering.bootstrap_servers) as opened:
        yield opened


def table_of(cluster: LocalCluster, kind: str, name: str) -> LakeTable:
    return LakeTable(cluster, kind, f"{name}_{kind}", LATER).create()


def said(table: LakeTable) -> dict[str, Any]:
    """Return what the newest snapshot says of itself."""
    files = table.paimon().glob("snapshot/snapshot-*")
    newest = max(files, key=lambda file: int(file.name[9:]))
    found: dict[str, Any] = json.loads(newest.read_bytes())
    return found


def parquet_files(table: LakeTable) -> set[Path]:
    return set(table.paimon().rglob("*.parquet"))


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_writes_updates_and_deletes(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, kind: str
) -> None:
    table = table_of(paimon_tiering, kind, "rounds")
    for version in range(3):
        start = version * 500
        table.write(list(range(start, start + 1000)), version)
        if table.keyed:
            table.delete(list(range(start, start + 1000, 7)))
        run(connection, table)
        table.check()
    # what is in the log alone is read, too
    table.write([1, 2, 5000], 4)
    expected = table.expected()
    union = fluss.read_fluss(table.name, connection=connection).select(expected.columns)
    assert_frame_equal(union.sort(expected.columns), expected)
    last = said(table)
    assert (last["id"], last["commitUser"], last["commitKind"]) == (
        3,
        "__fluss_lake_tiering",
        "APPEND",
    )
    assert (table.paimon() / "snapshot" / "LATEST").read_text() == "3"
    assert (last["changelogRecordCount"] > 0) == table.keyed


@pytest.mark.parametrize("kind", ["partitioned", "keys"])
def test_rounds_that_take_a_part(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, kind: str
) -> None:
    table = table_of(paimon_tiering, kind, "parts")
    # a first round of a table with keys is of few changes: else its rows are read as they are
    table.write(list(range(10)), 0)
    run(connection, table)
    table.write(list(range(100)), 1)
    rounds = 0
    while not (done := run(connection, table, max_rows=12, max_changes=12)).complete:
        rounds += 1
        assert done.rows
    assert rounds > 1
    table.check()


@pytest.mark.parametrize("kind", ["keys", "partitioned_keys"])
def test_a_table_with_keys_that_is_large_is_read_as_it_is_first(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, kind: str
) -> None:
    table = table_of(paimon_tiering, kind, "large")
    table.write(list(range(500)), 0)
    table.delete(list(range(0, 500, 3)))
    run(connection, table, max_changes=50)
    table.check()
    assert table.lake_rows().filter(pl.col("__offset") >= 0).is_empty()
    table.write(list(range(490, 510)), 1)
    table.delete([1, 2, 4])
    run(connection, table)
    table.check()


def test_a_partition_that_is_made_again_overrides_what_the_lake_has(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster
) -> None:
    table = table_of(paimon_tiering, "partitioned_keys", "again")
    table.write(list(range(90)), 1)
    run(connection, table)
    connection.get_admin().drop_partition(table.path, {"day": "d1"})
    # fewer than there were: their offsets begin again
    table.write(list(range(1, 30, 3)), 2)
    run(connection, table)
    expected = table.expected()
    assert_frame_equal(table.lake_rows().select(expected.columns).sort(expected.columns), expected)


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_service_that_ends_between_the_commits_is_resumed(
    connection: fluss.FlussConnection,
    paimon_tiering: LocalCluster,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(paimon_tiering, kind, "between")
    table.write(list(range(1000)), 0)

    def end(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "commit", end)
        with pytest.raises(InterruptedError):
            run(connection, table)
    assert said(table)["id"] == 1
    assert table.tiered() == {}
    assert run(connection, table).snapshot_id is None  # nothing is left to tier
    table.check()
    table.write(list(range(500, 1500)), 1)
    run(connection, table)
    table.check()


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_commit_whose_answer_was_lost_counts_once(
    connection: fluss.FlussConnection,
    paimon_tiering: LocalCluster,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(paimon_tiering, kind, "lost_answer")
    table.write(list(range(1000)), 0)

    def lose(*_: object) -> None:
        raise ConnectionResetError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "hint", lose)
        with pytest.raises(FlussError, match="did not say what became of the commit"):
            run(connection, table)
    table.write(list(range(500, 1500)), 1)
    run(connection, table)
    table.check()


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_of_two_that_tier_the_same_rows_one_is_refused(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, kind: str
) -> None:
    table = table_of(paimon_tiering, kind, "refused")
    table.write(list(range(1000)), 0)
    late = one_round(connection, table)
    left: set[Path] = set()

    def first() -> None:
        run(connection, table)
        left.update(parquet_files(table))

    with pytest.raises(FlussError, match="another service or writer committed to the lake table"):
        late.run(first)
    table.check()
    # those of the one that was refused are gone
    assert len(parquet_files(table)) == len(left) // 2
    assert not list(table.paimon().glob("snapshot/*.tmp"))


def test_services_side_by_side_without_leases(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster
) -> None:
    tables = [table_of(paimon_tiering, kind, "side_by_side") for kind in ("log", "keys")]
    ended = threading.Event()
    committed: list[TieringRound] = []

    def tier() -> None:
        with fluss.connect(paimon_tiering.bootstrap_servers) as own:
            while not ended.is_set():
                for table in tables:
                    try:
                        done = run(own, table, max_rows=300, max_changes=300)
                    except FlussError:
                        continue  # the other one was first
                    if done.snapshot_id is not None:
                        committed.append(done)

    for table in tables:
        table.write(list(range(10)), 0)
        run(connection, table)
    threads = [threading.Thread(target=tier) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in range(1, 4):
            for table in tables:
                table.write(list(range(version * 300, version * 300 + 600)), version)
        wait_until(lambda: len(committed) > 3 * len(tables), 60)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    for table in tables:
        while run(connection, table).snapshot_id is not None:
            pass
        table.check()


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "keyed"])
def test_every_type(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, keys: list[str] | None
) -> None:
    first, later = tables(nested=True)
    name = f"our_types_{'keyed' if keys else 'log'}"
    table = LakeTable(paimon_tiering, "keys" if keys else "log", name)
    descriptor = fluss.TableDescriptor(
        fluss.Schema(first.schema, keys), bucket_count=1, properties={**LAKE, **LATER}
    )
    create_lake_table(paimon_tiering, connection, table.path, descriptor)
    for rows in (first, later):
        fluss.write_fluss(rows, name, connection=connection)
        run(connection, table)
        log = fluss.read_fluss(name, connection=connection, lake=False).sort("id", "i8")
        for source in (name, f"{name}$lake"):
            found = fluss.read_fluss(source, connection=connection).sort("id", "i8")
            assert_frame_equal(found, log)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"paimon.deletion-vectors.enabled": "true"}, "'deletion-vectors.enabled'"),
        ({"paimon.sequence.field": "at"}, "the option 'sequence.field'"),
        ({"paimon.file.format": "orc"}, "'file.format' with the value 'orc'"),
    ],
    ids=["deletion vectors", "sequence", "format"],
)
def test_a_table_that_is_not_written_is_left_to_flink(
    connection: fluss.FlussConnection,
    paimon_tiering: LocalCluster,
    properties: dict[str, str],
    says: str,
    request: pytest.FixtureRequest,
) -> None:
    name = f"left_{request.node.callspec.id.replace(' ', '_')}"
    table = LakeTable(paimon_tiering, "keys", name, LATER, custom=properties).create()
    table.write([1, 2], 0)
    with pytest.raises(FlussError, match=says):
        run(connection, table)
    assert not parquet_files(table)


def test_hand_overs_to_and_from_flink(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster
) -> None:
    # Flink's service, which runs all the time, is given a table when it is this old, and again
    # after as long: what is tiered between is ours
    soon = {"table.datalake.freshness": "8s"}
    tables = [
        LakeTable(paimon_tiering, kind, f"handed_{kind}", soon).create()
        for kind in ("log", "partitioned_keys")
    ]

    def written(version: int) -> None:
        start = version * 300
        for table in tables:
            table.write(list(range(start, start + 1000)), version)
            if table.keyed:
                table.delete(list(range(start, start + 1000, 13)))

    def by_us() -> None:
        for table in tables:
            assert run(connection, table).snapshot_id is not None
        for table in tables:
            table.check()

    written(0)
    by_us()
    written(1)
    # where Flink's service and a round of ours were at a table together, Flink's job fails, and the
    # coordinator may give the table again only after two minutes
    wait_until(lambda: all(table.tiered() == table.ends() for table in tables), 240)
    for table in tables:
        table.check()
        # of Flink's service, which does not write the offsets themselves
        assert set(said(table)["properties"]) == {"fluss-offsets"}
    written(2)
    by_us()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [True, False])
def test_small_files_are_merged_where_the_table_says_so(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, kind: str, wanted: bool
) -> None:
    auto = {"table.datalake.auto-compaction": str(wanted).lower()}
    name = f"merged_{wanted}_{kind}".lower()
    table = LakeTable(paimon_tiering, kind, name, {**LATER, **auto}).create()
    for version in range(20):
        table.write(list(range(version * 5, version * 5 + 20)), version)
        if table.keyed:
            table.delete([version * 5])
        run(connection, table)
        table.check()
    snapshots = [json.loads(f.read_bytes()) for f in table.paimon().glob("snapshot/snapshot-*")]
    merged = [one for one in snapshots if one["commitKind"] == "COMPACT"]
    assert bool(merged) is wanted
    # what the coordinator knows of goes on
    assert table.tiered() == table.ends()


@pytest.mark.parametrize("kind", ["log", "keys"])
@pytest.mark.parametrize("again", [None, 20, 10_000])
def test_rows_that_a_rollback_took_come_into_the_lake_again(
    connection: fluss.FlussConnection,
    paimon_tiering: LocalCluster,
    kind: str,
    again: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(paimon_tiering, kind, f"rolled_back_{again}".lower())
    for version in range(2):
        table.write(list(range(version * 50, version * 50 + 100)), version)
        run(connection, table)
    (table.paimon() / "snapshot" / "snapshot-2").unlink()
    (table.paimon() / "snapshot" / "LATEST").write_text("1")
    if again == 10_000:
        table.write([7, 500], 2)
    if again is not None:
        # the number comes again, with other offsets than Fluss knows of it
        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "known_snapshot", lambda *_: None)
            patch.setattr(Coordinator, "commit", lambda *_: None)
            patch.setattr(RoundPlan, "known_offsets", lambda _, newest: newest.offsets)
            run(connection, table, max_rows=again, max_changes=again)
        assert said(table)["id"] == 2
        # a service that is killed here leaves it so for readers
        found = fluss.read_fluss(table.path, connection=connection)
        assert found.sort(COLUMNS.names).equals(table.expected())
    while not run(connection, table).complete:
        pass
    table.check()


@pytest.mark.parametrize("moment", ["prepare", "may_commit"])
def test_a_round_that_is_interrupted_before_its_commit_leaves_no_files(
    connection: fluss.FlussConnection,
    paimon_tiering: LocalCluster,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(paimon_tiering, "keys", f"interrupted_{moment}")
    table.write(list(range(100)), 0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "prepare":
            patch.setattr(Coordinator, "prepare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one_round(connection, table).run(interrupted)
    assert not parquet_files(table)
    run(connection, table)
    table.check()


def test_a_number_that_comes_again_and_fluss_does_not_take_is_told(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(paimon_tiering, "log", "not_taken")
    table.write(list(range(100)), 0)
    run(connection, table)
    newest = open_tiered(connection.get_admin().get_table_info(table.path)).newest_tiered()
    assert newest is not None
    assert newest.offsets is not None
    other = replace(newest, offsets={key: end - 1 for key, end in newest.offsets.items()})
    plan = RoundPlan(connection, connection.get_admin().get_table_info(table.path), 100)
    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "commit", lambda *_: None)
        with pytest.raises(FlussError, match=r"was rolled back, and its snapshot 1 .*roll the"):
            plan.known_offsets(other)
    assert plan.known_offsets(newest) == newest.offsets


def test_a_number_that_comes_again_with_a_bucket_more_is_told(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster
) -> None:
    table = table_of(paimon_tiering, "log", "bucket_more")
    table.write(list(range(100)), 0)
    run(connection, table)
    info = connection.get_admin().get_table_info(table.path)
    newest = open_tiered(info).newest_tiered()
    assert newest is not None
    assert newest.offsets is not None
    [(_, bucket)] = newest.offsets
    other = replace(newest, offsets={**newest.offsets, (None, 1 - bucket): 7})
    assert RoundPlan(connection, info, 100).known_offsets(other) == other.offsets
    assert table.tiered() == other.offsets


def test_offsets_of_dropped_partitions_are_known_as_the_lake_says(
    connection: fluss.FlussConnection, paimon_tiering: LocalCluster
) -> None:
    table = table_of(paimon_tiering, "partitioned", "dropped")
    table.write(list(range(100)), 0)
    run(connection, table)
    connection.get_admin().drop_partition(table.path, {"day": "d1"})
    table.write([0, 3], 1)
    run(connection, table)
    newest = open_tiered(connection.get_admin().get_table_info(table.path)).newest_tiered()
    assert newest is not None
    # else each round would tell Fluss of the snapshot before
    assert newest.offsets == table.tiered()
    assert len({partition for partition, _ in newest.offsets}) == 3

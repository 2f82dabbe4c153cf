"""Snapshots of lake tables expire, and files that none has are removed; queries go on."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from sqlalchemy import text

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg_upkeep import expiry, files
from fluss_df.lake.iceberg_upkeep.expiry import expirable, expire_snapshots
from fluss_df.lake.iceberg_upkeep.files import snapshot_paths
from fluss_df.lake.iceberg_upkeep.orphans import remove_orphans
from fluss_df.lake.iceberg_writing.commit import commit_snapshot
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY
from fluss_df.lake.tiering import TieringService
from tests.lake.folders import BY_HAND, assert_elsewhere, assert_reads, at, catalog, table
from tests.lake.tiering.support import LakeTable, rows
from tests.waiting import wait_until

_HOUR_MS = 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Table:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    made.create_namespace("db")
    return made.create_table("db.t", pa.schema([("n", pa.int64())]))


def committed(table: Table, marks: list[str | None]) -> list[int]:
    """Commit a snapshot for each mark of a round; return their ids, the oldest first."""
    found = []
    for number, mark in enumerate(marks):
        properties = {} if mark is None else {OFFSETS_PATH_PROPERTY: mark}
        table.append(pa.table({"n": [number]}), snapshot_properties=properties)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        found.append(snapshot.snapshot_id)
    return found


def there(table: Table) -> set[str]:
    root = Path(table.location().removeprefix("file://"))
    return {f"file://{file}" for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("marks", "gone"),
    [
        ([], []),
        (["a"], []),
        (["a", "b"], []),
        (["a", "b", "c"], [0]),
        (["a", "a", "b", "c", "c"], [0, 1]),
        # others' snapshots are of the round before them
        (["a", "b", None, None], []),
        (["a", None, "b", None, "c", None], [0, 1]),
        ([None, "a", "b"], [0]),
        ([None, "a", "b", "c"], [0, 1]),
    ],
)
def test_the_snapshots_of_the_two_newest_rounds_stay(
    lake: Table, marks: list[str | None], gone: list[int]
) -> None:
    ids = committed(lake, marks)
    assert set(expirable(lake, 0, time.time() * 1000 + 1)) == {ids[at] for at in gone}


def test_the_age_counts_from_when_queries_read_a_newer_one(lake: Table) -> None:
    ids = committed(lake, ["a", "b", "c", "d"])
    times = sorted(one.timestamp_ms for one in lake.snapshots())
    # the round of b was known to Fluss when that of c was committed, not before
    assert expirable(lake, 3600, times[2] + _HOUR_MS) == []
    assert expirable(lake, 3600, times[2] + _HOUR_MS + 0.5) == ids[:1]
    assert set(expirable(lake, 3600, times[3] + _HOUR_MS + 0.5)) == set(ids[:2])


def test_what_the_owner_of_the_lake_table_says_goes_first(lake: Table) -> None:
    ids = committed(lake, ["a", "b", "c", "d", "e"])
    later = time.time() * 1000 + _HOUR_MS
    with lake.manage_snapshots() as manage:
        manage.create_tag(ids[0], "kept")
    assert set(expirable(lake, 0, later)) == set(ids[1:3])
    with lake.transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "4"})
    assert expirable(lake, 0, later) == []
    with lake.transaction() as change:
        change.set_properties(
            {
                "history.expire.min-snapshots-to-keep": "1",
                "history.expire.max-snapshot-age-ms": str(2 * _HOUR_MS),
            }
        )
    assert expirable(lake, 0, later) == []
    assert expirable(lake, 0, later + 2 * _HOUR_MS)
    with lake.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert expire_snapshots(lake, 0, later + 2 * _HOUR_MS).snapshots == 0


def test_files_go_that_only_expired_snapshots_have(lake: Table) -> None:
    committed(lake, ["a", "b"])
    # what was appended before is in no file that stays
    lake.overwrite(pa.table({"n": [7, 8]}), snapshot_properties={OFFSETS_PATH_PROPERTY: "c"})
    committed(lake, ["d"])
    committed(lake, ["e"])
    before = there(lake)
    done = expire_snapshots(lake, 0, time.time() * 1000 + _HOUR_MS)
    lake.refresh()
    assert done.snapshots == 4  # an overwrite is two snapshots of one round
    assert len(lake.snapshots()) == 2
    assert done.files == len(before) + 1 - len(there(lake))  # and one more metadata file
    # each file that a snapshot has is there, and the rows are what they were
    assert snapshot_paths(lake, lake.snapshots()) <= there(lake)
    assert sorted(lake.scan().to_arrow()["n"].to_pylist()) == [0, 0, 7, 8]
    data = {path for path in there(lake) if path.endswith(".parquet")}
    assert len(data) == 3
    assert expire_snapshots(lake, 0, time.time() * 1000 + _HOUR_MS).snapshots == 0


@pytest.mark.parametrize("where", ["elsewhere", "beside", "by dots", "its own"])
def test_files_elsewhere_stay_whatever_a_manifest_names(
    lake: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """A backup that another made may have any path in its manifests."""
    table_folder = Path(lake.location().removeprefix("file://"))
    mine = tmp_path / "mine.parquet"
    if where == "beside":
        mine = table_folder.with_name(f"{table_folder.name}2") / "mine.parquet"
    elif where == "its own":
        with lake.transaction() as change:
            change.set_properties({"write.data.path": f"file:{tmp_path}/out"})
        mine = tmp_path / "out" / "mine.parquet"
    mine.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": [1]}), mine)
    named = (
        f"file://{table_folder}/../../../mine.parquet" if where == "by dots" else f"file://{mine}"
    )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=named,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=mine.stat().st_size,
    )
    file.spec_id = 0
    commit_snapshot(lake, [file], [], [], {OFFSETS_PATH_PROPERTY: "a"})
    lake = lake.catalog.load_table("db.t")
    commit_snapshot(lake, [], [file], [], {OFFSETS_PATH_PROPERTY: "b"})
    committed(lake.catalog.load_table("db.t"), ["c", "d", "e"])
    done = expire_snapshots(lake.catalog.load_table("db.t"), 0, time.time() * 1000 + _HOUR_MS)
    assert done.snapshots == 3
    assert done.files
    assert mine.exists() is (where != "its own")
    said = f"1 files that no snapshot has stay, as they are not in {lake.location()}"
    assert (said in caplog.text) is (where != "its own")


def test_a_tag_that_is_made_meanwhile_keeps_its_snapshot(
    lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = committed(lake, ["a", "b", "c", "d"])
    other = lake.catalog.load_table("db.t")
    real = files.snapshot_paths

    def slow(*arguments: Any) -> set[str]:
        if "kept" not in other.refs():
            with other.manage_snapshots() as manage:
                manage.create_tag(ids[0], "kept")
        return real(*arguments)

    monkeypatch.setattr(expiry, "snapshot_paths", slow)
    assert expire_snapshots(lake, 0, time.time() * 1000 + _HOUR_MS).snapshots == 0
    lake.refresh()
    assert lake.refs()["kept"].snapshot_id == ids[0]
    assert lake.scan(snapshot_id=ids[0]).to_arrow().num_rows == 1
    assert expire_snapshots(lake, 0, time.time() * 1000 + _HOUR_MS).snapshots == 1


def test_a_commit_meanwhile_has_nothing_expired(
    lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(lake, ["a", "b", "c", "d"])
    other = lake.catalog.load_table("db.t")
    real = files.snapshot_paths

    def slow(*arguments: Any) -> set[str]:
        found = real(*arguments)
        if other.current_snapshot() == lake.current_snapshot():
            committed(other, ["e"])
        return found

    monkeypatch.setattr(expiry, "snapshot_paths", slow)
    assert expire_snapshots(lake, 0, time.time() * 1000 + _HOUR_MS).snapshots == 0
    lake.refresh()
    assert len(lake.snapshots()) == 5
    assert lake.scan().to_arrow().num_rows == 5


def test_files_of_two_tables_stay(lake: Table) -> None:
    committed(lake, ["a", "b", "c", "d"])
    lake.catalog.register_table("db.second", lake.metadata_location)
    before = there(lake)
    later = time.time() + 10 * 86400
    assert expire_snapshots(lake, 0, later * 1000).snapshots == 0
    assert remove_orphans(lake, 0, later) == 0
    assert there(lake) == before


@pytest.mark.parametrize("slashes", ["file:/", "file:///"])
def test_a_catalog_in_which_java_wrote_last(lake: Table, slashes: str) -> None:
    """It names a local file with one slash where we have three."""
    committed(lake, ["a", "b", "c"])
    place = lake.metadata_location.replace("file:///", slashes)
    assert isinstance(lake.catalog, SqlCatalog)
    with lake.catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = :a"), {"a": place})
    assert expire_snapshots(lake.catalog.load_table("db.t"), 0).snapshots == 1


def test_files_that_no_snapshot_has(lake: Table) -> None:
    committed(lake, ["a", "b"])
    root = Path(lake.location().removeprefix("file://"))
    orphans = [root / "data" / "x.parquet", root / "metadata" / "y.avro"]
    orphans += [root / "data" / "day=a" / "__bucket=0" / "z.parquet"]
    others = [root / "data" / "notes.txt", root / "x.parquet"]
    for file in (*orphans, *others):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    young = root / "data" / "young.parquet"
    young.write_bytes(b"x")
    now = time.time()
    for path in there(lake):
        os.utime(path.removeprefix("file://"), (now - 7200, now - 7200))
    os.utime(young, (now, now))
    assert remove_orphans(lake, 3600) == len(orphans)
    assert not any(file.exists() for file in orphans)
    assert all(file.exists() for file in (*others, young))
    assert lake.scan().to_arrow().num_rows == 2
    lake.refresh()
    committed(lake, ["c"])
    assert lake.scan().to_arrow().num_rows == 3


# ---- by the service


@pytest.mark.parametrize("kind", ["partitioned", "keys"])
def test_snapshots_of_a_folder_expire_and_every_reader_goes_on(tmp_path: Path, kind: str) -> None:
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, kind, {"table.datalake.freshness": "1ms"})
        with (
            engine.connection() as connection,
            TieringService(connection, keep_snapshots_s=0) as service,
        ):
            for number in range(6):
                lake_table.write(list(range(number * 10, number * 10 + 30)), number)
                if lake_table.keyed:
                    lake_table.delete([number * 10 + 5])
                tiered(service)
                assert_reads(engine, lake_table)
        assert_elsewhere(tmp_path, lake_table)
        found = catalog(tmp_path).load_table(("fluss", lake_table.name))
        marks = {one.summary[OFFSETS_PATH_PROPERTY] for one in found.snapshots() if one.summary}
        assert len(marks) in (2, 3)
        root = Path(found.location().removeprefix("file://"))
        paths = {f"file://{file}" for file in root.rglob("*.parquet")}
        used = snapshot_paths(found, found.snapshots())
        assert paths == {path for path in used if path.endswith(".parquet")}
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))


def tiered(service: TieringService) -> None:
    """Tier until a round had rows."""
    wait_until(lambda: sum(done.rows for done in service.run_due()), 30)


def test_queries_go_on_while_snapshots_expire(tmp_path: Path) -> None:
    # what a query may take
    options = EngineOptions(lake_snapshots_s=5)
    with EmbeddedFluss(tmp_path, port=0, options=options) as engine:
        lake_table = table(engine, "keys", {"table.datalake.freshness": "1ms"})
        ended = threading.Event()
        # the first write of two buckets, of which a query may see one
        with engine.connection() as connection:
            fluss.write_fluss(rows(list(range(100)), 0), lake_table.name, connection=connection)

        def write() -> None:
            with engine.connection() as connection:
                for version in range(1, 200):
                    if ended.is_set():
                        return
                    frame = rows(list(range(100)), version)
                    fluss.write_fluss(frame, lake_table.name, connection=connection)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen: set[str] = set()
            for _ in range(60):
                found = fluss.scan_fluss(lake_table.name, connection=engine.address).collect()
                assert found.height == 100
                seen.update(found["name"].str.split("-").list.first().unique())
        finally:
            ended.set()
            writer.join()
    assert len(seen) > 1


def test_ages_that_are_none_are_refused(by_hand: EmbeddedFluss) -> None:
    for age in (-1.0, float("nan")):
        with by_hand.connection() as connection, pytest.raises(FlussError, match="keep_snapshots"):
            TieringService(connection, keep_snapshots_s=age)
        with pytest.raises(FlussError, match="lake_snapshots_s"):
            EngineOptions(lake_snapshots_s=age)


def test_a_table_that_says_so_on_a_cluster(
    tiering_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss_df.lake.tiering import upkeep

    monkeypatch.setattr(upkeep, "DEFAULT_AGE_S", 0.0)
    properties = {"table.datalake.freshness": "1ms"}
    names = {"auto": "true", "kept": "false"}
    for name, value in names.items():
        lake_table = LakeTable(
            tiering_cluster,
            "keys",
            f"expiring_{name}",
            {**properties, "table.datalake.auto-expire-snapshot": value},
        ).create()
        with (
            fluss.connect(tiering_cluster.bootstrap_servers) as connection,
            TieringService(connection, [lake_table.path]) as service,
        ):
            for number in range(5):
                lake_table.write(list(range(number * 10, number * 10 + 30)), number)
                until = time.monotonic() + 60
                while lake_table.tiered() != lake_table.ends():
                    service.run_due()
                    assert time.monotonic() < until
                    time.sleep(0.05)
        count = len(lake_table.iceberg().snapshots())
        assert (count <= 4) if name == "auto" else (count >= 5)
        lake_table.check()
        found = fluss.scan_fluss(lake_table.name, connection=tiering_cluster.bootstrap_servers)
        expected = lake_table.expected()
        assert_frame_equal(found.collect().sort(expected.columns), expected)

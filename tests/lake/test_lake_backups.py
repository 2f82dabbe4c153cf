"""Backups of folders with a lake, and what is restored of them."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError
from tests.lake.folders import (
    AT_ONCE,
    BY_HAND,
    IN_A_SECOND,
    assert_elsewhere,
    assert_reads,
    at,
    catalog,
    files_of,
    table,
    tier,
)
from tests.lake.tiering.support import KINDS, LakeTable, rows


def restored(file: Path, folder: Path) -> Path:
    restore(file, folder)
    report = check_folder(folder)
    assert report.sound, report.findings
    assert report.lake_files
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_has_the_lake_and_goes_on_elsewhere(tmp_path: Path, kind: str) -> None:
    folder, file = tmp_path / "folder", tmp_path / "b.tar.zst"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, kind)
        for version in (1, 2):
            lake_table.write(list(range(version * 50, version * 50 + 100)), version)
            tier(engine)
        lake_table.write([1, 2, 3], 3)
        back_up(engine.engine, file)
        assert not list((folder / "lake").glob("copies-*"))
        before = files_of(folder)
        known = list(lake_table.written)
        lake_table.write([4], 4)
    new = restored(file, tmp_path / "new")
    copied = LakeTable(lake_table.cluster, kind, kind, {}, known)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, copied))
        copied.write([5, 6, 150], 4)
        tier(engine)
        assert_reads(engine, copied)
    assert check_folder(new).findings == []
    assert_elsewhere(new, copied)
    assert files_of(folder) == before


def test_a_backup_is_put_back_where_it_was_made(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "b.tar.lz4"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "partitioned_keys")
        lake_table.write(list(range(50)), 1)
        tier(engine)
        back_up(engine.engine, file)
    folder.rename(tmp_path / "old")
    restored(file, folder)
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
        lake_table.write([7, 80], 2)
        tier(engine)
    assert_elsewhere(folder, lake_table)


def test_only_files_that_are_in_use_are_in_a_backup(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "b.tar.zst"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "keys")
        for version in range(4):
            lake_table.write(list(range(100)), version)
            tier(engine)
        back_up(engine.engine, file)
    new = restored(file, tmp_path / "new")
    # each round wrote all rows again
    assert len(catalog(folder).load_table("fluss.keys").snapshots()) == 4
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
    assert len(catalog(new).load_table("fluss.keys").snapshots()) == 1
    [old, less] = [len(list(one.glob("lake/warehouse/fluss/keys/data/*"))) for one in (folder, new)]
    assert old == 4 * less


def test_a_table_of_which_nothing_was_tiered(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.zst"
    with EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write([1, 2], 1)
        back_up(engine.engine, file)
    new = restored(file, tmp_path / "new")
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
        assert tier(engine) == 2
    assert_elsewhere(new, lake_table)


def test_a_table_of_many_partition_keys(tmp_path: Path) -> None:
    """Each of them is a folder for the files that other writers put into the lake."""
    keys = [f"k{number}" for number in range(12)]
    rows = pl.DataFrame({"id": [1, 2], **{key: ["a", "b"] for key in keys}})
    schema = pa.schema([("id", pa.int64()), *((key, pa.string()) for key in keys)])
    path, file = fluss.TablePath("fluss", "many"), tmp_path / "b.tar.zst"
    with EmbeddedFluss(tmp_path / "d", options=BY_HAND) as engine:
        with engine.connection() as connection:
            descriptor = fluss.TableDescriptor(
                fluss.Schema(schema),
                partition_keys=keys,
                bucket_count=1,
                properties={"table.datalake.enabled": "true", **AT_ONCE},
            )
            connection.get_admin().create_table(path, descriptor)
            fluss.write_fluss(rows, path, connection=connection, create_partitions=True)
        tier(engine)
        lake = catalog(tmp_path / "d").load_table(("fluss", "many"))
        lake.append(lake.scan().to_arrow())
        back_up(engine.engine, file)
    new = restored(file, tmp_path / "new")
    deep = list((new / "lake" / "warehouse").rglob("k11=b/__bucket=0/*.parquet"))
    assert len(deep) == 1
    with EmbeddedFluss(new, options=BY_HAND) as engine, engine.connection() as connection:
        name = "fluss.many$lake"
        found = fluss.scan_fluss(name, connection=connection).select(rows.columns).collect()
        assert found.sort("id").equals(rows)
    assert catalog(new).load_table(("fluss", "many")).scan().to_arrow().num_rows == 4


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_backups_while_rows_are_written_tiered_and_expire(tmp_path: Path, kind: str) -> None:
    small = EngineOptions(segment_bytes=1)
    ended = threading.Event()
    with EmbeddedFluss(tmp_path / "folder", port=0, options=small) as engine:
        lake_table = table(engine, kind, {"table.log.ttl": "1ms", **IN_A_SECOND})
        lake_table.write([0], 0)
        turn = 0

        def write() -> None:
            nonlocal turn
            while not ended.is_set():
                turn += 1
                lake_table.write(list(range(turn * 20, turn * 20 + 40)), turn)
                engine.engine.expire()

        writer = threading.Thread(target=write)
        writer.start()
        bounds = []
        try:
            for number in range(8):
                time.sleep(0.7)
                first = len(lake_table.written)
                back_up(engine.engine, tmp_path / f"{number}.tar.lz4")
                bounds.append((first, len(lake_table.written) + 1))
        finally:
            ended.set()
            writer.join()
    tiered = []
    for number, (first, last) in enumerate(bounds):
        new = restored(tmp_path / f"{number}.tar.lz4", tmp_path / str(number))
        copied = LakeTable(lake_table.cluster, kind, kind)
        with EmbeddedFluss(new, port=0, options=BY_HAND) as again:
            at(again, copied)
            found = fluss.read_fluss(kind, connection=again.address)
            # buckets are copied one after another: of the writes meanwhile there are some
            assert found.height == len(found.unique(["id", "name"]))
            copied.written = lake_table.written[:first]
            sure = copied.expected()
            copied.written = lake_table.written[:last]
            if copied.keyed:
                assert set(sure["id"]) <= set(found["id"]) <= set(copied.expected()["id"])
            else:
                keys = ["id", "name"]
                assert sure.join(found, on=keys, how="anti").is_empty()
                assert found.join(copied.expected(), on=keys, how="anti").is_empty()
            with again.connection() as connection:
                try:
                    snapshot = connection.get_admin().get_latest_lake_snapshot(copied.path)
                    tiered.append(sum(snapshot.table_buckets_offset.values()))
                except FlussError:
                    tiered.append(0)
            # what is tiered from here on is neither lost nor there twice
            copied.write([10**6], 1)
            tier(again)
            after = fluss.read_fluss(kind, connection=again.address)
            lake = fluss.read_fluss(f"{kind}$lake", connection=again.address)
            assert after.height == lake.height == found.height + 1
    assert tiered[-1] > tiered[0] or len(set(tiered)) > 1, tiered


def test_a_table_that_is_dropped_and_made_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss_df.engine.upkeep import backup

    file = tmp_path / "b.tar.zst"
    with EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine:
        log, keys = table(engine, "log"), table(engine, "keys")
        log.write([1, 2], 1)
        keys.write([1, 2], 1)
        tier(engine)
        compact = engine.engine.cluster.compact

        def meanwhile() -> None:
            compact()
            with engine.connection() as connection:
                connection.get_admin().drop_table(log.path)
                connection.get_admin().drop_table(keys.path)
            again = table(engine, "log")
            again.write([7, 8, 9], 2)
            tier(engine)

        monkeypatch.setattr(engine.engine.cluster, "compact", meanwhile)
        back_up(engine.engine, file)
        monkeypatch.undo()
    assert backup.back_up is back_up
    new = tmp_path / "new"
    restore(file, new)
    assert check_folder(new).sound
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine, engine.connection() as connection:
        assert connection.get_admin().list_tables("fluss") == ["log"]
        log.written = []
        at(engine, log)
        assert fluss.read_fluss("log", connection=connection).is_empty()
        log.write([3], 1)
        assert tier(engine) == 1
        assert_reads(engine, log)


def test_a_lake_that_is_damaged_is_named_and_no_backup_is_made(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "b.tar.zst"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        tier(engine)
        [data, *_] = folder.glob("lake/warehouse/fluss/log/data/*")
        data.unlink()
        with pytest.raises(FlussError, match=rf"cannot back up .*fluss\.log.*{data.name}"):
            back_up(engine.engine, file)
        assert not file.exists()
        assert not list((folder / "lake").glob("copies-*"))


def changed(file: Path, to: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> Path:
    """Write an archive whose members are others."""
    with (
        pa.CompressedInputStream(pa.OSFile(str(file)), "zstd") as stream,
        tarfile.open(fileobj=io.BytesIO(stream.read())) as old,
        pa.OSFile(str(to), "w") as sink,
        pa.CompressedOutputStream(sink, "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|") as new,
    ):
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            for name, data in change(member.name, content.read()):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    return to


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    with EmbeddedFluss(folder / "folder", port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        tier(engine)
        back_up(engine.engine, folder / "b.tar.zst")
    return folder / "b.tar.zst"


@pytest.mark.parametrize(
    "name",
    [
        "lake/catalog.db",
        "lake/place",
        "lake/warehouse/../../x/y",
        "lake/warehouse/.hidden/x",
        "lake/warehouse/x",
        "lake/checksums/../x",
        "lake/tables.json/x",
        "lake//tables.json",
        "lake/warehouse/a/b\n",
    ],
)
def test_archives_with_other_files_are_refused(archive: Path, tmp_path: Path, name: str) -> None:
    def change(member: str, data: bytes) -> list[tuple[str, bytes]]:
        return [(member, data), *([(name, b"")] if member == "lake/tables.json" else [])]

    bad = changed(archive, tmp_path / "bad.tar.zst", change)
    with pytest.raises(FlussError, match="is no file of a backup"):
        restore(bad, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["location", "properties", "list", "name", "table"])
def test_an_archive_of_anothers_making_leads_nowhere_else(
    archive: Path, tmp_path: Path, what: str
) -> None:
    """The lake of it is refused, and nothing is written outside of the folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def change(member: str, data: bytes) -> list[tuple[str, bytes]]:
        if "/checksums/" in member:
            return []
        if member.endswith(".metadata.json") and what in ("location", "properties"):
            metadata = json.loads(data)
            if what == "location":
                metadata["location"] = f"file://{elsewhere}"
            else:
                metadata["properties"]["write.data.path"] = f"file://{elsewhere}/data"
            data = json.dumps(metadata).encode()
        if member == "lake/tables.json":
            [row] = json.loads(data)
            if what == "list":
                data = b"[1, 2"
            elif what == "name":
                row["name"] = "../log"
                data = json.dumps([row]).encode()
            elif what == "table":
                row["metadata"] = f"../../elsewhere/{row['metadata']}"
                data = json.dumps([row]).encode()
        return [(member, data)]

    new = tmp_path / "new"
    restore(changed(archive, tmp_path / "bad.tar.zst", change), new)
    assert not check_folder(new).sound
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        with pytest.raises(FlussError, match="the lake of the folder cannot be used"):
            fluss.read_fluss("log", connection=engine.address)
        assert fluss.read_fluss("log", connection=engine.address, lake=False).height == 10
        fluss.write_fluss(rows([1], 1), "log", connection=engine.address)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
@pytest.mark.parametrize("when", ["before the logs", "after the logs"])
def test_what_is_tiered_and_expires_meanwhile_does_not_come_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, when: str
) -> None:
    file = tmp_path / "b.tar.zst"
    small = EngineOptions(segment_bytes=1, lake_tiering=False)
    with EmbeddedFluss(tmp_path / "folder", port=0, options=small) as engine:
        lake_table = table(engine, kind, {"table.log.ttl": "1ms"})
        for version in range(1, 4):
            lake_table.write(list(range(20)), version)
        tier(engine)
        owner: Any = engine.engine
        name = "all_buckets"
        if when == "after the logs":
            owner, name = engine.engine.cluster, "compact"
        function = getattr(owner, name)
        found: list[int] = []

        def meanwhile() -> object:
            monkeypatch.undo()
            for version in range(4, 8):
                lake_table.write(list(range(20)), version)
            tier(engine)
            time.sleep(0.05)
            found.append(engine.engine.expire())
            return function()

        monkeypatch.setattr(owner, name, meanwhile)
        back_up(engine.engine, file)
        assert found == [0]
        assert engine.engine.expire() > 0
    new = restored(file, tmp_path / "new")
    if when == "after the logs":
        lake_table.written = lake_table.written[:3]
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
        lake_table.write([5, 50], 9)
        tier(engine)
        assert_reads(engine, lake_table)
    assert_elsewhere(new, lake_table)

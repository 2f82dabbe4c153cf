"""What ``check`` finds in the lake of a folder."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.files import files
from fluss_df.engine.files.files import TooManyFilesError
from fluss_df.engine.upkeep.check import Finding, check_folder
from fluss_df.errors import FlussError
from tests.lake.folders import BY_HAND, assert_reads, at, catalog, files_of, table, tier
from tests.lake.tiering.support import KINDS


def filled(folder: Path, *kinds: str) -> None:
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        for kind in kinds:
            lake_table = table(engine, kind)
            for version in (1, 2):
                lake_table.write(list(range(version * 50, version * 50 + 100)), version)
                tier(engine)


def damaged(folder: Path) -> list[Finding]:
    return [one for one in check_folder(folder).findings if one.level == "damage"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sound_is_counted_and_nothing_is_changed(tmp_path: Path, kind: str) -> None:
    filled(tmp_path / "folder", kind)
    before = files_of(tmp_path / "folder")
    report = check_folder(tmp_path / "folder")
    assert report.findings == []
    assert report.lake_files >= 4
    assert report.lake_bytes > 1000
    assert files_of(tmp_path / "folder") == before


@pytest.fixture(scope="module")
def two_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log and a primary-key table in its lake."""
    folder = tmp_path_factory.mktemp("lakes") / "folder"
    filled(folder, "log", "keys")
    return folder


def used(folder: Path) -> list[Path]:
    """Return the files that the newest snapshots need: each of them is read by check."""
    found = []
    for name in ("log", "keys"):
        lake = catalog(folder).load_table(("fluss", name))
        snapshot = lake.current_snapshot()
        assert snapshot is not None
        found += [lake.metadata_location, snapshot.manifest_list]
        for manifest in snapshot.manifests(lake.io):
            found.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(lake.io)
            found += [entry.data_file.file_path for entry in entries]
    return [Path(path.removeprefix("file://")) for path in found]


def test_a_file_that_cannot_be_opened_now_is_not_damaged(
    two_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = files._get

    def no_descriptors(path: Path) -> bytes:
        if path.suffix == ".avro":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return get(path)

    monkeypatch.setattr(files, "_get", no_descriptors)
    with pytest.raises(TooManyFilesError, match="ulimit -n"):
        check_folder(two_tables)


@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "empty"])
def test_each_file_that_is_damaged_is_named_with_its_table(two_tables: Path, how: str) -> None:
    choose = random.Random(how)
    files = used(two_tables)
    assert len(files) > 8
    for path in files:
        data = path.read_bytes()
        if how == "missing":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: choose.randrange(1, len(data))])
        elif how == "empty":
            path.write_bytes(b"")
        else:
            at, bit = choose.randrange(len(data)), 1 << choose.randrange(8)
            path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        found = damaged(two_tables)
        path.write_bytes(data)
        name = "fluss.keys" if "/fluss/keys/" in str(path) else "fluss.log"
        assert found, (how, path)
        assert [one.where for one in found] == [path]
        assert f"lake table {name}: " in found[0].message
    assert damaged(two_tables) == []


def test_files_without_checksums_are_read_and_get_them_when_opened(two_tables: Path) -> None:
    shutil.rmtree(two_tables / "lake/checksums")
    report = check_folder(two_tables)
    assert report.sound
    [note, other] = report.findings
    assert note.level == other.level == "note"
    assert "have no checksum yet" in note.message
    [path, *_] = [path for path in used_before(two_tables) if path.suffix == ".parquet"]
    data = path.read_bytes()
    path.write_bytes(data[:8] + bytes(len(data) - 16) + data[-8:])
    [found] = damaged(two_tables)
    assert found.where == path
    path.write_bytes(data)
    with EmbeddedFluss(two_tables, port=0, options=BY_HAND):
        pass
    assert check_folder(two_tables).findings == []


def used_before(folder: Path) -> list[Path]:
    return sorted(folder.glob("lake/warehouse/fluss/log/data/*"))


def test_a_checksum_that_is_damaged_is_none(two_tables: Path) -> None:
    sums = two_tables / "lake/checksums/fluss/log"
    data = sums.read_bytes()
    choose = random.Random(1)
    for _ in range(20):
        at = choose.randrange(len(data))
        sums.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert damaged(two_tables) == []
    sums.write_bytes(data[:-7])
    assert damaged(two_tables) == []
    with EmbeddedFluss(two_tables, port=0, options=BY_HAND):
        pass
    assert check_folder(two_tables).findings == []


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "other", "without"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_catalog_that_is_lost_or_damaged_is_made_again(
    tmp_path: Path, how: str, moved: bool
) -> None:
    folder = tmp_path / "folder"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        tables = [table(engine, kind) for kind in ("log", "partitioned_keys")]
        for version in (1, 2):
            for lake_table in tables:
                lake_table.write(list(range(version * 50, version * 50 + 100)), version)
            while any(one.tiered() != one.ends() for one in tables):
                tier(engine)
    # of a commit that came to nothing
    [newest, *_] = sorted(folder.glob("lake/warehouse/fluss/log/metadata/*.json"), reverse=True)
    newest.with_name(f"00099-{newest.name[6:]}").write_bytes(newest.read_bytes()[:300])
    path = folder / "lake/catalog.db"
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "other":
        path.write_bytes(b"no database at all" * 1000)
    else:
        database = sqlite3.connect(path)
        database.execute("DELETE FROM iceberg_tables WHERE table_name = 'log'")
        database.commit()
        database.close()
    if moved:
        folder = folder.rename(tmp_path / "moved")
    report = check_folder(folder)
    assert report.sound
    assert report.lake_files > 8
    assert str(folder / "lake/catalog.db") in {str(one.where) for one in report.findings}
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        for lake_table in tables:
            assert_reads(engine, at(engine, lake_table))
            lake_table.write([1, 2], 3)
        tier(engine)
        for lake_table in tables:
            assert_reads(engine, lake_table)
    assert check_folder(folder).findings == []
    kept = [one.name for one in folder.glob("lake/catalog.db.damaged-*")]
    assert len(kept) == (how in ("cut", "empty", "other"))


def test_a_catalog_and_metadata_that_are_lost_are_damage(two_tables: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(two_tables, folder)
    (folder / "lake/catalog.db").unlink()
    for file in folder.glob("lake/warehouse/fluss/log/metadata/*.json"):
        file.unlink()
    [found] = damaged(folder)
    assert "lake table fluss.log: it is not in the catalog, and no metadata" in found.message
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        with pytest.raises(FlussError, match=r"fluss\.log is not in its Iceberg catalog"):
            fluss.read_fluss("log", connection=engine.address)
        assert fluss.read_fluss("keys", connection=engine.address).height == 150


def test_a_moved_folder_is_sound_before_and_after_it_is_opened(
    two_tables: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(two_tables, folder)
    report = check_folder(folder)
    assert report.sound
    assert {one.message.rpartition("; ")[2] for one in report.findings} == {
        "made right when opened"
    }
    with EmbeddedFluss(folder, port=0, options=BY_HAND):
        pass
    assert check_folder(folder).findings == []


def test_a_lake_table_that_was_put_back_from_before_is_found(tmp_path: Path) -> None:
    folder, old = tmp_path / "folder", tmp_path / "old"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        tier(engine)
        shutil.copytree(folder / "lake", old)
        lake_table.write(list(range(10)), 2)
        tier(engine)
    shutil.rmtree(folder / "lake")
    old.rename(folder / "lake")
    [found] = damaged(folder)
    assert "it has no snapshot" in found.message

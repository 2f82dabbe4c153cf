"""The lake of a folder where something fails: what is said, and what goes on."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, folder_lake, lake_sums
from fluss_df.embedded.folder_lake import FolderLake
from fluss_df.embedded.lake_copy import copied_tables
from fluss_df.embedded.lake_rows import CATALOG, CATALOG_FILE, catalog_rows
from fluss_df.embedded.lake_summing import LakeSumming
from fluss_df.embedded.lake_sums import Sum, Sums, add_sums
from fluss_df.engine.files.files import DamagedError
from fluss_df.engine.lake.lake_tables import PinnedTable
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from fluss_df.lake import TieringService
from fluss_df.lake.offsets import OFFSETS_PROPERTY
from tests.lake.folders import BY_HAND, assert_reads, at, catalog, table, tier, tiering_threads

LOG = fluss.TablePath("fluss", "log")
MORE = pa.schema([("word", pa.string())])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose lake has a table of two snapshots, with checksums."""
    folder = tmp_path_factory.mktemp("errors") / "d"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log", {"table.datalake.freshness": "1ms"})
        for version in range(2):
            lake_table.write(list(range(20)), version)
            tier(engine)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy, which a test may damage, at a place that its files know."""
    copy = tmp_path / "d"
    shutil.copytree(whole, copy)
    with EmbeddedFluss(copy, options=BY_HAND):
        pass  # it is made right where it is
    return copy


def pinned(snapshot: int | None = None, path: fluss.TablePath = LOG) -> list[PinnedTable]:
    return [PinnedTable(7, path, snapshot)]


def metadata_of(folder: Path) -> Path:
    place = catalog_rows(folder / "lake" / CATALOG_FILE)[(CATALOG, "fluss", "log")]
    return Path(place.removeprefix("file://"))


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def left(folder: Path) -> list[Path]:
    return list((folder / "lake").glob("copies-*"))


# ---- copies for a backup


def test_a_table_that_is_not_in_the_catalog_is_said_or_left_out(folder: Path) -> None:
    nope = pinned(path=fluss.TablePath("fluss", "nope"))
    said = pytest.raises(DamagedError, match=r"lake table fluss\.nope: it is not in the catalog")
    with said, copied_tables(folder / "lake", nope, lambda number: True):
        pass
    # it was dropped meanwhile
    with copied_tables(folder / "lake", nope, lambda number: False) as found:
        assert found == {}
    assert left(folder) == []


@pytest.mark.parametrize(
    ("damage", "snapshot", "message"),
    [
        (lambda file: None, 17, "it has no snapshot 17, which Fluss reads"),
        (Path.unlink, None, r"No such file .*metadata\.json"),
        (lambda file: file.write_text("{"), None, "metadata"),
        (lambda file: changed(file, **{"format-version": 1}), None, "is not one that the embedded"),
    ],
    ids=["snapshot", "missing", "damaged", "format"],
)
def test_a_lake_table_that_cannot_be_copied_is_named(
    folder: Path, damage: Any, snapshot: int | None, message: str
) -> None:
    damage(metadata_of(folder))
    said = pytest.raises(DamagedError, match=rf"lake table fluss\.log: .*{message}")
    with said, copied_tables(folder / "lake", pinned(snapshot), lambda number: True):
        pass
    assert left(folder) == []


def test_statistics_in_the_lake_are_copied_and_others_are_not(folder: Path) -> None:
    file = metadata_of(folder)
    snapshots = json.loads(file.read_text())["snapshots"]
    newest = max(snapshots, key=lambda one: one["timestamp-ms"])["snapshot-id"]
    here = file.with_name("of-all.puffin")
    here.write_bytes(b"statistics")
    paths = [f"file://{here}", "s3://elsewhere/other.puffin"]
    changed(file, statistics=[{"snapshot-id": newest, "statistics-path": one} for one in paths])
    with copied_tables(folder / "lake", pinned(newest), lambda number: True) as found:
        names = {Path(name).name: copy for name, copy in found[7].files.items()}
        assert names["of-all.puffin"].read_bytes() == b"statistics"
        assert "other.puffin" not in names


def test_where_there_are_no_links_files_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(old: Path, new: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    with copied_tables(folder / "lake", pinned(), lambda number: True) as found:
        assert found[7].files
        for name, copy in found[7].files.items():
            assert copy.read_bytes() == (folder / "lake" / name).read_bytes()
            assert copy.stat().st_nlink == 1


@pytest.mark.parametrize("call", ["os.link", "pathlib.Path.mkdir", "tempfile.mkdtemp"])
def test_a_full_disk_leaves_no_copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It is named: that of the backup may have room."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(call, full)
        said = pytest.raises(
            FlussError, match=rf"No space left.* The disk of {folder}/lake is full"
        )
        with said, copied_tables(folder / "lake", pinned(), lambda number: True):
            pass
    assert left(folder) == []


def test_a_disk_of_the_lake_that_is_full_is_no_full_disk_of_the_backup(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def full(old: Any, new: Any) -> None:
        if "copies-" in str(new):
            raise OSError(errno.ENOSPC, "No space left on device")
        link(old, new)

    (tmp_path / "backups").mkdir()
    with EmbeddedFluss(folder, options=BY_HAND) as engine, monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(FlussError, match=rf"The disk of {folder}/lake is full") as caught:
            back_up(engine.engine, tmp_path / "backups" / "b.tar.zst")
    assert not caught.value.is_retriable
    assert "backups" not in str(caught.value)
    assert list((tmp_path / "backups").iterdir()) == []


# ---- the lake when its folder is opened


def test_copies_of_a_backup_that_was_killed_are_removed(folder: Path) -> None:
    (folder / "lake" / "copies-1" / "7").mkdir(parents=True)
    with EmbeddedFluss(folder, options=BY_HAND):
        assert left(folder) == []


def test_columns_that_cannot_be_put_right_keep_no_folder_shut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "lake" / folder_lake._ALTERING).write_text("fluss.log")

    def refuse(*_: object) -> None:
        raise FlussError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(FolderLake, "_match", refuse)
        with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
            assert fluss.read_fluss("log", connection=engine.address).height == 40
    assert "has other columns than its table: no such luck" in caplog.text
    # and the next time it is
    with EmbeddedFluss(folder, options=BY_HAND):
        assert not (folder / "lake" / folder_lake._ALTERING).exists()


def test_a_lake_table_that_cannot_be_made_keeps_no_folder_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedFluss(tmp_path / "d", port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
    catalog(tmp_path / "d").drop_table(("fluss", "log"))

    def refuse(*_: object) -> None:
        raise FlussError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(FolderLake, "create", refuse)
        with EmbeddedFluss(tmp_path / "d", options=BY_HAND):
            pass
    assert "the lake table of fluss.log cannot be made: no such luck" in caplog.text
    with EmbeddedFluss(tmp_path / "d", port=0, options=BY_HAND) as engine:
        at(engine, lake_table).write([1, 2], 1)
        assert tier(engine) == 2
        assert_reads(engine, lake_table)


@pytest.mark.parametrize(
    "name", [("fluss", "../../../mine"), ("..", "mine"), ("/", "mine"), ("fluss", "."), ("x", "")]
)
def test_names_and_links_that_lead_out_of_the_lake_are_not_followed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: tuple[str, str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    (folder / "lake" / "warehouse" / "x").symlink_to(tmp_path)
    lake = FolderLake(folder, "nowhere:1")
    before = set(tmp_path.rglob("*"))
    descriptor = fluss.TableDescriptor(fluss.Schema(MORE), bucket_count=1)
    for path in (fluss.TablePath(*name), fluss.TablePath("x", "mine")):
        with pytest.raises(FlussError, match="the files of its lake table would be at"):
            lake.create(path, descriptor)
        lake.drop(path)
        assert f"the lake table of {path} could not be removed" in caplog.text
    lake.close()
    assert set(tmp_path.rglob("*")) == before


def test_a_tiering_that_ends_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail(self: TieringService) -> None:
        ran.set()
        raise ValueError("no such luck")

    monkeypatch.setattr(TieringService, "run", fail)
    others = tiering_threads()
    with EmbeddedFluss(tmp_path / "d", port=0) as engine:
        table(engine, "log").write([1], 1)
        assert ran.wait(30)
        for thread in tiering_threads() - others:
            thread.join(30)
        assert fluss.read_fluss("log", connection=engine.address).height == 1
    assert "the tiering of" in caplog.text
    assert "no such luck" in caplog.text


# ---- checks


def findings(folder: Path) -> list[str]:
    return [f"{one.level}: {one.message}" for one in check_folder(folder).findings]


def relocated(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "lake" / CATALOG_FILE)) as database:
        place = "file:///elsewhere/1.metadata.json"
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", [place])
        database.commit()


def without_sums(folder: Path) -> list[Path]:
    shutil.rmtree(folder / "lake" / "checksums")
    files = sorted((folder / "lake").rglob("*.parquet"))
    assert files
    return files


def no_parquet(folder: Path) -> None:
    for file in without_sums(folder):
        file.write_bytes(b"none" + file.read_bytes()[4:])


def zeroed(folder: Path) -> None:
    for file in without_sums(folder):
        data = file.read_bytes()
        file.write_bytes(data[:4] + bytes(len(data) - 12) + data[-8:])


def no_lists(folder: Path) -> None:
    """Have the metadata name no files, but something else."""
    file = metadata_of(folder)
    snapshots = json.loads(file.read_text())["snapshots"]
    changed(file, snapshots=[{**one, "snapshot-id": [one["snapshot-id"]]} for one in snapshots])
    without_sums(folder)


def other_offsets(folder: Path) -> None:
    file = metadata_of(folder)
    text = file.read_text()
    assert OFFSETS_PROPERTY in text
    snapshots = json.loads(text)["snapshots"]
    for one in snapshots:
        one["summary"][OFFSETS_PROPERTY] = "{}"
    changed(file, snapshots=snapshots)
    without_sums(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (relocated, "its metadata is not in the lake: file:///elsewhere/1.metadata.json"),
        (no_parquet, "the file is not Parquet"),
        (zeroed, "bytes is damaged"),
        (no_lists, "cannot be read: TypeError"),
        (other_offsets, "has the offsets {}, and Fluss {"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_a_lake_is_found(folder: Path, damage: Any, message: str) -> None:
    assert findings(folder) == []
    damage(folder)
    found = [one for one in findings(folder) if one.startswith("damage")]
    assert found
    assert any(message in one for one in found), found
    assert all("fluss.log" in one for one in found)


# ---- checksums


def test_names_that_are_no_files_have_no_checksums(tmp_path: Path) -> None:
    for name in (("../x", "t"), ("db", "a/b")):
        sums = Sums.of(tmp_path, *name)
        assert sums.path is None
        sums.add({"x": Sum(1, 2)}, {3})
        sums.write({"x": Sum(1, 2)})
        lake_sums.forget_sums(tmp_path, *name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_gone_is_forgotten_once_it_is_much(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    sums = Sums.of(tmp_path, "db", "t")
    sums.add({"there": Sum(1, 1), "gone": Sum(2, 2)}, {1, 2})
    sums.forget_expired(tmp_path, {2})
    assert set(Sums.of(tmp_path, "db", "t").files) == {"there", "gone"}
    many = set(range(10, 10 + lake_sums._EXPIRED))
    sums.add({}, many)
    sums.forget_expired(tmp_path, {2})
    again = Sums.of(tmp_path, "db", "t")
    assert set(again.files) == {"there"}
    assert again.snapshots == {2}


def test_a_file_of_another_size_gets_no_checksum(folder: Path) -> None:
    for file in without_sums(folder):
        with file.open("ab") as stream:
            stream.write(b"more")
    sums = Sums.of(folder / "lake", "fluss", "log")
    with pytest.raises(DamagedError, match=r"\.parquet has [\d,]+ bytes and not [\d,]+"):
        add_sums(folder / "lake", sums, str(metadata_of(folder)), lambda: False)
    assert sums.snapshots == set()


def test_who_ends_leaves_the_rest_for_later(folder: Path) -> None:
    without_sums(folder)
    lake, place = folder / "lake", str(metadata_of(folder))
    asked = iter([False, True])
    sums = Sums.of(lake, "fluss", "log")
    add_sums(lake, sums, place, lambda: next(asked))
    assert sums.snapshots == set()
    add_sums(lake, sums, place, lambda: False)
    assert len(Sums.of(lake, "fluss", "log").snapshots) == 2
    # what is elsewhere is not this lake's
    before = len(sums.files)
    add_sums(lake, sums, "/elsewhere/1.metadata.json", lambda: False)
    assert len(sums.files) == before


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError("gone"), ""),
        (ValueError("no such luck"), "lake table fluss.log has no checksums: no such luck"),
    ],
    ids=["dropped", "damaged"],
)
def test_a_table_without_checksums_keeps_no_other_from_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    told: str,
) -> None:
    made: list[fluss.TablePath] = []
    done = threading.Event()

    def make(self: LakeSumming, path: fluss.TablePath) -> None:
        made.append(path)
        if path == LOG:
            raise error
        done.set()

    monkeypatch.setattr(LakeSumming, "_make", make)
    sums = LakeSumming(tmp_path, CATALOG)
    other = fluss.TablePath("fluss", "other")
    with caplog.at_level(logging.WARNING):
        for path in (LOG, other):
            sums.add(path)
        assert done.wait(30)
        sums.close()
    sums.add(LOG)  # too late, and not begun again
    assert made == [LOG, other]
    assert [record.getMessage() for record in caplog.records] == ([told] if told else [])

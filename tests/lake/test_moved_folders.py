"""Folders with a lake that were moved, copied, or linked to."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, lake_paths
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from tests.lake.folders import (
    BY_HAND,
    MODULES,
    assert_elsewhere,
    assert_reads,
    at,
    catalog,
    files_of,
    rows_elsewhere,
    table,
    tier,
)
from tests.lake.tiering.support import KINDS, LakeTable
from tests.programs import command


def filled(folder: Path, kind: str) -> LakeTable:
    """Make a table that is tiered in part, by two snapshots."""
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, kind)
        for version in (1, 2):
            lake_table.write(list(range(version * 50, version * 50 + 100)), version)
            tier(engine)
        lake_table.write([1, 2, 3], 3)
    return lake_table


def assert_all(folder: Path, lake_table: LakeTable) -> None:
    """Read, write, tier, and read by other tools."""
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        at(engine, lake_table)
        assert_reads(engine, lake_table)
        lake_table.write([5, 6, 150], 4)
        assert tier(engine)
        assert_reads(engine, lake_table)
    assert_elsewhere(folder, lake_table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_folder_is_read_and_tiered_where_it_is(tmp_path: Path, kind: str) -> None:
    old, new, third = tmp_path / "old", tmp_path / "new", tmp_path / "deep/er/third"
    lake_table = filled(old, kind)
    old.rename(new)
    assert_all(new, lake_table)
    assert not old.exists()
    third.parent.mkdir(parents=True)
    new.rename(third)
    assert_all(third, lake_table)
    third.rename(old)
    assert_all(old, lake_table)
    for data in files_of(old).values():
        assert os.fsencode(new) not in data
        assert os.fsencode(third) not in data


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_snapshots_of_before_are_still_there(tmp_path: Path, kind: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lake_table = filled(old, kind)
    before = catalog(old).load_table(("fluss", kind))
    counts = {
        one.snapshot_id: len(before.scan(snapshot_id=one.snapshot_id).to_arrow())
        for one in before.snapshots()
    }
    assert len(counts) == 2
    old.rename(new)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
    after = catalog(new).load_table(("fluss", kind))
    assert counts == {number: len(after.scan(snapshot_id=number).to_arrow()) for number in counts}
    assert after.metadata.table_uuid == before.metadata.table_uuid


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_copy_and_its_original_go_their_own_ways(tmp_path: Path, kind: str) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    lake_table = filled(one, kind)
    shutil.copytree(one, other)
    before = files_of(one)
    copied = LakeTable(lake_table.cluster, kind, kind, {}, list(lake_table.written))
    assert_all(other, copied)
    assert files_of(one) == before
    with EmbeddedFluss(other, port=0, options=BY_HAND) as engine, engine.connection() as opened:
        opened.get_admin().drop_table(lake_table.path)
    assert files_of(one) == before
    assert_all(one, lake_table)


def test_a_copy_by_hard_links_changes_nothing_of_its_original(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    lake_table = filled(one, "log")
    shutil.copytree(one, other)
    shutil.rmtree(other / "lake")
    shutil.copytree(one / "lake", other / "lake", copy_function=os.link)
    before = files_of(one)
    copied = LakeTable(lake_table.cluster, "log", "log", {}, list(lake_table.written))
    assert_all(other, copied)
    assert files_of(one) == before


def test_links_to_a_folder_are_one_place(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    lake_table = filled(link, "log")
    before = files_of(real)
    with EmbeddedFluss(real, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
    assert files_of(real) == before


def test_a_lake_on_another_disk_moves_with_its_folder_and_belongs_to_one(tmp_path: Path) -> None:
    folder, disk, copy = tmp_path / "folder", tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    with EmbeddedFluss(folder):
        pass
    (folder / "lake").symlink_to(disk)
    lake_table = filled(folder, "log")
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert_all(moved, lake_table)
    shutil.copytree(moved, copy, symlinks=True)
    before = files_of(moved)
    with EmbeddedFluss(copy, port=0, options=BY_HAND) as engine:
        at(engine, lake_table)
        with pytest.raises(FlussError, match="lake is a link to the lake of"):
            fluss.read_fluss("log", connection=engine.address)
        assert fluss.read_fluss("log", connection=engine.address, lake=False).height
        with pytest.raises(FlussError, match="lake is a link to the lake of"):
            table(engine, "keys")
    assert files_of(moved) == before
    (copy / "lake").unlink()
    shutil.copytree(disk, copy / "lake")
    copied = LakeTable(lake_table.cluster, "log", "log", {}, list(lake_table.written))
    assert_all(copy, copied)
    assert files_of(moved) == before


def test_what_is_missing_is_named_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lake_table = filled(old, "log")
    [manifest, *_] = sorted(old.glob("lake/warehouse/fluss/log/metadata/*-m0.avro"))
    data = manifest.read_bytes()
    manifest.unlink()
    old.rename(new)
    lost = new / manifest.relative_to(old)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        at(engine, lake_table)
        missing = rf"fluss\.log.*{manifest.name} is missing.*lake=False"
        with pytest.raises(FlussError, match=missing):
            fluss.read_fluss("log", connection=engine.address)
        assert fluss.read_fluss("log", connection=engine.address, lake=False).height
    lost.write_bytes(data[:-40])
    cut = rf"{manifest.name} is damaged: its checksum differs"
    with (
        EmbeddedFluss(new, port=0, options=BY_HAND) as engine,
        pytest.raises(FlussError, match=cut),
    ):
        fluss.read_fluss("log", connection=engine.address)
    lost.write_bytes(data)
    assert_all(new, lake_table)


def test_a_table_whose_lake_is_damaged_can_be_dropped_after_a_move(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lake_table = filled(old, "log")
    keyed = filled(old, "keys")
    for file in old.glob("lake/warehouse/fluss/log/metadata/snap-*"):
        file.unlink()
    shutil.copytree(old, new)
    before = files_of(old)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        with pytest.raises(FlussError, match=r"fluss\.log.* is missing"):
            fluss.read_fluss("log", connection=engine.address)
        # the others are read and tiered
        assert_reads(engine, at(engine, keyed))
        keyed.write([7, 8, 400], 5)
        assert tier(engine) == 6
        assert_reads(engine, keyed)
        with engine.connection() as connection:
            connection.get_admin().drop_table(lake_table.path)
        assert not (new / "lake/warehouse/fluss/log").exists()
        table(engine, "log").write([1], 1)
        assert tier(engine) == 1
        assert_reads(engine, keyed)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, keyed))
    assert_elsewhere(new, keyed)
    assert files_of(old) == before


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_damaged_table_stays_out_until_its_file_is_put_back(tmp_path: Path, kind: str) -> None:
    old, new, third = tmp_path / "old", tmp_path / "new", tmp_path / "third"
    lake_table = filled(old, kind)
    sound = filled(old, "bucketed")
    [manifest, *_] = sorted(old.glob(f"lake/warehouse/fluss/{kind}/metadata/*-m0.avro"))
    data = manifest.read_bytes()
    shutil.copytree(old, new)
    before = files_of(old)
    (new / manifest.relative_to(old)).write_bytes(data[:-3])
    for _ in range(2):
        with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
            assert_reads(engine, at(engine, sound))
            at(engine, lake_table).write([2, 300], 5)
            # neither reads nor rounds go to the files of the other folder
            with pytest.raises(FlussError, match=rf"fluss\.{kind}.*{manifest.name}"):
                fluss.read_fluss(kind, connection=engine.address)
            sound.write([3], 6)
            assert tier(engine)
            assert_reads(engine, sound)
            with engine.connection() as connection:
                admin = connection.get_admin()
                with pytest.raises(FlussError, match="its lake cannot be used"):
                    admin.alter_table(
                        lake_table.path, add_columns=pa.schema([("word", pa.string())])
                    )
        assert files_of(old) == before
    new.rename(third)
    with EmbeddedFluss(third, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, sound))
    (third / manifest.relative_to(old)).write_bytes(data)
    assert_all(third, lake_table)
    assert_all(third, sound)
    assert files_of(old) == before


@pytest.mark.parametrize("part", ["*snap-*", "*.metadata.json"])
def test_what_is_damaged_after_a_move_keeps_no_other_table_out(tmp_path: Path, part: str) -> None:
    """While a table could not be moved, the others are looked through each time."""
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, "log")
    filled(old, "keys")
    sound = filled(old, "bucketed")
    for file in old.glob("lake/warehouse/fluss/log/metadata/snap-*"):
        file.unlink()
    old.rename(new)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, sound))
    folder = new / "lake/warehouse/fluss/keys/metadata"
    for file in folder.glob(part):
        file.write_bytes(file.read_bytes()[:-20])
    before = {name: data for name, data in files_of(new).items() if "/keys/metadata/" in name}
    assert before
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, sound))
        sound.write([5, 6], 4)
        for use in (tier, lambda engine: fluss.read_fluss("keys", connection=engine.address)):
            with pytest.raises((FlussError, ValueError), match=r"fluss[./]keys"):
                use(engine)
        assert_reads(engine, sound)
    assert before.items() <= files_of(new).items()


def delete_by_position(folder: Path, name: str) -> None:
    """Have the newest snapshot delete the first two rows of a file, as Flink's service may."""
    lake = catalog(folder).load_table(("fluss", name))
    snapshot = lake.current_snapshot()
    assert snapshot is not None
    listed = Path(snapshot.manifest_list.removeprefix("file://"))
    manifest = snapshot.manifests(lake.io)[0]
    [entry, *_] = manifest.fetch_manifest_entry(lake.io)
    deleted_in = entry.data_file.file_path
    file = Path(deleted_in.removeprefix("file://")).with_name("deletes.parquet")
    ids = {"file_path": lake_paths.DELETED_IN, "pos": 2147483545}
    schema = pa.schema(
        [
            pa.field(name, kind, False, {"PARQUET:field_id": str(ids[name])})
            for name, kind in (("file_path", pa.string()), ("pos", pa.int64()))
        ]
    )
    pq.write_table(pa.table([[deleted_in] * 2, [0, 1]], schema=schema), file)
    path = Path(manifest.manifest_path.removeprefix("file://"))
    rows = lake_paths.AvroRows.read(path.read_bytes(), path.name)
    fields = {field.name: at for at, field in enumerate(rows.file_fields())}
    at = rows.places(lake_paths.DATA_FILE)[lake_paths.DATA_FILE]
    del rows.rows[1:]
    said = rows.rows[0][at]
    said[fields["content"]] = lake_paths.POSITION_DELETES
    said[fields["file_path"]] = f"file://{file}"
    said[fields["file_size_in_bytes"]] = file.stat().st_size
    said[fields["record_count"]] = 2
    for bound in ("lower_bounds", "upper_bounds"):
        said[fields[bound]] = {lake_paths.DELETED_IN: deleted_in.encode()}
    rows.header["content"] = "deletes"
    made = path.with_name("deletes-m0.avro")
    made.write_bytes(rows.written("manifest_entry"))
    lists = lake_paths.AvroRows.read(listed.read_bytes(), listed.name)
    names = {field.name: place for place, field in enumerate(lists.schema.fields)}
    [of] = [row for row in lists.rows if row[0] == manifest.manifest_path]
    new = copy.deepcopy(of)
    new[names["manifest_path"]] = f"file://{made}"
    new[names["manifest_length"]] = made.stat().st_size
    new[names["content"]] = 1
    lists.rows.append(new)
    listed.write_bytes(lists.written("manifest_file"))
    shutil.rmtree(folder / "lake/checksums")


def test_positions_of_deleted_rows_name_the_files_where_they_are(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, "log")
    delete_by_position(old, "log")
    before = [len(frame) for frame in rows_elsewhere(old, "log")]
    assert before == [198] * 3
    old.rename(new)
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        lake = fluss.read_fluss("log$lake", connection=engine.address)
        assert lake.height == 198
    assert [len(frame) for frame in rows_elsewhere(new, "log")] == before
    for name, data in files_of(new).items():
        assert os.fsencode(old) not in data, name
    assert not (new / "lake/warehouse/fluss/log/data/deletes.parquet").exists()
    assert check_folder(new).findings == []


def test_two_names_of_one_lake_table_keep_their_files(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lake_table = filled(old, "log")
    lake = catalog(old)
    at_first = lake.load_table("fluss.log").metadata.metadata_log[-1].metadata_file
    lake.register_table("fluss.other", at_first)
    before = lake.load_table("fluss.other").scan().count()
    assert 0 < before < lake.load_table("fluss.log").scan().count()
    lake.close()
    old.rename(new)
    assert_all(new, lake_table)
    assert catalog(new).load_table("fluss.other").scan().count() == before


KILLED = """
import os, signal, sys
from fluss_df.embedded import EmbeddedFluss, EngineOptions, lake_move, lake_rows
turn = int(sys.argv[2])
calls = 0
def dying(function):
    def call(*args, **options):
        global calls
        calls += 1
        if calls == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return call
for name in ("sync_file", "sync_folder", "_replace_catalog", "_move_namespaces"):
    setattr(lake_move, name, dying(getattr(lake_move, name)))
for name in ("sync_file", "sync_folder"):
    setattr(lake_rows, name, dying(getattr(lake_rows, name)))
lake_move._Move._write = dying(lake_move._Move._write)
lake_move._Move.clean = dying(lake_move._Move.clean)
lake_move.os.replace = dying(os.replace)
with EmbeddedFluss(sys.argv[1], port=0, options=EngineOptions(lake_tiering=False)):
    print("right")
"""


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_a_move_that_is_killed_at_any_step_is_made_again(tmp_path: Path, kind: str) -> None:
    old = tmp_path / "old"
    lake_table = filled(old, kind)
    turn, ended = 1, False
    while not ended:
        new = tmp_path / f"new-{turn}"
        shutil.copytree(old, new)
        done = subprocess.run(
            [*command(preload=MODULES), "-c", KILLED, str(new), str(turn)],
            capture_output=True,
            text=True,
        )
        ended = done.stdout == "right\n"
        assert ended or done.returncode == -signal.SIGKILL, done.stderr
        # and the place where it is opened next is another one
        later = new if turn % 2 else new.rename(tmp_path / f"later-{turn}")
        copied = LakeTable(lake_table.cluster, kind, kind, {}, list(lake_table.written))
        with EmbeddedFluss(later, port=0, options=BY_HAND) as engine:
            assert_reads(engine, at(engine, copied))
        for data in files_of(later).values():
            assert os.fsencode(old) not in data
        shutil.rmtree(later)
        turn += 5
    assert turn > 20

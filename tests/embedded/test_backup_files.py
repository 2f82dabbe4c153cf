"""The files of backups: several at once to one name, links in their place, failures."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, Security
from fluss_df.engine.upkeep import backup, backup_parts
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    path = fluss.TablePath("fluss", "t")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        connection.get_admin().create_table(path, descriptor)
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"n": range(50_000)}, schema=SCHEMA))
        yield engine


@pytest.mark.parametrize("fails", [True, False])
def test_two_at_once_to_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: EmbeddedFluss, fails: bool
) -> None:
    """What was said to be written can be restored, whatever becomes of the other one."""
    folder = tmp_path / "backups"
    folder.mkdir()
    file = folder / "b.tar.zst"
    written, begun = threading.Event(), threading.Event()
    real = backup._write

    def second(*given: object) -> None:
        # its file is open, while the first one is completed
        begun.set()
        assert written.wait(30)
        if fails:
            raise FlussError("a bucket is damaged")
        real(*given)  # type: ignore[arg-type]

    def first(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        monkeypatch.setattr(backup, "_write", second)
        other.start()
        assert begun.wait(30)

    said: list[object] = []

    def run() -> None:
        try:
            said.append(back_up(served.engine, file))
        except FlussError as error:
            said.append(error)

    other = threading.Thread(target=run)
    monkeypatch.setattr(backup, "_write", first)
    try:
        size = back_up(served.engine, file)
        assert file.stat().st_size == size
        restore(file, tmp_path / "first")
    finally:
        written.set()
        other.join()
    assert isinstance(said[0], FlussError if fails else int)
    assert [path.name for path in folder.iterdir()] == ["b.tar.zst"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restore(file, tmp_path / "last")


CATALOG = ["databases", "acls", "cluster", "table-0"]


@pytest.mark.parametrize("part", CATALOG)
def test_a_damaged_file_of_the_catalog_is_taken_from_its_copy(tmp_path: Path, part: str) -> None:
    folder, file = tmp_path / "d", tmp_path / "b.tar.zst"
    path = fluss.TablePath("fluss", "t")
    right = fluss.AclBinding.allow(
        "alice", fluss.OperationType.READ, fluss.Resource.database("fluss")
    )
    with EmbeddedFluss(folder, security=Security(authorizer_enabled=True)) as engine:
        with engine.connection() as connection:
            admin = connection.get_admin()
            admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
            admin.create_acls([right])
            bucket = fluss.TableBucket(admin.get_table_info(path).table_id, 0)
            admin.register_producer_offsets("p", {bucket: 0})
        back_up(engine.engine, file)
        sound = members(file)
        assert {f"catalog/{name}.json" for name in CATALOG} <= sound.keys()
        damaged = folder / "catalog" / f"{part}.json"
        data = bytearray(damaged.read_bytes())
        data[30] ^= 1
        damaged.write_bytes(data)
        back_up(engine.engine, file)
        assert members(file) == sound
        restore(file, tmp_path / "restored")
        copy = folder / "data" / f"{part}.json"
        if part == "table-0":
            copy = folder / "data" / "0" / "table.json"
        # and where neither is sound, there is no backup that could not be restored
        copy.write_bytes(data)
        file.unlink()
        with pytest.raises(FlussError, match=rf"{part}\.json"):
            back_up(engine.engine, file)
        if part in ("databases", "table-0"):
            damaged.unlink()
            copy.unlink()
            with pytest.raises(FlussError, match=rf"{part}\.json and its copy .* are missing"):
                back_up(engine.engine, file)
        assert not file.exists()
        for place in (damaged, copy):
            place.write_bytes(sound[f"catalog/{part}.json"])


def members(file: Path) -> dict[str, bytes]:
    found = {}
    with (
        pa.OSFile(str(file), "r") as stream,
        pa.CompressedInputStream(stream, "zstd") as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as archive,
    ):
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
    return found


def test_a_link_beside_the_backup(tmp_path: Path, served: EmbeddedFluss) -> None:
    """Whoever may write to the folder of backups leads none to another file."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "b.tar.zst.part").symlink_to(tmp_path / "mine")
    back_up(served.engine, tmp_path / "b.tar.zst")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "b.tar.zst.part").is_symlink()
    restore(tmp_path / "b.tar.zst", tmp_path / "again")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_a_file_that_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: EmbeddedFluss, error: BaseException
) -> None:
    """It is removed, and the older backup and the part of another one stay."""
    folder = tmp_path / "backups"
    folder.mkdir()
    for name in ("b.tar.zst", "b.tar.zst.part"):
        (folder / name).write_text("older")

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(backup, "_write", fail)
    with pytest.raises((KeyboardInterrupt, FlussError)):
        back_up(served.engine, folder / "b.tar.zst")
    assert sorted(path.name for path in folder.iterdir()) == ["b.tar.zst", "b.tar.zst.part"]
    assert {path.read_text() for path in folder.iterdir()} == {"older"}


# ---- what a backup leaves that is killed


CHILD = """
import os, signal, sys
from pathlib import Path
from typing import Any
from fluss_df.engine.upkeep.backup_parts import part_file
with part_file(Path(sys.argv[1])) as part:
    part.write_bytes(bytes.fromhex("28b52ffd"))
    print(part, flush=True)
    sys.stdin.read()
"""


def test_parts_of_killed_backups_are_removed(tmp_path: Path, served: EmbeddedFluss) -> None:
    """Not those of processes that live, nor what only looks like one."""
    folder = tmp_path / "backups"
    folder.mkdir()
    others = {
        "fluss-df-backup-locked-abcd1234.part": b"a user's own",
        "fluss-df-backup-abcd1234.part": b"\x28\xb5\x2f\xfd of an earlier version",
        "fluss-df-backup-locked-abcd1234.part.txt": b"",
        "b.tar.zst": b"\x28\xb5\x2f\xfd",
    }
    for name, data in others.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    shared = folder / "fluss-df-backup-locked-shared12.part"
    shared.write_bytes(b"")
    shared.chmod(0o644)
    (tmp_path / "mine").write_bytes(b"")
    (folder / "fluss-df-backup-locked-symlink1.part").symlink_to(tmp_path / "mine")
    os.mkfifo(folder / "fluss-df-backup-locked-fifo1234.part", 0o600)
    (folder / "fluss-df-backup-locked-folder12.part").mkdir(0o600)
    kept = {path.name for path in folder.iterdir()}
    command = [sys.executable, "-c", CHILD, str(folder)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        parts = []
        for child in children:
            assert child.stdout is not None
            parts.append(Path(child.stdout.readline().strip()))
        children[0].kill()
        children[0].wait()
        assert parts[0].exists()
        back_up(served.engine, folder / "c.tar.zst")
        assert not parts[0].exists()
        assert parts[1].exists()
        assert {path.name for path in folder.iterdir()} == kept | {parts[1].name, "c.tar.zst"}
        assert (tmp_path / "mine").exists()
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_a_part_that_is_taken_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another backup came in between: this one makes another file."""
    real = tempfile.mkstemp
    taken: list[str] = []

    def then_swept(**given: Any) -> tuple[int, str]:
        fd, name = real(**given)
        if not taken:
            taken.append(name)
            backup_parts.remove_left_parts(tmp_path)
        return fd, name

    monkeypatch.setattr(tempfile, "mkstemp", then_swept)
    with backup_parts.part_file(tmp_path) as part:
        assert not Path(taken[0]).exists()
        assert part.exists()
        backup_parts.remove_left_parts(tmp_path)
        assert part.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_disk_does_not_give_is_named() -> None:
    """The disk of the backup is another one."""
    path = Path("/proc/self/mem")  # its first bytes cannot be read
    with (
        path.open("rb", buffering=0) as stream,
        pytest.raises(FlussError, match=f"cannot read {path}"),
    ):
        backup._source(stream, path).read(1)

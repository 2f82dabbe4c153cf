"""Commits into Paimon that end amid their steps: what is on the disk after each, to the file."""

from __future__ import annotations

import builtins
import errno
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fluss_df.errors import FlussError
from fluss_df.lake.paimon.manifests import live_entries
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon_writing import commit as commits
from fluss_df.lake.paimon_writing.commit import latest_snapshot, newest_base, read_said
from fluss_df.lake.paimon_writing.files import discard
from fluss_df.lake.paimon_writing.upkeep import PaimonUpkeep
from fluss_df.lake.rounds.tasks import InThreads, WriteTask, Written
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, NotCommittedError
from tests.lake.test_paimon_compaction import compacted, fill, keyed, on_disk
from tests.lake.test_paimon_writing import Lake, some


def named(lake: Lake) -> set[Path]:
    """Return the data files and manifests that snapshots name."""
    upkeep = PaimonUpkeep(lake.options)
    partitions = Partitions(lake.table, lake.schema.lake)
    found: set[Path] = set()
    for number in commits.snapshot_numbers(lake.table):
        said = read_said(lake.table, number)
        found |= {Path(path) for path in upkeep._manifests(said)}
        for _, entry in live_entries(lake.table, said):
            found.add(Path(upkeep._path(partitions, entry)))
    return found


def assert_exact(lake: Lake) -> None:
    """All that snapshots name is there, and nothing else is."""
    files = {path for path in on_disk(lake) if path.parent.name not in ("schema", "snapshot")}
    assert files == named(lake)
    assert not list(lake.folder.rglob("*.tmp"))


def filled(folder: Path, kind: str) -> Lake:
    lake = keyed(folder) if kind == "keys" else Lake(folder)
    if kind == "keys":
        fill(lake)
    else:
        for number in range(8):
            lake.commit(lake.log(some(number, 1)))
    return lake


@pytest.mark.parametrize("when", ["linked", "synced"])
def test_an_interrupt_when_the_snapshot_is_there_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    lake = filled(tmp_path, "keys")
    place: Any = os if when == "linked" else commits
    name = "link" if when == "linked" else "sync_folder"
    real = getattr(place, name)

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        if when == "linked" or Path(arguments[0]).name == "snapshot":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            compacted(lake)
    assert latest_snapshot(lake.table) == 9
    assert lake.ids() == list(range(8))
    assert_exact(lake)


def test_an_interrupt_before_the_snapshot_is_there_leaves_no_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(tmp_path, "log")
    files = lake.log(some(8, 1))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commits, "_sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lake.commit(files)
    discard(files)
    assert_exact(lake)


def test_a_note_of_the_newest_snapshot_that_fails_is_no_failed_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)

    def lost(*_: object) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(commits, "hint", lost)
        with pytest.raises(ConnectionResetError):
            lake.commit(lake.log(some(0, 10)))
    assert lake.ids() == list(range(10))
    assert_exact(lake)


class Disk:
    """A disk that takes a number of writes, and then no more."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, takes: int) -> None:
        self.takes, self.full = takes, False
        self._folder = str(folder)
        patch.setattr(builtins, "open", self._opened(builtins.open))
        patch.setattr(io, "open", self._opened(io.open))
        for name in ("link", "replace", "fsync"):
            patch.setattr(os, name, self._called(getattr(os, name)))

    def _take(self) -> None:
        if not self.takes:
            self.full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.takes -= 1

    def _called(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._take()
            return real(*arguments, **options)

        return call

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            stream = real(file, mode, *arguments, **options)
            if set(mode) & set("wxa") and str(file).startswith(self._folder):
                # a full disk makes the file, and has no place for what is in it
                write = stream.write

                class Full:
                    def __getattr__(self, name: str) -> Any:
                        return getattr(stream, name)

                    def __enter__(self) -> Any:
                        return self

                    def __exit__(self, *_: object) -> None:
                        stream.close()

                    def write(_, content: Any) -> int:  # noqa: N805
                        self._take()
                        written: int = write(content)
                        return written

                return Full()
            return stream

        return opened


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_disk_that_is_full_at_any_write_of_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = filled(tmp_path, kind)
    failed = 0
    for takes in range(1000):
        before = on_disk(lake)
        done: int | None = None
        said = "No space left"
        with monkeypatch.context() as patch:
            disk = Disk(patch, lake.folder, takes)
            try:
                done = compacted(lake)
            except (OSError, FlussError) as error:
                said = str(error)
        assert "No space left" in said
        assert_exact(lake)
        assert lake.ids() == list(range(8))
        if done is not None:
            break
        assert disk.full
        assert on_disk(lake) == before
        failed += 1
    # data, two manifests, two lists, what makes them last, and the snapshot
    assert failed > 8


@pytest.mark.parametrize("again", [False, True])
def test_a_table_that_is_rolled_back_while_manifests_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    lake = filled(tmp_path, "log")
    base = newest_base(lake.table)
    files = lake.log(some(100, 10))
    real = commits._sync

    def late(paths: Any) -> None:
        real(paths)
        monkeypatch.setattr(commits, "_sync", real)
        (lake.folder / "snapshot" / "snapshot-8").unlink()
        if again:
            assert lake.commit(lake.log(some(200, 1))) == 8

    monkeypatch.setattr(commits, "_sync", late)
    with pytest.raises(LakeMovedError, match=r"snapshot 8 is gone, or another one"):
        lake.commit(files, base)
    assert lake.ids() == [*range(7), *([200] if again else [])]


@pytest.mark.parametrize("kind", ["log", "keys"])
@pytest.mark.parametrize("back", [1, 3, 7])
def test_a_table_that_is_rolled_back_while_it_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, back: int
) -> None:
    lake = filled(tmp_path, kind)
    real = commits._sync

    def late(paths: Any) -> None:
        real(paths)
        monkeypatch.setattr(commits, "_sync", real)
        for number in range(8, 8 - back, -1):
            (lake.folder / "snapshot" / f"snapshot-{number}").unlink()

    monkeypatch.setattr(commits, "_sync", late)
    assert compacted(lake) is None
    assert latest_snapshot(lake.table) == 8 - back
    assert lake.ids() == list(range(8 - back))
    # what the rollback took from snapshots is old; nothing of the compaction is there
    PaimonUpkeep(lake.options).remove_orphans(0)
    assert_exact(lake)


@pytest.mark.parametrize("content", [None, "", "0", "99", "3", "no number"])
def test_notes_of_the_first_and_the_newest_snapshot_are_not_believed(
    tmp_path: Path, content: str | None
) -> None:
    lake = filled(tmp_path, "keys")
    for name in ("LATEST", "EARLIEST"):
        note = lake.folder / "snapshot" / name
        if content is None:
            note.unlink(missing_ok=True)
        else:
            note.write_text(content)
    assert lake.commit(lake.changes([(0, {"id": 8, "v": "8"})], 8)) == 9
    assert compacted(lake) == 10
    assert lake.ids() == list(range(9))
    assert (lake.folder / "snapshot" / "LATEST").read_text() == "10"


def test_what_a_tag_names_stays_when_snapshots_expire_amid_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(tmp_path, "keys")
    (lake.folder / "tag").mkdir()
    tag = lake.folder / "tag" / "tag-a"
    tag.write_bytes((lake.folder / "snapshot" / "snapshot-3").read_bytes())
    real = commits._sync

    def late(paths: Any) -> None:
        real(paths)
        monkeypatch.setattr(commits, "_sync", real)
        assert PaimonUpkeep(lake.options).expire(0) is not None

    monkeypatch.setattr(commits, "_sync", late)
    assert compacted(lake) == 9
    assert lake.ids() == list(range(8))
    # a snapshot that is tagged can be put back
    (lake.folder / "snapshot" / "snapshot-3").write_bytes(tag.read_bytes())
    assert sorted(lake.rows(3)["id"]) == [0, 1, 2]


def test_an_interrupt_waits_for_what_tasks_write(monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()
    real = Future.result

    class Writer:
        info: Any = None
        snapshot_id = None

        def write(self, task: WriteTask) -> Written:
            came.wait()
            return Written(added=[task.partition])

    def interrupted(future: Future[Written], timeout: float | None = None) -> Written:
        # engines of other tests wait in threads of their own
        if not came.is_set() and threading.current_thread() is threading.main_thread():
            # as a signal, that comes while tasks are waited for
            came.set()
            raise KeyboardInterrupt
        return real(future, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    written: list[Written] = []
    with pytest.raises(KeyboardInterrupt):
        InThreads(2)(Writer(), [WriteTask((at,), None) for at in range(2)], written)
    assert [part.added for part in written] == [[(0,)], [(1,)]]


_SCRIPT = """
import sys
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.compaction import compact
from fluss_df.lake.paimon_writing.tiered_table import newest_schema
from tests.lake.test_paimon_writing import PATH, PROPERTIES
table = TableFiles(LakeOptions(PATH, "paimon", {"warehouse": sys.argv[1]}))
schema = newest_schema(table)
print("ready", flush=True)
sys.stdin.readline()
print(compact(table, schema, PROPERTIES), flush=True)
"""


def test_of_two_processes_that_compact_a_table_one_does(tmp_path: Path) -> None:
    lake = keyed(tmp_path)
    for part in range(8):
        changes = [(0, {"id": at, "v": str(at)}) for at in range(part, 20_000, 8)]
        lake.commit(lake.changes(changes, part * 2500))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = sorted(one.communicate()[0].strip() for one in both)
    assert said == ["9", "None"]
    assert latest_snapshot(lake.table) == 9
    assert lake.ids() == list(range(20_000))
    assert_exact(lake)


def test_a_failed_write_of_the_snapshot_is_a_sure_failure_whatever_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(tmp_path, "keys")
    before = on_disk(lake)
    read = Path.read_text

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def unread(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == "snapshot-9":
            raise OSError(errno.EIO, "no answer")
        return read(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        patch.setattr(Path, "read_text", unread)
        patch.setattr(commits, "_sync", lambda _: None)
        with pytest.raises(NotCommittedError, match="No space left"):
            compacted(lake)
    assert on_disk(lake) == before

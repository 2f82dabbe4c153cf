"""Restores into folders that others come to meanwhile: only what a restore made is removed."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluss_df.client.transport.folders import back_up_folder
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.upkeep import restore as module
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import ErrorCode, FlussError
from tests.embedded.golden import contents, fill


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("backup")
    with EmbeddedFluss(root / "d") as engine, engine.connection() as connection:
        fill(connection)
    back_up_folder(root / "d", root / "b.tar.zst")
    return root / "b.tar.zst"


@pytest.fixture
def nonsense(tmp_path: Path) -> Path:
    file = tmp_path / "nonsense.tar.zst"
    file.write_bytes(b"no backup at all")
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], None]
) -> None:
    """Have something done once, in the moment before a function of a restore runs."""
    real = getattr(where, name)

    def first(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, name, real)
        act()
        return real(*given, **named)

    monkeypatch.setattr(where, name, first)


@pytest.mark.parametrize("new", [True, False])
def test_an_engine_that_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonsense: Path, new: bool
) -> None:
    """It has the folder between the look whether it is empty and the lock; it keeps what it has."""
    if not new:
        (tmp_path / "d").mkdir()
    opened: list[EmbeddedFluss] = []

    def come() -> None:
        opened.append(EmbeddedFluss(tmp_path / "d"))
        with opened[0].connection() as connection:
            fill(connection)

    meanwhile(monkeypatch, module, "make_folder", come)
    with pytest.raises(FlussError, match="is in use") as caught:
        restore(nonsense, tmp_path / "d")
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    with opened[0] as engine, engine.connection() as connection:
        assert contents(connection)
    assert check_folder(tmp_path / "d").findings == []


def test_an_engine_that_was_there_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonsense: Path
) -> None:
    def come() -> None:
        with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
            fill(connection)

    meanwhile(monkeypatch, module, "make_folder", come)
    with pytest.raises(FlussError, match="is not empty"):
        restore(nonsense, tmp_path / "d")
    assert check_folder(tmp_path / "d").findings == []


def test_an_engine_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: Path
) -> None:
    """It is refused, and the restore is completed."""
    refused: list[FlussError] = []

    def come() -> None:
        with pytest.raises(FlussError) as caught:
            EmbeddedFluss(tmp_path / "d")
        refused.append(caught.value)

    # when nothing is in place, and when a part of it is
    meanwhile(monkeypatch, module, "_read_catalog", come)
    meanwhile(monkeypatch, os, "rename", come)
    restore(backup, tmp_path / "d")
    assert len(refused) == 2
    assert check_folder(tmp_path / "d").findings == []


def test_two_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: Path, nonsense: Path
) -> None:
    """The second one is refused, and takes nothing from the first one."""
    refused: list[FlussError] = []

    def come() -> None:
        with pytest.raises(FlussError) as caught:
            restore(nonsense, tmp_path / "d")
        refused.append(caught.value)

    # where the second one looked before the first one began
    began = threading.Event()
    go_on = threading.Event()

    def wait() -> None:
        began.set()
        assert go_on.wait(30)

    meanwhile(monkeypatch, module, "make_folder", wait)
    late = threading.Thread(target=come)
    late.start()
    assert began.wait(30)

    def let_go_on() -> None:
        go_on.set()
        late.join()

    meanwhile(monkeypatch, module, "_read_catalog", let_go_on)
    restore(backup, tmp_path / "d")
    assert len(refused) == 1
    assert check_folder(tmp_path / "d").findings == []


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("step", ["_unpack", "_read_catalog", "sync_folder"])
def test_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: Path, step: str, existed: bool
) -> None:
    """Ctrl+C leaves the folder as it was."""
    if existed:
        (tmp_path / "d").mkdir()

    def interrupt() -> None:
        raise KeyboardInterrupt

    meanwhile(monkeypatch, module, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        restore(backup, tmp_path / "d")
    assert names(tmp_path) == (["d"] if existed else [])
    restore(backup, tmp_path / "d")
    assert check_folder(tmp_path / "d").findings == []


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_disk_that_refuses_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: Path, done: int
) -> None:
    """Before the first name nothing is left; behind it nothing is removed, and that is said."""
    real = os.rename
    left = [done]

    def rename(source: Path, target: Path) -> None:
        if not left[0]:
            raise OSError(5, "Input/output error")
        left[0] -= 1
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(FlussError, match="Input/output error") as caught:
        restore(backup, tmp_path / "d")
    if not done:
        assert not (tmp_path / "d").exists()
        return
    assert names(tmp_path / "d") == [".restoring", *["catalog"] * (done - 1), "data"]
    assert f"{tmp_path / 'd'} holds a part of it: remove it" in caught.value.message


def test_file_systems_without_locks_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: Path
) -> None:
    """A file that comes meanwhile is another's: nothing is put beside it, and it stays."""

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    restore(backup, tmp_path / "sound")
    (tmp_path / "d").mkdir()
    meanwhile(monkeypatch, module, "_read_catalog", (tmp_path / "d" / "LOCK").touch)
    with pytest.raises(FlussError, match="it holds 'LOCK'"):
        restore(backup, tmp_path / "d")
    assert names(tmp_path / "d") == ["LOCK"]

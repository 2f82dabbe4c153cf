"""The files of backups: several at once to one name, links in their place, failures."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, backup
from fluss_df.embedded.backup import back_up
from fluss_df.embedded.restore import restore
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: EmbeddedFluss,
    error: BaseException,
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

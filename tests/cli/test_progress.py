"""Progress is for terminals, and for nothing else."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fluss_df.cli import app
from fluss_df.cli.base import progress as module
from fluss_df.cli.base.progress import THREAD, bytes_in, progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    monkeypatch.setattr(module, "err", console)
    monkeypatch.setattr(module, "_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    return text


def test_a_terminal_shows_how_far_it_is(terminal: io.StringIO) -> None:
    asked = threading.Semaphore(0)
    counts = iter(range(100, 1_000_000, 100))

    def poll() -> int:
        asked.release()
        return next(counts)

    with progress("fluss.t [not markup]", total=5000, poll=poll):
        for _ in range(40):
            assert asked.acquire(timeout=60)
    shown = terminal.getvalue()
    assert "fluss.t [not markup]" in shown
    assert "of 5,000 rows" in shown
    assert "rows/s" in shown
    assert "left" in shown


def test_what_fails_while_it_is_asked_is_passed_over(terminal: io.StringIO) -> None:
    asked = threading.Event()

    def poll() -> int:
        asked.set()
        raise FileNotFoundError

    with progress("a", poll=poll):
        assert asked.wait(60)
    assert "a" in terminal.getvalue()


def test_an_error_ends_it(terminal: io.StringIO) -> None:
    def watchers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == THREAD]

    def fail() -> None:
        assert len(watchers()) == 1
        raise ValueError("wrong")

    # with something to ask, the watcher stays until it is told to end
    with pytest.raises(ValueError, match="wrong"), progress("a", poll=lambda: 0):
        fail()
    assert not watchers()


def test_pipes_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_S", 0.0)
    run = CliRunner()
    file, data = tmp_path / "a.csv", str(tmp_path / "data")
    file.write_text("id,v\n1,2\n")
    backup, restored = str(tmp_path / "b.tar.zst"), str(tmp_path / "restored")
    for arguments in (
        ["load", str(file), "--into", "t", "--create", "-c", data],
        ["dump", "t", str(tmp_path / "t.parquet"), "-c", data],
        ["count", "t", "-c", data],
        ["backup", data, backup],
        ["restore", backup, restored],
        ["check", restored],
    ):
        done = run.invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert done.stderr == ""


def test_check_and_restore_say_how_much_they_read(tmp_path: Path) -> None:
    from fluss_df.engine.upkeep.check import check_folder
    from fluss_df.engine.upkeep.restore import restore

    run = CliRunner()
    file, data = tmp_path / "a.csv", tmp_path / "data"
    file.write_text("id\n" + "".join(f"{i}\n" for i in range(10_000)))
    for arguments in (
        ["load", str(file), "--into", "t", "--create", "-c", str(data)],
        ["backup", str(data), str(tmp_path / "b.tar.zst")],
    ):
        assert run.invoke(app, arguments).exit_code == 0
    read: list[int] = []
    restore(tmp_path / "b.tar.zst", tmp_path / "new", watch=read.append)
    assert read == sorted(read)
    assert 0 < read[-1] <= (tmp_path / "b.tar.zst").stat().st_size
    seen: list[int] = []
    report = check_folder(tmp_path / "new", seen.append)
    assert sum(seen) == report.log_bytes == bytes_in(tmp_path / "new", ".log")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = CliRunner()
    file, data = tmp_path / "a.csv", str(tmp_path / "data")
    file.write_text("id\n1\n")
    assert (
        run.invoke(app, ["load", str(file), "--into", "t", "--create", "-c", data]).exit_code == 0
    )
    done = run.invoke(app, ["dump", "t", "/proc/t.parquet", "-c", data])
    assert done.exit_code == 1
    assert "/proc/t.parquet cannot be written" in done.stderr

"""Processes that use a folder through its owner, and what becomes of them when the owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.engine.files.ownership import FolderInUseError
from fluss_df.engine.serve import server
from fluss_df.errors import FlussError

PATH = fluss.TablePath("fluss", "t")
SCHEMA = pa.schema([("n", pa.int64())])
OWNER = """
import sys
import fluss_df as fluss
with fluss.connect(sys.argv[1]) as connection:
    print("ready", flush=True)
    sys.stdin.readline()
"""
# writes numbers from one on, each acknowledged, and goes on whoever has the folder
WRITER = """
import sys
import pyarrow as pa
import fluss_df as fluss
first, count = map(int, sys.argv[2:])
with fluss.connect(sys.argv[1]) as connection:
    with connection.get_table("t").new_append().create_writer() as writer:
        for n in range(first, first + count):
            writer.write_arrow(pa.table({"n": [n]}))
            writer.flush()
            if n == first:
                print("writing", flush=True)
print("done", flush=True)
"""


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == wanted


def numbers(connection: fluss.FlussConnection) -> list[int]:
    found = fluss.scan_fluss(PATH, connection=connection).collect()
    return sorted(found["n"].to_list())


def make(connection: fluss.FlussConnection) -> None:
    connection.get_admin().create_table(PATH, fluss.TableDescriptor(fluss.Schema(SCHEMA)))


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_the_owner_ends_while_others_write(tmp_path: Path, how: str) -> None:
    """One of those that were attached takes over; each row is there once."""
    folder = tmp_path / "d"
    with running(OWNER, folder) as owner:
        says(owner, "ready")
        with fluss.connect(folder) as connection:
            make(connection)
            with (
                running(WRITER, folder, 0, 60) as other,
                connection.get_table(PATH).new_append().create_writer() as writer,
            ):
                says(other, "writing")
                writer.write_arrow(pa.table({"n": [5000]}))
                writer.flush()
                if how == "killed":
                    owner.kill()
                else:
                    owner.stdin.close()  # type: ignore[union-attr]
                owner.wait()
                writer.write_arrow(pa.table({"n": [5001]}))
                writer.flush()
                says(other, "done")
            wanted = [*range(60), 5000, 5001]
            assert numbers(connection) == wanted
    with fluss.connect(folder) as connection:
        assert numbers(connection) == wanted


def test_who_comes_while_a_folder_is_being_opened_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has the lock and no socket yet, as while it recovers."""
    folder = tmp_path / "d"
    script = OWNER.replace(
        "import fluss_df as fluss\n",
        "import sys\nimport fluss_df as fluss\nfrom fluss_df.engine.catalog import catalog\n"
        "load = catalog.Catalog.__init__\n"
        "def slow(*arguments):\n    print('opening', flush=True)\n    sys.stdin.readline()\n"
        "    load(*arguments)\n"
        "catalog.Catalog.__init__ = slow\n",
    )
    with running(script, folder) as owner:
        says(owner, "opening")
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(fluss.connect, folder)
            # it waits, and neither gives up nor opens the folder by itself
            assert not wait([connecting], 0.5).done
            assert owner.stdin is not None
            owner.stdin.write("go on\n")
            owner.stdin.flush()
            with connecting.result(20) as connection:
                assert connection.get_admin().list_databases() == ["fluss"]
        # an owner that stands still is named
        monkeypatch.setattr("fluss_df.client.transport.folders._OPENING_S", 0.1)
        owner.send_signal(signal.SIGSTOP)
        (folder / "LOCK").write_text((folder / "LOCK").read_text().replace("socket", "former"))
        try:
            with pytest.raises(FlussError, match=f"in use by process {owner.pid}"):
                fluss.connect(folder)
        finally:
            owner.send_signal(signal.SIGCONT)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    file = tmp_path / "file"
    file.write_text("")
    for folder in (loop, file, file / "under", tmp_path / ("x" * 300), Path("~nobody-at-all/d")):
        with pytest.raises(FlussError, match="cannot use the folder"):
            fluss.connect(folder)


def test_a_long_path_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("t" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with fluss.connect(tmp_path / ("d" * 120)) as connection:
        make(connection)
        assert numbers(connection) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with fluss.connect(tmp_path / "other") as connection:
        make(connection)


def test_a_folder_is_opened_while_another_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = server.EngineServer
    waits, ended = threading.Event(), threading.Event()

    def busy(folder: Path | None) -> server.EngineServer:
        if folder is not None and folder.name == "busy" and not ended.is_set():
            waits.set()
            raise FolderInUseError("it is being opened by another process")
        return opened(folder)

    monkeypatch.setattr(server, "EngineServer", busy)
    found: list[fluss.FlussConnection] = []
    waiting = threading.Thread(target=lambda: found.append(fluss.connect(tmp_path / "busy")))
    waiting.start()
    assert waits.wait(10)
    other = threading.Thread(target=lambda: fluss.connect(tmp_path / "other").close())
    other.start()
    other.join(10)
    # before the one that is waited for is there
    stuck = other.is_alive()
    ended.set()
    waiting.join()
    other.join()
    assert not stuck
    found[0].close()

"""A folder that is renamed, deleted or replaced under its owner: no two engines acknowledge."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.client.transport.folders import back_up_folder
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.engine import Engine
from fluss_df.engine.files import ownership
from fluss_df.engine.files.lock_file import owner_of
from fluss_df.engine.files.ownership import FolderInUseError, FolderLock
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.upkeep import backup
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError
from tests.waiting import wait_until

LOG = fluss.TablePath("fluss", "log")
ROWS = fluss.TablePath("fluss", "rows")
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def make(connection: FlussConnection) -> None:
    admin = connection.get_admin()
    for path, keys in ((LOG, None), (ROWS, ["n"])):
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, keys), bucket_count=1)
        admin.create_table(path, descriptor)


def write(connection: FlussConnection, path: fluss.TablePath, first: int, count: int = 10) -> None:
    numbers = range(first, first + count)
    rows = pa.table({"n": numbers, "text": [str(n) for n in numbers]}, schema=SCHEMA)
    table = connection.get_table(path)
    made = table.new_append() if path == LOG else table.new_upsert()
    writer = made.create_writer()
    writer.write_arrow(rows)
    writer.flush()
    writer.close()


def numbers(connection: FlussConnection, path: fluss.TablePath) -> list[int]:
    found = fluss.scan_fluss(path, connection=connection).collect()
    return sorted(found["n"].to_list())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[FlussConnection]:
    """A connection to the engine that owns the folder ``d``."""
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        make(connection)
        write(connection, LOG, 0)
        write(connection, ROWS, 0)
        yield connection


def stops(connection: FlussConnection) -> None:
    """Every use of the engine fails at once, and says why."""
    for path in (LOG, ROWS):
        begun = time.monotonic()
        with pytest.raises(FlussError, match="not there any more") as caught:
            write(connection, path, 100)
        assert not caught.value.is_retriable
        # what is tried again is so for two minutes
        assert time.monotonic() - begun < 60
    with pytest.raises(FlussError, match="not there any more"):
        numbers(connection, LOG)
    with pytest.raises(FlussError, match="not there any more"):
        connection.get_admin().create_database("other")
    with pytest.raises(FlussError, match="not there any more"):
        connection.get_admin().drop_table(LOG)


def test_a_folder_that_was_renamed(tmp_path: Path, owner: FlussConnection) -> None:
    os.rename(tmp_path / "d", tmp_path / "e")
    # the owner's until it noticed
    with (
        contextlib.suppress(FolderInUseError),
        EmbeddedFluss(tmp_path / "e") as engine,
        engine.connection() as second,
    ):
        write(second, LOG, 10)
    stops(owner)
    assert os.listdir(tmp_path) == ["e"]


def test_what_is_put_in_its_place(tmp_path: Path, owner: FlussConnection) -> None:
    """The owner of the new folder goes on; nothing of either is changed by the other."""
    os.rename(tmp_path / "d", tmp_path / "e")
    shutil.copytree(tmp_path / "e", tmp_path / "d")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as second:
        write(second, LOG, 10)
        write(second, ROWS, 10)
        stops(owner)
        write(second, LOG, 20)
        write(second, ROWS, 20)
        for path in (LOG, ROWS):
            assert numbers(second, path) == list(range(30))


def test_the_folders_afterwards(tmp_path: Path) -> None:
    """What was acknowledged is in the folder that acknowledged it."""
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        make(connection)
        write(connection, LOG, 0)
        write(connection, ROWS, 0)
        os.rename(tmp_path / "d", tmp_path / "e")
        shutil.copytree(tmp_path / "e", tmp_path / "d")
        (tmp_path / "d" / "mark").write_text("new")
    before = {p: p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()}
    assert before
    for folder in ("d", "e"):
        assert check_folder(tmp_path / folder).sound
        with EmbeddedFluss(tmp_path / folder) as again, again.connection() as connection:
            for path in (LOG, ROWS):
                assert numbers(connection, path) == list(range(10))
            write(connection, ROWS, 10)
            assert numbers(connection, ROWS) == list(range(20))


def test_a_folder_that_is_exchanged_while_segments_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of the new folder is removed."""
    options = EngineOptions(segment_bytes=1)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        for path in (LOG, ROWS):
            schema = fluss.Schema(SCHEMA, None if path == LOG else ["n"])
            descriptor = fluss.TableDescriptor(
                schema, bucket_count=1, properties={"table.log.ttl": "1ms"}
            )
            connection.get_admin().create_table(path, descriptor)
            for first in range(3):
                write(connection, path, first)
        time.sleep(0.05)
        expire = Tablet.expire

        def exchanged(self: Tablet, now: int, ttl: int, tiered: int | None = None) -> int:
            count = expire(self, now, ttl, tiered)
            monkeypatch.undo()
            os.rename(tmp_path / "d", tmp_path / "e")
            shutil.copytree(tmp_path / "e", tmp_path / "d")
            return count

        monkeypatch.setattr(Tablet, "expire", exchanged)
        with pytest.raises(FlussError, match="not there any more"):
            engine.engine.expire()
    places = (tmp_path / "d", tmp_path / "e")
    logs = [{p.relative_to(f) for p in f.glob("data/*/*/*/log/*.log")} for f in places]
    assert logs[0] == logs[1]
    # those of one bucket had expired before
    assert len(logs[0]) == 4


def test_a_folder_that_was_deleted(tmp_path: Path, owner: FlussConnection) -> None:
    shutil.rmtree(tmp_path / "d")
    stops(owner)
    assert os.listdir(tmp_path) == []


def test_a_lock_that_was_removed(tmp_path: Path, owner: FlussConnection) -> None:
    (tmp_path / "d" / "LOCK").unlink()
    with pytest.raises(FlussError, match="in use"):
        EmbeddedFluss(tmp_path / "d")
    write(owner, LOG, 10)
    assert numbers(owner, LOG) == list(range(20))
    # it is made again, so that others find the owner
    with pytest.raises(FlussError, match=f"in use by process {os.getpid()}"):
        EmbeddedFluss(tmp_path / "d")
    assert "socket" in (tmp_path / "d" / "LOCK").read_text()


def test_a_lock_that_was_removed_beside_many_threads(tmp_path: Path) -> None:
    for number in range(20):
        lock = FolderLock(tmp_path / str(number))
        try:
            with ThreadPoolExecutor(8) as pool:
                (tmp_path / str(number) / "LOCK").unlink()
                for found in [pool.submit(lock.verify) for _ in range(200)]:
                    found.result()
            assert lock.lost is None
            with pytest.raises(FolderInUseError):
                FolderLock(tmp_path / str(number))
        finally:
            lock.release()


def test_an_idle_owner_notices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine:
        os.rename(tmp_path / "d", tmp_path / "e")
        wait_until(lambda: engine.engine.lock.lost is not None, 10)
        assert engine.engine.lock.lost is not None
        with fluss.connect(tmp_path / "e") as connection:
            assert connection.get_admin().list_databases() == ["fluss"]
    assert caplog.text.count("not there any more") == 1


def test_connecting_again_in_the_same_process(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with fluss.connect(folder) as connection:
        make(connection)
        write(connection, LOG, 0)
        os.rename(folder, tmp_path / "e")
        with pytest.raises(FlussError, match="not there any more"):
            write(connection, LOG, 10)
        with fluss.connect(tmp_path / "e") as other:
            assert numbers(other, LOG) == list(range(10))


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(FlussError, match="has no locks"):
        EmbeddedFluss(tmp_path / "d")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the folder ``d`` open."""
    program = (
        "import sys\nfrom fluss_df.embedded import EmbeddedFluss\n"
        f"with EmbeddedFluss({str(tmp_path / 'd')!r}):\n"
        "    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    made = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        yield made
    finally:
        made.send_signal(signal.SIGCONT)
        made.communicate("")


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_an_owner_that_is_stopped_is_named(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    stop(process)
    with pytest.raises(FlussError, match=rf"in use by process {process.pid} \(which is stopped"):
        EmbeddedFluss(tmp_path / "d")


def test_a_backup_does_not_wait_for_an_owner_that_is_stopped(
    tmp_path: Path, process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_FIRST_ANSWER_S", 0.5)
    file = tmp_path / "b.tar.zst"
    stop(process)
    refused = rf"process {process.pid} \(which is stopped.*\), which has .*d open, does not answer"
    with pytest.raises(FlussError, match=refused) as raised:
        back_up_folder(tmp_path / "d", file)
    assert raised.value.error_code == ErrorCode.REQUEST_TIME_OUT
    assert not file.exists()
    process.send_signal(signal.SIGCONT)
    assert back_up_folder(tmp_path / "d", file) == file.stat().st_size


def test_a_backup_may_take_longer_than_its_owner_may_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_FIRST_ANSWER_S", 0.5)
    real = backup._write

    def slow(*given: Any) -> None:
        time.sleep(1)
        real(*given)

    monkeypatch.setattr(backup, "_write", slow)
    with EmbeddedFluss(tmp_path / "d") as engine:
        file = tmp_path / "b.tar.zst"
        assert backup.ask_owner(engine.socket_path, engine.folder, file) == file.stat().st_size


# ---- who is named as the owner


HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(float(sys.argv[3]))
if sys.argv[2]:
    lock = os.open(sys.argv[1] + "/LOCK", os.O_RDWR)
    os.pwrite(lock, sys.argv[2].replace("PID", str(os.getpid())).encode(), 0)
time.sleep(60)
"""


@pytest.mark.parametrize("system", ["tells", "does not tell"])
@pytest.mark.parametrize("before", ["empty", "ended owner"])
def test_an_owner_that_has_not_said_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, before: str
) -> None:
    """It has the lock, and the file still has the owner before it."""
    folder = tmp_path / "d"
    Engine(folder).close()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    old = json.dumps({"pid": ended.pid, "socket": None}).ljust(200)
    (folder / "LOCK").write_text("" if before == "empty" else old)
    if system != "tells":
        monkeypatch.setattr(ownership, "_LOCKS", tmp_path / "none")
        monkeypatch.setattr(ownership, "_ANNOUNCED_S", 20.0)
    said = json.dumps({"pid": -1}).replace("-1", "PID").ljust(200)
    command = [sys.executable, "-c", HOLDER, str(folder), said, "0.5"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(FlussError, match=f"in use by process {holder.pid}:"):
            Engine(folder)
    finally:
        holder.kill()
        holder.communicate()


def test_an_owner_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    Engine(folder).close()
    (folder / "LOCK").write_text("")
    monkeypatch.setattr(ownership, "_LOCKS", tmp_path / "none")
    monkeypatch.setattr(ownership, "_ANNOUNCED_S", 0.1)
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(FlussError, match="in use by another process"):
            Engine(folder)
    finally:
        os.close(fd)


def test_the_owner_is_found_while_it_writes(tmp_path: Path) -> None:
    """Another socket, or a shorter one."""
    lock = FolderLock(tmp_path / "d")
    lock.announce("/tmp/socket")
    stop = threading.Event()
    bad: list[object] = []
    looks = threading.Semaphore(0)

    def look() -> None:
        while not stop.is_set():
            found = owner_of(tmp_path / "d")
            looks.release()
            if found is None or not found[1].startswith("/tmp/socket"):
                bad.append(found)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(3000):
        lock.announce("/tmp/socket" + "x" * (number % 7))
        # at least at every tenth name, the other has looked again
        if number % 10 == 0 and not looks.acquire(timeout=20):
            break
    stop.set()
    reader.join()
    lock.release()
    assert number == 2999, "nobody looks"
    assert bad == []

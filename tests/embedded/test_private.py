"""What other users of the machine get to see of an engine: nothing."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.files.runtime_folder import RuntimeFolder, sweep
from fluss_df.engine.upkeep.backup import BACKUP_KEY
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.local_peers import require_own
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.client.support import Tables
from tests.embedded.raw import RawClient

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
NOBODY = 65534


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a short name, where no other test looks."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def open_to_others(*folders: Path) -> list[str]:
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    return [
        f"{path} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in paths
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def test_files_are_the_users_alone(tmp_path: Path, short: Path) -> None:
    """Logs, RocksDB's files, catalog, backup, what is restored: also where the umask is 0."""
    before = os.umask(0)
    try:
        with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
            tables = Tables(connection, "fluss")
            rows = pa.table({"n": range(20_000), "text": ["x" * 50] * 20_000}, schema=SCHEMA)
            tables.write(tables(SCHEMA, bucket_count=2), rows)
            keyed = tables(SCHEMA, ["n"], bucket_count=2)
            with keyed.new_upsert().create_writer() as writer:
                writer.write_arrow(rows)
            assert not open_to_others(Path(engine.socket_path).parent)
            assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
            from fluss_df.client.transport.folders import back_up_folder

            fluss.connect(tmp_path / "d").close()
            back_up_folder(tmp_path / "d", tmp_path / "b.tar.zst")
        fluss_restore(tmp_path / "b.tar.zst", tmp_path / "r")
        with EmbeddedFluss(tmp_path / "r"):
            pass
    finally:
        os.umask(before)
    assert list((tmp_path / "d").rglob("*.sst"))
    assert not open_to_others(tmp_path / "d", tmp_path / "r", tmp_path / "b.tar.zst")


def fluss_restore(file: Path, folder: Path) -> None:
    from fluss_df.engine.upkeep.restore import restore

    restore(file, folder)


def test_files_of_earlier_versions_become_the_users_alone(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        Tables(connection, "fluss")(SCHEMA, ["n"])
    for path in (tmp_path / "d", tmp_path / "d" / "data", tmp_path / "d" / "catalog"):
        path.chmod(0o755)
    with EmbeddedFluss(tmp_path / "d"):
        assert not open_to_others(tmp_path / "d")


def test_where_the_socket_is(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with EmbeddedFluss(tmp_path / "a") as engine:
        assert Path(engine.socket_path).parents[1] == runtime
    # where others may come in, another place is taken
    runtime.chmod(0o755)
    with EmbeddedFluss(tmp_path / "a") as engine:
        own = Path(engine.socket_path).parents[1]
        assert own == short / f"fluss-df-user-{os.geteuid()}"
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert list(own.iterdir()) == []
    # somebody else has made it: each engine has one of its own
    own.chmod(0o777)
    with EmbeddedFluss(tmp_path / "a") as engine:
        assert Path(engine.socket_path).parents[1] == short
        assert stat.S_IMODE(Path(engine.socket_path).parent.stat().st_mode) == 0o700


def as_nobody(work: Callable[[], str]) -> str:
    """Return what a function returns, or raises, as another user."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user(tmp_path: Path, short: Path) -> None:
    """Also where it may use the socket: who is at the other end is looked at, both ways."""
    with EmbeddedFluss(tmp_path / "d") as engine:
        path = Path(engine.socket_path)

        def come_in() -> str:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(5)
                peer.connect(str(path))
                return f"received {peer.recv(1)!r}"

        def look() -> str:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(str(path))
                require_own(peer, str(path))
                return "nothing is wrong"

        assert "PermissionError" in as_nobody(come_in)
        for place in (path.parents[1], path.parent, path):
            place.chmod(0o777)
        assert as_nobody(come_in) in (
            "received b''",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
        )
        assert "is of another user (user id 0)" in as_nobody(look)


class LocalClient(RawClient):
    """One connection by a Unix socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self._next = 0

    def prove(self, secret: str) -> int:
        request = pb.AuthenticateRequest(protocol="FOLDER", token=secret.encode())
        return self.ask(api.AUTHENTICATE, request).error[0]


def test_who_may_not_read_the_folder_is_not_served(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine:
        secret = engine.engine.lock.secret
        assert secret in (tmp_path / "d" / "LOCK").read_text()
        with LocalClient(engine.socket_path) as client:
            client.hello()
            refused = client.ask(api.LIST_DATABASES, pb.ListDatabasesRequest())
            assert refused.error[0] == ErrorCode.AUTHENTICATE_EXCEPTION
            client.send(BACKUP_KEY, 0, str(tmp_path / "b.tar.zst").encode())
            assert client.receive().type
            assert not (tmp_path / "b.tar.zst").exists()
            assert client.prove(secret[::-1]) == ErrorCode.AUTHENTICATE_EXCEPTION
            assert client.prove(secret) == 0
            client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())
        with EmbeddedFluss(tmp_path / "other") as other:
            assert other.engine.lock.secret != secret


def killed_with_a_temporary_engine(short: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that is killed while it has one; it prints the engine's folder."""
    program = f"""
import os, tempfile
tempfile.tempdir = {str(short)!r}
from fluss_df.embedded import EmbeddedFluss
engine = EmbeddedFluss(None)
print(engine.folder, flush=True)
os.kill(os.getpid(), 9)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_what_the_dead_left_is_removed(short: Path) -> None:
    living = RuntimeFolder()
    own = Path(living.path).parent
    left = own / "fluss-df-left"
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(left / "s"))
    listening = socket.socket(socket.AF_UNIX)
    earlier = short / "fluss-df-earlier"
    earlier.mkdir()
    listening.bind(str(earlier / "s"))
    listening.listen()
    strange = short / "fluss-df-strange"
    strange.mkdir()
    (strange / "mine").write_text("")
    young = own / "fluss-df-young"
    young.mkdir()
    died = killed_with_a_temporary_engine(short)
    data = [*short.glob("fluss-df-*/FORMAT")]
    assert len(data) == 1, died.stderr
    here = EmbeddedFluss(None)
    old = time.time() - 1000
    for folder in (*short.iterdir(), *own.iterdir()):
        if folder != young:
            os.utime(folder, (old, old))
    sweep()
    assert os.path.exists(here.socket_path)
    assert here.folder.exists()
    assert {folder.name for folder in (left, earlier, strange, young) if folder.exists()} == {
        "fluss-df-earlier",
        "fluss-df-strange",
        "fluss-df-young",
    }
    assert [*short.glob("fluss-df-*/FORMAT")] == [here.folder / "FORMAT"]
    assert os.path.exists(living.path)
    here.close()
    living.remove()
    listening.close()
    assert not here.folder.exists()


def test_a_users_folders_stay(short: Path) -> None:
    """Whatever they are called, and whether or not somebody has them open."""
    closed, opened = short / "fluss-df-mine", short / "fluss-df-project" / "data"
    frame = pl.DataFrame({"x": [1, 2]})
    fluss.write_fluss(frame, "kept", connection=str(closed), create_if_not_exists=True)
    engine = EmbeddedFluss(opened)
    fluss.write_fluss(frame, "kept", connection=str(opened), create_if_not_exists=True)
    left = EmbeddedFluss(None)
    rescued = short / "fluss-df-rescued"
    shutil.copytree(left.folder, rescued)
    (short / "fluss-df-empty").mkdir()
    for name in ("s", "data", "temporary"):
        (short / f"fluss-df-with-{name}").mkdir()
        (short / f"fluss-df-with-{name}" / name).write_text("mine")
    links = short / "fluss-df-links"
    links.mkdir()
    (links / "temporary").symlink_to(short / "elsewhere")
    (short / "elsewhere").mkdir()
    before = {entry.name for entry in short.iterdir()} - {"fluss-df-links"}
    old = time.time() - 1000
    for folder in short.iterdir():
        os.utime(folder, (old, old))
    sweep()
    assert {entry.name for entry in short.iterdir()} == before
    left.close()
    engine.close()
    for folder in (closed, opened):
        assert fluss.scan_fluss("kept", connection=str(folder)).collect().equals(frame)
    assert rescued.joinpath("FORMAT").exists()


def test_temporary_data_that_somebody_opened_stays(short: Path) -> None:
    died = killed_with_a_temporary_engine(short)
    (folder,) = died.stdout.split()
    old = time.time() - 1000
    own = short / f"fluss-df-user-{os.geteuid()}"
    with EmbeddedFluss(folder):
        for each in (*short.iterdir(), *own.iterdir()):
            os.utime(each, (old, old))
        sweep()
        assert Path(folder, "FORMAT").exists()
    sweep()
    assert Path(folder, "FORMAT").exists()


# ---- an owner that is ending


def ending(folder: Path, path: Path, listens: bool, begun: threading.Event) -> None:
    """Be an owner that is killed: its socket answers no more, and it has the folder still."""
    lock = FolderLock(folder)
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(path))
        lock.announce(str(path))
        if listens:
            unused.listen()
            unused.settimeout(0.05)
        begun.set()
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            try:
                if listens:
                    unused.accept()[0].close()
                else:
                    time.sleep(0.05)
            except TimeoutError:
                pass
        lock.release()


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("how", ["connect", "backup"])
def test_an_owner_that_is_ending(tmp_path: Path, short: Path, listens: bool, how: str) -> None:
    """Who comes then waits for it, and is the next owner."""
    folder = tmp_path / "d"
    EmbeddedFluss(folder).close()
    begun = threading.Event()
    owner = threading.Thread(target=ending, args=(folder, short / "s", listens, begun))
    owner.start()
    assert begun.wait(10)
    try:
        if how == "connect":
            with fluss.connect(folder) as connection:
                assert connection.get_admin().list_databases() == ["fluss"]
        else:
            from fluss_df.client.transport.folders import back_up_folder

            assert back_up_folder(folder, tmp_path / "b.tar.zst") > 0
    finally:
        owner.join()


def test_no_folder_is_made_in_the_place_of_one_that_went(tmp_path: Path) -> None:
    """A process that used a folder by its owner does not begin an empty one in its place."""
    from fluss_df.client.transport.folders import _attached, successor

    folder = tmp_path / "d"
    EmbeddedFluss(folder).close()
    _attached["/nowhere/s"] = folder
    shutil.rmtree(folder)
    try:
        with pytest.raises(FlussError, match="not there any more"):
            successor("/nowhere/s")
    finally:
        del _attached["/nowhere/s"]
    assert not folder.exists()

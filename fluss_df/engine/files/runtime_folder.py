"""Private folders for Unix sockets and temporary data, removed when no process uses them.

The path of a Unix socket has about 100 bytes at most: so it is not in the folder with the data,
whose path may be longer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import file_locks
from fluss_df.errors import ErrorCode, FlussError

PREFIX: Final = "fluss-df-"
SOCKET: Final = "s"
# a link to the folder with the data, where clients that may read it find the secret
DATA: Final = "data"
# leads to data that goes with the process. A user's own folder may lie beside it under a like name,
# so that data is removed only where the engine that made it says so here.
TEMPORARY: Final = "temporary"
# macOS takes 103 bytes, Linux 107
_MAX_SOCKET_PATH: Final = 103
_NAME_LENGTH: Final = len(PREFIX) + 8
# seconds; a younger folder may be of an engine that has not locked it yet
_YOUNG_S: Final = 60.0
# the folder of each user, in a folder that all users have
_OF_USER: Final = "fluss-df-user-"


class RuntimeFolder:
    """A new folder of this user alone, at ``path``, for one engine; locked while its process lives.

    Raises ``STORAGE_EXCEPTION`` where none can be made.
    """

    def __init__(self) -> None:
        self._data: str | None = None
        sweep()
        try:
            self.path = _new_folder()
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FlussError(
                f"cannot make a Unix socket: {error}; set TMPDIR to a folder that can be written"
                " to",
                ErrorCode.STORAGE_EXCEPTION,
            ) from error
        with contextlib.suppress(OSError):
            file_locks().flock(self._fd, file_locks().LOCK_EX | file_locks().LOCK_NB)

    @property
    def socket_path(self) -> str:
        """The path for its socket."""
        return os.path.join(self.path, SOCKET)

    def name_data(self, folder: Path) -> None:
        """Make the link to the folder with the data."""
        os.symlink(folder, os.path.join(self.path, DATA))

    def make_data(self) -> Path:
        """Make a folder for data that is removed with this one; return its path.

        Raises ``STORAGE_EXCEPTION`` where none can be made.
        """
        try:
            self._data = tempfile.mkdtemp(prefix=PREFIX)
            os.symlink(self._data, os.path.join(self.path, TEMPORARY))
        except OSError as error:
            raise FlussError(
                f"cannot make a folder for temporary data: {error}; set TMPDIR to a folder that"
                " can be written to",
                ErrorCode.STORAGE_EXCEPTION,
            ) from error
        return Path(self._data)

    def remove(self) -> None:
        """Remove it, and the data that goes with it; a second call does nothing."""
        if self._fd >= 0:
            if self._data is not None:
                shutil.rmtree(self._data, ignore_errors=True)
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def data_of(socket_path: str) -> Path | None:
    """Return the folder with the data of the engine that has a socket; None where no link says."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(os.path.join(os.path.dirname(socket_path), DATA)))
    return None


def _new_folder() -> str:
    problem: OSError | None = None
    for base in _bases():
        if len(os.fsencode(base)) + 1 + _NAME_LENGTH + len("/s") > _MAX_SOCKET_PATH:
            continue
        try:
            return tempfile.mkdtemp(prefix=PREFIX, dir=base)
        except OSError as error:
            problem = problem or error
    raise problem or OSError("there is no folder with a short path for it")


def _bases() -> Iterator[str]:
    """Yield the folders to make one in: where only this user may, then where everyone may."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_private(runtime):
        yield runtime
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        own = os.path.join(base, f"{_OF_USER}{os.geteuid()}")
        with contextlib.suppress(OSError):
            os.mkdir(own, 0o700)
        if _is_private(own):
            yield own
        # another user may have made this folder: the new one in it is this user's all the same, and
        # clients look whose the socket is
        yield base


def _is_private(folder: str) -> bool:
    """Whether a folder is this user's, and no other user may use it."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


def sweep() -> None:
    """Remove what engines of this user left whose processes ended without removing it."""
    for base in dict.fromkeys(_bases()):
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and not entry.name.startswith(_OF_USER):
                    with contextlib.suppress(OSError):
                        _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    if not _is_own(folder) or time.time() - os.lstat(folder).st_mtime < _YOUNG_S:
        return
    with _locked(folder):
        # folders of earlier versions are not locked while their process runs, but it listens
        if _is_of_engine(folder) and not _listens(os.path.join(folder, SOCKET)):
            with contextlib.suppress(OSError):
                _remove_data(os.readlink(os.path.join(folder, TEMPORARY)))
            shutil.rmtree(folder, ignore_errors=True)


def _remove_data(folder: str) -> None:
    """Remove temporary data; not where somebody opened it in the meantime, who may want it."""
    if os.path.basename(folder).startswith(PREFIX) and _is_own(folder):
        with _locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: str) -> bool:
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder; raise an ``OSError`` where a process has it."""
    fcntl = file_locks()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _is_of_engine(folder: str) -> bool:
    """Whether a folder holds what an engine puts into one, and nothing else.

    An empty one counts only in ``fluss-df-user-UID``, where nobody but engines makes folders.
    """
    kinds = {SOCKET: stat.S_ISSOCK, DATA: stat.S_ISLNK, TEMPORARY: stat.S_ISLNK}
    names = os.listdir(folder)
    if not names:
        return os.path.basename(os.path.dirname(folder)).startswith(_OF_USER)
    return all(
        name in kinds and kinds[name](os.lstat(os.path.join(folder, name)).st_mode)
        for name in names
    )


def _listens(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(1.0)
            peer.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True

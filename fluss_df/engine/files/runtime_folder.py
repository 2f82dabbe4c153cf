"""Private folders for Unix sockets and temporary data, removed when no process uses them.

A socket's path may only be short, so that it is not in the folder with the data.
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

from fluss_df.engine.files.files import file_locks, holds_data
from fluss_df.errors import ErrorCode, FlussError

PREFIX: Final = "fluss-df-"
SOCKET: Final = "s"
# leads to the data: who may read it finds the secret there
DATA: Final = "data"
# macOS takes 103 bytes, Linux 107
_MAX_SOCKET_PATH: Final = 103
_RANDOM: Final = len(PREFIX) + 8
# a folder so young may be one that is being made
_YOUNG_S: Final = 60.0
# the folder of each user, in a folder that all users have
_OF_USER: Final = "fluss-df-user-"


class RuntimeFolder:
    """A new folder of this user alone, for one engine; locked while its process lives.

    Raises ``STORAGE_EXCEPTION`` where none can be made.

    Attributes
    ----------
    path
        The folder.
    """

    def __init__(self) -> None:
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
        """Have it lead to the folder with the data."""
        os.symlink(folder, os.path.join(self.path, DATA))

    def remove(self) -> None:
        """Remove it; a second call does nothing."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def data_of(socket_path: str) -> Path | None:
    """Return the folder with the data of the engine that has a socket; None where it says none."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(os.path.join(os.path.dirname(socket_path), DATA)))
    return None


def _new_folder() -> str:
    problem: OSError | None = None
    for base in _bases():
        if len(os.fsencode(base)) + 1 + _RANDOM + len("/s") > _MAX_SOCKET_PATH:
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
        # somebody else's, in its place: the new folder itself is this user's, and who connects
        # looks whose the socket is
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
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not ours or time.time() - found.st_mtime < _YOUNG_S or not _is_known(folder):
        return
    fcntl = file_locks()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # processes that run hold the lock; those of earlier versions have none, but listen
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _listens(os.path.join(folder, SOCKET)):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _is_known(folder: str) -> bool:
    """Whether a folder holds what an engine puts into one, and nothing else."""
    return set(os.listdir(folder)) <= {SOCKET, DATA} or holds_data(Path(folder))


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

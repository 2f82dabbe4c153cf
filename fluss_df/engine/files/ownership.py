"""The one owner of a folder, for as long as its process lives and the folder stays where it is.

The folder itself is locked, not only a file in it: who removes ``LOCK``, or renames the folder,
lets nobody else in. Another folder may then stand in the old place, with an owner of its own: files
are opened by their paths, so this owner has to stop before it touches them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import threading
import time
import weakref
from pathlib import Path

from fluss_df.engine.files.files import (
    FORMAT,
    file_locks,
    format_file,
    holds_data,
    make_folder,
    read_bytes,
    read_format,
    refused_by,
    sync_folder,
    write_atomically,
)
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import ForkStep, after_fork, undoing

logger = logging.getLogger(__name__)

# Linux has the process's open files there
_DESCRIPTORS = "/proc/self/fd"
# Linux has who holds which lock there
_LOCKS = Path("/proc/locks")
# how long an owner may take to write down who it is
_ANNOUNCED_S = 1.0
_LOOK_AGAIN_S = 0.02
# what may be there before the format is
_OURS = {"LOCK", "FORMAT.tmp"}
# what flock answers where it is not supported, as for folders on some network file systems
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EBADF}


class FolderInUseError(FlussError):
    """Another engine has the folder."""


class FolderLostError(FlussError):
    """The folder is not where it was: its engine answers nothing any more."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.UNKNOWN_SERVER_ERROR)


class _Anchor:
    """A descriptor of a folder for paths by it; closed when nobody can use such a path any more."""

    def __init__(self, folder: Path) -> None:
        self.fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


class FolderLock:
    """The ownership of an engine's folder.

    The folder is created where it is missing. ``format`` is the version of its layout. ``lost``
    says why the folder is owned no more; None while it is. ``secret`` stands in the folder for
    those who may read it, another one for each owner.

    Raises ``STORAGE_EXCEPTION`` at once, when another engine has the folder (its process id is
    named), when the folder is something else, of a newer format, or on a file system that has no
    locks.
    """

    format: int

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost: str | None = None
        self._path = folder / "LOCK"
        self._announced: str | None = None
        # a client of the Unix socket sends it, and so proves that it may read the folder
        self.secret = secrets.token_hex(32)
        self._released = False
        # held while a thread looks closely whether the folder is lost, and makes the lock file
        # again
        self._closely = threading.Lock()
        self._fd = self._folder_fd = -1
        with undoing(self.release):
            try:
                self._open()
            except OSError as error:
                way_out = ""
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    way_out = (
                        "; an engine writes to its folder: give this user the right, or copy it"
                    )
                raise FlussError(
                    f"cannot use the folder {folder}: {error}{way_out}", ErrorCode.STORAGE_EXCEPTION
                ) from error
        _held.add(self)

    def _open(self) -> None:
        file_locks()
        folder = self.folder
        fresh = not folder.exists() or not any(folder.iterdir())
        make_folder(folder.absolute())
        if not fresh and not holds_data(folder) and set(os.listdir(folder)) - _OURS:
            raise FlussError(
                f"{folder} holds other files and no Fluss data: choose an empty folder",
                ErrorCode.STORAGE_EXCEPTION,
            )
        # not inherited: a child must not keep the folder locked
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # a descriptor of its own: RocksDB may outlive the lock while an iterator is in use, and the
        # number of this descriptor must not become that of another folder
        self._anchor = _Anchor(folder)
        self._fd = self._open_file()
        self._lock_folder = lock_file(self._folder_fd)
        if self._lock_folder is False:
            raise self._in_use()
        locked = lock_file(self._fd)
        if locked is False:
            raise self._in_use()
        if locked is None and self._lock_folder is None:
            raise FlussError(
                f"the file system of {folder} has no locks (flock), so two engines could write to"
                " the folder at once: choose a folder on a local disk",
                ErrorCode.STORAGE_EXCEPTION,
            )
        self.announce(None)
        if not holds_data(folder):
            with contextlib.suppress(PermissionError):
                # made by this user or not: its name is on the disk before there is data
                sync_folder(folder.absolute().parent)
            self.write_format()
        self.format, problem = read_format(folder)
        if problem is not None:
            logger.warning("%s: it is written again", problem)

    def _open_file(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _in_use(self) -> FolderInUseError:
        pid = self._owner()
        owner = "another process" if pid is None else f"process {pid}{state_of(pid)}"
        return FolderInUseError(
            f"the folder {self.folder} is in use by {owner}: close that engine, or connect to its"
            " address",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def _owner(self) -> int | None:
        """Return the process that has the folder; None where nobody knows it.

        The owner writes its process id after it has the lock. Until then the file is empty, or has
        the id of the owner before. So the operating system is asked for the holder of the lock,
        where it tells. Where it does not, and the process in the file has ended, this waits for the
        owner to write its own.
        """
        deadline = time.monotonic() + _ANNOUNCED_S
        while True:
            holder = _holder(self._folder_fd) or _holder(self._fd)
            if holder is not None:
                return holder
            with contextlib.suppress(ValueError, LookupError, TypeError):
                pid = int(json.loads(os.pread(self._fd, 4096, 0))["pid"])
                if lives(pid):
                    return pid
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_AGAIN_S)

    def write_format(self) -> None:
        """Note that the folder has the layout of this version."""
        write_atomically(self.folder / "FORMAT", format_file(FORMAT))
        self.format = FORMAT

    def announce(self, socket: str | None) -> None:
        """Write down who has the folder, and the Unix socket by which others use it."""
        self._announced = socket
        value = {"pid": os.getpid(), "socket": socket, "secret": self.secret}
        os.fchmod(self._fd, 0o600)
        # written over what was there: the file is never empty. Whoever reads it meanwhile reads it
        # again.
        text = json.dumps(value).ljust(os.fstat(self._fd).st_size)
        os.pwrite(self._fd, text.encode(), 0)

    def verify(self) -> None:
        """Make sure that the folder's path still leads to the folder; takes about 5 us.

        To be called before a file is changed, and before a change is acknowledged. A ``LOCK`` that
        was removed is made again: nobody else can have come in.

        Raises FolderLostError where it does not, now and at each later call.
        """
        self.require()
        with contextlib.suppress(OSError):
            folder = os.path.samestat(os.stat(self.folder), os.fstat(self._folder_fd))
            if folder and os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                return
        with self._closely:
            self.require()
            self._verify_closely()

    def _verify_closely(self) -> None:
        """As :meth:`verify`, one thread at a time: another may have put things right meanwhile."""
        try:
            if not os.path.samestat(os.stat(self.folder), os.fstat(self._folder_fd)):
                self._lose("another folder is in its place")
            if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                self._take_file_again()
        except FileNotFoundError:
            if self.folder.exists():
                self._take_file_again()
            else:
                deleted = os.fstat(self._folder_fd).st_nlink == 0
                self._lose("it was deleted" if deleted else "it was renamed", deleted)
        except OSError as error:
            self._lose(str(error))

    def require(self) -> None:
        """Raise where an earlier :meth:`verify` did."""
        if self.lost is not None:
            raise FolderLostError(self.lost)

    def _take_file_again(self) -> None:
        """Make the lock file again, which was removed or replaced."""
        # of descriptors, or of room: the folder is no less this engine's
        with refused_by(f"cannot make {self._path} again", self.folder):
            fd = self._open_file()
        if self._lock_folder is None or lock_file(fd) is False:
            os.close(fd)
            self._lose("its file LOCK was removed or replaced")
        old, self._fd = self._fd, fd
        os.close(old)
        try:
            self.announce(self._announced)
        except OSError as error:
            logger.warning("%s does not say who has the folder: %s", self._path, error)
        logger.warning("%s was removed while the folder was in use: it is made again", self._path)

    def _lose(self, why: str, deleted: bool = False) -> None:
        self.lost = (
            f"the folder {self.folder} is not there any more, {why}: its engine stopped, and what"
            " it had not acknowledged is not stored. Put the folder back, or open it where it is"
        )
        # temporary folders are deleted before a program's end
        logger.log(logging.DEBUG if deleted else logging.ERROR, "%s", self.lost)
        raise FolderLostError(self.lost)

    def anchored(self, path: Path) -> str:
        """Return a path in the folder that leads there also after the folder was renamed.

        For what opens files by itself, as RocksDB does in the background. The path as it is, where
        the system has no such paths.
        """
        if not os.path.isdir(_DESCRIPTORS):
            return str(path)
        return f"{_DESCRIPTORS}/{self._anchor.fd}/{path.relative_to(self.folder)}"

    def readable(self, text: str) -> str:
        """Return a text with the folder's own path in place of :meth:`anchored` ones."""
        return text.replace(f"{_DESCRIPTORS}/{self._anchor.fd}/", f"{self.folder}/")

    def release(self) -> None:
        """Give the folder up; a second call does nothing."""
        if not self._released:
            self._released = True
            for fd in (self._fd, self._folder_fd):
                if fd >= 0:
                    os.close(fd)


def lock_file(fd: int) -> bool | None:
    """Lock what a descriptor is of: True for done, False for taken, None for no such locks."""
    fcntl = file_locks()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _holder(fd: int) -> int | None:
    """Return which process has the lock of what a descriptor is of, where the system tells."""
    with contextlib.suppress(FlussError, OSError, ValueError):
        status = os.fstat(fd)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        wanted = f"{device}:{status.st_ino}"
        for line in (read_bytes(_LOCKS) or b"").decode(errors="replace").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:9979123 0 EOF; who waits has an arrow before it
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [wanted] and int(words[4]) > 0:
                return int(words[4])
    return None


def lives(pid: int) -> bool:
    """Whether there is a process with a number, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return pid > 0


def state_of(pid: int) -> str:
    """Return what to add about a process that does not run, where the system tells."""
    with contextlib.suppress(FlussError, ValueError, IndexError):
        state = (
            (read_bytes(Path(f"/proc/{pid}/stat")) or b"").decode().rpartition(")")[2].split()[0]
        )
        if state in "Tt":
            return " (which is stopped: end it, or let it go on with SIGCONT)"
    return ""


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_locks() -> None:
    """Let go of the parent's locks: a forked child would keep them when the parent has ended.

    A lock belongs to what was opened, not to the process: closing it here leaves it to the parent.
    """
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


after_fork(ForkStep.FOLDER_LOCKS, _forget_locks)

"""Files that survive: atomic JSON, synced folders, the lock of a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import google_crc32c

from fluss_df.engine.files.open_files import allowed_files
from fluss_df.engine.files.private_files import FOLDER
from fluss_df.errors import ErrorCode, FlussError

logger = logging.getLogger(__name__)

# 2: small files have checksums and copies. 3: it is known which buckets have rows, and which
# batches a log has
FORMAT = 3
CHECKSUMS_SINCE = 2
_READABLE = (1, 2, FORMAT)
_KIND = "fluss_df embedded"
# no room on the disk, in the user's quota, or under the process's limit for a file
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# what reading raises for a value that is not what was written
NOT_AS_WRITTEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    OverflowError,
    struct.error,
)
_NO_FILES = {errno.EMFILE, errno.ENFILE}
# a folder stands where a file should be, or a file where a folder should be
_OTHER_KIND = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP}
# what says nothing about a file: it may be sound, and read the next time
NOT_NOW = {*_NO_FILES, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EINTR, errno.EAGAIN}


def file_locks() -> ModuleType:
    """Return the module of file locks, which only Unix has.

    Raises ``STORAGE_EXCEPTION`` elsewhere.
    """
    try:
        import fcntl
    except ImportError:
        raise FlussError(
            "the embedded engine needs Linux or macOS; on this system connect to the address of"
            " a server",
            ErrorCode.STORAGE_EXCEPTION,
        ) from None
    return fcntl


class DamagedError(FlussError):
    """Files are not as they were written; asking again does not help.

    Its code is one that clients do not try again with: the codes of storage are retriable, and
    clients would be silent about the damage for minutes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.UNKNOWN_SERVER_ERROR)


class TooManyFilesError(FlussError):
    """No file can be opened: the process, or the system, has too many open."""


def disk_refused(
    what: str, folder: Path, error: Exception, otherwise: int = ErrorCode.STORAGE_EXCEPTION
) -> FlussError:
    """Return the error for something that the disk did not do.

    ``what`` could not be done in ``folder`` because of ``error``: the operating system's, or
    RocksDB's, which has no error numbers.

    A full disk, and a lack of file descriptors, are told under a code that clients do not try again
    with: with a retriable one they would be silent about it for minutes. ``otherwise`` is the code
    of everything else.
    """
    text = f"{what}: {error}"
    if _is_one_of(error, _FULL):
        return FlussError(
            f"{text}. The disk of {folder} is full: make room there, or drop tables or partitions,"
            " and write again",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    if _is_one_of(error, _NO_FILES):
        return TooManyFilesError(
            f"{text}. The process may have {allowed_files():,} files open: close some, or raise the"
            " limit (ulimit -n)",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    # damaged rows in RocksDB have another code, and are made again from the changelog
    known = isinstance(error, OSError) and error.errno in _OTHER_KIND
    if known and otherwise == ErrorCode.STORAGE_EXCEPTION:
        return DamagedError(
            f"{text}. A file and a folder were exchanged there: move away what does not belong to"
            " the engine, or restore the folder from a backup"
        )
    return FlussError(text, otherwise)


@contextlib.contextmanager
def refused_by(what: str, folder: Path) -> Iterator[None]:
    """Raise what :func:`disk_refused` returns, where the block raises OSError."""
    try:
        yield
    except OSError as error:
        raise disk_refused(what, folder, error) from error


def _is_one_of(error: Exception, numbers: set[int]) -> bool:
    if isinstance(error, OSError):
        return error.errno in numbers
    return any(os.strerror(number) in str(error) for number in numbers)


def read_bytes(path: Path) -> bytes | None:
    """Return what is in a small file; None where there is none.

    Raises DamagedError where the disk does not give it. Raises FlussError, see
    :func:`disk_refused`, where it cannot be opened now: it must not be taken for damaged, and its
    older copy for the truth.
    """
    try:
        return _get(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in NOT_NOW:
            raise disk_refused(f"cannot read {path}", path.parent, error) from error
        raise DamagedError(f"cannot read {path}: {error}") from error


def _get(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where it is missing.

    Raises OSError where it cannot be read. ``Path.glob`` finds nothing then, from Python 3.13 on.
    """
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync_names(fd)
    finally:
        os.close(fd)


def _sync_names(fd: int) -> None:
    os.fsync(fd)
    if not hasattr(os, "fdatasync"):
        # macOS: fsync leaves the names in the drive's cache, and some file systems refuse more
        with contextlib.suppress(OSError):
            sync_data(fd)


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Create a folder, with those above it that are missing, so that they survive.

    No other user may use them. Where they are not to be ``durable`` at once, the caller syncs the
    folders that they are in.
    """
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    for made in reversed(missing):
        made.mkdir(FOLDER, exist_ok=True)
        if durable:
            sync_folder(made.parent)


def sync_data(fd: int) -> None:
    """Make the bytes of a file durable."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
        return
    fcntl = file_locks()
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves them in the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def add_record(path: Path, record: bytes, at: int, *, durable: bool) -> None:
    """Write a record at a place of a file, which is created for the first; it may be durable then.

    Raises OSError where the disk refuses: how much of it is there is not known.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < len(record):
            done += os.pwrite(fd, record[done:], at + done)
        if durable:
            sync_data(fd)
    finally:
        os.close(fd)
    if durable and not at:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable that is not open."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_data(fd)
    finally:
        os.close(fd)


def set_folder_aside(path: Path) -> None:
    """Give a folder that stands where a small file should be another name; nothing is deleted.

    The file was read before, and taken for damaged: it is made again like one that was lost.
    """
    names = (path.with_name(f"{path.name}.folder-{number}") for number in range(10**6))
    to = next(name for name in names if not os.path.lexists(name))
    os.rename(path, to)
    logger.warning("%s should be a file and was a folder: it is now %s", path, to)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file so that after a crash it holds the old bytes or the new ones.

    With ``durable``, the new file survives a loss of power from now on. Otherwise the operating
    system decides when, and after a loss of power before that the file may hold anything.

    Raises FlussError, see :func:`disk_refused`, when the disk does not take them. The old file is
    untouched, unless the folder could not be synced: then the new one is in its place, and a loss
    of power may bring the old one back.
    """
    temporary = path.with_name(path.name + ".tmp")
    folder = -1
    try:
        if durable:
            # first: where there is no descriptor for it, nothing was replaced
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(fd, data[written:], written)
            if durable:
                sync_data(fd)
        finally:
            os.close(fd)
        try:
            os.replace(temporary, path)
        except IsADirectoryError:
            set_folder_aside(path)
            os.replace(temporary, path)
        if durable:
            _sync_names(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_refused(f"cannot write {path.name}", path.parent, error) from error
    finally:
        if folder >= 0:
            os.close(folder)


@contextlib.contextmanager
def damage_in(path: Path) -> Iterator[None]:
    """Raise what is wrong with the contents of a file as :class:`DamagedError`."""
    try:
        yield
    except DamagedError:
        raise
    except (FlussError, *NOT_AS_WRITTEN) as error:
        text = error.message if isinstance(error, FlussError) else repr(error)
        raise DamagedError(
            f"{path} is damaged: {text}. Restore the folder from a backup"
        ) from error


def holds_data(folder: Path) -> bool:
    """Whether a folder is one of an engine, even where one of its files is lost."""
    names = ("FORMAT", "catalog/databases.json", "data/databases.json")
    return any((folder / name).exists() for name in names)


def format_file(version: int) -> bytes:
    """Return the contents of the file ``FORMAT``."""
    value: dict[str, object] = {"format": version, "kind": _KIND}
    value["crc32c"] = google_crc32c.value(json.dumps(value).encode())
    return json.dumps(value).encode()


def read_format(folder: Path) -> tuple[int, str | None]:
    """Return the version of a folder's layout, and what is wrong with the file that says it.

    Where the file is lost or damaged, it is read as in any version, that is 1.

    Raises ``STORAGE_EXCEPTION`` for one that this version does not know.
    """
    marker = folder / "FORMAT"
    try:
        value = json.loads(read_bytes(marker) or b"")
        version = value["format"]
        # versions before 3 wrote no checksum
        sound = value.get("kind") == _KIND if version in (1, 2) else _is_intact(value)
    except (DamagedError, *NOT_AS_WRITTEN) as error:
        if not holds_data(folder):
            raise DamagedError(f"cannot read {marker}: {error!r}") from error
        return _READABLE[0], f"{marker} cannot be read: {error!r}"
    if not sound or type(version) is not int:
        return _READABLE[0], f"{marker} is damaged: its checksum differs"
    if version not in _READABLE:
        raise FlussError(
            f"the folder {folder} has storage format {version}; this version reads"
            f" {', '.join(map(str, _READABLE))}",
            ErrorCode.STORAGE_EXCEPTION,
        )
    return version, None


def _is_intact(value: dict[str, object]) -> bool:
    """Whether the contents of a file are those that were written, as far as can be known."""
    crc = value.pop("crc32c", None)
    if crc is None and value.get("kind") is None:
        return True  # of a later version, which may have another checksum
    return bool(crc == google_crc32c.value(json.dumps(value).encode()))

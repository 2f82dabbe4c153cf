"""Parts: the files that backups are written to before they are complete and get their names.

A part is locked while the process that writes it lives. A file with the name and first bytes of a
part, of this user, that nobody has locked, was left by a killed process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import names_in
from fluss_df.engine.files.ownership import lock_file
from fluss_df.engine.files.private_files import FILE

logger = logging.getLogger(__name__)

# Parts of earlier versions have other names: those versions did not lock them.
_PREFIX: Final = "fluss-df-backup-locked-"
#: The pattern of the names of parts.
PART: Final = f"{_PREFIX}*.part"
_NAME: Final = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}\.part")
# the first bytes of the archives: Zstandard, LZ4
_MAGIC: Final = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
_TRIES: Final = 10


@contextlib.contextmanager
def part_file(folder: Path) -> Iterator[Path]:
    """Yield the path of a new file that only this user may read.

    The file is removed at the end of the block, unless the block has renamed it.

    Raises OSError when it cannot be made.
    """
    fd, path = _made(folder)
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, fd):
                path.unlink()
        os.close(fd)


def _made(folder: Path) -> tuple[int, Path]:
    for _ in range(_TRIES):
        fd, name = tempfile.mkstemp(prefix=_PREFIX, suffix=".part", dir=folder)
        path = Path(name)
        try:
            if lock_file(fd) is not False and _is_at(path, fd):
                return fd, path
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        # Before it was locked, another process has removed it as left behind.
        os.close(fd)
    raise OSError(f"no file for a backup can be made in {folder}: others removed {_TRIES} of them")


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def remove_left_parts(folder: Path) -> None:
    """Remove the parts in a folder whose processes were killed."""
    try:
        names = [name for name in names_in(folder) if _NAME.fullmatch(name)]
    except OSError:
        return  # A folder that may be written to need not be readable.
    for name in names:
        path = folder / name
        try:
            # O_NONBLOCK: opening a FIFO must not wait.
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _is_part(fd) and lock_file(fd) is True and _is_at(path, fd):
                path.unlink()
                logger.warning("%s is removed: the process that wrote it was killed", path)
        except OSError as error:
            logger.warning("cannot remove %s, which a killed process left: %s", path, error)
        finally:
            os.close(fd)


def _is_part(fd: int) -> bool:
    """Whether a file may be one of this module's, of this user."""
    status = os.fstat(fd)
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and status.st_nlink == 1
        and stat.S_IMODE(status.st_mode) == FILE
        and (not status.st_size or os.pread(fd, 4, 0) in _MAGIC)
    )

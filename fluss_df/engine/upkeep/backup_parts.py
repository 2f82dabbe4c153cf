"""The file that a backup is written to before it is complete, and those that were left behind.

A part is locked while its process lives. What has the name and the beginning of a part, belongs to
this user, and is locked by nobody, was left by a process that was killed.
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

# not the names of earlier versions, which locked nothing
_PREFIX: Final = "fluss-df-backup-locked-"
#: What the names of parts are like.
PART: Final = f"{_PREFIX}*.part"
_NAME: Final = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}\.part")
# how the archives begin that are written: Zstandard, LZ4
_MAGIC: Final = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
_TRIES: Final = 10


@contextlib.contextmanager
def part_file(folder: Path) -> Iterator[Path]:
    """Give a new file of this call alone, which no other user may read; removed at the end.

    Whoever renames it meanwhile keeps it.

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
        # another process may have taken it for left behind in the moment before it was locked
        if lock_file(fd) is not False and _is_at(path, fd):
            return fd, path
        os.close(fd)
    raise OSError(f"the files of a backup that are made in {folder} are removed by others")


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
        return  # to write there needs no right to list it
    for name in names:
        path = folder / name
        try:
            # FIFOs would be waited for
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

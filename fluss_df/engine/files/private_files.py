"""Files and folders that no other user may read: 0600 and 0700, whatever the process's umask."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

FILE: Final = 0o600
FOLDER: Final = 0o700
_OTHERS: Final = 0o077


def make_private(folder: Path) -> None:
    """Take the rights of others from a folder and the files in it, where they have any.

    RocksDB creates its files as the umask says; within a folder that is private nobody else comes
    to them, and here they become private themselves.
    """
    with contextlib.suppress(OSError):
        _restrict(folder, FOLDER)
        with os.scandir(folder) as entries:
            for entry in entries:
                # RocksDB may have removed it meanwhile
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        _restrict(entry.path, FILE)


def _restrict(path: str | Path, mode: int) -> None:
    if stat.S_IMODE(os.lstat(path).st_mode) & _OTHERS:
        os.chmod(path, mode)

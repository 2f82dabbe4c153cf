"""The lock file of a folder: who has it, and how to connect to them."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final

from fluss_df.engine.files.files import TooManyFilesError, read_bytes
from fluss_df.engine.files.runtime_folder import data_of
from fluss_df.errors import FlussError, NetworkError
from fluss_df.protocol.handshake import FolderSecret

# how often a lock file is read that is not whole
_LOCK_READS: Final = 5
_LOCK_PAUSE_S: Final = 0.002


def owner_of(folder: Path) -> tuple[int, str] | None:
    """Return process id and socket of the owner of a folder, if the lock file names them."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        value = _lock_file(folder)
        return int(value["pid"]), str(value["socket"])
    return None


def secret_in(folder: Path, socket_path: str) -> str | None:
    """Return the secret that a folder has of the engine with a socket; None where it has none."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        value = _lock_file(folder)
        # the folder may have another owner by now
        if value["socket"] == socket_path:
            return str(value["secret"])
    return None


def _lock_file(folder: Path) -> Any:
    """Return what the lock file says; raise a ``ValueError`` where it cannot be read.

    Without descriptors it is not known whether there is an owner: that is raised as it is.
    """
    for _ in range(_LOCK_READS - 1):
        with contextlib.suppress(ValueError):
            return json.loads(_lock_bytes(folder))
        # its owner may be writing it at the moment
        time.sleep(_LOCK_PAUSE_S)
    return json.loads(_lock_bytes(folder))


def _lock_bytes(folder: Path) -> bytes:
    try:
        return read_bytes(folder / "LOCK") or b""
    except TooManyFilesError:
        raise
    except FlussError as error:
        raise ValueError(error.message) from error


def engine_secret(socket_path: str, folder: Path | None = None) -> FolderSecret | None:
    """Return the secret that an engine in another process asks for; None where it asks for none.

    ``folder`` is where this process has the folder, which may have been renamed since.

    Raises NetworkError where it cannot be read: the engine is ending.
    """
    asks = data_of(socket_path)
    if asks is None:
        return None  # of an earlier version
    for place in dict.fromkeys((folder or asks, asks)):
        secret = secret_in(place, socket_path)
        if secret is not None:
            return FolderSecret(secret)
    raise NetworkError(
        f"cannot read {asks}/LOCK, which says how to connect to the engine at {socket_path}: it is"
        " ending, or this user may not read the folder"
    )

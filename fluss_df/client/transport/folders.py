"""Folders as connections: the first process that connects starts the folder's embedded engine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import ForkStep, after_fork
from fluss_df.protocol.address import local_host, local_path
from fluss_df.protocol.handshake import FolderSecret

if TYPE_CHECKING:
    from fluss_df.engine.serve.server import EngineServer, LocalEngine

# a default that somebody must have set on purpose
HOME_VARIABLE: Final = "FLUSS_HOME"

# how long the owner of a folder may take to open it, before others give up
_OPENING_S: Final = 20.0
_PAUSE_S: Final = 0.02
#: Seconds before an owner that is ending is asked again.
ENDING_S: Final = 0.02

_lock = threading.Lock()
_engines: dict[Path, EngineServer] = {}
# sockets of other processes -> the folders that they were of
_attached: dict[str, Path] = {}
_owner = os.getpid()


def home_folder() -> Path | None:
    """Return the folder that FLUSS_HOME names, or None."""
    value = os.environ.get(HOME_VARIABLE)
    return Path(value) if value else None


def attached_config(folder: Path | str, config: Config | None = None) -> Config:
    """Return the settings of a connection to the engine of a folder, opened where none has it.

    ``folder`` may be ``":memory:"``. ``config`` has the settings of the connection, but for the
    address.

    Raises ``STORAGE_EXCEPTION`` when another process has the folder and cannot be reached.
    """
    host, port = local_host(_socket_of(folder))
    attached = Config() if config is None else config.copy()
    attached.bootstrap_servers = f"{host}:{port}"
    return attached


def _socket_of(folder: Path | str) -> str:
    until = time.monotonic() + _OPENING_S
    while True:
        # the lock is not held over the pause: other folders are opened meanwhile
        with _lock:
            try:
                return _socket_now(folder)
            except _FolderIsOpeningError as error:
                if time.monotonic() > until:
                    raise error.refusal from None
        time.sleep(_PAUSE_S)


class _FolderIsOpeningError(Exception):
    """A folder has an owner that is opening it, or that gave it up this moment."""

    def __init__(self, refusal: FlussError) -> None:
        super().__init__()
        self.refusal = refusal


def _socket_now(folder: Path | str) -> str:
    """Return the socket of a folder's engine, opened here if no process has it; with the lock."""
    # not imported with the client: most programs use a cluster
    from fluss_df.engine.files.lock_file import owner_of
    from fluss_df.engine.files.ownership import FolderInUseError
    from fluss_df.engine.serve.server import EngineServer

    global _owner
    if os.getpid() != _owner:
        # a forked child reaches the parent's engines only by their sockets
        _engines.clear()
        _owner = os.getpid()
    if not isinstance(folder, Path):
        engine = EngineServer(None)
        _engines[engine.folder] = engine
        return engine.socket_path
    key = _resolved(folder)
    running = _engines.get(key)
    if running is not None and not running.closed and running.engine.lock.lost is None:
        return running.socket_path
    try:
        engine = _engines[key] = EngineServer(key)
    except FolderInUseError as error:
        owner = owner_of(key)
        # an engine whose folder was renamed gives it up this moment
        lost = {e.socket_path for e in _engines.values() if e.engine.lock.lost is not None}
        if owner is not None and owner[1] not in {"", *lost} and os.path.exists(owner[1]):
            _attached[owner[1]] = key
            return owner[1]
        raise _FolderIsOpeningError(error) from None
    return engine.socket_path


def _resolved(folder: Path) -> Path:
    try:
        return folder.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links, an unknown user
        raise FlussError(
            f"cannot use the folder {folder}: {error}", ErrorCode.STORAGE_EXCEPTION
        ) from error


def successor(socket_path: str) -> str | None:
    """Return the socket of the engine that took over from one that cannot be reached.

    Returns None where nothing is known of the folder.

    A process that uses a folder through its owner goes on when the owner ends: with the engine of
    whoever opened the folder next, or one of its own. An owner that is ending has the folder for
    another moment, and its socket is returned: ask again after :data:`ENDING_S`.

    Raises ``STORAGE_EXCEPTION`` when another process has the folder and cannot be reached, or when
    there is no folder any more.
    """
    from fluss_df.engine.files.files import holds_data

    folder = _attached.get(socket_path)
    if folder is None:
        return None
    if not holds_data(folder):
        # a new folder in its place would be empty
        raise FlussError(
            f"the folder {folder} is not there any more: its engine has ended. Put the folder back,"
            " or connect to it where it is",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    return _socket_of(folder)


def is_attached(host: str) -> bool:
    """Whether a host stands for the engine of a folder that another process has, or had."""
    path = local_path(host)
    return path is not None and path in _attached


def folder_behind(host: str) -> Path | None:
    """Return the folder whose engine a host stands for, also in this process; None for another."""
    path = local_path(host)
    if path is None:
        return None
    with _lock:
        here = (engine.folder for engine in _engines.values() if engine.socket_path == path)
        return _attached.get(path) or next(here, None)


def engine_credentials(socket_path: str) -> FolderSecret | None:
    """Return the secret that an engine in another process asks for; None where it asks for none.

    Raises NetworkError where it cannot be read: the engine is ending.
    """
    # not imported with the client: most programs use a cluster
    from fluss_df.engine.files.lock_file import engine_secret

    return engine_secret(socket_path, _attached.get(socket_path))


def back_up_folder(folder: Path, file: Path) -> int:
    """Write a backup of a folder, by whoever owns it; return its bytes.

    Raises ``STORAGE_EXCEPTION`` where there is no such folder, or the backup cannot be written.
    """
    from fluss_df.engine.upkeep.backup import ask_owner, codec_of

    codec_of(file)
    if not (folder / "FORMAT").exists():
        raise FlussError(f"{folder} holds no Fluss data", ErrorCode.STORAGE_EXCEPTION)
    key = _resolved(folder)
    before = _engines.get(key)
    until = time.monotonic() + _OPENING_S
    try:
        while True:
            try:
                return ask_owner(_socket_of(folder), key, file)
            except FlussError as error:
                # an owner that is ending has the folder for another moment
                if error.error_code != ErrorCode.NETWORK_EXCEPTION or time.monotonic() > until:
                    raise
                time.sleep(ENDING_S)
    finally:
        # an engine that was started for the backup alone ends with it
        started = _engines.get(key)
        if started is not None and started is not before:
            started.close()


def engine_here(config: Config) -> LocalEngine | None:
    """Return the engine of this process that a connection is to; None for any other server."""
    addresses = config.addresses()
    path = local_path(addresses[0][0]) if len(addresses) == 1 else None
    if path is None:
        return None
    # not imported for a cluster: an address of this kind is an engine's
    from fluss_df.engine.serve.server import engine_at

    return engine_at(path)


def served_here(config: Config) -> bool:
    """Whether a connection is to an engine of this process, which ends with it."""
    paths = [local_path(host) for host, _ in config.addresses()]
    return all(path is not None and _is_here(path) for path in paths)


def _is_here(socket_path: str) -> bool:
    # not imported for a cluster: an address of this kind is an engine's
    from fluss_df.engine.serve.server import engine_at

    if engine_at(socket_path) is not None:
        return True
    folder = _attached.get(socket_path)
    taken_over = None if folder is None else _engines.get(folder)
    return taken_over is not None and not taken_over.closed


def close_temporary(config: Config) -> None:
    """Close the engine of ``":memory:"`` that a connection was to; any other goes on."""
    addresses = config.addresses()
    path = local_path(addresses[0][0]) if len(addresses) == 1 else None
    if path is None or os.getpid() != _owner:
        return
    with _lock:
        here = (e for e in _engines.values() if e.socket_path == path and e.is_temporary)
        engine = next(here, None)
        if engine is not None:
            del _engines[engine.folder]
    if engine is not None:
        # its data go with it, whatever could not be synced
        with contextlib.suppress(FlussError):
            engine.close()


def close_engines() -> None:
    """Close the engines of this process; the client's exit hook does it last of all."""
    if os.getpid() != _owner:
        return
    for engine in list(_engines.values()):
        with contextlib.suppress(FlussError):
            engine.close()


def _after_fork_in_child() -> None:
    # a thread of the parent that was opening a folder held it, and would never let it go here
    global _lock
    _lock = threading.Lock()


after_fork(ForkStep.FOLDERS, _after_fork_in_child)

"""Backups of a folder as one compressed archive, made while the engine runs.

A backup holds, of every bucket, all that was acknowledged when it was begun, in whole batches. The
catalog is read last: it knows every schema that the batches refer to.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import struct
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, cast

import pyarrow as pa

from fluss_df.engine.catalog.catalog_files import CATALOG, CatalogFiles
from fluss_df.engine.engine import COPIES, Engine
from fluss_df.engine.files.files import (
    CHECKSUMS_SINCE,
    DamagedError,
    damage_in,
    format_file,
    names_in,
    refused_by,
    sync_data,
    sync_folder,
)
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.files.lock_file import engine_secret, owner_of
from fluss_df.engine.files.ownership import state_of
from fluss_df.engine.files.private_files import FILE
from fluss_df.engine.log.segment import LogCopy
from fluss_df.engine.upkeep.backup_lake import LakeInBackup, lake_of
from fluss_df.engine.upkeep.backup_parts import part_file, remove_left_parts
from fluss_df.errors import DeadlineExceededError, ErrorCode, FlussError
from fluss_df.local_peers import require_own
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import AUTHENTICATE
from fluss_df.protocol.handshake import FOLDER_PROTOCOL

# The API key of a request that Apache Fluss lacks; accepted on the Unix socket only.
BACKUP_KEY: Final = 30_001
_SUFFIXES: Final = {".tar.zst": "zstd", ".tar.lz4": "lz4"}
_FRAME: Final = struct.Struct(">ihhi")
_ANSWER: Final = struct.Struct(">iBi")
# For the answer to the authentication, which needs no work.
_FIRST_ANSWER_S: Final = 15.0


def codec_of(file: Path) -> str:
    """Return the compression that a backup's name stands for.

    Raises FlussError for other names.
    """
    for suffix, codec in _SUFFIXES.items():
        if file.name.endswith(suffix):
            return codec
    raise FlussError(
        f"{file}: the name of a backup ends with {' or '.join(_SUFFIXES)}",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )


def back_up(engine: Engine, file: Path) -> int:
    """Write a backup of a running engine; return the size of the archive in bytes.

    ``file`` is the archive, ``.tar.zst`` or ``.tar.lz4``; it is replaced only when the new one is
    complete.

    Raises ``STORAGE_EXCEPTION`` where it cannot be written, or data is damaged.
    """
    codec = codec_of(file)
    with refused_by(f"cannot write the backup {file}", file.parent):
        remove_left_parts(file.parent)
        # a file of this call alone: another call may write to the same name
        with part_file(file.parent) as part:
            with (
                pa.OSFile(str(part), "w") as stream,
                pa.CompressedOutputStream(stream, codec) as packed,
                tarfile.open(fileobj=cast(IO[bytes], packed), mode="w|") as archive,
            ):
                _write(engine, archive)
            fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync_data(fd)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
            os.replace(part, file)
            sync_folder(file.absolute().parent)
    return size


def _write(engine: Engine, archive: tarfile.TarFile) -> None:
    # RocksDB's checkpoints are hard links, so they must be on the file system of the data.
    with refused_by(f"cannot back up {engine.folder}", engine.folder):
        (engine.folder / COPIES).mkdir(mode=0o700, exist_ok=True)
        copies = Path(tempfile.mkdtemp(dir=engine.folder / COPIES))
    try:
        with lake_of(engine) as lake:
            _write_all(engine, archive, copies, lake)
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _write_all(engine: Engine, archive: tarfile.TarFile, copies: Path, lake: LakeInBackup) -> None:
    for number, bucket in enumerate(engine.all_buckets()):
        _write_bucket(engine, archive, bucket, copies / str(number))
    engine.cluster.compact()
    files = CatalogFiles(engine.folder, plain=engine.lock.format < CHECKSUMS_SINCE)
    for optional in (files.acls(), files.cluster()):
        _add_kept(archive, optional)
    if not _add_kept(archive, files.databases()):
        raise _lost(files.databases())
    for table in engine.catalog.all_tables():
        kept = files.table(table.id)
        if _add_kept(archive, kept, lake.of_table):
            continue
        # else it was dropped meanwhile
        if any(table is each for each in engine.catalog.all_tables()):
            raise _lost(kept)
    for name, content in lake.members():
        if isinstance(content, Path):
            _add_file(archive, name, content)
        else:
            _add(archive, name, content)
    # the last file: an archive that was cut off lacks it, and is not taken for an engine's folder
    _add(archive, "FORMAT", format_file(engine.lock.format))


def _add_kept(
    archive: tarfile.TarFile, kept: KeptJson, change: Callable[[Any], Any] = lambda value: value
) -> bool:
    """Archive a file of the catalog, from its copy where it is damaged; False where neither is."""
    with damage_in(kept.first):
        data = kept.packed(change)
    if data is not None:
        _add(archive, f"{CATALOG}/{kept.first.name}", data)
    return data is not None


def _lost(kept: KeptJson) -> DamagedError:
    return DamagedError(f"{kept.first} and its copy {kept.second} are missing")


def _write_bucket(
    engine: Engine, archive: tarfile.TarFile, bucket: TableBucket, copy: Path
) -> None:
    try:
        table, tablet = engine.bucket(bucket)
        folder = engine.bucket_folder(bucket)
        name = str(folder.relative_to(engine.folder))
        with contextlib.ExitStack() as copied:
            # The copy of RocksDB lacks the newest changes, which are in the log only. Their
            # segments must not expire before the log is copied.
            with engine.expiring:
                if table.has_primary_key:
                    # Rows are copied before the log: the log must have every change that they have.
                    engine.kv_bucket(bucket)[1].checkpoint(copy)
                log = copied.enter_context(tablet.copy())
            if table.has_primary_key:
                for part in names_in(copy):
                    _add_file(archive, f"{name}/kv/{part}", copy / part)
            _write_log(archive, f"{name}/log", log, folder / "log")
    except FlussError as error:
        if error.error_code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
            raise
    finally:
        # its links keep files on the disk that RocksDB has removed since
        shutil.rmtree(copy, ignore_errors=True)


def _write_log(archive: tarfile.TarFile, name: str, log: LogCopy, folder: Path) -> None:
    for part in log.segments:
        info = _info(f"{name}/{part.name}", part.size)
        with os.fdopen(os.dup(part.fd), "rb") as stream:
            stream.seek(0)
            archive.addfile(info, _source(stream, folder / part.name))
    _add(archive, f"{name}/synced", log.point)


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    with refused_by(f"cannot read {path}", path.parent):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        archive.addfile(_info(name, os.fstat(fd).st_size), _source(stream, path))


def _source(stream: IO[bytes], path: Path) -> IO[bytes]:
    # tarfile calls read() alone
    return cast(IO[bytes], _Source(stream, path))


class _Source:
    """A file that is archived; errors of its disk name it, and not the backup."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path

    def read(self, size: int = -1) -> bytes:
        with refused_by(f"cannot read {self._path}", self._path.parent):
            return self._stream.read(size)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = FILE
    info.mtime = time.time()
    return info


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_info(name, len(data)), io.BytesIO(data))


def ask_owner(socket_path: str, folder: Path, file: Path) -> int:
    """Have the engine that owns a folder write a backup; return the archive's size in bytes.

    Raises FlussError as :func:`back_up`; ``NETWORK_EXCEPTION`` where the owner ends before it has
    answered, and ``REQUEST_TIME_OUT`` where it does not answer, as a process that was stopped.
    """
    body = os.fsencode(file.absolute())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_FIRST_ANSWER_S)
            peer.connect(socket_path)
            require_own(peer, socket_path)
            known = engine_secret(socket_path, folder)
            with peer.makefile("rb") as stream:
                if known is not None:
                    token = known.secret.encode()
                    asked = pb.AuthenticateRequest(protocol=FOLDER_PROTOCOL, token=token)
                    _ask(peer, stream, AUTHENTICATE.key, asked.SerializeToString())
                # The owner has answered. The backup itself may take any time.
                peer.settimeout(None)
                return int(_ask(peer, stream, BACKUP_KEY, body))
    except TimeoutError as error:
        owner = owner_of(folder)
        process = "the process" if owner is None else f"process {owner[0]}{state_of(owner[0])}"
        raise DeadlineExceededError(
            f"{process}, which has {folder} open, does not answer for {_FIRST_ANSWER_S:g} seconds:"
            " end it, or try again when it has less to do"
        ) from error
    except (OSError, struct.error) as error:
        raise FlussError(
            f"the engine that owns the folder does not answer: {error}", ErrorCode.NETWORK_EXCEPTION
        ) from error


def _ask(peer: socket.socket, stream: IO[bytes], key: int, body: bytes) -> bytes:
    """Send a request and return its answer."""
    peer.sendall(_FRAME.pack(len(body) + 8, key, 0, 1) + body)
    size, kind, _ = _ANSWER.unpack(stream.read(_ANSWER.size))
    answer = stream.read(size - 5)
    if kind:
        failed = pb.ErrorResponse.FromString(answer)
        raise FlussError(failed.error_message, failed.error_code)
    return answer

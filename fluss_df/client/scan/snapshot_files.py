"""The snapshots of primary-key tables that servers keep in remote storage: RocksDB checkpoints."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import shutil
import stat
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa
from pyarrow import fs

from fluss_df.client.cluster.snapshot_leases import acquire_request, snapshot_request, unavailable
from fluss_df.client.fetch.remote_fs import Place, RemoteFileSystems
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import (
    ACQUIRE_KV_SNAPSHOT_LEASE,
    DROP_KV_SNAPSHOT_LEASE,
    GET_KV_SNAPSHOT_METADATA,
    GET_LATEST_KV_SNAPSHOTS,
)
from fluss_df.protocol.message_parts import path_message
from fluss_df.record.kv.rocks_manifest import verify_manifest
from fluss_df.record.kv.rocks_rows import take_values
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from rocksdict import Rdict

    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

# how long a lease lasts that is not renewed any more, as that of a reader that was killed
_LEASE_MS = 30 * 60_000
# the most bytes, and the most rows, that are handed on at a time
_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 1 << 17
# the rows of the first piece, before it is known how large values are
_FIRST_ROWS = 64
_COPY_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# Windows has only O_BINARY
_FLAGS: int = sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """A snapshot of one bucket.

    The snapshot has all changes below ``log_offset``, and no others. ``files`` are (URI, local
    name).
    """

    bucket: TableBucket
    snapshot_id: int
    log_offset: int
    files: tuple[tuple[str, str], ...]


@contextmanager
def leased(
    connection: ClientContext, bucket: TableBucket, snapshot_id: int | None
) -> Iterator[KvSnapshot | None]:
    """Have a snapshot of a bucket, or None where there is none yet, kept while it is read.

    Newer snapshots take the place of older ones, whose files servers delete, unless there is a
    lease of them. Where the coordinator knows no leases, there is none.

    Raises ``KV_SNAPSHOT_NOT_EXIST`` when a newer one took its place in the moment before the lease.
    """
    if snapshot_id is None:
        yield None
        return
    lease_id = f"fluss-df-{uuid.uuid4()}"
    if not _acquire(connection, lease_id, bucket, snapshot_id):
        yield _described(connection, bucket, snapshot_id)
        return
    renewing = connection.io.submit(_renew(connection, lease_id))
    process = os.getpid()
    try:
        yield _described(connection, bucket, snapshot_id)
    finally:
        # a forked child leaves it to the parent, which reads on
        if os.getpid() == process:
            # before the lease is dropped: both go to the I/O thread in this order
            renewing.cancel()
            _drop(connection, lease_id)


def _acquire(
    connection: ClientContext, lease_id: str, bucket: TableBucket, snapshot_id: int
) -> bool:
    """Take a lease; return False where the coordinator knows no leases."""
    request = acquire_request(lease_id, _LEASE_MS, {bucket: snapshot_id})
    cluster = connection.cluster
    try:
        answer = connection.io.run(cluster.request_coordinator(ACQUIRE_KV_SNAPSHOT_LEASE, request))
    except FlussError as error:
        if error.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return False
        raise
    if unavailable(answer):
        raise FlussError(
            f"snapshot {snapshot_id} of {bucket} is gone: a newer one took its place",
            ErrorCode.KV_SNAPSHOT_NOT_EXIST,
        )
    return True


async def _renew(connection: ClientContext, lease_id: str) -> None:
    """Have a lease last for as long as a snapshot is read, until it is cancelled."""
    while True:
        await asyncio.sleep(_LEASE_MS / 3000)
        request = acquire_request(lease_id, _LEASE_MS, {})
        try:
            await connection.cluster.request_coordinator(ACQUIRE_KV_SNAPSHOT_LEASE, request)
        except FlussError as error:
            # two more tries before it ends
            logger.debug("lease %s could not be renewed: %s", lease_id, error)


def _drop(connection: ClientContext, lease_id: str) -> None:
    request = pb.DropKvSnapshotLeaseRequest(lease_id=lease_id)
    cluster = connection.cluster
    try:
        connection.io.run(cluster.request_coordinator(DROP_KV_SNAPSHOT_LEASE, request))
    except FlussError as error:
        # it ends by itself
        logger.debug("lease %s could not be dropped: %s", lease_id, error)


async def newest_ids(
    connection: ClientContext, info: TableInfo, partition_id: int | None, partition_name: str | None
) -> dict[TableBucket, int]:
    """Return the newest snapshot of each bucket of a table or partition that has one.

    A coroutine of the I/O thread.

    Raises ``TABLE_NOT_EXIST`` where the table is another one now.
    """
    latest = await connection.cluster.request_any(
        GET_LATEST_KV_SNAPSHOTS,
        pb.GetLatestKvSnapshotsRequest(
            table_path=path_message(info.table_path), partition_name=partition_name
        ),
    )
    if latest.table_id != info.table_id:
        raise FlussError(
            f"table {info.table_path} was dropped and created again since it was opened: open it"
            " again",
            ErrorCode.TABLE_NOT_EXIST,
        )
    if latest.HasField("partition_id") and latest.partition_id != partition_id:
        raise FlussError(
            f"partition '{partition_name}' of table {info.table_path} was dropped and created again"
            " while it was read",
            ErrorCode.PARTITION_NOT_EXISTS,
        )
    return {
        TableBucket(info.table_id, s.bucket_id, partition_id): s.snapshot_id
        for s in latest.latest_snapshots
        if s.HasField("snapshot_id")
    }


def _described(connection: ClientContext, bucket: TableBucket, snapshot_id: int) -> KvSnapshot:
    metadata = connection.io.run(
        connection.cluster.request_any(
            GET_KV_SNAPSHOT_METADATA, snapshot_request(bucket, snapshot_id)
        )
    )
    files = tuple((f.remote_path, f.local_file_name) for f in metadata.snapshot_files)
    return KvSnapshot(bucket, snapshot_id, metadata.log_offset, files)


class _Folder:
    """A new folder. This process removes it, at its end at the latest; a forked child does not."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="fluss-df-snapshot-")
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _own_folder() -> Iterator[str]:
    folder = _Folder()
    try:
        yield folder.path
    finally:
        folder.remove()


def snapshot_entries(
    connection: ClientContext, snapshot: KvSnapshot, *, keys: bool = True
) -> Iterator[tuple[pa.Array | None, list[bytes]]]:
    """Read a snapshot, a few MB at a time.

    Yields the values, and the key of each unless ``keys`` is false.

    Raises ``STORAGE_EXCEPTION`` when a file cannot be read; ``KV_SNAPSHOT_NOT_EXIST_EXCEPTION``
    when one is gone, because a newer snapshot took its place. Raises ProtocolError when the files
    are damaged, also behind rows that were yielded.
    """
    # RocksDB is needed here only: it costs every import of the package a moment
    from rocksdict import AccessType, Options, Rdict

    with _own_folder() as folder:
        _download(connection, snapshot, Path(folder))
        options = Options(raw_mode=True)
        try:
            verify_manifest(lambda name: Path(folder, name).open("rb"))  # noqa: SIM115
            database = Rdict(folder, options=options, access_type=AccessType.read_only())
        except Exception as error:
            raise ProtocolError(
                f"snapshot {snapshot.snapshot_id} of {snapshot.bucket} cannot be opened: {error}"
            ) from error
        with closing(database):
            yield from _entries(snapshot, database, keys=keys)


def _entries(
    snapshot: KvSnapshot, database: Rdict, *, keys: bool
) -> Iterator[tuple[pa.Array | None, list[bytes]]]:
    """Iterate over keys, if asked for, and values, in lists of a few MB.

    RocksDB's iterators end silently at a block that they cannot read. To ask them after each row
    takes twice as long as all else, so it is looked behind the rows whether the last one came: no
    two rows are equal, as a value has the columns of its key, too.
    """
    count = _FIRST_ROWS
    last: bytes | None = None
    # pairs take three times as long as keys and values apart
    all_keys = cast("Iterator[bytes]", database.keys()) if keys else None
    all_values = cast("Iterator[bytes]", database.values())
    try:
        while values := list(itertools.islice(all_values, count)):
            some = None if all_keys is None else list(itertools.islice(all_keys, count))
            if some is not None and len(some) < len(values):
                break
            yield None if some is None else pa.array(some, pa.large_binary()), values
            last = values[-1]
            some_values = values[:: len(values) // _FIRST_ROWS + 1]
            size = sum(map(len, some_values)) // len(some_values) + 1
            count = min(8 * count, max(1, _PIECE_BYTES // size), _PIECE_ROWS)
        _require_last(database, last)
    except Exception as error:
        raise ProtocolError(
            f"snapshot {snapshot.snapshot_id} of {snapshot.bucket} is damaged: {error};"
            " wait for the next snapshot (kv.snapshot.interval)"
        ) from error


def _require_last(database: Rdict, value: bytes | None) -> None:
    """Raise RocksDB's own Exception where a value is not that of the last row, and None is no row.

    ValueError, where it has no error.
    """
    rows = database.iter()
    rows.seek_to_last()
    last = rows.value()
    rows.status()
    if last != value:
        rows.seek_to_first()
        while take_values(rows, _PIECE_ROWS):
            pass
        raise ValueError("its rows end before the last one")


def _download(connection: ClientContext, snapshot: KvSnapshot, folder: Path) -> None:
    """Copy the files of a snapshot to a folder of this call's own.

    A server says where they are and what they are called: it can name any file that this user may
    read. They are never linked, and only new files in the folder are written.
    """
    _check_names(snapshot)
    filesystems = RemoteFileSystems.of(connection)
    for uri, name in snapshot.files:
        what = f"{snapshot.bucket}: file {uri!r} of snapshot {snapshot.snapshot_id}"
        place = filesystems.locate(uri)
        try:
            _copy(place, folder / name)
        except FileNotFoundError as error:
            raise FlussError(
                f"{what} is gone; or it is on a disk of the cluster, which must be mounted here at"
                " the same path",
                ErrorCode.KV_SNAPSHOT_NOT_EXIST,
            ) from error
        # a text that cannot be a path is a ValueError
        except (OSError, ValueError, pa.ArrowException) as error:
            filesystems.forget(place)
            text = place.token.redact(str(error).partition("\n")[0])
            raise FlussError(
                f"{what} cannot be read: {text}", ErrorCode.STORAGE_EXCEPTION
            ) from None


def _check_names(snapshot: KvSnapshot) -> None:
    """Refuse names that RocksDB gives to no file, and names that come twice."""
    seen: set[str] = set()
    for uri, name in snapshot.files:
        what = f"snapshot {snapshot.snapshot_id} of {snapshot.bucket}"
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise ProtocolError(f"{what} calls its file {uri!r} {name!r}, which is no file's name")
        if name in seen:
            raise ProtocolError(f"{what} has a file {name!r} twice, the second one from {uri!r}")
        seen.add(name)


def _copy(place: Place, target: Path) -> None:
    with target.open("xb") as written:
        if isinstance(place.filesystem, fs.LocalFileSystem):
            with _open_regular(place.path) as local:
                # no more than it has: some files of /proc have no end
                left = os.fstat(local.fileno()).st_size
                while left and (piece := local.read(min(left, _COPY_BYTES))):
                    written.write(piece)
                    left -= len(piece)
            return
        # not decompressed, whatever its name ends in
        with place.filesystem.open_input_stream(place.path, compression=None) as source:
            shutil.copyfileobj(source, written, _COPY_BYTES)


def _open_regular(path: str) -> BinaryIO:
    """Open a file of a disk here, but no device, and no FIFO, whose writer would be waited for."""
    # looked at before, as to open a device can do something; and after, as it may be another
    if stat.S_ISREG(os.stat(path).st_mode):
        opened = os.fdopen(os.open(path, os.O_RDONLY | _FLAGS), "rb")
        if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return opened
        opened.close()
    raise OSError("it is no regular file")

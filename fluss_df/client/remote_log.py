"""Log segments that the cluster has moved to remote storage, read through ``pyarrow.fs``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from fluss_df.client.log_fetch import Chunk, Position, RemoteChunk
from fluss_df.client.metrics import Metrics
from fluss_df.client.remote_fs import RemoteFileSystems
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.headers import scan_headers

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection

logger = logging.getLogger(__name__)

# What is read of a segment at once. A batch that is larger is read whole.
_READ_BYTES = 8 << 20
# the magic and the length of a batch stand in its first bytes
_LENGTH_END = 12


def read_remote(
    connection: FlussConnection, position: Position, remote: RemoteChunk, metrics: Metrics
) -> Iterator[Chunk]:
    """Read the segments that a fetch answered with, from the offset asked for on.

    Files hold whole batches with all columns; up to ``_READ_BYTES`` of them are held at a time.

    Raises
    ------
    FlussError
        ``STORAGE_EXCEPTION``, naming the segment, when it cannot be read.
    """
    info = remote.info
    for index, segment in enumerate(info.remote_log_segments):
        if position.stop is not None and segment.remote_log_start_offset >= position.stop:
            return
        path = (
            f"{info.remote_log_tablet_dir}/{segment.remote_log_segment_id}/"
            f"{segment.remote_log_start_offset:020d}.log"
        )
        metrics.add(remote_segments=1)
        skip = info.first_start_pos if index == 0 else 0
        try:
            yield from _read_segment(
                connection,
                position,
                path,
                skip,
                remote.start,
                segment.remote_log_end_offset,
                metrics,
            )
        except OSError as error:
            raise FlussError(
                f"remote log segment {path} cannot be read: {error}", ErrorCode.STORAGE_EXCEPTION
            ) from error


def _read_segment(
    connection: FlussConnection,
    position: Position,
    path: str,
    skip: int,
    start: int,
    end: int,
    metrics: Metrics,
) -> Iterator[Chunk]:
    filesystem, name = RemoteFileSystems.of(connection).open(path)
    with _input(filesystem, name) as file:
        size = file.size()
        at = skip
        while at < size:
            data = file.read_at(min(_READ_BYTES, size - at), at)
            headers = scan_headers(data, require_progress=False)
            if not len(headers):
                data = _whole_batch(file, data, at, size, path)
                headers = scan_headers(data)
            metrics.add(remote_bytes=len(data), record_bytes=len(data))
            at += headers.consumed
            yield Chunk(data, headers, start, projected=False)
            if position.stop is not None and (headers.end_offset or 0) >= position.stop:
                return
            if (headers.end_offset or 0) >= end:
                return


def _whole_batch(file: pa.NativeFile, data: pa.Buffer, at: int, size: int, path: str) -> pa.Buffer:
    """Read a batch that is larger than what is read at once."""
    if len(data) < _LENGTH_END:
        raise ProtocolError(f"remote log segment {path} ends within a batch")
    length = int.from_bytes(memoryview(data)[8:_LENGTH_END], "little", signed=True)
    if length < 0 or at + _LENGTH_END + length > size:
        raise ProtocolError(f"remote log segment {path} holds a batch that reaches beyond its end")
    return file.read_at(_LENGTH_END + length, at)


@contextlib.contextmanager
def _input(filesystem: fs.FileSystem, name: str) -> Iterator[pa.NativeFile]:
    with filesystem.open_input_file(name) as file:
        yield file

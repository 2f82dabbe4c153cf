"""What the tests of remote storage share: segments made by hand, connections of no cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.position import Chunk, Position, RemoteChunk
from fluss_df.client.fetch.remote_segments import RemoteRead
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from tests.record.batches import rows, stored

T = TypeVar("T")
_PATIENCE_S = 20.0


class _Io:
    @staticmethod
    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


class _Cluster:
    # no engine is in this process
    engine = None

    def __init__(self, config: fluss.Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.tokens: Iterator[pb.GetFileSystemSecurityTokenResponse | fluss.FlussError] = iter(())
        self.asked = 0

    async def request_any(self, api: object, message: object) -> object:
        self.asked += 1
        answer = next(self.tokens)
        if isinstance(answer, fluss.FlussError):
            raise answer
        return answer


class LonelyConnection:
    """A connection of which only settings and tokens are asked."""

    def __init__(self, **config: Any) -> None:
        self.config = fluss.Config({"bootstrap.servers": "127.0.0.1:1"}).copy(**config)
        self.io = _Io()
        self.cluster = _Cluster(self.config)

    def real(self) -> FlussConnection:
        """Return itself, as what readers take it for."""
        return cast(FlussConnection, self)


def token(
    lives_s: float | None = None, scheme: str = "s3", **values: str
) -> pb.GetFileSystemSecurityTokenResponse:
    """Return what a server answers."""
    response = pb.GetFileSystemSecurityTokenResponse(
        schema=scheme, token=json.dumps(values).encode() if values else b""
    )
    if lives_s is not None:
        response.expiration_time = int((time.time() + lives_s) * 1000)
    return response


def options(
    response: pb.GetFileSystemSecurityTokenResponse, **values: str
) -> pb.GetFileSystemSecurityTokenResponse:
    """Add options, whose names have underscores for dots."""
    for key, value in values.items():
        response.addition_info.add(key="fs.s3a." + key.replace("_", "."), value=value)
    return response


class Segments:
    """Segments in a folder: batches of so many rows each."""

    def __init__(self, folder: Path, rows_per_batch: int = 10) -> None:
        self.folder = folder
        self.rows = rows_per_batch
        self.info = pb.RemoteLogFetchInfo(remote_log_tablet_dir=str(folder), first_start_pos=0)

    def add(self, batches: int, make: Callable[[int], bytes] | None = None) -> Path:
        """Write the next segment; ``make`` gives the batch at an offset."""
        known = self.info.remote_log_segments
        start = known[-1].remote_log_end_offset if known else 0
        name = f"0000-{len(known)}"
        path = self.folder / name / f"{start:020d}.log"
        path.parent.mkdir()
        make = make or (lambda offset: stored(rows(offset, self.rows), offset))
        data = b"".join(make(start + i * self.rows) for i in range(batches))
        path.write_bytes(data)
        known.add(
            remote_log_segment_id=name,
            remote_log_start_offset=start,
            remote_log_end_offset=start + batches * self.rows,
            segment_size_in_bytes=len(data),
        )
        return path

    def position(self, start: int = 0, stop: int | None = None) -> Position:
        return Position(TableBucket(1, 0), None, start, stop)

    def read(
        self, position: Position, connection: LonelyConnection | None = None
    ) -> tuple[RemoteRead, Metrics]:
        metrics = Metrics()
        connection = connection or LonelyConnection()
        remote = RemoteChunk(self.info, statistics=False)
        read = RemoteRead(connection.real(), position, remote, metrics)
        # nothing else keeps it alive
        read.connection = connection  # type: ignore[attr-defined]
        return read, metrics


def take_all(read: RemoteRead) -> list[Chunk]:
    """Take until the end."""
    chunks = []
    deadline = time.monotonic() + _PATIENCE_S
    while not read.done:
        assert time.monotonic() < deadline
        chunk = read.take(1.0)
        if chunk is not None:
            chunks.append(chunk)
    return chunks


def offsets(chunks: list[Chunk], stop: int | None = None) -> list[int]:
    """Return the offsets of the wanted rows."""
    found = []
    for chunk in chunks:
        headers = chunk.headers
        for base, count in zip(headers.base_offset, headers.record_count, strict=True):
            found += [
                offset
                for offset in range(int(base), int(base + count))
                if offset >= chunk.start and (stop is None or offset < stop)
            ]
    return found

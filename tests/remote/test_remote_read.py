"""Reading segments: continuity, read-ahead, and files that are not what they should be."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyarrow import fs

import fluss_df as fluss
from fluss_df.client.fetch import remote_fs
from fluss_df.client.fetch import remote_segments as remote_log
from fluss_df.client.fetch.fetcher import LogFetcher
from fluss_df.client.fetch.position import RetryState
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import ErrorCode
from fluss_df.protocol.fetch import FetchedBucket
from fluss_df.schema import TableInfo
from tests.record.batches import rows, stored
from tests.remote.support import LonelyConnection, Segments, offsets, take_all


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    made = Segments(tmp_path)
    for batches in (5, 3, 7):
        made.add(batches)
    return made


@pytest.fixture(params=[100, 1_000, 1 << 20])
def ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ranges smaller than a batch, of a few batches, of all."""
    size: int = request.param
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", size)
    monkeypatch.setattr(remote_log, "_RANGE_BYTES", size)
    return size


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 150), (7, 143), (50, 80), (49, 51), (79, 80), (149, 150)]
)
def test_every_offset_once(segments: Segments, ranges: int, start: int, stop: int | None) -> None:
    position = segments.position(start, stop)
    first = next(
        i
        for i, s in enumerate(segments.info.remote_log_segments)
        if s.remote_log_end_offset > start
    )
    del segments.info.remote_log_segments[:first]
    read, metrics = segments.read(position)
    chunks = take_all(read)
    assert offsets(chunks, stop) == list(range(start, 150 if stop is None else stop))
    assert position.offset >= (150 if stop is None else stop)
    wanted = [
        s
        for s in segments.info.remote_log_segments
        if stop is None or s.remote_log_start_offset < stop
    ]
    assert metrics.remote_segments == len(wanted)
    assert metrics.remote_bytes <= sum(s.segment_size_in_bytes for s in wanted)


def test_start_at_a_byte(segments: Segments, ranges: int) -> None:
    skipped = sum(len(stored(rows(at, 10), at)) for at in (0, 10))
    segments.info.first_start_pos = skipped
    read, metrics = segments.read(segments.position(27))
    assert offsets(take_all(read)) == list(range(27, 150))
    whole = sum(s.segment_size_in_bytes for s in segments.info.remote_log_segments)
    assert metrics.remote_bytes == whole - skipped


def test_the_position_moves_with_what_is_taken(segments: Segments, ranges: int) -> None:
    position = segments.position()
    read, _ = segments.read(position)
    first = None
    while first is None:
        first = read.take(1.0)
    assert position.offset == first.headers.end_offset
    read.close()
    assert read.done
    assert read.take(1.0) is None
    assert position.offset == first.headers.end_offset


def test_overlapping_segments_double_nothing(segments: Segments) -> None:
    # as if the second had been written again after a change of leaders, from an earlier offset on
    second = segments.info.remote_log_segments[1]
    path = segments.folder / second.remote_log_segment_id / f"{30:020d}.log"
    path.write_bytes(b"".join(stored(rows(at, 10), at) for at in range(30, 80, 10)))
    second.remote_log_start_offset = 30
    second.segment_size_in_bytes = path.stat().st_size
    read, _ = segments.read(segments.position())
    assert offsets(take_all(read)) == list(range(150))


def test_a_batch_of_many_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", 64)
    monkeypatch.setattr(remote_log, "_RANGE_BYTES", 64)
    segments = Segments(tmp_path, rows_per_batch=5_000)
    segments.add(2)
    read, _ = segments.read(segments.position())
    chunks = take_all(read)
    assert [chunk.headers.rows for chunk in chunks] == [5_000, 5_000]


# ---- files and answers that are not what they should be


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _grown(data: bytes) -> bytes:
    length = int.from_bytes(data[8:12], "little") + 1_000_000
    return data[:8] + length.to_bytes(4, "little") + data[12:]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_cut, id="a byte short"),
        pytest.param(lambda data: data[: len(data) // 2], id="half of it"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: b"\xff" * len(data), id="ones"),
        pytest.param(lambda data: data[1:] + b"x", id="shifted"),
        pytest.param(_grown, id="a batch longer than the file"),
        pytest.param(
            lambda data: data[: len(data) // 5] + bytes(len(data) - len(data) // 5),
            id="zeros behind a batch",
        ),
    ],
)
def test_damaged_files(segments: Segments, ranges: int, damage: Callable[[bytes], bytes]) -> None:
    name = segments.info.remote_log_segments[1]
    path = segments.folder / name.remote_log_segment_id / f"{50:020d}.log"
    path.write_bytes(damage(path.read_bytes()))
    position = segments.position()
    read, _ = segments.read(position)
    with pytest.raises(fluss.FlussError, match=r"00000000000000000050\.log") as caught:
        take_all(read)
    assert caught.value.error_code == ErrorCode.CORRUPT_MESSAGE
    assert 50 <= position.offset < 80
    assert read.done


def test_a_segment_that_ends_early(segments: Segments) -> None:
    first = segments.info.remote_log_segments[0]
    path = segments.folder / first.remote_log_segment_id / f"{0:020d}.log"
    data = b"".join(stored(rows(at, 10), at) for at in range(0, 40, 10))
    path.write_bytes(data)
    first.segment_size_in_bytes = len(data)
    read, _ = segments.read(segments.position())
    with pytest.raises(fluss.FlussError, match="ends at offset 40, not 50"):
        take_all(read)


def test_a_missing_segment_in_the_list(segments: Segments) -> None:
    del segments.info.remote_log_segments[1]
    read, _ = segments.read(segments.position())
    with pytest.raises(fluss.FlussError, match="offset 50 is missing: it goes on with 80"):
        take_all(read)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_log_segment_id", "../../etc"),
        ("remote_log_start_offset", -1),
        ("remote_log_end_offset", 0),
        ("segment_size_in_bytes", 0),
        ("segment_size_in_bytes", -5),
    ],
)
def test_answers_that_cannot_be(segments: Segments, field: str, value: Any) -> None:
    setattr(segments.info.remote_log_segments[0], field, value)
    with pytest.raises(fluss.FlussError, match="cannot be") as caught:
        segments.read(segments.position())
    assert caught.value.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("byte", [-1, 1 << 30])
def test_start_bytes_that_cannot_be(segments: Segments, byte: int) -> None:
    segments.info.first_start_pos = byte
    with pytest.raises(fluss.FlussError, match="cannot be"):
        segments.read(segments.position())


@pytest.mark.parametrize(("start", "stop"), [(150, None), (150, 160), (0, 50), (20, None)])
def test_segments_that_do_not_have_the_offset_are_asked_for_again_once(
    segments: Segments, start: int, stop: int | None
) -> None:
    if start < 50:
        del segments.info.remote_log_segments[0]
    position = segments.position(start, stop)
    read, _ = segments.read(position)
    assert read.done
    assert take_all(read) == []
    with pytest.raises(fluss.FlussError, match=f"offset {start} of .*none of them has it"):
        segments.read(position)


def test_a_deleted_segment_is_asked_for_again_once(segments: Segments) -> None:
    second = segments.info.remote_log_segments[1]
    path = segments.folder / second.remote_log_segment_id / f"{50:020d}.log"
    path.unlink()
    position = segments.position()
    read, metrics = segments.read(position)
    assert offsets(take_all(read)) == list(range(50))
    assert (position.offset, metrics.retries) == (50, 1)
    del segments.info.remote_log_segments[0]
    again, _ = segments.read(position)
    with pytest.raises(fluss.FlussError, match=f"{path.name} cannot be read: .*disk") as caught:
        take_all(again)
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert caught.value.__cause__ is None


def test_what_comes_back_is_read(segments: Segments) -> None:
    second = segments.info.remote_log_segments[1]
    path = segments.folder / second.remote_log_segment_id / f"{50:020d}.log"
    hidden = path.rename(path.with_suffix(".gone"))
    position = segments.position()
    first, _ = segments.read(position)
    found = take_all(first)
    hidden.rename(path)
    del segments.info.remote_log_segments[0]
    second_read, _ = segments.read(position)
    assert offsets(found + take_all(second_read)) == list(range(150))
    assert position.retry == RetryState()


# ---- reading ahead


class _SlowFile:
    def __init__(self, file: Any, store: SlowStore) -> None:
        self._file = file
        self._store = store

    def read_at(self, size: int, at: int) -> bytes:
        with self._store.lock:
            self._store.running += 1
            self._store.most_running = max(self._store.most_running, self._store.running)
            self._store.reads += 1
        self._store.pause()
        with self._store.lock:
            self._store.running -= 1
        data: bytes = self._file.read_at(size, at)
        return data


class SlowStore:
    """A file system where each range takes a while."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.lock = threading.Lock()
        self.wanted, self.met = 0, threading.Event()
        self.running = self.most_running = self.reads = self.opened = 0

    def pause(self) -> None:
        """Wait for ``latency_s``; ten times as long until ``wanted`` reads have run at once."""
        if self.running >= self.wanted:
            self.met.set()
        self.met.wait(self.latency_s * 10)
        time.sleep(self.latency_s)

    def open_input_file(self, path: str) -> _SlowFile:
        time.sleep(self.latency_s)
        self.opened += 1
        return _SlowFile(open_local(path), self)


def open_local(path: str) -> Any:
    return fs.LocalFileSystem().open_input_file(path)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    made = SlowStore(0.05)

    def locate(self: remote_fs.RemoteFileSystems, uri: str) -> remote_fs.Place:
        return remote_fs.Place(made, uri, remote_fs.Token())

    monkeypatch.setattr(remote_fs.RemoteFileSystems, "locate", locate)
    return made


def test_threads_hide_latency(tmp_path: Path, store: SlowStore) -> None:
    segments = Segments(tmp_path)
    for _ in range(40):
        segments.add(2)
    for threads in (1, 8):
        connection = LonelyConnection(
            remote_file_download_thread_num=threads, scanner_remote_log_prefetch_num=16
        )
        store.wanted = threads
        store.met.clear()
        read, _ = segments.read(segments.position(), connection)
        assert offsets(take_all(read)) == list(range(800))
        # each of them waits for the store while the others do
        assert store.most_running == threads


@pytest.mark.parametrize(
    ("threads", "segments_ahead", "ranges_per_segment", "most"),
    [(2, 100, 100, 4), (8, 2, 1, 3), (8, 100, 3, 16), (1, 1, 1, 2)],
)
def test_what_is_held_is_bounded(
    tmp_path: Path,
    store: SlowStore,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    segments_ahead: int,
    ranges_per_segment: int,
    most: int,
) -> None:
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", 500)
    monkeypatch.setattr(remote_log, "_RANGE_BYTES", 500)
    store.latency_s = 0.0
    segments = Segments(tmp_path)
    for _ in range(30):
        segments.add(4)
    connection = LonelyConnection(
        remote_file_download_thread_num=threads,
        scanner_remote_log_prefetch_num=segments_ahead,
        scanner_remote_log_read_concurrency=ranges_per_segment,
    )
    read, _ = segments.read(segments.position(), connection)
    taken = held = 0
    while not read.done:
        taken += read.take(1.0) is not None
        held = max(held, len(read._in_flight))
        names = [item.segment for item in read._in_flight]
        assert len(set(names)) <= segments_ahead + 1
        assert all(names.count(name) <= ranges_per_segment for name in names)
    assert taken
    assert held <= most


def test_a_few_rows_cost_little(tmp_path: Path, store: SlowStore) -> None:
    store.latency_s = 0.0
    segments = Segments(tmp_path)
    for _ in range(20):
        segments.add(4)
    read, metrics = segments.read(segments.position(0, 5))
    assert offsets(take_all(read), 5) == list(range(5))
    assert store.reads == metrics.remote_segments == 1


def test_waiting_ends_in_time_and_closing_at_once(tmp_path: Path, store: SlowStore) -> None:
    store.latency_s = 2.0
    segments = Segments(tmp_path)
    for _ in range(20):
        segments.add(1)
    read, _ = segments.read(segments.position())
    assert read.take(0.05) is None
    assert read.take(0.0) is None
    read.close()
    assert store.opened == 0
    time.sleep(2.5)
    assert store.reads <= 1


# in a process of its own: others that ran in this one take its signals
INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from fluss_df.client.fetch import remote_fs
from tests.remote.support import Segments
from tests.remote.test_remote_read import SlowStore

store = SlowStore(6.0)
remote_fs.RemoteFileSystems.locate = lambda self, uri: remote_fs.Place(
    store, uri, remote_fs.Token()
)
segments = Segments(Path(sys.argv[1]))
for _ in range(10):
    segments.add(1)
position = segments.position()
read, _ = segments.read(position)
began = time.monotonic()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    read.take(30.0)
except KeyboardInterrupt:
    print(time.monotonic() - began < 5.0, read.done, position.offset)
"""


def test_ctrl_c_ends_a_wait_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "True True 0\n", done.stderr


def test_files_are_opened_again_before_their_token_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", 500)
    monkeypatch.setattr(remote_log, "_RANGE_BYTES", 500)
    opened: list[remote_fs.Place] = []

    def locate(self: remote_fs.RemoteFileSystems, uri: str) -> remote_fs.Place:
        # the first token is about to end at once, the second lives on
        token = remote_fs.Token(renew_at=float("inf") if opened else 0.0)
        opened.append(remote_fs.Place(fs.LocalFileSystem(), uri, token))
        return opened[-1]

    monkeypatch.setattr(remote_fs.RemoteFileSystems, "locate", locate)
    segments = Segments(tmp_path)
    segments.add(10)
    read, _ = segments.read(segments.position())
    assert offsets(take_all(read)) == list(range(100))
    assert len(opened) == 2


# ---- the moment when segments move


def test_out_of_range_for_a_moment_is_tried_again(segments: Segments) -> None:
    connection = LonelyConnection().real()
    info = cast(TableInfo, SimpleNamespace(table_path="d.t"))
    fetcher = LogFetcher(connection.cluster, info, None, Metrics(), max_wait_ms=0)
    position = segments.position(7)
    gone = FetchedBucket(1, bucket_id=0, error_code=ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)
    moved = FetchedBucket(1, bucket_id=0, remote=segments.info)

    def accept(answer: FetchedBucket) -> None:
        fetcher._accept(position, answer, statistics=False, asked=[position])

    accept(gone)
    assert position.retry.not_before > time.monotonic()
    accept(moved)
    assert len(position.ready) == 1
    assert position.offset == 7
    began = time.monotonic()

    def ask_again_and_again() -> None:
        while time.monotonic() < began + 10:
            accept(gone)
            time.sleep(max(0.0, position.retry.not_before - time.monotonic()))

    with pytest.raises(fluss.FlussError, match="offset 7 is out of range"):
        ask_again_and_again()
    assert 0.4 < time.monotonic() - began < 5

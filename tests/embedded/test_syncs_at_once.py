"""Several who sync one log at the same time: the kernel tells one of them that pages are lost."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from fluss_df.engine.log import tablet as tablets
from fluss_df.engine.log.tablet import Tablet
from fluss_df.errors import FlussError
from fluss_df.record.log.log_batch import Compression, encode_log_batch


def one_row() -> bytes:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64())})
    encoded = encode_log_batch(rows, schema_id=1, compression=Compression("none"))
    encoded.stamp(-1, -1)
    return encoded.to_bytes()


def test_a_log_is_read_where_a_full_disk_takes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems need new room for what is written over."""
    log = Tablet(tmp_path / "log", "bucket", segment_bytes=1 << 20)
    log.append(memoryview(one_row()), {1: None})
    # as a process that is killed leaves it
    log._give_up()

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        opened = Tablet(tmp_path / "log", "bucket", segment_bytes=1 << 20)
    assert opened.end_offset == 1
    assert opened.read(0, 1 << 20, True) is not None
    with pytest.raises(FlussError, match=r"no more writes.*make room there.*open the engine again"):
        opened.append(memoryview(one_row()), {1: None})
    opened.close()
    again = Tablet(tmp_path / "log", "bucket", segment_bytes=1 << 20)
    assert again.append(memoryview(one_row()), {1: None}).base_offset == 1
    again.close()


def test_a_sync_beside_one_that_fails_makes_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Tablet(tmp_path / "log", "bucket", segment_bytes=1 << 20)
    log.append(memoryview(one_row()), {1: None})
    begun, others = threading.Event(), threading.Event()
    calls: list[int] = []

    def sync_data(fd: int) -> None:
        calls.append(fd)
        if len(calls) > 1:
            others.set()
            return  # the error was told to the first one
        begun.set()
        others.wait(0.5)
        raise OSError(errno.EIO, "pages are lost")

    monkeypatch.setattr(tablets, "sync_data", sync_data)
    errors: list[FlussError] = []

    def sync() -> None:
        try:
            log.sync()
        except FlussError as error:
            errors.append(error)

    first = threading.Thread(target=sync)
    first.start()
    assert begun.wait(10)
    sync()
    first.join(10)
    assert len(errors) == 2
    assert all("pages are lost" in error.message for error in errors)
    assert log.synced_offset == 0
    assert log.poisoned
    log.close()

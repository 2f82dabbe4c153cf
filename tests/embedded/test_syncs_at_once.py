"""Several who sync one log at the same time: the kernel tells one of them that pages are lost."""

from __future__ import annotations

import errno
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

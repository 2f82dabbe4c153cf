"""Scans that are left open: they end by themselves, and keep no bucket from what it has to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine import background
from fluss_df.engine.engine import Engine
from fluss_df.engine.kv.kv_store import KvStore
from fluss_df.engine.requests import kv_scans
from fluss_df.engine.requests.kv_scans import Scans
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.test_damaged_rows import PATH, create, frame, rows_of, write
from tests.waiting import wait_until

BUCKET = TableBucket(0, 0)


def begin(scans: Scans) -> bytes:
    asked = pb.ScanKvRequestForBucket(table_id=0, bucket_id=0)
    request = pb.ScanKvRequest(bucket_scan_req=asked, call_seq_id=0, batch_size_bytes=100)
    answer = scans.answer(request)
    assert not answer.HasField("error_code")
    assert answer.has_more_results
    return answer.scanner_id


def go_on(scans: Scans, scanner: bytes) -> int:
    request = pb.ScanKvRequest(scanner_id=scanner, call_seq_id=1, batch_size_bytes=100)
    answer = scans.answer(request)
    return answer.error_code if answer.HasField("error_code") else 0


def scans_of(served: EmbeddedFluss) -> Scans:
    return served._connections.dispatcher._scans


def test_idle_scans_end_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's timer: no other scan comes."""
    monkeypatch.setattr(kv_scans, "_IDLE_S", 0.3)
    monkeypatch.setattr(background, "_CHECK_INTERVAL_S", 0.1)
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
        scans = scans_of(served)
        scanner = begin(scans)
        store = served.engine.kv_bucket(BUCKET)[1]._store
        assert store._users == 1
        wait_until(lambda: not scans._scans, 10)
        assert scans._scans == {}
        assert store._users == 0
        assert go_on(scans, scanner) == ErrorCode.SCANNER_EXPIRED


def call(scans: Scans, scanner: bytes, number: int, size: int = 100) -> pb.ScanKvResponse:
    return scans.answer(
        pb.ScanKvRequest(scanner_id=scanner, call_seq_id=number, batch_size_bytes=size)
    )


def test_a_call_that_is_refused_does_not_end_the_scan(tmp_path: Path) -> None:
    """As of a client that did not wait for an answer, and asks once more."""
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
        scans = scans_of(served)
        scanner = begin(scans)
        again = call(scans, scanner, 0)
        assert "Out-of-order scan request: expected callSeqId=1" in again.error_message
        scan = scans._scans[scanner]
        with scan.lock:
            assert "Concurrent scan request" in call(scans, scanner, 1).error_message
        assert call(scans, scanner, 1, -1).error_code == ErrorCode.INVALID_SCAN_REQUEST
        assert go_on(scans, scanner) == 0
        assert call(scans, scanner, 2).has_more_results


def test_a_scan_ends_whose_rows_are_lost_to_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
        scans = scans_of(served)
        scanner = begin(scans)

        def fail(values: list[bytes]) -> bytes:
            raise FlussError("rows were taken", ErrorCode.STORAGE_EXCEPTION)

        with monkeypatch.context() as patch:
            patch.setattr(kv_scans, "encode_value_batch", fail)
            assert go_on(scans, scanner) == ErrorCode.STORAGE_EXCEPTION
        assert go_on(scans, scanner) == ErrorCode.UNKNOWN_SCANNER_ID


@pytest.mark.parametrize("what", ["table", "engine"])
def test_scans_end_before_their_bucket(tmp_path: Path, what: str) -> None:
    """RocksDB is closed then, and not when the scan is collected."""
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
        scans = scans_of(served)
        scanner = begin(scans)
        store = served.engine.kv_bucket(BUCKET)[1]._store
        if what == "table":
            connection.get_admin().drop_table(PATH)
            assert scans._scans == {}
            assert go_on(scans, scanner) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    assert scans._scans == {}
    assert store._users == 0
    assert store.closed


def test_an_open_scan_does_not_keep_a_store_from_opening_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a disk was full."""
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
        scans = scans_of(served)
        scanner = begin(scans)
        real = KvStore.write
        failed: list[bool] = []

        def once(self: KvStore, *given: object) -> None:
            if not failed:
                failed.append(True)
                raise FlussError("No space left on device", ErrorCode.UNKNOWN_SERVER_ERROR)
            real(self, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(KvStore, "write", once)
        write(connection, frame(100_000, 10))
        assert failed
        assert go_on(scans, scanner) == ErrorCode.SCANNER_EXPIRED
        assert rows_of(connection).num_rows == frame().num_rows + 10


def test_a_scan_that_begins_while_its_table_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedFluss(tmp_path / "d") as served, served.connection() as connection:
        create(connection)
        write(connection, frame())
    owner = Engine(tmp_path / "d")
    try:
        owner._loop = asyncio.new_event_loop()
        scans = Scans(owner)
        add = scans._add

        def dropped_before(scanner: bytes, scan: kv_scans._Scan) -> None:
            table = owner.catalog.drop_table(fluss.TablePath("fluss", "rows"), False)
            assert table is not None
            owner.drop_table(table)
            add(scanner, scan)

        monkeypatch.setattr(scans, "_add", dropped_before)
        asked = pb.ScanKvRequestForBucket(table_id=0, bucket_id=0)
        request = pb.ScanKvRequest(bucket_scan_req=asked, call_seq_id=0, batch_size_bytes=100)
        answer = scans.answer(request)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert scans._scans == {}
    finally:
        owner.close()
        owner._loop.close()

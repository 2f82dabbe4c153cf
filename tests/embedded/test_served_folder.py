"""A folder that is opened to be served: what fails gives it back, and peers find it again."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.client.transport import folders
from fluss_df.client.transport.folders import back_up_folder
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.requests.kv_scans import Scans
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb


def _no_loop(patch: pytest.MonkeyPatch) -> None:
    def refuses() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    patch.setattr(asyncio, "new_event_loop", refuses)


def _no_thread(patch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name == "fluss-df-embedded":
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refuses)


@pytest.mark.parametrize("breaks", [_no_loop, _no_thread])
def test_a_folder_that_cannot_be_served_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    folder = tmp_path / "data"
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(FlussError, match="cannot serve"):
            EmbeddedFluss(folder)
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        assert connection.get_admin().list_databases() == ["fluss"]


def test_peers_are_told_the_address_that_they_came_to() -> None:
    with EmbeddedFluss(None, port=0, host="0.0.0.0") as engine:
        port = engine.address.rpartition(":")[2]
        # each is an address of this machine
        for host in ("127.0.0.1", "127.0.0.2"):
            with fluss.connect(f"{host}:{port}") as connection:
                nodes = connection.get_admin().get_server_nodes()
                assert {node.host for node in nodes} == {host}


def test_no_row_has_an_empty_key(tmp_path: Path) -> None:
    path = TablePath("fluss", "keys")
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        schema = Schema(pa.schema([("id", pa.int64())]), ["id"])
        connection.get_admin().create_table(path, TableDescriptor(schema))
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            writer.upsert([1])
        _, kv = engine.engine.kv_bucket(TableBucket(engine.engine.catalog.table(path).id, 0))
        # in RocksDB the state of the store is there
        assert kv._store.get([b""]) != [None]
        row = b"\x01\x00\x00\x01"
        assert kv.get([b"", b"\x01", b"", b"\x02"]) == [None, row, None, None]
        assert kv.get([b""]) == [None]
        assert kv.get([]) == []


def test_a_scan_that_fails_in_between_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were taken for an answer that nobody got would be missing."""
    from fluss_df.engine.requests import kv_scans

    path = TablePath("fluss", "keys")
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        schema = Schema(pa.schema([("id", pa.int64())]), ["id"])
        connection.get_admin().create_table(path, TableDescriptor(schema))
        with connection.get_table(path).new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"id": range(1000)}))
        scans = Scans(engine.engine)
        bucket = pb.ScanKvRequestForBucket(
            table_id=engine.engine.catalog.table(path).id, bucket_id=0
        )
        opened = scans.answer(
            pb.ScanKvRequest(bucket_scan_req=bucket, call_seq_id=0, batch_size_bytes=100)
        )
        assert opened.has_more_results
        again = pb.ScanKvRequest(scanner_id=opened.scanner_id, call_seq_id=1, batch_size_bytes=100)

        def no_room(values: Any) -> bytes:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(kv_scans, "encode_value_batch", no_room)
            with pytest.raises(MemoryError):
                scans.answer(again)
        assert scans.answer(again).error_code


def test_places_may_have_names_of_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the socket is there, too
    place = Path(tempfile.mkdtemp(prefix=os.fsdecode(b"odd\xff"), dir="/tmp"))
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        with fluss.connect(place / "data") as connection:
            assert "unix-" in str(connection.config.bootstrap_servers)
            connection.get_admin().create_database("d")
        file = tmp_path / os.fsdecode(b"copy\xff.tar.zst")
        assert back_up_folder(place / "data", file) == file.stat().st_size
    finally:
        folders._engines[place / "data"].close()
        shutil.rmtree(place)

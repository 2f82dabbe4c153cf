"""Temporary credentials of a REST catalog: Polars gets new ones when they end."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from fluss_df.lake.iceberg.access import StorageAccess
from fluss_df.lake.iceberg.catalog import open_lake_table
from fluss_df.lake.options import LakeOptions
from fluss_df.metadata import TablePath

ROWS = pl.DataFrame({"n": range(1000)})
NAME = ("bucket", "rows.parquet")


class Storage(ThreadingHTTPServer):
    """One file as S3 serves it, and a REST catalog; each load of the table gives a new token.

    Attributes
    ----------
    token
        That which is valid now.
    loads
        How often the table was loaded.
    seen
        The tokens of requests for the file that were answered.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        buffer = io.BytesIO()
        ROWS.write_parquet(buffer)
        self.file = buffer.getvalue()
        self.metadata: dict[str, Any] = {}
        self.loads = 0
        self.refused = 0
        self.seen: list[str] = []
        self.valid_s = 3600.0

    @property
    def token(self) -> str:
        return f"token-{self.loads}"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def config(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.address,
            "s3.region": "none-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "hunter22",
            "s3.session-token": self.token,
            "s3.session-token-expires-at-ms": str(int((time.time() + self.valid_s) * 1000)),
        }


class _Answer(BaseHTTPRequestHandler):
    server: Storage

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self._json({"defaults": {}, "overrides": {}})
        elif "/tables/" in self.path:
            self.server.loads += 1
            self._json(
                {
                    "metadata-location": f"{self.server.address}/metadata.json",
                    "metadata": self.server.metadata,
                    "config": self.server.config(),
                }
            )
        else:
            self._file(body=True)

    def do_HEAD(self) -> None:
        self._file(body=False)

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _file(self, *, body: bool) -> None:
        token = self.headers.get("X-Amz-Security-Token", "")
        if token != self.server.token:
            self.server.refused += 1
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.seen.append(token)
        data, status = self.server.file, 200
        asked = self.headers.get("Range")
        whole = len(data)
        if asked is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, whole - int(last))
            stop = int(last) + 1 if first and last else whole
            data, status = data[start:stop], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if asked is not None:
            self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{whole}")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"one"')
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def storage(tmp_path: Any) -> Iterator[Storage]:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("n", pa.int64())]))
    with Storage() as server:
        server.metadata = json.loads(table.metadata.model_dump_json())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(storage: Storage) -> Table:
    """Open the table as a query does."""
    options = {"type": "rest", "uri": storage.address}
    return open_lake_table(LakeOptions(TablePath("db", "t"), "iceberg", options))


def read(access: StorageAccess) -> pl.DataFrame:
    return pl.scan_parquet("/".join(("s3:/", *NAME)), **access.scan_options()).collect()


def test_credentials_that_end_are_renewed(storage: Storage) -> None:
    access = StorageAccess(opened(storage), lambda: opened(storage))
    assert read(access).equals(ROWS)
    assert read(access).equals(ROWS)
    assert (storage.loads, set(storage.seen)) == (1, {"token-1"})


def test_credentials_that_are_about_to_end_are_not_used(storage: Storage) -> None:
    storage.valid_s = 30
    table = opened(storage)
    storage.valid_s = 3600
    access = StorageAccess(table, lambda: opened(storage))
    assert read(access).equals(ROWS)
    assert (storage.loads, set(storage.seen), storage.refused) == (2, {"token-2"}, 0)


def test_polars_asks_again_in_the_same_plan(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began)
    storage.valid_s = 61
    access = StorageAccess(opened(storage), lambda: opened(storage))
    scan = pl.scan_parquet("/".join(("s3:/", *NAME)), **access.scan_options())
    assert scan.collect().equals(ROWS)
    assert storage.loads == 1
    # now the token is within its last minute
    monkeypatch.setattr(time, "time", lambda: began + 1.5)
    storage.valid_s = 3600
    assert access()[0]["aws_session_token"] == "token-2"
    assert scan.collect().equals(ROWS)
    assert storage.seen[-1] == "token-2"


def made(properties: dict[str, str]) -> Table:
    return cast("Table", SimpleNamespace(io=SimpleNamespace(properties=properties)))


def test_credentials_that_do_not_end_are_given_as_they_are() -> None:
    lasting = {"s3.access-key-id": "key", "s3.secret-access-key": "hunter22"}
    access = StorageAccess(made(lasting), lambda: made(lasting))
    assert access.scan_options() == {
        "storage_options": {"aws_access_key_id": "key", "aws_secret_access_key": "hunter22"}
    }
    assert StorageAccess(made({})).scan_options() == {"storage_options": None}


def test_a_token_that_does_not_say_when_it_ends_is_renewed_after_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    tokens = iter(range(1, 10))

    def table() -> Table:
        return made({"s3.session-token": f"token-{next(tokens)}"})

    access = StorageAccess(table(), table)
    assert access()[0]["aws_session_token"] == "token-1"
    monkeypatch.setattr(time, "time", lambda: now + 290)
    assert access()[0]["aws_session_token"] == "token-2"


def test_names_of_credentials_are_those_of_pyiceberg() -> None:
    """Those of the storage go before those of all of the cloud."""
    of_all = {
        "client.access-key-id": "key",
        "client.secret-access-key": "hunter22",
        "client.session-token": "token",
        "client.region": "here",
    }
    expected = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hunter22",
        "aws_session_token": "token",
        "aws_region": "here",
    }
    assert StorageAccess(made(of_all)).scan_options() == {"storage_options": expected}
    both = {**of_all, "s3.region": "there", "s3.access-key-id": "other"}
    options = StorageAccess(made(both)).scan_options()["storage_options"]
    assert options == {**expected, "aws_region": "there", "aws_access_key_id": "other"}

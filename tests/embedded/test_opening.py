"""A bucket that takes long to open: nobody waits for it but those who want it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.files.open_files import OpenFiles
from fluss_df.engine.kv.kv_loading import StoreLoader
from fluss_df.engine.kv.kv_store import KvStore
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LOOKUP
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.values import ValueDecoder
from tests.embedded.raw import RawClient

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SLOW, OTHER = fluss.TablePath("fluss", "slow"), fluss.TablePath("fluss", "other")
# what is answered at once is answered long before
LONG_S = 15
ENCODER = KvEncoder(1, fluss.Schema(SCHEMA, ["id"]).columns, ["id"])


class Slow:
    """Openings of the rows of one table that wait until they may go on."""

    def __init__(self, table: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.count = 0
        plain = StoreLoader.open

        def held(loader: StoreLoader, folder: Path) -> KvStore:
            if loader._table.id == table:
                self.count += 1
                self.begun.set()
                assert self.may_go_on.wait(2 * LONG_S)
            return plain(loader, folder)

        monkeypatch.setattr(StoreLoader, "open", held)


def _lookup(address: str, table: int, key: int) -> int | None:
    """Look a key up by a connection of its own."""
    keys = ENCODER.keys(pa.table({"id": pa.array([key], pa.int64())}))
    part = pb.LookupRequestForBucket(bucket_id=0, keys=[keys.data.tobytes()])
    client = RawClient(address, LONG_S)
    with contextlib.closing(client.socket):
        client.hello()
        asked = pb.LookupRequest(table_id=table, buckets_req=[part])
        answer = client.call(LOOKUP, asked).buckets_resp[0]
    if answer.error_code:
        raise FlussError(answer.error_message, answer.error_code)
    values = [value.values for value in answer.values if value.values]
    rows = ValueDecoder({1: fluss.Schema(SCHEMA, ["id"]).columns}, SCHEMA).decode_values(values)
    assert rows["id"].to_pylist() == [key] * len(values)
    return rows["v"][0].as_py() if values else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "d"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        for path in (SLOW, OTHER):
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, ["id"]), bucket_count=1)
            connection.get_admin().create_table(path, descriptor)
            with connection.get_table(path).new_upsert().create_writer() as writer:
                rows = {"id": range(100), "v": range(1000, 1100)}
                writer.write_arrow(pa.table(rows, schema=SCHEMA))
    return folder


@contextlib.contextmanager
def _opening(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: EngineOptions | None = None
) -> Iterator[tuple[EmbeddedFluss, Slow, tuple[int, int], ThreadPoolExecutor]]:
    """Serve a folder whose table SLOW waits while it is opened."""
    engine = EmbeddedFluss(folder, port=0, options=options)
    tables = [engine.engine.catalog.table(path).id for path in (SLOW, OTHER)]
    slow = Slow(tables[0], monkeypatch)
    with ThreadPoolExecutor(40) as threads:
        try:
            yield engine, slow, (tables[0], tables[1]), threads
        finally:
            slow.may_go_on.set()
            engine.close()


@pytest.mark.parametrize("open_files", [None, 1])
def test_others_are_served_while_a_bucket_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, open_files: int | None
) -> None:
    options = EngineOptions(open_files=open_files)
    with _opening(folder, monkeypatch, options) as (engine, slow, (table, other), threads):
        # more than there are threads for requests
        wait = [threads.submit(_lookup, engine.address, table, key) for key in range(20)]
        assert slow.begun.wait(LONG_S)
        for key in (3, 50, 200):
            found = threads.submit(_lookup, engine.address, other, key).result(LONG_S)
            assert found == (1000 + key if key < 100 else None)
        with engine.connection() as connection:
            writer = connection.get_table(OTHER).new_upsert().create_writer()
            with writer:
                written = pa.table({"id": [3], "v": [1]}, schema=SCHEMA)
                threads.submit(writer.write_arrow, written).result(LONG_S)
                threads.submit(writer.flush).result(LONG_S)
        assert threads.submit(_lookup, engine.address, other, 3).result(LONG_S) == 1
        assert not any(future.done() for future in wait)
        slow.may_go_on.set()
        assert [future.result(LONG_S) for future in wait] == list(range(1000, 1020))
        assert slow.count == 1


def test_an_opening_that_fails_is_tried_by_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _opening(folder, monkeypatch) as (engine, slow, (table, _), threads):
        plain = KvStore.__init__
        failed: list[Path] = []

        def refused(store: KvStore, where: Path, *more: object) -> None:
            if not failed:
                failed.append(where)
                raise FlussError("not this time", ErrorCode.STORAGE_EXCEPTION)
            plain(store, where, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(KvStore, "__init__", refused)
        wait = [threads.submit(_lookup, engine.address, table, key) for key in range(12)]
        assert slow.begun.wait(LONG_S)
        slow.may_go_on.set()
        for future in wait:
            assert _refused_or(future, range(1000, 1012))
        assert sum(future.exception() is not None for future in wait) == 1
        assert slow.count == 2


def test_a_table_that_is_dropped_while_it_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _opening(folder, monkeypatch) as (engine, slow, (table, other), threads):
        wait = [threads.submit(_lookup, engine.address, table, key) for key in range(12)]
        assert slow.begun.wait(LONG_S)
        # whether or not the drop waits for the opening, others are served
        with engine.connection() as connection:
            drop = threads.submit(connection.get_admin().drop_table, SLOW)
            assert threads.submit(_lookup, engine.address, other, 7).result(LONG_S) == 1007
            slow.may_go_on.set()
            drop.result(LONG_S)
        for future in wait:
            assert _refused_or(future, range(1000, 1012))
        assert not list((folder / "data").glob(f"*{table}/*/*"))
        assert all(bucket.table_id != table for bucket in engine.engine._open)
        assert not engine.engine._opening
        with engine.connection() as connection:
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, ["id"]), bucket_count=1)
            connection.get_admin().create_table(SLOW, descriptor)
        made = engine.engine.catalog.table(SLOW).id
        assert _lookup(engine.address, made, 5) is None


def test_an_engine_that_is_closed_while_a_bucket_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _opening(folder, monkeypatch) as (engine, slow, (table, _), threads):
        inside = engine.engine
        opens = threads.submit(inside.kv_bucket, fluss.TableBucket(table, 0))
        assert slow.begun.wait(LONG_S)
        closes = threads.submit(engine.close)
        with pytest.raises(TimeoutError):
            closes.result(1)
        slow.may_go_on.set()
        closes.result(LONG_S)
        with pytest.raises(FlussError, match="closed"):
            opens.result(LONG_S)
        assert not inside._open
    with EmbeddedFluss(folder, port=0) as engine:
        assert _lookup(engine.address, table, 5) == 1005


def _refused_or(future: Future[int | None], values: range) -> bool:
    try:
        return future.result(LONG_S) in values
    except FlussError:
        return True


def test_nobody_waits_for_files_that_are_given_back() -> None:
    class User:
        files = 1

        def __init__(self) -> None:
            self.rests, self.may_go_on = threading.Event(), threading.Event()

        def release_files(self) -> bool:
            self.rests.set()
            assert self.may_go_on.wait(LONG_S)
            return True

    users = {key: User() for key in "abc"}
    files: OpenFiles[str] = OpenFiles(1)
    files.use("a", users["a"])
    with ThreadPoolExecutor(3) as threads:
        second = threads.submit(files.use, "b", users["b"])
        assert users["a"].rests.wait(LONG_S)
        # used again, counted out, and another one, while its files are given back
        users["b"].may_go_on.set()
        threads.submit(files.forget, "c").result(LONG_S)
        threads.submit(files.use, "a", users["a"]).result(LONG_S)
        assert users["b"].rests.is_set()
        users["a"].may_go_on.set()
        second.result(LONG_S)
    assert files._files == 1
    assert list(files._used) == ["a"]
    files.forget("a")
    assert files._files == 0


def test_tables_that_do_not_say_have_the_buckets_of_the_options() -> None:
    schema = fluss.Schema(pa.schema([("a", pa.int32())]))
    with (
        EmbeddedFluss(None, options=EngineOptions(default_buckets=3)) as engine,
        engine.connection() as connection,
    ):
        admin = connection.get_admin()
        for name, said, wanted in (("silent", None, 3), ("told", 2, 2)):
            path = fluss.TablePath("fluss", name)
            admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=said))
            assert admin.get_table_info(path).num_buckets == wanted
        configs = {entry.key: entry.value for entry in admin.describe_cluster_configs()}
        assert configs["default.bucket.number"] == "3"

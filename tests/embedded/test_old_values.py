"""Small batches of keys whose old rows are large: memory is bounded by what they change, too."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.kv import kv_store, kv_tablet
from fluss_df.engine.kv.kv_store import KvStore
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.kv.rocks_rows import take_values

PATH = fluss.TablePath("fluss", "large")
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("n", pa.int64())])
ROW_BYTES = 5_000
ROWS = 2_000


def fill(connection: FlussConnection, rows: int, size: int) -> None:
    descriptor = fluss.TableDescriptor(
        fluss.Schema(SCHEMA, ["id"]),
        bucket_count=1,
        properties={"table.log.arrow.compression.type": "NONE"},
    )
    connection.get_admin().create_table(PATH, descriptor)
    with connection.get_table(PATH).new_upsert().create_writer() as writer:
        for first in range(0, rows, 100):
            ids = range(first, min(rows, first + 100))
            texts = [f"{i:09}" * (size // 9) for i in ids]
            writer.write_arrow(pa.table({"id": ids, "text": texts, "n": ids}, schema=SCHEMA))


@pytest.mark.parametrize("what", ["delete", "update", "one key"])
def test_old_rows_count(tmp_path: Path, what: str) -> None:
    """A batch that is too much for the engine goes in parts, each change once and in order."""
    options = EngineOptions(answer_bytes=1 << 20)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        fill(connection, ROWS, ROW_BYTES)
        table = connection.get_table(PATH)
        if what == "delete":
            with table.new_upsert().create_writer() as writer:
                writer.delete_arrow(pa.table({"id": range(ROWS)}))
        else:
            ids = list(range(ROWS)) if what == "update" else [7] * ROWS
            rows = pa.table({"id": ids, "n": [i + 1 for i in range(ROWS)]})
            with table.new_upsert().partial_update_by_name(["id", "n"]).create_writer() as writer:
                writer.write_arrow(rows)
        scan = table.new_scan().create_snapshot_scanner()
        found = scan.to_arrow().sort_by("id").select(["id", "n"]).to_pylist()
        changes = 2 * ROWS
        if what == "delete":
            assert found == []
            changes = ROWS
        elif what == "update":
            assert [row["n"] for row in found] == [i + 1 for i in range(ROWS)]
        else:
            assert [row["n"] for row in found] == [ROWS if i == 7 else i for i in range(ROWS)]
        assert list(scan.offsets.values()) == [ROWS + changes]


def test_rows_that_wait_for_the_disk_count_as_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial update is small, and the row that it makes is not."""
    most, step, held = 1 << 20, 100, []
    monkeypatch.setattr(kv_tablet, "_PENDING_BYTES", most)
    options = EngineOptions(durability="none")
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        fill(connection, ROWS, ROW_BYTES)
        table = connection.get_table(PATH)
        kv = engine.engine.kv_bucket(fluss.TableBucket(table.get_table_info().table_id, 0))[1]
        with table.new_upsert().partial_update_by_name(["id", "n"]).create_writer() as writer:
            for first in range(0, ROWS, step):
                writer.write_arrow(pa.table({"id": range(first, first + step), "n": [0] * step}))
                writer.flush()
                held.append(sum(len(row) for row in kv._overlay.values() if row is not None))
    assert step * ROW_BYTES <= max(held) <= most + 2 * step * ROW_BYTES


def test_later_batches_are_as_large_as_before(tmp_path: Path) -> None:
    """That some rows were large says nothing of the rows that come then."""
    options = EngineOptions(answer_bytes=1 << 20)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        fill(connection, 3, 900_000)
        with connection.get_table(PATH).new_upsert().create_writer() as writer:
            writer.delete_arrow(pa.table({"id": range(3)}))
            writer.flush()
            before = connection.metrics.requests
            ids = range(2000)
            rows = pa.table({"id": ids, "text": ["x"] * 2000, "n": ids}, schema=SCHEMA)
            writer.write_arrow(rows)
            writer.flush()
            assert connection.metrics.requests - before < 20


@pytest.mark.parametrize(("answer_mib", "most_mib"), [(32, 1000), (256, 800)])
def test_memory_of_a_delete(tmp_path: Path, answer_mib: int, most_mib: int) -> None:
    """Half a gigabyte of rows is deleted in little more memory than is allowed for one batch."""
    program = f"""
import pyarrow as pa
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.kv.kv_store import KvStore
from tests.embedded.test_old_values import PATH, fill
from tests.memory import PeakMemory
options = EngineOptions(answer_bytes={answer_mib} << 20)
with EmbeddedFluss({str(tmp_path / "d")!r}, options=options) as engine:
    with engine.connection() as connection:
        fill(connection, 6_500, 80_000)
        table = connection.get_table(PATH)
        with PeakMemory() as memory, table.new_upsert().create_writer() as writer:
            writer.delete_arrow(pa.table({{"id": range(6_500)}}))
            writer.flush()
        left = table.new_scan().create_snapshot_scanner().to_arrow().num_rows
        print(left, memory.grown >> 20)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    left, grown_mib = map(int, done.stdout.split())
    assert left == 0
    # RocksDB's cache and memory tables; what is allowed, or an eighth of it as many times as it is
    # copied
    assert grown_mib < most_mib


def test_old_rows_are_read_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call to RocksDB returns more than a batch may have, but for the first few rows."""
    most = 1 << 20
    sizes: list[int] = []
    plain = KvStore.get

    def get(store: KvStore, keys: list[bytes]) -> list[bytes | None]:
        found = plain(store, keys)
        sizes.append(sum(len(value) for value in found if value is not None))
        return found

    with (
        EmbeddedFluss(tmp_path / "d", options=EngineOptions(answer_bytes=most)) as engine,
        engine.connection() as connection,
    ):
        fill(connection, 1000, ROW_BYTES)
        monkeypatch.setattr(KvStore, "get", get)
        with connection.get_table(PATH).new_upsert().create_writer() as writer:
            writer.delete_arrow(pa.table({"id": range(1000)}))
    assert sum(sizes) >= 1000 * ROW_BYTES
    assert max(sizes) <= most + 8 * ROW_BYTES
    # a batch that was refused comes back in parts that fit, and not in halves that are refused
    assert sum(sizes) <= 1000 * ROW_BYTES + most + 8 * ROW_BYTES


def test_rows_are_read_for_a_limit_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where small rows come first, which say nothing of those behind them."""
    sizes: list[int] = []

    def take(*arguments: object) -> list[bytes]:
        found: list[bytes] = take_values(*arguments)  # type: ignore[arg-type]
        sizes.append(sum(map(len, found)))
        return found

    size = 400_000
    with (
        EmbeddedFluss(tmp_path / "d", options=EngineOptions(answer_bytes=4 << 20)) as engine,
        engine.connection() as connection,
    ):
        # keys of one byte, which come before all others
        fill(connection, 128, 9)
        table = connection.get_table(PATH)
        with table.new_upsert().create_writer() as writer:
            ids = range(1000, 1100)
            rows = {"id": ids, "text": ["x" * size] * 100, "n": ids}
            writer.write_arrow(pa.table(rows, schema=SCHEMA))
        monkeypatch.setattr(kv_store, "take_values", take)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        for limit in (128, 130):
            scanner = table.new_scan().limit(limit).create_bucket_batch_scanner(bucket)
            assert scanner.to_arrow().num_rows == limit
        with pytest.raises(fluss.FlussError, match="set a smaller limit"):
            table.new_scan().limit(200).create_bucket_batch_scanner(bucket).to_arrow()
    assert sum(sizes) > 4 << 20
    assert max(sizes) <= (1 << 20) + size + 100


def test_rows_of_a_scan_are_read_as_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that nobody goes on with holds a piece of the rows, however small the first were."""
    sizes: list[int] = []

    def take(*arguments: object) -> list[bytes]:
        found: list[bytes] = take_values(*arguments)  # type: ignore[arg-type]
        sizes.append(sum(map(len, found)))
        return found

    size = 400_000
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        fill(connection, 128, 9)
        table = connection.get_table(PATH)
        with table.new_upsert().create_writer() as writer:
            ids = range(1000, 1050)
            rows = {"id": ids, "text": ["x" * size] * 50, "n": ids}
            writer.write_arrow(pa.table(rows, schema=SCHEMA))
        monkeypatch.setattr(kv_store, "take_values", take)
        scans = engine._connections.dispatcher._scans
        table_id = table.get_table_info().table_id
        for limit, asked, there in ((0, 1000, 178), (150, 2 * size, 150), (7, 1 << 20, 7)):
            bucket = pb.ScanKvRequestForBucket(table_id=table_id, bucket_id=0, limit=limit)
            answer = scans.answer(
                pb.ScanKvRequest(bucket_scan_req=bucket, call_seq_id=0, batch_size_bytes=asked)
            )
            count, calls = values_of(answer.records), 0
            while answer.has_more_results:
                calls += 1
                answer = scans.answer(
                    pb.ScanKvRequest(
                        scanner_id=answer.scanner_id, call_seq_id=calls, batch_size_bytes=asked
                    )
                )
                assert not answer.error_code
                assert len(answer.records) <= asked + size + 100
                count += values_of(answer.records)
            assert count == there
    assert max(sizes) <= (1 << 20) + size + 100


def values_of(batch: bytes) -> int:
    """Return how many values are in a batch of an answer."""
    return int(struct.unpack_from("<i", batch, 5)[0])


@pytest.mark.parametrize("known", [True, False])
def test_small_rows_say_nothing_of_those_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Large rows are looked up as there is room, whatever keys stand before theirs."""
    sizes: list[int] = []
    plain = KvStore.get

    def get(store: KvStore, keys: list[bytes]) -> list[bytes | None]:
        found = plain(store, keys)
        sizes.append(sum(len(value) for value in found if value is not None))
        return found

    size, most = 100_000, 1 << 20
    options = EngineOptions(answer_bytes=most)
    with EmbeddedFluss(tmp_path / "d", options=options) as engine:
        with engine.connection() as connection:
            fill(connection, 1000, 9)
            with connection.get_table(PATH).new_upsert().create_writer() as writer:
                for first in range(1000, 1200, 4):
                    ids = range(first, first + 4)
                    rows = {"id": ids, "text": ["x" * size] * 4, "n": ids}
                    writer.write_arrow(pa.table(rows, schema=SCHEMA))
                    writer.flush()
        if known:
            look_up(engine, monkeypatch, get)
    if not known:
        with EmbeddedFluss(tmp_path / "d", options=options) as engine:
            look_up(engine, monkeypatch, get)
    assert sum(sizes) > 200 * size
    first = most if known else 128 * (size + 100)
    assert max(sizes) <= first
    # what was seen once is known
    assert sum(found > most for found in sizes) <= (0 if known else 1)


def look_up(engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch, get: object) -> None:
    """Look small and large rows up, and delete them."""
    with engine.connection() as connection, monkeypatch.context() as patch:
        patch.setattr(KvStore, "get", get)
        table = connection.get_table(PATH)
        keys = pa.table({"id": range(1200)})
        found = table.new_lookup().create_lookuper().lookup_arrow(keys)
        assert found["text"].null_count == 0
        with table.new_upsert().create_writer() as writer:
            writer.delete_arrow(keys)
        assert table.new_scan().create_snapshot_scanner().to_arrow().num_rows == 0

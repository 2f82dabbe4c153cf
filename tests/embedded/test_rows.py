"""The rows of a primary-key table: where they are kept, and what happens when they are lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import Durability, EngineOptions
from fluss_df.engine.kv.kv_tablet import KvTablet
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.schema import Schema, TableDescriptor

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("number", pa.int64())])
PATH = TablePath("fluss", "rows")


class Rows:
    """A table of one bucket in an engine, used without a server."""

    def __init__(
        self,
        folder: Path,
        durability: Durability = "commit",
        segment_bytes: int = 1 << 30,
        **properties: str,
    ) -> None:
        self.folder = folder
        self.options = EngineOptions(durability=durability, segment_bytes=segment_bytes)
        self.engine = Engine(folder, self.options)
        if not self.engine.catalog.has_table(PATH):
            columns = Schema(SCHEMA, ["id"]).columns
            schema = Schema.from_columns(
                columns, ["id"], auto_increment=["number"] if "numbered" in properties else []
            )
            properties.pop("numbered", None)
            descriptor = TableDescriptor(
                schema,
                bucket_count=1,
                properties={key.replace("_", "."): value for key, value in properties.items()},
            )
            self.engine.catalog.create_table(PATH, descriptor.to_json(), False)
        self.table = self.engine.catalog.table(PATH)
        self.bucket = TableBucket(self.table.id, 0)
        self.numbered = bool(self.table.descriptor.schema.auto_increment)
        targets = ["id", "text"] if self.numbered else None
        self.encoder = KvEncoder(
            1, self.table.descriptor.schema.columns, ["id"], target_columns=targets
        )

    @property
    def kv(self) -> KvTablet:
        return self.engine.kv_bucket(self.bucket)[1]

    def batch(self, rows: dict[int, str | None], writer: tuple[int, int] = (-1, -1)) -> bytes:
        """Return a batch of upserts, and of deletes where the text is None."""
        frame = pa.table(
            [list(rows), [text or "" for text in rows.values()], list(rows)], schema=SCHEMA
        )
        deletes = np.array([text is None for text in rows.values()])
        columns = [column.name for column in self.encoder.columns]
        encoded = self.encoder.encode(frame.select(columns), deletes)
        encoded.stamp(*writer)
        return encoded.to_bytes()

    def put(self, rows: dict[int, str | None], writer: tuple[int, int] = (-1, -1)) -> int:
        """Write without a sync; return the end of the changelog."""
        targets = (0, 1) if self.numbered else None
        return self.kv.put(memoryview(self.batch(rows, writer)), targets).log_end_offset

    def sync(self) -> None:
        self.kv.log.sync()
        self.kv.apply()

    def rows(self) -> dict[int, Any]:
        values = list(self.kv.scan()[0])
        found = self.kv._codec().decoder().decode_values(values)
        return {row["id"]: row["text"] for row in found.to_pylist()}

    def numbers(self) -> dict[int, int]:
        values = list(self.kv.scan()[0])
        found = self.kv._codec().decoder().decode_values(values)
        return {row["id"]: row["number"] for row in found.to_pylist()}

    @property
    def kv_folder(self) -> Path:
        return self.folder / "data" / str(self.table.id) / "table" / "0" / "kv"

    def crash(self) -> None:
        """End without a sync, as a process does that is killed."""
        opened = self.engine._opened(self.bucket)
        opened.abandon()
        self.engine._open.clear()
        self.engine.close()

    def reopen(self) -> Rows:
        return Rows(self.folder, self.options.durability, self.options.segment_bytes)


def random_writes(table: Rows, model: dict[int, str], seed: int, batches: int = 30) -> None:
    choose = random.Random(seed)
    for i in range(batches):
        keys = choose.sample(range(50), choose.randrange(1, 20))
        rows = {key: choose.choice([None, f"{seed}:{i}:{key}"]) for key in keys}
        table.put(rows)
        for key, text in rows.items():
            if text is None:
                model.pop(key, None)
            else:
                model[key] = text


@pytest.mark.parametrize("log_format", ["ARROW", "COMPACTED"])
def test_rows_come_from_the_changelog(tmp_path: Path, log_format: str) -> None:
    """What RocksDB had in memory when the process ended is replayed."""
    model: dict[int, str] = {}
    table = Rows(tmp_path / "d", table_log_format=log_format)
    for round_number in range(4):
        random_writes(table, model, round_number)
        if round_number % 2:
            table.sync()
        if round_number == 1:
            table.kv.flush()
        table.crash()
        table = table.reopen()
        assert table.rows() == model
        assert table.kv.row_count == len(model)
        assert table.kv.applied == table.kv.log.end_offset
    table.engine.close()
    assert check_folder(tmp_path / "d").findings == []


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def truncate_tables(folder: Path) -> None:
    for file in folder.glob("*.sst"):
        os.truncate(file, file.stat().st_size // 2)


def lose_the_manifest(folder: Path) -> None:
    for file in folder.glob("MANIFEST-*"):
        file.unlink()


def scramble_current(folder: Path) -> None:
    (folder / "CURRENT").write_text("nonsense")


@pytest.mark.parametrize(
    "damage",
    [remove, truncate_tables, lose_the_manifest, scramble_current],
    ids=lambda f: f.__name__,
)
def test_lost_rows_are_made_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    model: dict[int, str] = {}
    table = Rows(tmp_path / "d")
    random_writes(table, model, 1)
    table.engine.close()
    damage(table.kv_folder)
    table = table.reopen()
    assert table.rows() == model
    table.engine.close()


def test_an_older_rocksdb_catches_up(tmp_path: Path) -> None:
    """One that was put back from an earlier copy."""
    model: dict[int, str] = {}
    table = Rows(tmp_path / "d")
    random_writes(table, model, 1)
    table.engine.close()
    shutil.copytree(table.kv_folder, tmp_path / "old")
    table = table.reopen()
    random_writes(table, model, 2)
    table.engine.close()
    shutil.rmtree(table.kv_folder)
    shutil.move(tmp_path / "old", table.kv_folder)
    table = table.reopen()
    assert table.rows() == model
    table.engine.close()


def test_a_rocksdb_ahead_of_the_log_is_made_again(tmp_path: Path) -> None:
    """It belongs to another time than the log."""
    model: dict[int, str] = {}
    table = Rows(tmp_path / "d")
    random_writes(table, model, 1)
    table.engine.close()
    log = table.kv_folder.parent / "log"
    shutil.copytree(log, tmp_path / "old")
    table = table.reopen()
    random_writes(table, {}, 2)
    table.engine.close()
    shutil.rmtree(log)
    shutil.move(tmp_path / "old", log)
    table = table.reopen()
    assert table.rows() == model
    table.engine.close()


def test_without_the_changelog_lost_rows_are_lost_loudly(tmp_path: Path) -> None:
    table = Rows(tmp_path / "d", segment_bytes=500)
    model: dict[int, str] = {}
    random_writes(table, model, 1)
    table.sync()
    kv = table.kv
    assert kv.expire(now_ms=2**60, ttl_ms=1) > 0
    assert kv.log.start_offset > 0
    table.crash()
    # what has expired was in RocksDB, and on the disk, before
    table = table.reopen()
    assert table.rows() == model
    table.crash()
    shutil.rmtree(table.kv_folder)
    table = table.reopen()
    with pytest.raises(FlussError, match=r"rows of .* are lost.*Restore") as caught:
        table.rows()
    assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    table.engine.close()


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_rows_that_are_not_synced_are_seen(tmp_path: Path, durability: Durability) -> None:
    table = Rows(tmp_path / "d", durability)
    model: dict[int, str] = {}
    random_writes(table, model, 1)
    key = table.encoder.keys(pa.table({"id": pa.array(range(50))}))
    values = table.kv.get([key[i] for i in range(50)])
    assert [value is not None for value in values] == [i in model for i in range(50)]
    assert table.kv.row_count == len(model)
    assert table.rows() == model
    table.engine.close()


def test_with_commit_nothing_is_seen_before_it_is_synced(tmp_path: Path) -> None:
    table = Rows(tmp_path / "d")
    table.put({1: "a"})
    assert table.rows() == {}
    # but the next batch builds on it
    table.put({1: "b"})
    table.sync()
    assert table.rows() == {1: "b"}
    assert table.kv.row_count == 1
    assert table.kv.log.end_offset == 3  # +I, -U, +U
    table.engine.close()


def test_duplicates_across_restarts(tmp_path: Path) -> None:
    table = Rows(tmp_path / "d")
    ends = [table.put({1: f"v{i}"}, (7, i)) for i in range(3)]
    table.sync()
    table.crash()
    table = table.reopen()
    for i in range(3):
        assert table.put({1: f"v{i}"}, (7, i)) == ends[i]
    with pytest.raises(FlussError) as caught:
        table.put({1: "x"}, (7, 9))
    assert caught.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    table.put({2: "y"}, (7, 3))
    table.sync()
    assert table.rows() == {1: "v2", 2: "y"}
    table.engine.close()


@pytest.mark.parametrize("synced", [True, False])
def test_numbers_are_never_given_twice(tmp_path: Path, synced: bool) -> None:
    table = Rows(tmp_path / "d", numbered="yes")
    given: dict[int, int] = {}
    for i in range(5):
        table.put({10 * i + j: "x" for j in range(10)})
        if synced:
            table.sync()
        table.crash()
        table = table.reopen()
        found = table.numbers()
        assert found.items() >= given.items()
        assert len(set(found.values())) == len(found)
        given = found
    assert sorted(given.values()) == list(range(1, 51))
    table.engine.close()


@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        ("TIME", -5, "row 1, column 'v'"),
        ("TIME", 86_400_000, "row 1, column 'v'"),
        ("TIMESTAMP(9)", 2**62, "row 1, column 'v' .*beyond the ns that Arrow can hold"),
    ],
)
def test_a_value_that_its_type_has_not_is_refused_for_good(
    tmp_path: Path, kind: str, value: int, what: str
) -> None:
    """Clients for Java write such rows, and send again without end what is called corrupt."""
    engine = Engine(tmp_path / "d", EngineOptions())
    types = {"TIME": pa.time32("ms"), "TIMESTAMP(9)": pa.timestamp("ns")}
    schema = Schema(pa.schema([("id", pa.int32()), ("v", types[kind])]), ["id"])
    engine.catalog.create_table(PATH, TableDescriptor(schema, bucket_count=1).to_json(), False)
    kv = engine.kv_bucket(TableBucket(engine.catalog.table(PATH).id, 0))[1]
    # the same bytes, as numbers: of a timestamp, its milliseconds and what is beyond them
    parts = {"TIME": [pa.int32()], "TIMESTAMP(9)": [pa.int64(), pa.int32()]}[kind]
    columns = pa.schema([("id", pa.int32()), *((f"part {i}", t) for i, t in enumerate(parts))])
    written = pa.table([[1, 2], [0, value], [0, 0]][: len(columns)], schema=columns)
    encoded = KvEncoder(1, Schema(columns, ["id"]).columns, ["id"]).encode(
        written, np.zeros(2, np.bool_)
    )
    encoded.stamp(-1, -1)
    with pytest.raises(FlussError, match=what) as caught:
        kv.put(memoryview(encoded.to_bytes()))
    assert not caught.value.is_retriable
    assert not list(kv.scan()[0])
    engine.close()


def test_a_batch_that_is_damaged_changes_nothing(tmp_path: Path) -> None:
    table = Rows(tmp_path / "d")
    table.put({1: "a", 2: "b"})
    good = table.batch({1: "c", 3: "d"})
    for place in range(4, len(good), 3):
        bad = bytearray(good)
        bad[place] ^= 0x55
        with pytest.raises(FlussError) as caught:
            table.kv.put(memoryview(bytes(bad)))
        assert caught.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    table.sync()
    assert table.rows() == {1: "a", 2: "b"}
    assert table.kv.log.end_offset == 2
    table.engine.close()


def test_the_unused(tmp_path: Path) -> None:
    """A store without a single change is scanned, looked up and closed."""
    table = Rows(tmp_path / "d")
    assert table.rows() == {}
    assert table.kv.get([b"x"]) == [None]
    assert list(table.kv.prefix(b"")) == []
    table.engine.close()
    table = table.reopen()
    assert table.rows() == {}
    table.engine.close()

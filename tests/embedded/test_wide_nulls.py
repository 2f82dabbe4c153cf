"""Rows that are small as bytes and large in Arrow: nulls of BINARY, texts that compress well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.kv import decoded_parts, kv_loading, kv_replay
from fluss_df.engine.kv.decoded_parts import parts_of
from fluss_df.engine.kv.kv_store import KvStore
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_decode import LogDecoder
from tests.memory import PeakMemory

MB = 1 << 20
PATH = fluss.TablePath("fluss", "t")
WIDTH = 100_000
WIDE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("data", pa.binary(WIDTH)), ("n", pa.int64())]
)
TEXTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def create(connection: Any, schema: pa.Schema, **properties: str) -> Any:
    descriptor = fluss.TableDescriptor(
        fluss.Schema(schema, ["id"]), bucket_count=1, properties=properties
    )
    connection.get_admin().create_table(PATH, descriptor)
    return connection.get_table(PATH)


def nulls(count: int) -> pa.Table:
    return pa.table(
        {"id": range(count), "data": pa.nulls(count, WIDE.field("data").type), "n": range(count)},
        schema=WIDE,
    )


def encoded(table: Any, rows: pa.Table) -> memoryview:
    info = table.get_table_info()
    batch = KvEncoder(1, info.descriptor.schema.columns, ["id"]).encode(rows)
    batch.stamp(-1, -1)
    return memoryview(bytes(batch.to_bytes()))


@pytest.mark.parametrize("merge", [None, "aggregation"])
def test_nulls_that_are_wide_count(tmp_path: Path, merge: str | None) -> None:
    """A batch of 8 KB would take 40 MB; writers cut it, each row is there once."""
    properties = {} if merge is None else {"table.merge-engine": merge}
    options = EngineOptions(answer_bytes=MB)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        table = create(connection, WIDE, **properties)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        _, kv = engine.engine.kv_bucket(bucket)
        data = encoded(table, nulls(400))
        assert len(data) < 10_000
        with PeakMemory() as memory, pytest.raises(FlussError) as refused:
            kv.put(data)
        assert memory.grown < 20 * MB
        assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "take 40,006,400 bytes in Arrow, more than 2,097,152" in refused.value.message
        assert "In column data (binary(100000)), a null takes as much" in refused.value.message
        assert "(such as 2 rows)" in refused.value.message
        assert kv.log.end_offset == 0
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(nulls(60))
        found = table.new_scan().create_snapshot_scanner().to_arrow().sort_by("id")
        assert found.select(["id", "n"]).to_pylist() == [{"id": i, "n": i} for i in range(60)]
        assert kv.log.end_offset == 60


def test_a_row_that_is_too_wide_is_refused(tmp_path: Path) -> None:
    options = EngineOptions(answer_bytes=WIDTH // 4)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        table = create(connection, WIDE)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        with pytest.raises(FlussError, match="have BYTES or STRING there") as refused:
            engine.engine.kv_bucket(bucket)[1].put(encoded(table, nulls(1)))
        assert "write fewer" not in refused.value.message


def test_honest_batches_are_taken(tmp_path: Path) -> None:
    """2 MB of rows of a thousand nulls, which is what Java's writers send at once, and replace."""
    names = [f"c{i}" for i in range(999)]
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), *((name, pa.int64()) for name in names)]
    )
    count = 14_000
    columns = {name: pa.nulls(count, pa.int64()) for name in names}
    rows = pa.table({"id": range(count), **columns}, schema=schema)
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        table = create(connection, schema)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        _, kv = engine.engine.kv_bucket(bucket)
        data = encoded(table, rows)
        assert len(data) > 1.8e6
        kv.put(data)
        kv.put(data)
        assert kv.log.end_offset == 3 * count


def test_a_changelog_is_replayed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MB of rows in some kilobytes of a log: few of them are in memory at a time."""
    monkeypatch.setattr(decoded_parts, "_MOST_BYTES", 4 * MB)
    monkeypatch.setattr(kv_loading, "_WRITTEN_BYTES", 6 * MB)
    monkeypatch.setattr(kv_replay, "_STEP_BYTES", MB)
    sizes: list[int] = []
    plain = LogDecoder.decode

    def decode(self: LogDecoder, *arguments: Any, **more: Any) -> Any:
        found = plain(self, *arguments, **more)
        sizes.append(sum(part.batch.nbytes for part in found))
        return found

    text, per_batch = "x" * 100_000, 20
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        table = create(connection, TEXTS)
        with table.new_upsert().create_writer() as writer:
            for batch in range(20):
                ids = range(batch * 10, batch * 10 + per_batch)
                rows = {"id": ids, "text": [f"{batch}{text}"] * per_batch}
                writer.write_arrow(pa.table(rows, schema=TEXTS))
                writer.flush()
            writer.delete_arrow(pa.table({"id": [3, 4]}))
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        _, kv = engine.engine.kv_bucket(bucket)
        kv.log.sync()
        kv.apply()
        log = kv.log.read(0, 16 * MB, at_least_one=True)
        assert log is not None
        assert len(log.data) < MB
        ranges = list(parts_of(log.data, log.headers, kv._codec()))
        assert len(ranges) > 10
        assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
        assert ranges[-1][1] == len(log.headers)
        expected = [row for rows in kv._store.scan() for row in rows]
        monkeypatch.setattr(LogDecoder, "decode", decode)
        writes: list[int] = []
        write = KvStore.write

        def noted(store: KvStore, changes: Any, state: Any) -> None:
            writes.append(state.applied)
            write(store, changes, state)

        monkeypatch.setattr(KvStore, "write", noted)
        made = kv._loader.made_again("a test", kv._store.folder, kv.log.end_offset)
        assert [row for rows in made.scan() for row in rows] == expected
        assert made.state.rows == 208
        made.close()
    assert max(sizes) <= 5 * MB
    assert len(writes) > 5
    assert sorted(writes) == writes


LISTED = [
    ("array", pa.list_(pa.binary(WIDTH)), lambda count: [None] * count),
    ("row", pa.struct([("a", pa.list_(pa.binary(WIDTH)))]), lambda count: {"a": [None] * count}),
    (
        "rows",
        pa.list_(pa.struct([("a", pa.binary(WIDTH)), ("b", pa.int32())])),
        lambda count: [None] * count,
    ),
    (
        "map",
        pa.map_(pa.int32(), pa.binary(WIDTH)),
        lambda count: [(number, None) for number in range(count)],
    ),
]


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
@pytest.mark.parametrize(
    ("kind", "value"), [each[1:] for each in LISTED], ids=[x[0] for x in LISTED]
)
def test_nulls_of_lists_count(tmp_path: Path, kind: Any, value: Any, kv_format: str) -> None:
    """Also those of one row."""
    options = EngineOptions(answer_bytes=MB)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("many", kind)])
    loose = pa.schema([schema.field(0), ("many", loosened(kind))])
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        table = create(connection, schema, **{"table.kv.format": kv_format})
        columns = fluss.Schema.from_json(fluss.Schema(loose, ["id"]).to_json()).columns
        encoder = KvEncoder(1, columns, ["id"], kv_format=kv_format)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        _, kv = engine.engine.kv_bucket(bucket)
        for count, taken in ((2_000, False), (10, True)):
            rows = pa.table({"id": [1], "many": pa.array([value(count)], loosened(kind))}, loose)
            batch = encoder.encode(rows)
            batch.stamp(-1, -1)
            data = memoryview(bytes(batch.to_bytes()))
            if taken:
                kv.put(data)
                continue
            with PeakMemory() as memory, pytest.raises(FlussError, match="in Arrow") as refused:
                kv.put(data)
            assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert "In column many (" in refused.value.message
            assert memory.grown < 20 * MB
        assert kv.log.end_offset == 1
        kv.log.sync()
        kv.apply()
        found = table.new_scan().create_snapshot_scanner().to_arrow()
        assert found["many"].to_pylist() == [value(10)]


def loosened(kind: pa.DataType) -> pa.DataType:
    """Return a type with binary data of any size, whose rows have the same bytes."""
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, loosened(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(loosened(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([(field.name, loosened(field.type)) for field in fields])
    return kind

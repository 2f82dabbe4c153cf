"""Writing no rows is no error, and no batch: of any table, and whichever way they are given."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture(scope="module")
def connection() -> Iterator[fluss.FlussConnection]:
    with EmbeddedFluss(port=0) as engine, engine.connection() as made:
        yield made


@pytest.mark.parametrize("keys", [[], ["id", "day"]])
@pytest.mark.parametrize("partitions", [[], ["day"]])
def test_no_rows_make_no_batch(
    connection: fluss.FlussConnection, keys: list[str], partitions: list[str]
) -> None:
    path = fluss.TablePath("fluss", f"t{len(keys)}{len(partitions)}")
    descriptor = fluss.TableDescriptor(
        fluss.Schema(SCHEMA, keys), bucket_count=2, partition_keys=partitions, bucket_keys=["id"]
    )
    connection.get_admin().create_table(path, descriptor)
    table, empty = connection.get_table(path), SCHEMA.empty_table()
    with (
        table.new_upsert().create_writer() if keys else table.new_append().create_writer() as writer
    ):
        assert writer.route(empty) == []
        assert writer.route(pa.table(empty.columns, schema=SCHEMA).slice(0, 0)) == []
        batch = pa.RecordBatch.from_pylist([], SCHEMA)
        for rows in (empty, batch, empty.to_reader(), batch.to_pandas()):
            write = writer.write_pandas if hasattr(rows, "iloc") else writer.write_arrow
            write(rows).wait(20_000)
        writer.send_as(writer.ask_writer_id(), {}, writer.route(empty))
        writer.flush(20_000)
        assert writer.offsets() == []
        assert writer.unflushed_rows == 0

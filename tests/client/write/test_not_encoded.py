"""Batches that cannot be encoded: their callers are told, and their room is given back."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss

ROWS = pa.schema([("x", pa.int64())])


@pytest.mark.parametrize("rows", [10, 100_000], ids=["by the caller", "by an encoder"])
def test_a_batch_that_cannot_be_encoded_is_told_and_takes_no_room(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: pa.RecordBatch, **form: object) -> None:
        raise fluss.FlussError("no form for these rows")

    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = fluss.TablePath("fluss", "t")
        descriptor = fluss.TableDescriptor(fluss.Schema(ROWS), bucket_count=1)
        connection.get_admin().create_table(path, descriptor, False)
        table = connection.get_table(path)
        with monkeypatch.context() as patch:
            patch.setattr("fluss_df.client.write.log_codec.encode_log_batch", refuse)
            writer = table.new_append().create_writer()
            handle = writer.write_arrow(pa.table({"x": pa.array(range(rows))}))
            with pytest.raises(fluss.FlussError, match="no form for these rows"):
                writer.flush()
            with pytest.raises(fluss.FlussError, match="no form for these rows"):
                handle.wait(5_000)
        assert writer.buffered_bytes == 0
        assert writer.unflushed_rows == 0
        writer.close()
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"x": [7]}))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow()["x"].to_pylist() == [7]

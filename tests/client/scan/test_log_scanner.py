"""Reads of a scanner that fail: the next one returns every row."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.scan import log_scanner
from fluss_df.embedded import EmbeddedFluss


def test_rows_that_were_decoded_before_a_read_that_failed_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise fluss.FlussError("the server is gone")

    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = fluss.TablePath("fluss", "t")
        descriptor = fluss.TableDescriptor(
            fluss.Schema(pa.schema([("x", pa.int64())])), bucket_count=1
        )
        connection.get_admin().create_table(path, descriptor, False)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"x": range(10)}))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        # as a poll that Ctrl-C ended leaves it: rows are decoded, and nobody has them
        scanner._buffer.fill(scanner._subscriptions.values(), 5_000)
        with monkeypatch.context() as patch:
            patch.setattr(log_scanner, "read_table", fail)
            with pytest.raises(fluss.FlussError, match="gone"):
                scanner.to_arrow()
        assert scanner.poll_arrow(5_000)["x"].to_pylist() == list(range(10))
        scanner.close()

"""Tables and partitions that are dropped while they are read: an error with its code, soon."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import ErrorCode, FlussError
from tests.client.support import Tables

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
GONE = {
    ErrorCode.TABLE_NOT_EXIST,
    ErrorCode.PARTITION_NOT_EXISTS,
    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
}


def poll_until_error(scanner: fluss.LogScanner) -> FlussError:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            scanner.poll_arrow(500)
        except FlussError as error:
            return error
    raise AssertionError("no error within 120 s")


def test_a_table_is_dropped_while_it_is_polled(tables: Tables) -> None:
    with fluss.connect(tables.connection.config.copy(retry_timeout_ms=3000)) as connection:
        path = tables(SCHEMA).get_table_path()
        table = connection.get_table(path)
        tables.write(table, pa.table({"p": ["a"], "id": [1]}))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.poll_arrow(10_000).num_rows == 1
        connection.get_admin().drop_table(path)
        error = poll_until_error(scanner)
        assert error.error_code in GONE
        assert path.table_name in error.message
        with pytest.raises(FlussError, match=path.table_name):
            fluss.scan_fluss(path, connection=connection)


def test_a_partition_is_dropped_while_it_is_polled(tables: Tables) -> None:
    with fluss.connect(tables.connection.config.copy(retry_timeout_ms=3000)) as connection:
        path = tables(SCHEMA, partition_keys=["p"]).get_table_path()
        table = connection.get_table(path)
        with table.new_append().create_writer(create_partitions=True) as writer:
            writer.write_arrow(pa.table({"p": ["a", "b"], "id": [1, 2]}))
        admin = connection.get_admin()
        ids = {p.partition_name: p.partition_id for p in admin.list_partition_infos(path)}
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_partition(ids["a"], 0, fluss.EARLIEST_OFFSET)
        scanner.subscribe_partition(ids["b"], 0, fluss.EARLIEST_OFFSET)
        rows = 0
        while rows < 2:
            rows += scanner.poll_arrow(10_000).num_rows
        admin.drop_partition(path, {"p": "a"})
        error = poll_until_error(scanner)
        assert error.error_code in GONE
        assert path.table_name in error.message
        scanner.unsubscribe_partition(ids["a"], 0)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"p": ["b"], "id": [3]}))
        assert scanner.poll_arrow(10_000).column("id").to_pylist() == [3]

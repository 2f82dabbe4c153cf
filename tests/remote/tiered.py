"""Tables of which the older part is in remote storage."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.client.runtime.metrics import ScanMetrics

DATABASE = "remote"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("value", pa.float64())])
# about 1 MB without compression, so that a write of these fills a segment
ROWS_PER_SEGMENT = 24_000
_PATIENCE_S = 40.0


def rows(first: int, count: int) -> pa.Table:
    """Return rows whose id says where they belong."""
    ids = np.arange(first, first + count)
    return pa.table(
        [ids, pa.array([f"text {i:>15}" for i in ids.tolist()]), ids * 0.5], schema=SCHEMA
    )


class Tiered:
    """Makes tables in a cluster that tiers quickly."""

    def __init__(self, connection: fluss.FlussConnection) -> None:
        self.connection = connection
        self._numbers = itertools.count()
        connection.get_admin().create_database(DATABASE, ignore_if_exists=True)

    def create(self, **layout: Any) -> fluss.FlussTable:
        """Create a table that keeps one segment locally."""
        path = fluss.TablePath(DATABASE, f"t{next(self._numbers)}")
        layout.setdefault("bucket_count", 1)
        properties = {
            "table.log.tiered.local-segments": "1",
            "table.log.arrow.compression.type": "NONE",
            **layout.pop("properties", {}),
        }
        schema = fluss.Schema(layout.pop("schema", SCHEMA))
        descriptor = fluss.TableDescriptor(schema, properties=properties, **layout)
        self.connection.get_admin().create_table(path, descriptor)
        return self.connection.get_table(path)

    def write(self, table: fluss.FlussTable, data: pa.Table, batch: int = 3_000) -> None:
        """Append in log batches of so many rows."""
        with table.new_append().create_writer(create_partitions=True) as writer:
            for part in data.to_batches(batch):
                writer.write_arrow(part)
                writer.flush()

    def filled(self, segments: int = 5) -> tuple[fluss.FlussTable, pa.Table]:
        """Return a table whose first segments are only remote, and its rows."""
        table = self.create()
        data = rows(0, segments * ROWS_PER_SEGMENT)
        self.write(table, data)
        self.wait(table, segments - 2)
        return table, data

    def wait(self, table: fluss.FlussTable, segments: int) -> None:
        """Wait until reading from the beginning reads so many remote segments."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            scanner = self.scanner(table)
            scanner.to_arrow()
            if scanner.metrics.remote_segments >= segments:
                return
            assert time.monotonic() < deadline, scanner.metrics
            time.sleep(0.2)

    def scanner(
        self,
        table: fluss.FlussTable,
        start: int = fluss.EARLIEST_OFFSET,
        columns: Sequence[str] | None = None,
        connection: fluss.FlussConnection | None = None,
    ) -> fluss.LogScanner:
        """Return a batch scanner of bucket 0."""
        if connection is not None:
            table = connection.get_table(table.get_table_path())
        scan = table.new_scan()
        if columns is not None:
            scan = scan.project_by_name(columns)
        scanner = scan.create_record_batch_log_scanner()
        scanner.subscribe(0, start)
        return scanner

    def lazy(self, table: fluss.FlussTable, **options: Any) -> pl.LazyFrame:
        """Return the table as Polars reads it."""
        return fluss.scan_fluss(table.get_table_path(), connection=self.connection, **options)


def read_all_ways(
    tiered: Tiered, table: fluss.FlussTable, start: int, columns: list[str] | None, count: int
) -> dict[str, tuple[pa.Table, ScanMetrics | None]]:
    """Read from an offset to the end by every way there is."""
    results: dict[str, tuple[pa.Table, ScanMetrics | None]] = {}

    scanner = tiered.scanner(table, start, columns)
    results["to_arrow"] = scanner.to_arrow(), scanner.metrics

    scanner = tiered.scanner(table, start, columns)
    with scanner.to_arrow_batch_reader() as reader:
        results["to_arrow_batch_reader"] = reader.read_all(), scanner.metrics

    scanner = tiered.scanner(table, start, columns)
    results["poll_arrow"] = poll_arrow(scanner, count), scanner.metrics

    scanner = tiered.scanner(table, start, columns)
    batches: list[pa.RecordBatch] = []
    deadline = time.monotonic() + _PATIENCE_S
    while sum(batch.num_rows for batch in batches) < count and time.monotonic() < deadline:
        batches += [found.batch for found in scanner.poll_record_batch(500)]
    results["poll_record_batch"] = pa.Table.from_batches(batches), scanner.metrics

    lazy = tiered.lazy(table, start=start)
    frame = (lazy if columns is None else lazy.select(columns)).collect()
    results["scan_fluss"] = frame.to_arrow(compat_level=pl.CompatLevel.oldest()), None
    return results


def poll_arrow(scanner: fluss.LogScanner, count: int) -> pa.Table:
    """Poll until so many rows came."""
    tables: list[pa.Table] = []
    deadline = time.monotonic() + _PATIENCE_S
    while sum(table.num_rows for table in tables) < count and time.monotonic() < deadline:
        tables.append(scanner.poll_arrow(500))
    return pa.concat_tables(tables)


def plain(table: pa.Table) -> pa.Table:
    """Return a table to compare: in one chunk, with the types that were written."""
    wanted = pa.schema([SCHEMA.field(name) for name in table.schema.names])
    return table.cast(wanted).combine_chunks()

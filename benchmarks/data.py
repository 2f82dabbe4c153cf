"""The tables that are read and written: five mixed columns."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from decimal import Decimal

import numpy as np
import pyarrow as pa

import fluss_df as fluss

BUCKETS = 4
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us")),
    ]
)
ROW_SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("c", pa.float64()), ("d", pa.int32())]
)
# of whose values Python has classes of its own
TYPED_SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("seen", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.int32())),
    ]
)
DATABASE = "bench"


def mixed_table(rows: int) -> pa.Table:
    """Return rows of about 45 bytes: sequential, repeated, random and rising values."""
    rng = np.random.default_rng(7)
    names = pa.array([f"user-{i}" for i in range(100_000)])
    start = 1_700_000_000_000_000
    columns = [
        pa.array(np.arange(rows)),
        names.take(pa.array(rng.integers(0, len(names), rows))),
        pa.array(rng.random(rows)),
        pa.array(rng.integers(0, 1000, rows, dtype=np.int32)),
        pa.array(start + np.cumsum(rng.integers(0, 1000, rows))).cast(pa.timestamp("us")),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def typed_rows(count: int) -> list[dict[str, object]]:
    """Return rows of dates, times, decimals and lists as a program would make them."""
    start = dt.datetime(2024, 1, 1)
    return [
        {
            "day": dt.date(2024, 1, 1 + i % 28),
            "at": start + dt.timedelta(milliseconds=i),
            "seen": (start + dt.timedelta(milliseconds=i)).replace(tzinfo=dt.UTC),
            "price": Decimal(i) / 100,
            "tags": [i % 7, i % 11, i],
        }
        for i in range(count)
    ]


_numbers = itertools.count()


def create(connection: fluss.FlussConnection, name: str, schema: pa.Schema) -> fluss.FlussTable:
    """Create a table of a name that never was.

    None is dropped: servers of 0.9.1 stop electing leaders when a table is dropped while the
    coordinator still works on its creation.
    """
    admin = connection.get_admin()
    admin.create_database(DATABASE, ignore_if_exists=True)
    path = fluss.TablePath(DATABASE, f"{name}_{time.time_ns()}_{next(_numbers)}")
    admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=BUCKETS))
    return connection.get_table(path)


def name_of(table: fluss.FlussTable) -> str:
    """Return the name of a table within its database."""
    return table.get_table_path().table_name


def fill(table: fluss.FlussTable, data: pa.Table, batch_rows: int) -> None:
    """Write data in log batches of so many rows, over all buckets."""
    handles = []
    with table.new_append().create_writer() as writer:
        for batch in data.to_batches(max_chunksize=batch_rows):
            handle = writer.write_arrow_batch(batch)
            handle.send_now()
            handles.append(handle)
        for handle in handles:
            handle.wait()

"""A pushed query fetches hardly more than the compressed bytes of what it needs."""

import polars as pl
import pyarrow as pa

from fluss_df.cli.tour import flights as all_flights
from fluss_df.client.connection import FlussConnection
from fluss_df.io import last_scan, scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from fluss_df.record.layout.headers import HEADER_SIZE
from fluss_df.record.log.log_batch import Compression, encode_log_batch

COLUMNS = ["origin", "carrier", "dep_delay"]
ROWS = 20_000


def bodies(rows: pl.DataFrame) -> int:
    """Return the size of the buffers that log batches of these rows have, without their heads."""
    size = 0
    for part in rows.iter_slices(ROWS):
        table = part.to_arrow(compat_level=pl.CompatLevel.oldest())
        table = table.cast(
            pa.schema(
                pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type)
                for f in table.schema
            )
        )
        batch = table.combine_chunks().to_batches()[0]
        encoded = encode_log_batch(batch, schema_id=1, compression=Compression.from_properties({}))
        body = encoded.to_bytes()[HEADER_SIZE:]
        size += pa.ipc.read_message(body).body.size
    return size


def test_only_the_bytes_of_the_columns_in_the_partition(connection: FlussConnection) -> None:
    flights = all_flights()
    assert flights.shape == (336_776, 19)
    path = TablePath("io", "flights")
    connection.get_admin().drop_table(path, ignore_if_not_exists=True)
    for part in flights.partition_by("origin"):
        for rows in part.iter_slices(ROWS):
            write_fluss(
                rows,
                path,
                connection=connection,
                create_if_not_exists=True,
                create_partitions=True,
                partition_keys=["origin"],
                bucket_count=1,
            )
    scan = scan_fluss(path, connection=connection)
    query = scan.filter(pl.col("origin") == "JFK").group_by("carrier").agg(pl.mean("dep_delay"))
    found = query.collect().sort("carrier")
    expected = flights.filter(pl.col("origin") == "JFK").group_by("carrier")
    assert found.equals(expected.agg(pl.mean("dep_delay")).sort("carrier"))
    report = last_scan()
    assert report is not None
    assert sorted(report.columns) == sorted(COLUMNS)
    exact = bodies(flights.filter(pl.col("origin") == "JFK").select(COLUMNS))
    ratio = report.bytes / exact
    print(f"fetched {report.bytes} bytes, {ratio:.3f} times the {exact} of the columns")
    assert 0.9 < ratio <= 1.1
    scan.collect()
    everything = last_scan()
    assert everything is not None
    assert everything.bytes > 10 * report.bytes

"""Partitions that have more or fewer buckets than their table: which buckets options may name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import fluss_df as fluss
from fluss_df.errors import FlussError
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.read.reading import read_task
from fluss_df.spark.read.streaming import FlussStreamReader
from tests.client.test_bucket_counts import IDS, Rescaled, rescaled, table_of_three

# fixtures of that module
__all__ = ["rescaled", "table_of_three"]


class Table:
    """A log whose table has three buckets, and its partitions a, b, c two, five and one."""

    def __init__(self, server: Rescaled) -> None:
        table = server.table(keys=False)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(server.rows())
        self.path = table.get_table_path()
        self.address = server.connection.config.bootstrap_servers
        self.all = fluss.read_fluss(
            self.path, connection=server.connection, include_metadata=True
        ).select("p", "id", "_bucket", "_log_offset")

    def options(self, given: Mapping[str, str]) -> ReadOptions:
        base = {"path": str(self.path), "bootstrap.servers": self.address, "columns": "p, id"}
        base["metadata.columns"] = "_bucket, _log_offset"
        return ReadOptions.parse({**base, **given})

    def batch(self, given: Mapping[str, str]) -> pl.DataFrame:
        options = self.options(given)
        scan = TableScan(options)
        found = [b for task in scan.tasks() for b in read_task(options, scan.schema, task)]
        return self.frame(found)

    def stream(self, given: Mapping[str, str]) -> pl.DataFrame:
        options = self.options(given)
        reader = FlussStreamReader(options, TableScan(options, streaming=True).schema)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        return self.frame([b for p in reader.partitions(start, end) for b in reader.read(p)])

    def frame(self, batches: list[pa.RecordBatch]) -> pl.DataFrame:
        made = pl.from_arrow(pa.Table.from_batches(batches))
        assert isinstance(made, pl.DataFrame)
        return made.cast(self.all.schema).sort("p", "_bucket", "_log_offset")


# what the server says is changed before it starts
@pytest.fixture
def table(table_of_three: None, rescaled: Rescaled) -> Table:
    made = Table(rescaled)
    assert made.all.height == 3 * len(IDS)
    return made


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_bucket_that_only_a_partition_has_is_read(table: Table, kind: str) -> None:
    read = table.batch if kind == "batch" else table.stream
    for given, chosen in (
        ({"buckets": "4"}, pl.col("_bucket") == 4),
        ({"buckets": "0, 3"}, pl.col("_bucket").is_in([0, 3])),
        ({"buckets": "4", "partitions": "b"}, pl.col("_bucket") == 4),
        (
            {"buckets": "4", "starting.offsets": json.dumps({"b/4": 3})},
            (pl.col("_bucket") == 4) & (pl.col("_log_offset") >= 3),
        ),
    ):
        expected = table.all.filter(chosen).sort("p", "_bucket", "_log_offset")
        assert expected.height
        assert read(given).equals(expected)
    ended = {"buckets": "4", "ending.offsets": json.dumps({"b/4": 3})}
    if kind == "batch":
        assert read(ended)["_log_offset"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"buckets": "5"}, r"no bucket 5; its buckets are 0 to 4"),
        ({"buckets": "4", "partitions": "a"}, r"no bucket 4; its buckets are 0 to 1"),
        ({"starting.offsets": '{"b/5": 0}'}, r"no bucket 5 of its partition 'b'.* 0 to 4"),
        ({"starting.offsets": '{"a/4": 0}'}, r"no bucket 4 of its partition 'a'.* 0 to 1"),
    ],
)
def test_a_bucket_that_no_partition_read_has_is_refused(
    table: Table, kind: str, given: dict[str, Any], message: str
) -> None:
    read = table.batch if kind == "batch" else table.stream
    with pytest.raises(FlussError, match=message):
        read(given)

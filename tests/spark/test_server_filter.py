"""Conditions that Spark pushes reach servers that judge batches by them (Fluss 1.0 and later)."""

import polars as pl
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import scan_fluss
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.source import FlussReader
from tests.io.conftest import MakeTable, write

ROWS = pl.DataFrame({"id": range(2000), "text": [f"t{i // 100:02}" for i in range(2000)]})
BATCHES = 10
STATISTICS = {"table.statistics.columns": "*"}


@pytest.fixture(scope="module")
def table(connection: FlussConnection, make_table: MakeTable) -> fluss.TablePath:
    """A table of ten batches, with statistics where the server knows them."""
    schema = ROWS.to_arrow().schema
    try:
        made = make_table(schema, properties=STATISTICS)
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_CONFIG_EXCEPTION:
            raise
        made = make_table(schema)
    write(connection, made, *ROWS.iter_slices(len(ROWS) // BATCHES))
    return made


@pytest.mark.parametrize(
    ("pushed", "filter", "condition", "batches"),
    [
        ([GreaterThan(("id",), 1899)], None, pl.col("id") > 1899, 1),
        ([EqualTo(("text",), "t05")], None, pl.col("text") == "t05", 1),
        ([], "id < 200 OR id >= 1800", (pl.col("id") < 200) | (pl.col("id") >= 1800), 2),
        ([GreaterThan(("id",), 5000)], None, pl.col("id") > 5000, 0),
        ([], None, pl.lit(value=True), BATCHES),
    ],
)
def test_batches_are_left_out(
    connection: FlussConnection,
    table: fluss.TablePath,
    pushed: list[Filter],
    filter: str | None,
    condition: pl.Expr,
    batches: int,
) -> None:
    options = {"path": str(table), "bootstrap.servers": str(connection.config.bootstrap_servers)}
    options["push.filters"] = "true"
    parsed = ReadOptions.parse(options | ({} if filter is None else {"filter": filter}))
    reader = FlussReader(parsed, TableScan(parsed).schema)
    reader.pushFilters(pushed)
    opened = parsed.connection.open()
    before = opened.metrics.batches
    parts = [b for part in reader.partitions() for b in reader.read(part)]
    read = opened.metrics.batches - before
    found = pl.concat([pl.DataFrame(pl.from_arrow(b)) for b in parts]) if parts else ROWS.head(0)
    assert found.equals(scan_fluss(table, connection=connection).filter(condition).collect())
    there = "table.statistics.columns" in opened.get_table(table).get_table_info().get_properties()
    assert read == (batches if there else BATCHES)

"""Rows of Iceberg data files that no delete file deletes, as they are written again."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, NestedField, StringType

from fluss_df.lake.iceberg_writing.live_rows import LiveRows, PartitionFiles
from tests.lake.data_files import data_file

DELETES = DataFileContent.EQUALITY_DELETES
IDS = {"key": 1, "name": 2}
NARROW, WIDE = pa.decimal128(5, 2), pa.decimal128(12, 2)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "key", DecimalType(12, 2)), NestedField(2, "name", StringType()))
    return catalog.create_table("db.t", schema)


@pytest.mark.parametrize("of_rows", [NARROW, WIDE], ids=str)
@pytest.mark.parametrize("of_deletes", [NARROW, WIDE], ids=str)
def test_keys_that_became_wider(
    table: Table, tmp_path: Path, of_rows: pa.DataType, of_deletes: pa.DataType
) -> None:
    keys = [Decimal("1.25"), None, Decimal("-999.99"), Decimal(3)]
    rows = pa.table({"key": pa.array(keys, of_rows), "name": ["a", "b", "c", "d"]})
    deletes = pa.table({"key": pa.array([Decimal("1.25"), None, Decimal(7)], of_deletes)})
    data = data_file(tmp_path / "data.parquet", rows, IDS, DataFileContent.DATA)
    gone = data_file(tmp_path / "gone.parquet", deletes, IDS, DELETES)
    none = data_file(tmp_path / "none.parquet", deletes.slice(0, 0), IDS, DELETES)
    files = PartitionFiles(data=[(1, data)], equality_deletes=[(2, gone), (3, none)])
    live = LiveRows(table, files)
    assert pa.concat_tables(live.batches(1, data)).equals(rows.slice(2))
    # without the keys, which are read to find what is deleted
    assert pa.concat_tables(live.batches(1, data, ["name"])).to_pydict() == {"name": ["c", "d"]}
    # deletes hold for files from before them
    assert pa.concat_tables(live.batches(3, data)).equals(rows)

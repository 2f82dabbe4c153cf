"""Rows of Iceberg data files that no delete file deletes, as they are written again."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, NestedField, StringType

from fluss_df.lake.iceberg_writing.live_rows import LiveRows, PartitionFiles

NARROW, WIDE = pa.decimal128(5, 2), pa.decimal128(12, 2)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "key", DecimalType(12, 2)), NestedField(2, "name", StringType()))
    return catalog.create_table("db.t", schema)


def file_of(path: Path, rows: pa.Table, content: DataFileContent) -> DataFile:
    """Write a file, whose columns have their ids."""
    ids = {"key": "1", "name": "2"}
    fields = [field.with_metadata({"PARQUET:field_id": ids[field.name]}) for field in rows.schema]
    pq.write_table(pa.Table.from_arrays(rows.columns, schema=pa.schema(fields)), path)
    return DataFile.from_args(
        content=content,
        file_path=f"file:{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )


@pytest.mark.parametrize("of_rows", [NARROW, WIDE], ids=str)
@pytest.mark.parametrize("of_deletes", [NARROW, WIDE], ids=str)
def test_keys_that_became_wider(
    table: Table, tmp_path: Path, of_rows: pa.DataType, of_deletes: pa.DataType
) -> None:
    keys = [Decimal("1.25"), None, Decimal("-999.99"), Decimal(3)]
    rows = pa.table({"key": pa.array(keys, of_rows), "name": ["a", "b", "c", "d"]})
    deletes = pa.table({"key": pa.array([Decimal("1.25"), None, Decimal(7)], of_deletes)})
    data = file_of(tmp_path / "data.parquet", rows, DataFileContent.DATA)
    gone = file_of(tmp_path / "gone.parquet", deletes, DataFileContent.EQUALITY_DELETES)
    none = file_of(tmp_path / "none.parquet", deletes.slice(0, 0), DataFileContent.EQUALITY_DELETES)
    files = PartitionFiles(data=[(1, data)], equality_deletes=[(2, gone), (3, none)])
    live = LiveRows(table, files)
    assert pa.concat_tables(live.batches(1, data)).equals(rows.slice(2))
    # without the keys, which are read to find what is deleted
    assert pa.concat_tables(live.batches(1, data, ["name"])).to_pydict() == {"name": ["c", "d"]}
    # deletes hold for files from before them
    assert pa.concat_tables(live.batches(3, data)).equals(rows)

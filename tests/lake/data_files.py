"""Files of an Iceberg table that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record


def data_file(
    path: Path, rows: pa.Table, ids: Mapping[str, int], content: DataFileContent
) -> DataFile:
    """Write a Parquet file, and return its entry; deletes by values compare the column of id 1.

    A file finds its columns by ids, whatever they are called there: those of ``ids`` have other
    names in it.
    """
    fields = [
        field.with_name(f"{field.name}_x").with_metadata({"PARQUET:field_id": str(ids[field.name])})
        if field.name in ids
        else field
        for field in rows.schema
    ]
    pq.write_table(pa.Table.from_arrays(rows.columns, schema=pa.schema(fields)), path)
    file = DataFile.from_args(
        content=content,
        file_path=f"file:{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
        spec_id=0,
    )
    file.spec_id = 0  # from_args leaves it out
    return file

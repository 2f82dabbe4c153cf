"""Writes Parquet files of an Iceberg table, of a bounded size, in bounded memory."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from fluss_df.errors import FlussError
from fluss_df.lake.iceberg_writing.bounds import file_schema, file_statistics
from fluss_df.lake.rounds.lake_rows import dictionary_columns, is_a_group, write_groups

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream
    from pyiceberg.table import Table

_TARGET_PROPERTY = "write.target-file-size-bytes"
_TARGET_BYTES = 128 << 20


class LakeFiles:
    """Makes data files of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        schema = table.schema()
        self.arrow_schema: pa.Schema = schema_to_pyarrow(schema)
        # names that other readers do not know are written as Iceberg's own writers write them
        written = file_schema(schema)
        self._file_schema: pa.Schema = schema_to_pyarrow(written)
        self._plan = compute_statistics_plan(written, table.metadata.properties)
        self._ids = parquet_path_to_id_mapping(written)
        self._options = _get_parquet_writer_kwargs(table.metadata.properties)
        target = table.metadata.properties.get(_TARGET_PROPERTY)
        try:
            self._target = int(target) if target else _TARGET_BYTES
        except ValueError:
            raise FlussError(
                f"lake table {'.'.join(table.name())}: its property {_TARGET_PROPERTY} is"
                f" {target!r}, and not a number of bytes"
            ) from None
        self._locations = load_location_provider(table.location(), table.metadata.properties)

    def writer(self, partition: Sequence[Any]) -> RollingWriter:
        """Return a writer for a partition of the table: the values of the partition's fields."""
        return RollingWriter(self, tuple(partition))

    def delete(self, files: Iterable[DataFile]) -> None:
        """Delete files that no snapshot has; what cannot be deleted is left."""
        for file in files:
            with contextlib.suppress(Exception):
                self.table.io.delete(file.file_path)


class RollingWriter:
    """Writes the rows of one partition, file after file; close it to have the files."""

    def __init__(self, files: LakeFiles, partition: tuple[Any, ...]) -> None:
        self._files = files
        self._partition = partition
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._stream: OutputStream | None = None
        self._parquet: pq.ParquetWriter | None = None
        self._path = ""
        self.done: list[DataFile] = []
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Write rows with the columns and types of the table's ``arrow_schema``."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        self.rows += rows.num_rows
        if is_a_group(self._rows, self._bytes):
            self._flush()

    def close(self) -> list[DataFile]:
        """Finish the last file; return all files."""
        self._flush()
        self._finish()
        return self.done

    def abort(self) -> None:
        """Give up: delete what was written."""
        self._waiting = []
        with contextlib.suppress(Exception):
            self._finish()
        self._files.delete(self.done)
        if self._path:
            # one that the disk did not take whole
            with contextlib.suppress(Exception):
                self._files.table.io.delete(self._path)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if self._parquet is None:
            dictionaries = dictionary_columns(rows, self._files._file_schema)
            name = f"{uuid.uuid4()}.parquet"
            self._path = self._files._locations.new_data_location(name)
            self._stream = self._files.table.io.new_output(self._path).create()
            self._parquet = pq.ParquetWriter(
                self._stream,
                self._files._file_schema,
                store_decimal_as_integer=True,
                use_dictionary=dictionaries,
                **self._files._options,
            )
        write_groups(self._parquet, rows, self._files._file_schema)
        assert self._stream is not None
        if self._stream.tell() >= self._files._target:
            self._finish()

    def _finish(self) -> None:
        if self._parquet is None or self._stream is None:
            return
        parquet, stream = self._parquet, self._stream
        self._parquet = self._stream = None
        parquet.close()
        size = stream.tell()
        stream.close()
        metadata = parquet.writer.metadata
        statistics = file_statistics(metadata, self._files._plan, self._files._ids)
        self.done.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=self._path,
                file_format=FileFormat.PARQUET,
                partition=Record(*self._partition),
                file_size_in_bytes=size,
                sort_order_id=None,
                spec_id=self._files.table.metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
        self._path = ""

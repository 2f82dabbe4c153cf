"""Writes Parquet files of a Paimon table, of a bounded size, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.rows import binary_row
from fluss_df.lake.paimon_writing.schema import WriteSchema
from fluss_df.lake.paimon_writing.statistics import Statistics, row_value
from fluss_df.lake.rounds.lake_rows import (
    dictionary_columns,
    has_nanoseconds,
    is_a_group,
    write_groups,
)

_TARGET_OPTION: Final = "target-file-size"
# bytes of a file by Paimon's defaults, for tables with a primary key and for others
_TARGETS: Final = {True: 128 << 20, False: 256 << 20}
_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# changes of keys are sorted and written once they take this number of bytes
_SORTED_BYTES: Final = 96 << 20
_UPDATE_BEFORE: Final = 1
_DELETE: Final = 3
# columns of the frame that is sorted; its key columns are called by numbers
_ROW: Final = "row"
_ORDER: Final = "sequence"
_BEFORE: Final = "before"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is in no snapshot yet; it pickles.

    Attributes
    ----------
    path
        Where it is.
    partition, bucket
        Of its rows: the values of the partition's columns as a binary row, and the bucket's number.
    changelog
        Whether it has changes for readers of streams, rather than rows.
    rows
        How many rows it has.
    entry
        Its entry in a manifest.
    """

    path: str
    partition: bytes
    bucket: int
    changelog: bool
    rows: int
    entry: dict[str, Any]


class PaimonFiles:
    """Makes data files of one table.

    Raises FlussError where an option of the table should be a size and is not.
    """

    def __init__(self, table: TableFiles, schema: WriteSchema) -> None:
        self.schema = schema
        self.table = table
        self._partitions = Partitions(table, schema.lake)
        self.target = self._size()
        options = schema.lake.options
        self.codec = options.get("file.compression", "zstd").lower()
        self.level: int | None = None
        if self.codec == "zstd":
            self.level = int(options.get("file.compression.zstd-level", "1"))

    def path(self, partition: bytes, bucket: int, name: str) -> str:
        """Return where a file of a bucket is; its folder is made."""
        path = self.table.at(self._partitions.path(partition, bucket, name))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return path

    def _size(self) -> int:
        given = self.schema.lake.options.get(_TARGET_OPTION)
        if given is None:
            return _TARGETS[self.schema.keyed]
        text = given.replace(" ", "").lower()
        number = text.rstrip("bytesikmg")
        unit = text[len(number) :][:1]
        if not number.isdigit() or unit not in _SIZE_UNITS:
            raise FlussError(
                f"lake table {self.table.path}: its option {_TARGET_OPTION} is {given!r}, and not"
                " a number of bytes"
            )
        return int(number) * _SIZE_UNITS[unit]


def discard(files: Sequence[NewFile]) -> None:
    """Delete files that no snapshot has; what cannot be deleted is left."""
    for file in files:
        discard_path(file.path)


def discard_path(path: str) -> None:
    """Delete a file; one that cannot be deleted is left."""
    with contextlib.suppress(OSError):
        os.unlink(path)


class _File:
    """One Parquet file that is being written: of rows that begin with ``first``."""

    def __init__(
        self,
        files: PaimonFiles,
        partition: bytes,
        bucket: int,
        first: pa.Table,
        *,
        changelog: bool = False,
    ) -> None:
        kind = "changelog" if changelog else "data"
        self._files = files
        self._place = partition, bucket
        self._changelog = changelog
        self.name = f"{kind}-{uuid.uuid4()}-0.parquet"
        self.path = files.path(partition, bucket, self.name)
        self.rows = 0
        self._statistics = Statistics(files.schema)
        self._stream = open(self.path, "xb")  # noqa: SIM115 - it is closed with the file
        with undoing(lambda: discard_path(self.path)), undoing(self._stream.close):
            self._parquet = pq.ParquetWriter(
                self._stream,
                files.schema.file,
                compression=files.codec,
                compression_level=files.level,
                store_decimal_as_integer=True,
                use_dictionary=dictionary_columns(first, files.schema.file),
                # as Paimon writes timestamps of more than six digits of a second
                use_deprecated_int96_timestamps=has_nanoseconds(pa.struct(files.schema.rows)),
            )

    def write(self, rows: pa.Table) -> None:
        """Write rows with the columns of files."""
        self.rows += rows.num_rows
        self._statistics.add(rows)
        write_groups(self._parquet, rows, self._files.schema.file)

    @property
    def size(self) -> int:
        return self._stream.tell()

    def close(
        self,
        sequences: tuple[int, int],
        keys: tuple[bytes, bytes] | None = None,
        deletes: int = 0,
        *,
        level: int = 0,
        compacted: bool = False,
    ) -> NewFile:
        self._parquet.close()
        size = self._stream.tell()
        self._stream.close()
        schema = self._files.schema
        empty = binary_row([], [])
        least, greatest = keys or (empty, empty)
        stats, columns = self._statistics.of_all()
        entry = {
            "_FILE_NAME": self.name,
            "_FILE_SIZE": size,
            "_ROW_COUNT": self.rows,
            "_MIN_KEY": least,
            "_MAX_KEY": greatest,
            "_KEY_STATS": self._statistics.of(schema.keys),
            "_VALUE_STATS": stats,
            "_MIN_SEQUENCE_NUMBER": sequences[0],
            "_MAX_SEQUENCE_NUMBER": sequences[1],
            "_SCHEMA_ID": schema.lake.id,
            "_LEVEL": level,
            "_EXTRA_FILES": [],
            # local time as if it were UTC, as Java writes it
            "_CREATION_TIME": int((time.time() + time.localtime().tm_gmtoff) * 1000),
            "_DELETE_ROW_COUNT": deletes,
            "_EMBEDDED_FILE_INDEX": None,
            "_FILE_SOURCE": int(compacted),
            "_VALUE_STATS_COLS": columns,
            "_EXTERNAL_PATH": None,
            "_FIRST_ROW_ID": None,
            "_WRITE_COLS": None,
        }
        return NewFile(self.path, *self._place, self._changelog, self.rows, entry)

    def abort(self) -> None:
        """Delete it."""
        with contextlib.suppress(Exception):
            self._parquet.close()
        with contextlib.suppress(OSError):
            self._stream.close()
        discard_path(self.path)


class _RolledWriter(ABC):
    """Writes the rows of a bucket in row groups, file after file."""

    def __init__(self, files: PaimonFiles, partition: bytes, bucket: int) -> None:
        self._files = files
        self._place = partition, bucket
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._file: _File | None = None
        self.done: list[NewFile] = []

    @abstractmethod
    def _closed(self, file: _File) -> NewFile:
        """Close a file with what is known of its rows."""

    def _note(self, rows: pa.Table, begins: bool) -> None:  # noqa: B027 - not all have to
        """Take note of the rows that are written next, which may begin a file."""

    def _add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if is_a_group(self._rows, self._bytes):
            self._flush()

    def close(self) -> list[NewFile]:
        """Finish the last file; return all files."""
        self._flush()
        self._finish()
        return self.done

    def abort(self) -> None:
        """Give up: delete what was written."""
        self._waiting = []
        if self._file is not None:
            self._file.abort()
        discard(self.done)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        begins = self._file is None
        if self._file is None:
            self._file = _File(self._files, *self._place, rows)
        self._note(rows, begins)
        self._file.write(rows)
        if self._file.size >= self._files.target:
            self._finish()

    def _finish(self) -> None:
        if self._file is not None:
            self.done.append(self._closed(self._file))
            self._file = None


class LogWriter(_RolledWriter):
    """Writes the rows of a bucket of a log table, file after file; close it to have the files.

    ``compacted`` says that the rows come from files which the table had before.
    """

    def __init__(
        self, files: PaimonFiles, partition: bytes, bucket: int, *, compacted: bool = False
    ) -> None:
        super().__init__(files, partition, bucket)
        self._compacted = compacted
        self._first = self._last = 0

    def write(self, rows: pa.Table, first: int, last: int) -> None:
        """Write rows of the table; ``first`` and ``last`` are their offsets."""
        if not rows.num_rows:
            return
        if self._file is None and not self._waiting:
            self._first = first
        self._last = last
        self._add(rows)

    def _closed(self, file: _File) -> NewFile:
        return file.close((self._first, self._last), compacted=self._compacted)


class KeyedWriter:
    """Writes the changes of a bucket of a primary-key table; close it to have the files.

    Changes are sorted by key in parts that memory holds. Each part is a file of the newest change
    of each key, and a file of all changes where the table has a changelog.
    """

    def __init__(self, files: PaimonFiles, partition: bytes, bucket: int) -> None:
        self._files = files
        self._place = partition, bucket
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self.done: list[NewFile] = []

    def write(self, rows: pa.Table, kinds: pa.Array, sequences: pa.Array) -> None:
        """Write changes.

        Each row has a kind: 0 for an insert, 1 and 2 for before and after an update, 3 for a
        delete. Each has a sequence number; these must rise.
        """
        if not rows.num_rows:
            return
        schema = self._files.schema
        columns = [rows.column(key) for key in schema.keys]
        own = [*columns, sequences, kinds]
        self._waiting.append(pa.Table.from_arrays([*own, *rows.columns], schema=schema.file))
        self._bytes += self._waiting[-1].nbytes
        if self._bytes >= _SORTED_BYTES:
            self._flush()

    def close(self) -> list[NewFile]:
        """Write what waits; return all files."""
        self._flush()
        return self.done

    def abort(self) -> None:
        """Give up: delete what was written."""
        self._waiting = []
        discard(self.done)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._bytes = [], 0
        count = len(self._files.schema.keys)
        # numbers, because names of columns may be patterns to Polars
        names = [str(at) for at in range(count)]
        keys = pl.DataFrame(pl.from_arrow(rows.select(list(range(count))).rename_columns(names)))
        kinds = pl.Series(pl.from_arrow(rows.column(count + 1)))
        order = keys.with_columns(
            pl.Series(_ORDER, pl.from_arrow(rows.column(count))),
            (kinds == _UPDATE_BEFORE).alias(_BEFORE),
        ).with_row_index(_ROW)
        order = order.sort([*names, _ORDER], maintain_order=True)
        newest = order.filter(~order[_BEFORE]).unique(names, keep="last", maintain_order=True)
        if newest.height:
            self._write(rows.take(newest[_ROW].to_arrow()), changelog=False)
        if self._files.schema.changelog:
            self._write(rows.take(order[_ROW].to_arrow()), changelog=True)

    def _write(self, rows: pa.Table, *, changelog: bool) -> None:
        """Write rows that are sorted by key."""
        schema = self._files.schema
        count = len(schema.keys)
        ends = [_key(schema, rows, place) for place in (0, rows.num_rows - 1)]
        sequences = pl.Series(pl.from_arrow(rows.column(count)))
        deletes = int((pl.Series(pl.from_arrow(rows.column(count + 1))) == _DELETE).sum())
        file = _File(self._files, *self._place, rows, changelog=changelog)
        with undoing(file.abort):
            file.write(rows)
            span: Any = (sequences.min(), sequences.max())
            self.done.append(file.close(span, (ends[0], ends[1]), deletes))


class MergedWriter(_RolledWriter):
    """Writes the rows of a bucket of a primary-key table, each key once; close it for the files.

    The files get this level of the bucket.
    """

    def __init__(self, files: PaimonFiles, partition: bytes, bucket: int, level: int) -> None:
        super().__init__(files, partition, bucket)
        self._level = level
        self._first = self._last = b""
        self._sequences: list[int] = []

    def write(self, rows: pa.Table) -> None:
        """Write rows with the columns of files, whose keys rise; deletes are not among them."""
        if rows.num_rows:
            self._add(rows)

    def _note(self, rows: pa.Table, begins: bool) -> None:
        schema = self._files.schema
        if begins:
            self._first = _key(schema, rows, 0)
            self._sequences = []
        self._last = _key(schema, rows, rows.num_rows - 1)
        ends = pc.min_max(rows.column(len(schema.keys)))
        self._sequences += [ends["min"].as_py(), ends["max"].as_py()]

    def _closed(self, file: _File) -> NewFile:
        span = min(self._sequences), max(self._sequences)
        return file.close(span, (self._first, self._last), level=self._level, compacted=True)


def _key(schema: WriteSchema, rows: pa.Table, place: int) -> bytes:
    """Return the key of a row of a file."""
    values = [row_value(rows.column(at)[place]) for at in range(len(schema.keys))]
    return binary_row(values, schema.kinds(schema.keys))

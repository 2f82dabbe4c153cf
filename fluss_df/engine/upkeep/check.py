"""Verifies a folder of the embedded engine, byte by byte, and changes nothing.

The memory that it takes does not grow with the data, and is about 500 MB: a piece of a log of 16 MB
(or one batch that is larger), 2 MB of it decompressed at a time (or one batch), a few MB of rows of
RocksDB, and the digests of a million rows (:mod:`~fluss_df.engine.upkeep.row_digests`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fluss_df.engine.access.acl_store import read_acls
from fluss_df.engine.catalog.catalog_files import CATALOG, SET_ASIDE, CatalogFiles
from fluss_df.engine.catalog.cluster_state import epoch_of, read_state
from fluss_df.engine.catalog.old_formats import buckets_on_disk, old_point
from fluss_df.engine.files.files import (
    CHECKSUMS_SINCE,
    FORMAT,
    NOT_NOW,
    TooManyFilesError,
    disk_refused,
    holds_data,
    names_in,
    read_format,
)
from fluss_df.engine.files.kept_json import KeptJson
from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.kv.decoded_parts import parts_of
from fluss_df.engine.kv.kv_replay import ChangeReplay
from fluss_df.engine.kv.kv_store import KvState
from fluss_df.engine.kv.store_folders import store_folder
from fluss_df.engine.kv.stored_rows import NotAskedError, stored_rows, stored_state
from fluss_df.engine.lake.lake_of_table import has_lake
from fluss_df.engine.log.recovery import load_log
from fluss_df.engine.log.segment import Segment
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.engine.tables.tables import Database, Table, databases_from_json
from fluss_df.engine.upkeep.row_digests import Piece, RowDigests, binary, column_of, differing
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import check_folder_lake
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.record.log.row_log import decoder_of_log
from fluss_df.types import arrow_schema

Level = Literal["damage", "note"]

_CHUNK: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    ``level`` is ``"damage"`` for what is lost, or could not be verified; ``"note"`` for what
    opening the folder puts right by itself. ``where`` is a file or folder.
    """

    level: Level
    where: Path
    message: str


@dataclass(slots=True)
class Report:
    """The result of a check: counts of what was verified, and findings.

    Attributes
    ----------
    tables, buckets, segments
        How many there are.
    log_bytes, records
        The bytes and records of all logs.
    rows
        Rows of primary-key tables.
    lake_files, lake_bytes
        The files of the folder's lake, and their bytes.
    findings
        Empty where all is well.
    """

    tables: int = 0
    buckets: int = 0
    segments: int = 0
    log_bytes: int = 0
    records: int = 0
    rows: int = 0
    lake_files: int = 0
    lake_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.level == "damage" for finding in self.findings)


def check_folder(folder: Path, watch: Callable[[int], object] | None = None) -> Report:
    """Verify everything in a folder: checksums, offsets, rows; current rows against changelogs.

    ``watch`` is called with the bytes of logs and of the lake that were read since its last call.

    Raises ``STORAGE_EXCEPTION`` where the folder is in use, or no folder of an engine.
    """
    if not holds_data(folder):
        raise FlussError(f"{folder} holds no Fluss data", ErrorCode.STORAGE_EXCEPTION)
    lock = FolderLock(folder)
    try:
        return _Checker(lock, watch or (lambda done: None)).run()
    finally:
        lock.release()


class _Checker:
    def __init__(self, lock: FolderLock, watch: Callable[[int], object]) -> None:
        self._folder = lock.folder
        self.lock = lock
        self.watch = watch
        self.report = Report()
        self.old = False

    def _found(self, level: Level, where: Path, message: str) -> None:
        self.report.findings.append(Finding(level, where, message))

    @contextlib.contextmanager
    def _damage(self, where: Path) -> Iterator[None]:
        """Make a finding of whatever cannot be read, also by libraries that end in a panic.

        What says nothing about the files is raised: no memory, no descriptors, an interrupt.
        """
        try:
            yield
        except (MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit, TooManyFilesError):
            raise
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NOT_NOW:
                raise disk_refused(f"cannot check {where}", where, error) from error
            message = (
                error.message
                if isinstance(error, FlussError)
                else f"cannot be read: {type(error).__name__}: {error}"
            )
            self._found("damage", where, message)

    def run(self) -> Report:
        version = FORMAT
        with self._damage(self._folder / "FORMAT"):
            version, problem = read_format(self._folder)
            if problem is not None:
                self._found("note", self._folder / "FORMAT", f"{problem}; written when opened")
        self.old = version < FORMAT
        files = CatalogFiles(self._folder, plain=version < CHECKSUMS_SINCE)
        databases = self._databases(files)
        self._cluster(files)
        tables: dict[int, Table] = {}
        with self._damage(self._folder / CATALOG):
            for table_id in files.table_ids():
                self._table_file(files, table_id, databases, tables)
        self.report.tables = len(tables)
        with self._damage(self._folder):
            for part in sorted(files.unknown(tables)):
                if any(log.stat().st_size for log in part.rglob("*.log")):
                    what = "has rows, and the catalog has no such table: restore a backup"
                    self._found("damage", part, f"{what}; it is set aside when opened")
                else:
                    self._found("note", part, "belongs to no table; set aside when opened")
        for table in tables.values():
            with self._damage(files.data_folder(table.id)):
                self._table(table, files)
        with self._damage(self._folder / "lake"):
            self._lake(tables)
        with self._damage(self._folder / SET_ASIDE):
            for name in names_in(self._folder / SET_ASIDE):
                part = self._folder / SET_ASIDE / name
                self._found("note", part, "belonged to no table when the folder was opened")
        return self.report

    def _lake(self, tables: dict[int, Table]) -> None:
        known = [(t.path, t.lake.get("snapshot", {})) for t in tables.values() if has_lake(t)]
        if not known:
            return
        try:
            counts = check_folder_lake(self._folder, known, self._found, self.watch)
        except ImportError as error:
            without = f"pip install 'fluss-df[lake]' ({error})"
            self._found(
                "note",
                self._folder / "lake",
                f"is not verified without the extra 'lake': {without}",
            )
            return
        self.report.lake_files, self.report.lake_bytes = counts.files, counts.bytes

    def _databases(self, files: CatalogFiles) -> dict[str, Database]:
        kept = files.databases()
        with self._damage(kept.first):
            return databases_from_json(self._kept(kept)["databases"])
        return {}

    def _cluster(self, files: CatalogFiles) -> None:
        kept = files.cluster()
        with self._damage(kept.first):
            # The file is missing until cluster state changes for the first time.
            stored = self._kept(kept, needed=False)
            changes, problems = files.cluster_changes().read(epoch_of(stored))
            for problem in problems:
                self._found("note", kept.first, f"{problem}; mended when opened")
            if stored is not None:
                read_state(stored, changes)
        kept = files.acls()
        with self._damage(kept.first):
            stored = self._kept(kept, needed=False)
            if stored is not None:
                read_acls(stored)

    def _table_file(
        self,
        files: CatalogFiles,
        table_id: int,
        databases: dict[str, Database],
        tables: dict[int, Table],
    ) -> None:
        kept = files.table(table_id)
        with self._damage(kept.first):
            table = Table.from_json(self._kept(kept))
            tables[table.id] = table
            if databases and table.path.database_name not in databases:
                raise FlussError(f"there is no database of table {table.path}")

    def _kept(self, kept: KeptJson, *, needed: bool = True) -> Any:
        """Return a value that is kept twice; raise where it is lost."""
        value, problems = kept.read()
        for problem in problems:
            self._found("note", kept.first, f"{problem}; its copy is taken when opened")
        if value is None and needed:
            raise FlussError(f"it and its copy {kept.second} are missing")
        return value

    def _table(self, table: Table, files: CatalogFiles) -> None:
        folder = files.data_folder(table.id)
        parts = {str(p.id) for p in table.partitions.values()} if table.partitioned else {"table"}
        for part in sorted(files.unknown_partitions(table.id, parts)):
            left_over = part.name in map(str, table.dropped)
            what = (
                "left over of a dropped partition; removed" if left_over else "unknown; set aside"
            )
            self._found("note", part, f"{what} when opened")
        register = files.register(table.id)
        for problem in register.problems:
            self._found("note", folder, f"{problem}; its copy is taken when opened")
        buckets = dict(buckets_on_disk(files, table))
        for owner, bucket in buckets.items():
            self.report.buckets += 1
            with self._damage(bucket):
                _Bucket(self, table, bucket, owner, used=owner in register).run()
        for owner in register:
            name = "table" if owner.partition < 0 else str(owner.partition)
            if owner not in buckets and name in parts:
                where = folder / name / str(owner.bucket)
                self._found("damage", where, "is missing, and rows were written to it")


class _Bucket:
    """One bucket: its log, and the rows where the table has a primary key."""

    def __init__(
        self, checker: _Checker, table: Table, folder: Path, owner: BucketIds, *, used: bool
    ) -> None:
        self._checker = checker
        self._report = checker.report
        self._folder = folder
        self._log = folder / "log"
        self._owner = owner
        self._used = used
        self._table = table
        columns = {key: schema.columns for key, schema in table.schemas.items()}
        target = arrow_schema(columns[table.schema_id])
        self._decoder = decoder_of_log(columns, target, table.log_format)
        self._codec = TableCodec(table)

    def run(self) -> None:
        # The log is opened as an engine opens it, except that indexes are not trusted.
        found = old_point(self._log, self._owner) if self._checker.old else None
        loaded = load_log(
            self._log, str(self._owner), self._owner, used=self._used, found=found, only_look=True
        )
        for segment in loaded.segments:
            segment.release_files()
        for problem in loaded.problems:
            self._checker._found("note", self._log, f"{problem}, when opened")
        start, segments = loaded.start, loaded.segments
        state = None
        if self._table.has_primary_key:
            end = segments[-1].end_offset if segments else 0
            state = self._state(start, end)
        if state is not None and not start:
            self._compare(segments, state.applied)
            return
        for _ in self._batches(segments):
            pass
        if state is not None:
            # The changelog has lost its beginning, so rows cannot be compared: they are only
            # decoded.
            for _, values in stored_rows(store_folder(self._folder), self._checker.lock):
                self._codec.decoder().decode_values(values)
                self._report.rows += len(values)

    # ---- the log

    def _batches(self, segments: list[Segment], *, again: bool = False) -> Iterator[DecodedBatch]:
        """Decode the batches of a log, which are whole, and count them unless it is ``again``."""
        for segment in segments:
            position, chunk = 0, _CHUNK
            while position < segment.size:
                data = segment.read(position, min(segment.size, position + chunk))
                headers = scan_headers(data, require_progress=False)
                if not len(headers):
                    chunk *= 4  # a batch larger than a chunk
                    continue
                for first, last in parts_of(data, headers, self._codec):
                    yield from self._decoder.decode(data, headers, first, last)
                if not again:
                    self._report.records += headers.rows
                    self._checker.watch(headers.consumed)
                position += headers.consumed
                chunk = _CHUNK
            segment.release_files()
            if not again:
                self._report.segments += 1
                self._report.log_bytes += position

    # ---- rows

    def _state(self, start: int, end: int) -> KvState | None:
        """Return the state of RocksDB; None where it is made again from the changelog."""
        folder = store_folder(self._folder)
        try:
            state = stored_state(folder, self._checker.lock)
            if state.owner not in (None, self._owner):
                raise FlussError(f"it has the rows of {state.owner}")
            if not start <= state.applied <= end:
                raise FlussError(
                    f"it is at offset {state.applied} of a changelog from {start} to {end}"
                )
        except (TooManyFilesError, NotAskedError):
            raise
        except FlussError as error:
            if start:
                raise
            self._made_again(folder, error)
            return None
        return state

    def _made_again(self, folder: Path, error: FlussError) -> None:
        self._checker._found(
            "note", folder, f"made again from the changelog when opened: {error.message}"
        )

    def _compare(self, segments: list[Segment], applied: int) -> None:
        """Compare the rows in RocksDB with the fold of the changelog, piece by piece."""
        folder = store_folder(self._folder)
        replay = ChangeReplay(self._table, self._codec, 1)
        pieces = [Piece()]
        rows, one_only, changed, again = 0, 0, 0, False
        while pieces:
            expected = RowDigests(pieces.pop())
            for batch in self._batches(segments, again=again):
                columns = replay.columns(batch) if batch.base_offset < applied else None
                if columns is not None:
                    keys, values, deleted = columns
                    expected.add(column_of(keys), column_of(values), deleted)
            found = RowDigests(expected.piece)
            read = 0
            try:
                for stored in stored_rows(folder, self._checker.lock):
                    read += len(stored[0])
                    decoded = self._codec.decoder().decode_values(stored[1])
                    # Stored values may have an older schema; those of the changelog are of the
                    # newest one.
                    found.add(binary(stored[0]), column_of(self._codec.encode(decoded)))
            except FlussError as error:
                if error.error_code != ErrorCode.KV_STORAGE_EXCEPTION:
                    raise
                self._made_again(folder, error)
                return
            counts = differing(expected, found)
            one_only, changed = one_only + counts[0], changed + counts[1]
            pieces += found.left + expected.left
            rows, again = read, True
        self._report.rows += rows
        if one_only or changed:
            raise FlussError(
                f"the rows in RocksDB are not those of the changelog up to offset {applied}:"
                f" {rows} rows, {one_only} keys in one only, {changed} other values"
            )

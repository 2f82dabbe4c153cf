"""Verifies a folder of the embedded engine, byte by byte, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fluss_df.embedded.carry_over import buckets_on_disk, old_point
from fluss_df.embedded.catalog_files import SET_ASIDE, CatalogFiles
from fluss_df.embedded.cluster_state import epoch_of, read_state
from fluss_df.embedded.files import CHECKSUMS_SINCE, FORMAT, holds_data, read_format
from fluss_df.embedded.kept_json import KeptJson
from fluss_df.embedded.kv_replay import ChangeReplay
from fluss_df.embedded.kv_store import KvState, read_store, store_folder
from fluss_df.embedded.ownership import FolderLock
from fluss_df.embedded.recovery import load_log
from fluss_df.embedded.segment import Segment
from fluss_df.embedded.synced_point import BucketIds
from fluss_df.embedded.tables import Database, Table, databases_from_json
from fluss_df.embedded.values_pool import TableCodec
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.headers import LogHeaders, scan_headers
from fluss_df.record.log_decode import LogDecoder
from fluss_df.record.row_log import RowLogDecoder
from fluss_df.types import arrow_schema

Level = Literal["damage", "note"]

_CHUNK: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes
    ----------
    level
        ``"damage"`` for what is lost; ``"note"`` for what opening the folder puts right by itself.
    where
        The file or folder.
    message
        What it is.
    """

    level: Level
    where: Path
    message: str


@dataclass(slots=True)
class Report:
    """What was verified, and what was found.

    Attributes
    ----------
    tables, buckets, segments
        How many there are.
    log_bytes, records
        Of all logs.
    rows
        Rows of primary-key tables.
    findings
        Empty where all is well.
    """

    tables: int = 0
    buckets: int = 0
    segments: int = 0
    log_bytes: int = 0
    records: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.level == "damage" for finding in self.findings)


def check_folder(folder: Path) -> Report:
    """Verify everything in a folder: checksums, offsets, rows; current rows against changelogs.

    Raises
    ------
    FlussError
        ``STORAGE_EXCEPTION`` where the folder is in use, or no folder of an engine.
    """
    if not holds_data(folder):
        raise FlussError(f"{folder} holds no Fluss data", ErrorCode.STORAGE_EXCEPTION)
    lock = FolderLock(folder)
    try:
        return _Checker(folder).run()
    finally:
        lock.release()


class _Checker:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.report = Report()
        self.old = False

    def _found(self, level: Level, where: Path, message: str) -> None:
        self.report.findings.append(Finding(level, where, message))

    @contextlib.contextmanager
    def _damage(self, where: Path) -> Iterator[None]:
        try:
            yield
        except (FlussError, OSError, ValueError, LookupError, TypeError) as error:
            message = error.message if isinstance(error, FlussError) else repr(error)
            self._found("damage", where, message)

    def run(self) -> Report:
        version = FORMAT
        with self._damage(self._folder / "FORMAT"):
            version, problem = read_format(self._folder)
            if problem is not None:
                self._found("note", self._folder / "FORMAT", f"{problem}; written when opened")
        self.old = version < FORMAT
        files = CatalogFiles(self._folder, plain=version < CHECKSUMS_SINCE)
        databases: dict[str, Database] = {}
        stored = self._kept(files.databases())
        with self._damage(files.databases().first):
            if stored is None and not self.report.findings:
                raise FlussError(f"it and its copy {files.databases().second} are missing")
            if stored is not None:
                databases = databases_from_json(stored["databases"])
        stored = self._kept(files.cluster())
        with self._damage(files.cluster().first):
            changes, problems = files.cluster_changes().read(epoch_of(stored))
            for problem in problems:
                self._found("note", files.cluster().first, f"{problem}; mended when opened")
            if stored is not None:
                read_state(stored, changes)
        tables: dict[int, Table] = {}
        for table_id in files.table_ids():
            kept = files.table(table_id)
            stored = self._kept(kept)
            if stored is None:
                continue  # both files are damaged, which is reported
            with self._damage(kept.first):
                table = Table.from_json(stored)
                tables[table.id] = table
                if databases and table.path.database_name not in databases:
                    raise FlussError(f"there is no database of table {table.path}")
        self.report.tables = len(tables)
        for part in sorted(files.unknown(tables)):
            self._found("note", part, "belongs to no table; set aside when opened")
        for table in tables.values():
            self._table(table, files)
        for part in sorted((self._folder / SET_ASIDE).glob("*")):
            self._found("note", part, "belonged to no table when the folder was opened")
        return self.report

    def _kept(self, kept: KeptJson) -> Any:
        """Return a value that is kept twice."""
        value = None
        with self._damage(kept.first):
            value, problems = kept.read()
            for problem in problems:
                self._found("note", kept.first, f"{problem}; its copy is taken when opened")
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
        payload = {key: arrow_schema(schema.columns) for key, schema in table.schemas.items()}
        target = payload[table.schema_id]
        self._decoder: LogDecoder | RowLogDecoder
        if table.arrow:
            self._decoder = LogDecoder(payload, target)
        else:
            columns = {key: schema.columns for key, schema in table.schemas.items()}
            self._decoder = RowLogDecoder(columns, target, table.log_format)
        self._state: KvState | None = None
        self._replay: ChangeReplay | None = None
        self._folded: dict[bytes, bytes | None] = {}

    def run(self) -> None:
        # as an engine opens it, but every byte is read
        found = old_point(self._log, self._owner) if self._checker.old else None
        loaded = load_log(
            self._log,
            str(self._owner),
            self._owner,
            used=self._used,
            found=found,
            only_look=True,
        )
        for segment in loaded.segments:
            segment.rest()
        for problem in loaded.problems:
            self._checker._found("note", self._log, f"{problem}, when opened")
        start = loaded.start
        values: dict[bytes, bytes] | None = None
        if self._table.has_primary_key:
            end = loaded.segments[-1].end_offset if loaded.segments else 0
            values = self._stored(start, end)
        offset = start
        for segment in loaded.segments:
            offset = self._segment(segment, offset)
        if values is not None:
            self._compare(values)

    def _segment(self, segment: Segment, offset: int) -> int:
        """Decode the batches of a segment, which are whole; return the offset behind them."""
        self._report.segments += 1
        position, chunk = 0, _CHUNK
        while position < segment.size:
            data = segment.read(position, min(segment.size, position + chunk))
            headers = scan_headers(data, require_progress=False)
            if not len(headers):
                chunk *= 4
                continue
            self._rows(data, headers, offset)
            self._report.records += headers.rows
            offset = headers.end_offset or offset
            position += headers.consumed
            chunk = _CHUNK
        segment.rest()
        self._report.log_bytes += position
        return offset

    def _rows(self, data: memoryview, headers: LogHeaders, offset: int) -> None:
        batches = self._decoder.decode(data, headers)
        state = self._state
        if self._replay is None or state is None:
            return
        for batch in batches:
            if batch.base_offset < state.applied:
                self._replay.add(batch, self._folded, KvState())

    # ---- rows

    def _stored(self, start: int, end: int) -> dict[bytes, bytes] | None:
        """Return what RocksDB holds, where it can be compared with the changelog."""
        folder = store_folder(self._folder)
        try:
            self._state, values = read_store(folder)
            owner = self._state.owner
            if owner not in (None, self._owner):
                raise FlussError(f"it has the rows of {owner}")
            if not start <= self._state.applied <= end:
                raise FlussError(
                    f"it is at offset {self._state.applied} of a changelog from {start} to {end}"
                )
        except FlussError as error:
            if start:
                raise
            self._checker._found(
                "note", folder, f"made again from the changelog when opened: {error.message}"
            )
            return None
        codec = TableCodec(self._table)
        codec.decoder().decode_values(list(values.values()))
        self._report.rows += len(values)
        if start:
            return None
        self._replay = ChangeReplay(self._table, codec, 1)
        return values

    def _compare(self, values: dict[bytes, bytes]) -> None:
        state = self._state
        if state is None or self._replay is None:
            return
        expected = {key: value for key, value in self._folded.items() if value is not None}
        decoder = TableCodec(self._table).decoder()
        keys = sorted(expected)
        if keys == sorted(values):
            found = decoder.decode_values([values[key] for key in keys])
            if found.equals(decoder.decode_values([expected[key] for key in keys])):
                return
        differing = sorted(expected.keys() ^ values.keys())
        raise FlussError(
            f"the rows in RocksDB are not those of the changelog up to offset {state.applied}:"
            f" {len(values)} rows, {len(expected)} expected, {len(differing)} keys in one only"
        )

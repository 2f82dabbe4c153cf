"""Verifies a folder of the embedded engine, byte by byte, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fluss_df.embedded.catalog_files import SET_ASIDE, CatalogFiles
from fluss_df.embedded.cluster_state import read_state
from fluss_df.embedded.files import FORMAT, holds_data, read_format
from fluss_df.embedded.kept_json import KeptJson
from fluss_df.embedded.kv_replay import ChangeReplay
from fluss_df.embedded.kv_store import KvState, read_store, store_folder
from fluss_df.embedded.ownership import FolderLock
from fluss_df.embedded.recovery import SyncedPoint
from fluss_df.embedded.segment import segment_offsets
from fluss_df.embedded.tables import Database, Table, databases_from_json
from fluss_df.embedded.values_pool import TableCodec
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.headers import LogHeaders, scan_headers, verify_crcs
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
            version = read_format(self._folder)
        files = CatalogFiles(self._folder, plain=version < FORMAT)
        databases: dict[str, Database] = {}
        stored = self._kept(files.databases())
        with self._damage(files.databases().first):
            if stored is None and not self.report.findings:
                raise FlussError(f"it and its copy {files.databases().second} are missing")
            if stored is not None:
                databases = databases_from_json(stored["databases"])
        stored = self._kept(files.cluster())
        with self._damage(files.cluster().first):
            if stored is not None:
                read_state(stored)
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
        for name in sorted(parts):
            part = folder / name
            for bucket in sorted(part.iterdir() if part.exists() else (), key=lambda p: p.name):
                self.report.buckets += 1
                with self._damage(bucket):
                    _Bucket(self, table, bucket).run()


class _Bucket:
    """One bucket: its log, and the rows where the table has a primary key."""

    def __init__(self, checker: _Checker, table: Table, folder: Path) -> None:
        self._checker = checker
        self._report = checker.report
        self._folder = folder
        self._log = folder / "log"
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
        bases = segment_offsets(self._log)
        point = SyncedPoint.unpack((self._log / "synced").read_bytes()[:64])
        if point is None:
            self._checker._found("note", self._log / "synced", "torn; written anew when opened")
        values: dict[bytes, bytes] | None = None
        if self._table.has_primary_key:
            values = self._stored(bases[0] if bases else 0)
        offset = bases[0] if bases else 0
        for number, base in enumerate(bases):
            path = self._log / f"{base:020d}.log"
            if base != offset:
                raise FlussError(f"offsets {offset} to {base} are missing before {path.name}")
            offset, whole = self._segment(path, offset)
            if whole < path.stat().st_size:
                lost = path.stat().st_size - whole
                if point is not None and offset < point.end_offset:
                    raise FlussError(
                        f"{path.name} is damaged at offset {offset}, byte {whole}; what was"
                        f" acknowledged reaches to {point.end_offset}"
                    )
                self._checker._found(
                    "note",
                    path,
                    f"{lost} bytes behind offset {offset} were not written to the"
                    " end; cut off when opened",
                )
                if number < len(bases) - 1:
                    self._checker._found("note", self._log, "later segments go with them")
                break
        if point is not None and offset < point.end_offset:
            raise FlussError(f"records from {offset} to {point.end_offset} are missing")
        if values is not None:
            self._compare(values, bases[0] if bases else 0, offset)

    def _segment(self, path: Path, offset: int) -> tuple[int, int]:
        """Verify a segment; return the offset behind it, and the bytes of whole batches."""
        self._report.segments += 1
        size = path.stat().st_size
        position = 0
        chunk = _CHUNK
        with open(path, "rb") as file:
            while position < size:
                file.seek(position)
                data = memoryview(file.read(chunk))
                whole, offset = self._batches(data, offset)
                if not whole:
                    if position + len(data) < size:
                        chunk *= 4
                        continue
                    break
                position += whole
                chunk = _CHUNK
        self._report.log_bytes += position
        return offset, position

    def _batches(self, data: memoryview, offset: int) -> tuple[int, int]:
        """Verify whole batches; return their bytes and the offset behind them."""
        taken = 0
        while taken < len(data):
            rest = data[taken:]
            if len(rest) < 12:
                break
            size = 12 + int.from_bytes(rest[8:12], "little", signed=True)
            if not 48 <= size <= len(rest):
                break
            one = rest[:size]
            try:
                headers = scan_headers(one)
                verify_crcs(one, headers)
            except FlussError:
                break
            if int(headers.base_offset[0]) != offset:
                break
            self._rows(one, headers, offset)
            self._report.records += headers.rows
            assert headers.end_offset is not None
            offset = headers.end_offset
            taken += size
        return taken, offset

    def _rows(self, data: memoryview, headers: LogHeaders, offset: int) -> None:
        batches = self._decoder.decode(data, headers)
        state = self._state
        if self._replay is None or state is None:
            return
        for batch in batches:
            if batch.base_offset < state.applied:
                self._replay.add(batch, self._folded, KvState())

    # ---- rows

    def _stored(self, start: int) -> dict[bytes, bytes] | None:
        """Return what RocksDB holds, where it can be compared with the changelog."""
        folder = store_folder(self._folder)
        try:
            self._state, values = read_store(folder)
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

    def _compare(self, values: dict[bytes, bytes], start: int, end: int) -> None:
        state = self._state
        if state is None or self._replay is None:
            return
        if state.applied > end:
            self._checker._found(
                "note",
                store_folder(self._folder),
                f"at offset {state.applied} of a changelog that ends at {end}; made again when"
                " opened",
            )
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

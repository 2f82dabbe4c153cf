"""Loading files into a table: all of it or nothing, and once even where the process is killed.

All files are read to their ends and checked against the table before the first row is sent. What
is sent is noted beforehand, as runs into tables do (:mod:`fluss_df.io.runs.ledger`), in a folder of
the user's; so the same command, after it was killed, completes what it had begun and doubles
nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from fluss_df.cli.loading.files import LINES, TEXTS, Source
from fluss_df.cli.loading.guessing import Guess
from fluss_df.cli.loading.shapes import check_shape
from fluss_df.client.connection import FlussConnection
from fluss_df.client.send.batch import RoutedBatch
from fluss_df.cluster.processes.places import data_dir
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import polars_schema
from fluss_df.io.runs.checkpoint import (
    RUN_GOES_ON,
    BatchOffsets,
    Checkpoint,
    read_state,
    write_atomically,
)
from fluss_df.io.runs.ledger import TableLedger
from fluss_df.io.runs.losses import Losses
from fluss_df.io.runs.micro_batches import MicroBatch
from fluss_df.io.sinks.sink import names_of_partitions, require_encodable, require_partitions
from fluss_df.io.sinks.target import TableLayout, Target, arrow_types, find_target
from fluss_df.metadata import TablePath, nearest
from fluss_df.polars_adapter.plans import run_into
from fluss_df.polars_adapter.scans import polars_text
from fluss_df.record.python.coerce import coerce
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.types import Column, arrow_schema

_JOB = "job.json"
_LEDGER = "ledger"


@dataclass(frozen=True)
class Loaded:
    """The result of a load.

    ``rows`` is how many rows of the files are in the table. ``table_created`` says whether it made
    the table, ``resumed`` whether it completed a load that had been interrupted.
    """

    rows: int
    table_created: bool
    resumed: bool


@dataclass(frozen=True)
class Load:
    """Files that go into a table.

    Parameters
    ----------
    connection, path
        The table.
    place
        Where the table is, in words that are the same the next time.
    files
        The files, in order.
    layout
        The keys, partitions and buckets of the table to create.
    schema
        Types that a user gave to columns.
    null_values
        Texts of CSV that mean null.
    separator
        The character between columns of CSV; None for that of the file's ending.
    create, create_partitions
        What to create where it does not exist. A table that is created gets its partitions, too.
    """

    connection: FlussConnection
    path: TablePath
    place: str
    files: Sequence[Path]
    layout: TableLayout
    schema: Sequence[Column] = ()
    null_values: tuple[str, ...] = ()
    create: bool = False
    create_partitions: bool = False
    separator: str | None = None

    def run(self, progress: Callable[[int, int], object]) -> Loaded:
        """Load the files.

        ``progress`` is called with the number of rows that were handed on, and of all rows.

        Raises FlussError with the file, line and column of what is wrong; nothing was written then.
        Where servers fail meanwhile it says so: running the same load again completes it.
        """
        folder = self._folder()
        with Checkpoint(folder, self.path):
            found = self._interrupted(folder)
            if found:
                rows = self._write(folder, None, progress)
                return Loaded(rows, table_created=False, resumed=True)
            shutil.rmtree(folder / _LEDGER, ignore_errors=True)
            try:
                frame, target, rows = self._checked()
                created = target.info is None
                info = target.create()
                job = {
                    "version": 1,
                    "table_id": info.table_id,
                    "created": info.created_time,
                    "files": self._marks(),
                    "rows": rows,
                    "create_partitions": self._creates_partitions(target, target.partitions()),
                }
                write_atomically(folder / _JOB, job)
                rows = self._write(folder, frame, progress)
            except BaseException as error:
                if not self._begun(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    if isinstance(error, FlussError):
                        error.message = error.message.replace(RUN_GOES_ON, "nothing was loaded")
                        error.args = (error.message, error.error_code)
                raise
        return Loaded(rows, created, resumed=False)

    def forget(self) -> None:
        """Take note that the user has seen the result: the same command is a new load from now on.

        Until then the same command continues this load. So a load that is killed before it says
        that it is done is finished by the next one, and its rows are not written twice.
        """
        folder = self._folder()
        done = folder.with_name(f"{folder.name}.done-{os.getpid()}")
        # renamed first, because removing file by file could be interrupted halfway
        os.replace(folder, done)
        # also what other processes left that were killed here
        for each in folder.parent.glob("*.done-*"):
            shutil.rmtree(each, ignore_errors=True)

    # ---- the note of what was begun

    def _folder(self) -> Path:
        """Return the folder of this load: the same files into the same table have the same."""
        names = [str(file.resolve()) for file in self.files]
        key = json.dumps([self.place, str(self.path), names])
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        return data_dir() / "loads" / digest

    def _marks(self) -> list[list[Any]]:
        stats = [file.stat() for file in self.files]
        return [[stat.st_size, stat.st_mtime_ns] for stat in stats]

    def _begun(self, folder: Path) -> bool:
        return any((folder / _LEDGER).glob("*.json"))

    def _interrupted(self, folder: Path) -> bool:
        """Whether rows of an earlier load may be in the table, and others not yet."""
        if not (folder / _JOB).exists() or not self._begun(folder):
            return False
        job = read_state(folder / _JOB)
        try:
            info = self.connection.get_table(self.path).get_table_info()
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            return False
        # a server that was set up again gives the same ids again; earlier releases noted no time
        if (job["table_id"], job.get("created", info.created_time)) != (
            info.table_id,
            info.created_time,
        ):
            return False  # of a table that is gone
        if job["files"] != self._marks():
            raise FlussError(
                f"an earlier load of these files into {self.path} was interrupted, with a part of"
                f" its {job['rows']:,} rows written, and the files have changed since: restore them"
                f" and load again to complete it, or remove {folder} to leave it as it is"
            )
        return True

    # ---- reading

    def _checked(self) -> tuple[pl.LazyFrame, Target, int]:
        """Read all files to their ends; return their rows, the table, and how many they are."""
        sources = [Source(file, self.null_values, self.separator) for file in self.files]
        given = {c.name: c for c in self.schema}
        kinds = dict(polars_schema(arrow_schema(list(self.schema)))) if given else {}
        table = self._columns()
        wanted = {**table, **kinds}
        guesses: dict[str, Guess] = {}
        found = [_kinds(source, wanted, table, guesses) for source in sources]
        # what the last file says of a column holds for all
        found = [
            {name: guesses[name].kind if name in guesses else kind for name, kind in one.items()}
            for one in found
        ]
        unknown = [name for name in given if not any(name in one for one in found)]
        if unknown:
            raise FlussError(f"--schema: no file has a column '{unknown[0]}'")
        frames = [s.scan(k) for s, k in zip(sources, found, strict=True)]
        self._same_columns(sources, found)
        how: Any = "diagonal" if any(s.kind in LINES for s in sources) else "vertical"
        frame = frames[0] if len(frames) == 1 else pl.concat(frames, how=how)
        with _polars_errors(sources):
            schema = frame.collect_schema()
            target = self._target(schema, given)
            if target.info is not None:
                self._require_columns(target.info, sources, found)
            rows = self._check(frame, target, schema)
        return frame, target, rows

    def _columns(self) -> dict[str, pl.DataType]:
        """Return the columns of the table, where it exists."""
        try:
            info = self.connection.get_table(self.path).get_table_info()
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            if not self.create:
                raise FlussError(
                    f"{error.message}; --create creates it", error.error_code
                ) from None
            return {}
        numbered = info.schema.auto_increment
        kinds = polars_schema(info.schema.arrow_schema)
        return {name: kind for name, kind in kinds.items() if name not in numbered}

    def _same_columns(
        self, sources: Sequence[Source], found: Sequence[Mapping[str, pl.DataType]]
    ) -> None:
        for source, kinds in zip(sources[1:], found[1:], strict=True):
            if source.kind in LINES or list(kinds) == list(found[0]):
                continue
            raise FlussError(
                f"{source.path}: its columns are {', '.join(kinds)}, those of {sources[0].path}"
                f" {', '.join(found[0])}; nothing was loaded"
            )

    def _require_columns(
        self, info: TableInfo, sources: Sequence[Source], found: Sequence[Mapping[str, pl.DataType]]
    ) -> None:
        """Raise for a column of a file that the table does not have."""
        there = info.get_column_names()
        shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
        for source, kinds in zip(sources, found, strict=True):
            for name in kinds:
                if name not in there:
                    raise source.error(
                        None,
                        name,
                        f"table {self.path} has no such column, but {shown}: take it out of the"
                        " file, or add it to the table with 'fluss-df alter table --add-columns'"
                        f"{nearest(name, there)}",
                    )

    def _target(self, schema: pl.Schema, given: Mapping[str, Column]) -> Target:
        target = find_target(
            self.connection,
            self.path,
            schema,
            self.layout,
            mode="auto",
            create_if_not_exists=self.create,
        )
        if target.info is not None or not given:
            return target
        made = target.descriptor
        keys = made.schema.primary_keys
        columns = [
            c
            if c.name not in given
            else replace(
                given[c.name],
                type=given[c.name].type.with_nullable(
                    given[c.name].type.nullable and c.name not in keys
                ),
            )
            for c in made.schema.columns
        ]
        described = TableDescriptor(
            Schema.from_columns(columns, keys),
            partition_keys=made.partition_keys,
            bucket_keys=self.layout.bucket_keys,
            bucket_count=self.layout.bucket_count,
            properties=self.layout.properties,
        )
        return replace(target, descriptor=described, columns=tuple(columns))

    def _check(self, frame: pl.LazyFrame, target: Target, schema: pl.Schema) -> int:
        """Raise for a row that the table does not take; return how many there are."""
        rows = 0
        arrow_types(self.path, schema)
        coerce(arrow_types(self.path, schema).empty_table(), target.columns, table=str(self.path))

        there = target.partitions()
        creates = self._creates_partitions(target, there)

        def check(part: pl.DataFrame) -> None:
            nonlocal rows
            fitting = coerce(part.to_arrow(), target.columns, table=str(self.path))
            require_encodable(target, fitting)
            if creates:
                # for values that can name none
                names_of_partitions(target, fitting)
            else:
                require_partitions(target, fitting, "--create-partitions", there)
            rows += part.height

        try:
            run_into(frame, check)
        except FlussError as error:
            if "nothing was" not in error.message:
                behind = f" (rows count from row {rows:,} of the files)" if rows else ""
                error.message = f"{error.message}{behind}; nothing was loaded"
                error.args = (error.message, error.error_code)
            raise
        return rows

    def _creates_partitions(self, target: Target, there: Collection[str]) -> bool:
        """Whether partitions that are missing are created.

        Of a table that this command creates all are missing. A load that was killed right after it
        created the table left one without partitions.
        """
        return self.create_partitions or target.info is None or (self.create and not there)

    # ---- writing

    def _write(
        self, folder: Path, frame: pl.LazyFrame | None, progress: Callable[[int, int], object]
    ) -> int:
        job = read_state(folder / _JOB)
        total = int(job["rows"])
        schema = pl.Schema(self._columns()) if frame is None else frame.collect_schema()
        if frame is None:
            frame = pl.LazyFrame(schema=schema)
        # the batch has no offsets of a table: its rows come from files, which the note names
        batch = MicroBatch(0, frame, (), BatchOffsets(0, 0, ()), lambda *_: None)
        ledger = _Ledger(
            self.connection,
            self.path,
            schema,
            folder,
            None,
            Losses("fail", "load the files again, when the partitions are there"),
            # loads that an earlier version began have no such note
            create_partitions=self.create_partitions or bool(job.get("create_partitions")),
        )
        ledger.watched = lambda rows: progress(rows, total)
        with ledger:
            return ledger.write(batch)


class _Ledger(TableLedger):
    """A ledger that tells how far it is."""

    watched: Callable[[int], object]

    def _staged(self, *args: Any) -> Iterator[RoutedBatch]:
        rows = 0
        for routed in super()._staged(*args):
            yield routed
            rows += routed.rows.num_rows
            self.watched(rows)


def _kinds(
    source: Source,
    wanted: Mapping[str, pl.DataType],
    table: Mapping[str, pl.DataType],
    guesses: dict[str, Guess],
) -> dict[str, pl.DataType]:
    """Return the types to read a file with: those that are wanted, and of other columns its own."""
    if source.kind not in TEXTS:
        return source.kinds(guesses)
    if source.kind in LINES:
        fields = source.fields()
        for name, kind in fields.items():
            if name in wanted:
                check_shape(source, name, kind, wanted[name])
        # a field that an object lacks is null
        names = [*fields, *(name for name in table if name not in fields)]
        if not names:
            raise source.error(None, None, "it is empty: there are no columns to make a table of")
    else:
        names = source.names()
    if all(name in wanted for name in names):
        return {name: wanted[name] for name in names}
    own = source.kinds(guesses, wanted)
    return {name: wanted[name] if name in wanted else own[name] for name in names}


@contextlib.contextmanager
def _polars_errors(sources: Sequence[Source]) -> Iterator[None]:
    try:
        yield
    except pl.exceptions.PolarsError as error:
        for source in sources:
            with source.errors():
                source.locate()
        reason = polars_text(error).split("\n\n", maxsplit=1)[0]
        names = ", ".join(str(source.path) for source in sources)
        raise FlussError(
            f"{names}: cannot be read: {' '.join(reason.split())}; nothing was loaded"
        ) from error

"""Writing micro-batches into Fluss tables, each row exactly once.

What a batch makes is staged first: a file beside the checkpoint holds the record batches in the
form in which they are sent, each with its bucket. Then a ledger entry names the writer id under
which they go, the sequence of the first for every bucket, and where the buckets end; and then they
are sent. After a crash the headers of what stands behind these ends tell which of them arrived, and
the others are sent again under the same writer id and sequence: a request of the killed process
that arrives late is the same batch to the server, which takes it once. So rows of other writers do
not matter, nor does it matter whether the query would give the same rows in the same order again.
That holds for upserts too: every change is in the changelog once, and merge engines add up once.

Before it is sent, a batch is claimed in the register of runs, in the cluster of the target: so a
checkpoint that was put back, or a copy of one, does not write other rows under the same number.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.batch_headers import landed_batches
from fluss_df.client.send.batch import RoutedBatch
from fluss_df.client.write.append import AppendWriter
from fluss_df.client.write.upsert import UpsertWriter
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.checkpoint import (
    BatchOffsets,
    read_state,
    replacing,
    storing,
    storing_output,
    write_atomically,
)
from fluss_df.io.runs.claims import Claims
from fluss_df.io.runs.losses import Losses, listed
from fluss_df.io.runs.micro_batches import MicroBatch
from fluss_df.io.sinks.target import TableLayout, arrow_types, find_target
from fluss_df.metadata import OffsetSpec, TableBucket, TablePath
from fluss_df.polars_adapter.plans import run_into
from fluss_df.record.python.coerce import coerce

# frames of a query are put together up to about this size
_STAGED_BYTES = 8 << 20
# how long acknowledged rows may take to be seen in the log
_VISIBLE_S = 30.0
_PAUSE_S = 0.05
_VERSION = 1
# errors by which a server says that it does not know the writer any more
_WRITER_GONE = frozenset(
    {ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION}
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A bucket that a batch goes to: where it ended, and the first sequence of the batch there."""

    bucket: TableBucket
    partition_name: str | None
    end: int
    sequence: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of the ledger for a micro-batch.

    Parameters
    ----------
    table_id
        The target.
    writers
        Under which ids its batches were sent: after the first only if a server forgot one.
    places
        The buckets.
    order
        For each staged record batch the index of its place.
    rows
        How many rows they have.
    name
        A name that no other batch has; None if an earlier release wrote the entry.
    digest
        The digest of the offsets that the batch read; None if an earlier release wrote the entry.
    """

    table_id: int
    writers: tuple[int, ...]
    places: tuple[_Place, ...]
    order: tuple[int, ...]
    rows: int
    name: str | None = None
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "table_id": self.table_id,
            "writers": list(self.writers),
            "places": [
                [p.bucket.partition_id, p.partition_name, p.bucket.bucket_id, p.end, p.sequence]
                for p in self.places
            ],
            "order": list(self.order),
            "rows": self.rows,
            "name": self.name,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, path: Path) -> _Entry:
        found = read_state(path)
        try:
            table_id = int(found["table_id"])
            places = tuple(
                _Place(TableBucket(table_id, number, partition), name, int(end), int(sequence))
                for partition, name, number, end, sequence in found["places"]
            )
            return cls(
                table_id,
                tuple(found["writers"]),
                places,
                tuple(found["order"]),
                found["rows"],
                found.get("name"),
                found.get("digest"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FlussError(f"checkpoint file {path} is damaged: {error!r}") from None


class TableLedger:
    """Writes micro-batches into a table; use it in a ``with`` statement.

    Raises SchemaMismatchError when the columns do not fit. Raises FlussError when there is no such
    table.

    Parameters
    ----------
    connection, path
        The target: rows are appended to a log table, and upserted into a primary-key table.
    schema
        The columns of the query.
    folder
        The checkpoint's.
    claims
        Compares the checkpoint with what was written; None where nothing does.
    losses
        What is done where partitions of the target are gone.
    create_partitions
        Whether to create partitions that rows belong to and the target lacks.
    """

    def __init__(
        self,
        connection: FlussConnection,
        path: TablePath,
        schema: pl.Schema,
        folder: Path,
        claims: Claims | None,
        losses: Losses,
        *,
        create_partitions: bool,
    ) -> None:
        target = find_target(
            connection, path, schema, TableLayout(), mode="auto", create_if_not_exists=False
        )
        self.claims = claims
        self._losses = losses
        # a table with a chunk: coerce looks at no types where there is none
        nothing = arrow_types(path, schema).empty_table()
        coerce(nothing, target.columns, table=str(path))
        self._connection = connection
        self._info = target.create()
        self._folder = folder / "ledger"
        with storing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for leftover in self._folder.glob(".*.arrow-*"):
                leftover.unlink(missing_ok=True)
        self._create_partitions = create_partitions
        self._open: list[AppendWriter | UpsertWriter] = []
        self._writer = self._new_writer()
        self._writer_id: int | None = None
        self._next: Counter[TableBucket] = Counter()

    def _new_writer(self) -> AppendWriter | UpsertWriter:
        kind = UpsertWriter if self._info.has_primary_key() else AppendWriter
        writer = kind(self._connection, self._info, create_partitions=self._create_partitions)
        self._open.append(writer)
        return writer

    def __enter__(self) -> TableLedger:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._open:
            # errors were raised where rows were sent
            with contextlib.suppress(FlussError):
                writer.close()

    def _entry_path(self, number: int) -> Path:
        return self._folder / f"{number:010}.json"

    def _staged_path(self, number: int) -> Path:
        return self._folder / f"{number:010}.arrow"

    def has(self, batch: BatchOffsets) -> bool:
        """Whether a batch is staged, so that it is not read again."""
        return self._entry_path(batch.number).exists()

    def name_of(self, number: int) -> str | None:
        """Return the name of a batch that is staged; None for one that is not."""
        path = self._entry_path(number)
        return _Entry.from_json(path).name if path.exists() else None

    def forget(self, number: int) -> None:
        """Have a batch staged again, for another table."""
        self._entry_path(number).unlink(missing_ok=True)

    def write(self, batch: MicroBatch) -> int:
        """Write the rows of a batch, those that are not there yet; return how many it has."""
        self._forget_before(batch.number)
        path = self._entry_path(batch.number)
        if path.exists():
            entry = _Entry.from_json(path)
            if entry.digest not in (None, batch.planned.digest):
                raise FlussError(
                    f"micro-batch {batch.number} of checkpoint {self._folder.parent} was staged for"
                    f" other offsets than {', '.join(map(str, batch.splits[:4]))}: the checkpoint"
                    " lost files, or was put back in part; put it back as a whole, or start over"
                    " with another one"
                )
            if entry.name is None:
                entry = replace(entry, name=uuid.uuid4().hex, digest=batch.planned.digest)
                write_atomically(path, entry.to_json())
            self._claim(batch, entry)
            self._finish(batch.number, entry)
            return entry.rows
        places, order, rows = self._stage(batch)
        if not rows:
            return 0
        try:
            ends = self._ends_of(places)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            # a partition was dropped since this writer met it, and perhaps made again: nothing is
            # sent of this batch yet
            self._begin_anew()
            places, order, rows = self._stage(batch)
            ends = self._ends_of(places)
        if self._writer_id is None:
            self._writer_id = self._writer.ask_writer_id()
        buckets = list(places)
        place_of = {bucket: at for at, bucket in enumerate(buckets)}
        entry = _Entry(
            self._info.table_id,
            (self._writer_id,),
            tuple(_Place(b, places[b], ends[b], self._next[b]) for b in buckets),
            tuple(map(place_of.__getitem__, order)),
            rows,
            uuid.uuid4().hex,
            batch.planned.digest,
        )
        write_atomically(path, entry.to_json())
        self._claim(batch, entry)
        try:
            self._writer.send_as(
                self._writer_id, {}, self._staged(batch.number, entry, dict.fromkeys(buckets, 0))
            )
        except FlussError as error:
            if error.error_code not in _WRITER_GONE:
                raise
            # A server forgets a writer after some days without rows in a bucket
            # (server.writer-id.expiration-time, 7 days by default): nothing is wrong with the run.
            self._begin_anew()
            self._finish(batch.number, entry)
        else:
            self._next.update(order)
        return rows

    def _ends_of(self, buckets: Iterable[TableBucket]) -> dict[TableBucket, int]:
        admin = self._connection.get_admin()
        return self._connection.io.run(
            admin.bucket_offsets(self._info, list(buckets), OffsetSpec.latest())
        )

    def _begin_anew(self) -> None:
        """Go on with a writer that knows nothing of this table, and is not known."""
        self._writer, self._writer_id = self._new_writer(), None
        self._next.clear()

    def _claim(self, batch: MicroBatch, entry: _Entry) -> None:
        if self.claims is not None:
            assert entry.name is not None
            self.claims.claim(batch, entry.name)

    def _forget_before(self, number: int) -> None:
        for path in self._folder.iterdir():
            if path.stem.isdigit() and int(path.stem) < number:
                path.unlink(missing_ok=True)

    # ---- the stage

    def _stage(
        self, batch: MicroBatch
    ) -> tuple[dict[TableBucket, str | None], list[TableBucket], int]:
        """Run the query, and put what it makes into a file."""
        places: dict[TableBucket, str | None] = {}
        order: list[TableBucket] = []
        rows = 0
        held = 0.0
        frames: list[pl.DataFrame] = []
        with (
            storing_output(self._staged_path(batch.number)),
            replacing(self._staged_path(batch.number)) as name,
            pa.OSFile(name, "wb") as file,
            pa.ipc.new_file(file, self._writer.frame_schema) as stage,
        ):

            def put() -> None:
                nonlocal rows, held
                if not frames:
                    return
                table = pl.concat(frames).to_arrow()
                frames.clear()
                held = 0.0
                for routed in self._writer.route(table):
                    stage.write_batch(routed.rows)
                    places[routed.bucket] = routed.partition_name
                    order.append(routed.bucket)
                    rows += routed.rows.num_rows

            def take(frame: pl.DataFrame) -> None:
                nonlocal held
                frames.append(frame)
                held += frame.estimated_size()
                if held >= _STAGED_BYTES:
                    put()

            run_into(batch.frame, take)
            put()
        return places, order, rows

    def _staged(
        self, number: int, entry: _Entry, skip: Mapping[TableBucket, int]
    ) -> Iterator[RoutedBatch]:
        """Yield the staged batches, for each bucket without some of the first."""
        seen: Counter[TableBucket] = Counter()
        with pa.OSFile(str(self._staged_path(number)), "rb") as file:
            stage = pa.ipc.open_file(file)
            for i, at in enumerate(entry.order):
                if at < 0:
                    # the partition is gone
                    continue
                place = entry.places[at]
                seen[place.bucket] += 1
                if seen[place.bucket] > skip[place.bucket]:
                    yield RoutedBatch(place.bucket, place.partition_name, stage.get_batch(i))

    # ---- after a crash, and where a server forgot the writer

    def _finish(self, number: int, entry: _Entry) -> None:
        """Send what of a batch is missing."""
        if entry.table_id != self._info.table_id:
            raise FlussError(
                f"micro-batch {number} was being written when the run ended, to a table"
                f" {self._info.table_path} that is gone (its id was {entry.table_id}, and is"
                f" {self._info.table_id}): start over with another checkpoint",
                ErrorCode.TABLE_NOT_EXIST,
            )
        entry = self._in_partitions_there(number, entry)
        if not entry.places:
            return
        wanted = Counter(entry.places[at].bucket for at in entry.order if at >= 0)
        firsts = {place.bucket: place.sequence for place in entry.places}
        for attempt in itertools.count(1):
            landed, sequences = self._landed(entry, firsts)
            if landed == wanted:
                return
            missing = self._staged(number, entry, landed)
            try:
                self._new_writer().send_as(entry.writers[-1], sequences, missing)
                break
            except FlussError as error:
                if error.error_code not in _WRITER_GONE or attempt == 3:
                    raise
            # The server has forgotten the writer, so it would refuse a late request of it, too: the
            # missing batches can be sent under another id.
            entry = replace(entry, writers=(*entry.writers, self._new_writer().ask_writer_id()))
            firsts = dict.fromkeys(firsts, 0)
            write_atomically(self._entry_path(number), entry.to_json())
        self._await_all(entry, wanted, firsts)

    def _in_partitions_there(self, number: int, entry: _Entry) -> _Entry:
        """Return the parts of a batch whose partitions still exist."""
        if not self._info.is_partitioned():
            return entry
        admin = self._connection.get_admin()
        there = {p.partition_id for p in admin.list_partition_infos(self._info.table_path)}
        gone = [p for p in entry.places if p.bucket.partition_id not in there]
        if not gone:
            return entry
        names = sorted({str(place.partition_name) for place in gone})
        self._losses.found(
            f"micro-batch {number} was being written when the run ended, and partitions of table"
            f" {self._info.table_path} that it goes to were dropped since: {listed(names)}; its"
            " rows for them are lost",
            ErrorCode.PARTITION_NOT_EXISTS,
        )
        left = [i for i, p in enumerate(entry.places) if p.bucket.partition_id in there]
        kept = [entry.places[i] for i in left]
        at = {i: new for new, i in enumerate(left)}
        return replace(entry, places=tuple(kept), order=tuple(at.get(i, -1) for i in entry.order))

    def _landed(
        self, entry: _Entry, firsts: Mapping[TableBucket, int]
    ) -> tuple[Counter[TableBucket], dict[TableBucket, int]]:
        """Return how many batches of each bucket are there, and the sequences that come next."""
        begins = {place.bucket: place.end for place in entry.places}
        found = landed_batches(self._connection, self._info, begins, entry.writers)
        landed = Counter({bucket: len(batches) for bucket, batches in found.items() if batches})
        last = entry.writers[-1]
        sequences = {
            bucket: max((s + 1 for writer, s in batches if writer == last), default=firsts[bucket])
            for bucket, batches in found.items()
        }
        return landed, sequences

    def _await_all(
        self, entry: _Entry, wanted: Counter[TableBucket], firsts: Mapping[TableBucket, int]
    ) -> None:
        """Wait until all batches are seen: what a server has already, it acknowledges at once."""
        deadline = time.monotonic() + _VISIBLE_S
        while True:
            landed, _ = self._landed(entry, firsts)
            if landed == wanted:
                return
            if time.monotonic() > deadline:
                raise FlussError(
                    f"table {self._info.table_path}: of {wanted.total()} batches that were"
                    f" acknowledged {landed.total()} are in the log",
                    ErrorCode.LOG_STORAGE_EXCEPTION,
                )
            time.sleep(_PAUSE_S)

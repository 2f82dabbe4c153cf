"""Which batch of a run was written last, kept where it was written to.

A checkpoint that was put back, or copied, knows less than was written. What was written is noted
beside the target too, in a primary-key table ``runs`` with one row for each run: the number of the
newest batch, and a name that only this batch has. A run may write its next batch where the row is
what its checkpoint says. Two that ask at the same time are told apart by the order of the table's
changes: the first counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.lookup.lookuper import Lookuper
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.write.upsert import UpsertWriter
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.scan import read_fluss
from fluss_df.metadata import CHANGE_TYPE_COLUMN, ChangeType, OffsetSpec, TableBucket, TablePath
from fluss_df.schema import Schema, TableDescriptor

_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        ("target", pa.string()),
        ("target_id", pa.int64()),
        ("source", pa.string()),
        ("source_id", pa.int64()),
        ("batch", pa.int64()),
        ("name", pa.string()),
        ("about", pa.string()),
    ]
)
# Seconds within which a run that came second gives the row back. On a loaded machine that takes a
# while; after this time the first run is refused, too.
_GIVEN_BACK_S = 30.0
_PAUSE_S = 0.02
# the key in ``about`` that marks a row as put back by one that came second
_GIVEN_BACK = "given_back"
# UpdateBefore too: a claim may be replaced before any lookup has shown it
_ROWS = (ChangeType.Insert.value, ChangeType.UpdateBefore.value, ChangeType.UpdateAfter.value)


@dataclass(frozen=True, slots=True)
class Link:
    """A batch as its target knows it.

    No other batch has the same ``name``. ``about`` was noted with it: the offsets up to which it
    read, by bucket.
    """

    batch: int
    name: str
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def to_json(self) -> list[Any]:
        """Return it for a checkpoint."""
        return [self.batch, self.name]

    @staticmethod
    def from_json(value: Any) -> Link | None:
        """Read it from a checkpoint; None where it has none."""
        return None if value is None else Link(int(value[0]), str(value[1]))


@dataclass(frozen=True, slots=True)
class RunNames:
    """The contents of a run's row besides its batches."""

    run_id: str
    target: TablePath
    target_id: int
    source: TablePath
    source_id: int


class RunRegister:
    """The table ``runs`` of a cluster.

    Raises FlussError when the table cannot be created.
    """

    def __init__(self, connection: FlussConnection, database: str) -> None:
        self._connection = connection
        self.path = TablePath(database, "runs")
        admin = connection.get_admin()
        if not admin.table_exists(self.path):
            descriptor = TableDescriptor(Schema(_SCHEMA, ["run_id"]), bucket_count=1)
            try:
                admin.create_database(database, ignore_if_exists=True)
                admin.create_table(self.path, descriptor, ignore_if_exists=True)
            except FlussError as error:
                raise FlussError(
                    f"table {self.path}, in which runs note what they wrote, cannot be created:"
                    f" {error.message}; have somebody create the database '{database}', name"
                    " another one with ledger_database=..., or do without by ledger_database=None:"
                    " then a checkpoint that was put back or copied is not noticed",
                    error.error_code,
                ) from None
        self._info = connection.get_table(self.path).get_table_info()
        self._bucket = TableBucket(self._info.table_id, 0)
        self._lookuper = Lookuper(connection, self._info)
        self._decoder = TableDecoder(
            connection,
            self._info,
            ["run_id", "batch", "name", "about"],
            (CHANGE_TYPE_COLUMN,),
            Metrics(parent=connection.metrics),
        )
        self._claimed: Link | None = None
        # the end of the table's changes before ``_claimed`` was written
        self._claimed_behind = 0
        self._writer = UpsertWriter(connection, self._info)

    def close(self) -> None:
        """Let go of the connection."""
        self._writer.close()

    def _end(self, spec: OffsetSpec | None = None) -> int:
        admin = self._connection.get_admin()
        asked = spec or OffsetSpec.latest()
        return admin.get_bucket_offsets(self._info, [self._bucket], asked)[self._bucket]

    def find(self, run_id: str) -> Link | None:
        """Return the newest batch of a run."""
        row = self._lookuper.lookup({"run_id": run_id})
        if not row:
            return None
        return Link(row["batch"], row["name"], json.loads(row["about"]))

    def claim(self, names: RunNames, link: Link, expected: Link | None) -> Link | None:
        """Note a batch as the newest, behind an expected one; return one that was quicker.

        Whoever is not the first for a batch leaves the row as the first one made it.
        """
        # What others claim from here on is among the changes. What they claimed before is what the
        # row is, or what the change that replaces it says it was.
        begun = end = self._end()
        now = self._settled(names.run_id, expected)
        if now == link:
            return None
        if now != expected:
            return now
        if now is not None and _GIVEN_BACK in now.about and now == self._claimed:
            # the run that gave the row back may have overwritten a claim that came in between
            begun = self._claimed_behind
        self._put(names, link)
        seen = self._changes(names.run_id, begun, self._end())
        # the expected batch may have the same number: it was staged for a table that is gone
        rivals = [f for f in seen if f.batch >= link.batch and f not in (link, expected)]
        if link not in seen and not rivals:
            raise FlussError(
                f"table {self.path} lost the note of batch {link.batch} of run {names.run_id},"
                " which was acknowledged",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
        # A copy of the checkpoint in which the batch was staged claims it under the same name, and
        # may have gone on: the first claim may be the copy's, so later batches count in any order.
        ahead = any(f.batch > link.batch for f in rivals)
        if not rivals or (link in seen and not ahead and seen.index(link) < seen.index(rivals[0])):
            self._claimed, self._claimed_behind = link, end
            return None
        return self._give_back(names, (link, expected), begun)

    def _settled(self, run_id: str, expected: Link | None) -> Link | None:
        """Return the newest batch of a run, once one that came second has given it back.

        Until then it is another batch of the number that this one was the first to claim, or an
        older one.
        """
        now = self.find(run_id)
        deadline = time.monotonic() + _GIVEN_BACK_S
        while (
            now is not None
            and expected is not None
            and now != expected
            and now.batch <= expected.batch
            and expected == self._claimed
            and time.monotonic() < deadline
        ):
            time.sleep(_PAUSE_S)
            now = self.find(run_id)
        return now

    def _give_back(self, names: RunNames, own: Sequence[Link | None], begun: int) -> Link:
        """Put the row as the others made it, who may go on meanwhile; return their newest."""
        given: Link | None = None
        while True:
            others = [f for f in self._changes(names.run_id, begun, self._end()) if f not in own]
            newest = max(others, key=lambda found: found.batch)
            if newest == given:
                return newest
            about = {**newest.about, _GIVEN_BACK: True}
            self._put(names, Link(newest.batch, newest.name, about))
            given = newest

    def _put(self, names: RunNames, link: Link) -> None:
        row = {
            "run_id": names.run_id,
            "target": str(names.target),
            "target_id": names.target_id,
            "source": str(names.source),
            "source_id": names.source_id,
            "batch": link.batch,
            "name": link.name,
            "about": json.dumps(link.about),
        }
        self._writer.upsert(row)
        self._writer.flush()

    def _changes(self, run_id: str, start: int, stop: int) -> list[Link]:
        """Return the rows that a run had, in their order."""
        try:
            return list(self._read(run_id, start, stop))
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                raise
        # the oldest changes have expired: read the remaining ones
        return list(self._read(run_id, max(start, self._end(OffsetSpec.earliest())), stop))

    def _read(self, run_id: str, start: int, stop: int) -> Iterator[Link]:
        if stop <= start:
            return
        position = Position(self._bucket, None, start, stop)
        for table in self._decoder.read([position]):
            kinds = pa.chunked_array([chunk.indices for chunk in table.column(4).chunks], pa.int8())
            wanted = pc.and_(
                pc.equal(table.column(0), run_id), pc.is_in(kinds, pa.array(_ROWS, pa.int8()))
            )
            for row in table.select(range(4)).filter(wanted).to_pylist():
                yield Link(row["batch"], row["name"], json.loads(row["about"]))

    def others(self, names: RunNames) -> Sequence[Link]:
        """Return the newest batches of other runs from the same source into the same target."""
        found = read_fluss(self.path, connection=self._connection)
        return [
            Link(row["batch"], row["name"], json.loads(row["about"]))
            for row in found.iter_rows(named=True)
            if row["run_id"] != names.run_id
            and (row["target"], row["target_id"]) == (str(names.target), names.target_id)
            and (row["source"], row["source_id"]) == (str(names.source), names.source_id)
        ]

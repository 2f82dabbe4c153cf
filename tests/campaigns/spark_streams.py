# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random lives of streams, by the data source in this process, called as Spark calls it.

``python -m tests.campaigns.spark_streams [STREAMS=200] [SEED=0]``

Rows are appended or changed, columns and partitions added, the table is dropped and created again, a
batch fails and comes again in another process with the offsets of its checkpoint, triggers read what
there is. Each row, or change, must be in exactly one batch, and a batch that comes again must be the
same; of a table that was created again nothing may be read. Needs no JVM. Ends with 1 otherwise.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark import FlussDataSource
from fluss_df.spark.read.streaming import FlussStreamReader

_FIELDS = [pa.field("id", pa.int64(), False), pa.field("p", pa.string(), False), ("v", pa.string())]
_PLACES = ["a", "b", "A-b_c", "2024"]


class Stream:
    """A table, a stream of it with its checkpoint, and what the stream has read."""

    def __init__(
        self, rng: random.Random, connection: FlussConnection, name: str, address: str
    ) -> None:
        self.rng, self.connection = rng, connection
        self.path = TablePath("streams", name)
        self.keyed = rng.random() < 0.4
        self.partitioned = rng.random() < 0.6
        self.columns = list(_FIELDS)
        self.log: list[str] = []
        self.options = {"path": str(self.path), "connection": address}
        if self.keyed:
            self.options["changelog.mode"] = rng.choice(["upsert", "changelog"])
        if rng.random() < 0.5:
            self.options["max.offsets.per.trigger"] = rng.choice(["1", "3", "10"])
        if rng.random() < 0.3:
            self.options["rows.per.task"] = rng.choice(["1", "4"])
        if rng.random() < 0.3:
            self.options["filter"] = rng.choice(["id % 1 = 0", "id >= 0", "v IS NOT NULL"])
            if "%" in self.options["filter"]:
                del self.options["filter"]
        if rng.random() < 0.3:
            self.options["fail.on.data.loss"] = "false"
        self.lost: set[str] = set()
        self._create()
        self.next_id = 0
        # what a stream must hand on, and what it did
        self.places: dict[str, str] = {}
        self.wanted: list[Any] = []
        self.read: list[Any] = []
        self.current: dict[tuple[str, int], str] = {}
        self.start: dict[str, Any] | None = None
        self.open: tuple[Any, list[Any]] | None = None
        self.reader: FlussStreamReader | None = None
        self.ended = False

    def _create(self) -> None:
        keys = [*(["p"] if self.partitioned else []), "id"] if self.keyed else None
        self.connection.get_admin().create_table(
            self.path,
            TableDescriptor(
                Schema(pa.schema(self.columns), keys),
                partition_keys=["p"] if self.partitioned else None,
                bucket_count=self.rng.choice([1, 2]),
            ),
        )

    # ---- what happens to the table

    def append(self) -> None:
        rng = self.rng
        size = rng.choice([0, 1, 2, 5, 12])
        rows: list[dict[str, Any]] = []
        for _ in range(size):
            number = rng.randrange(8) if self.keyed else self.next_id
            rows.append({"id": number, "p": rng.choice(_PLACES), "v": f"v{self.next_id}"})
            self.next_id += 1
        schema = pa.schema(self.columns)
        table = self.connection.get_table(self.path)
        way: Any = table.new_upsert() if self.keyed else table.new_append()
        with way.create_writer(create_partitions=True) as writer:
            for row in rows:
                writer.write_arrow(pa.Table.from_pylist([row], schema))
                writer.flush()
        self.log.append(f"append {size}")
        for row in rows:
            self.places[row["v"]] = row["p"]
            key = (row["p"] if self.partitioned else "", row["id"])
            old = self.current.get(key) if self.keyed else None
            if old is not None and self.options.get("changelog.mode") == "changelog":
                self.wanted.append(("-U", row["id"], old))
            self.wanted.append(("+U" if old is not None else "+I", row["id"], row["v"]))
            self.current[key] = row["v"]

    def delete(self) -> None:
        if not self.keyed or not self.current:
            return
        key = self.rng.choice(sorted(self.current))
        row = {"p": key[0], "id": key[1]} if self.partitioned else {"id": key[1]}
        names = list(row)
        data = pa.Table.from_pylist([row], pa.schema([pa.schema(_FIELDS).field(n) for n in names]))
        with self.connection.get_table(self.path).new_upsert().create_writer() as writer:
            writer.delete_arrow(data)
        self.wanted.append(("-D", key[1], self.current.pop(key)))
        self.log.append(f"delete {key}")

    def add_column(self) -> None:
        more = (
            f"c{len(self.columns)}",
            self.rng.choice([pa.int32(), pa.string(), pa.timestamp("us")]),
        )
        self.columns.append(more)
        self.connection.get_admin().alter_table(self.path, add_columns=pa.schema([more]))
        self.log.append("add a column")

    def again(self) -> None:
        """Drop the table and create it; a stream of it must end."""
        if self.rng.random() > 0.15 or self.start is None:
            return
        self.connection.get_admin().drop_table(self.path)
        self._create()
        self.log.append("created again")
        if self.rng.random() < 0.7:
            self.append()
        before = list(self.read)
        try:
            if self.rng.random() < 0.5:
                self.restart()
            self.batch()
        except FlussError as error:
            if "made again" not in error.message:
                raise AssertionError(f"another error: {error.message}") from None
        else:
            if self.read != before or self.open:
                raise AssertionError("rows of a table that was created again")
            raise AssertionError("no error for a table that was created again")
        self.ended = True

    def drop(self) -> None:
        """Drop a partition: a stream goes on without it where its options say so."""
        if "fail.on.data.loss" not in self.options or not self.partitioned:
            return
        place = self.rng.choice(_PLACES)
        there = self.connection.get_admin().list_partition_infos(self.path)
        if place not in [p.partition_name for p in there]:
            return
        self.connection.get_admin().drop_partition(self.path, {"p": place})
        # what was not read of it is lost, and a batch that is open may be another one
        self.lost |= {place}
        for key in [k for k in self.current if k[0] == place]:
            del self.current[key]
        self.log.append(f"drop {place}")

    # ---- what Spark does

    def restart(self) -> None:
        """Begin in another process, from the checkpoint."""
        source = FlussDataSource(dict(self.options))
        schema = source.schema()
        found = source.streamReader(schema)
        assert isinstance(found, FlussStreamReader)
        self.reader = found
        self.log.append("restart")
        if self.open is not None:
            end, expected = self.open
            got = self._rows(self._offset(), end)
            if self.lost:
                # what is left of the batch
                expected = got
            if collections.Counter(got) != collections.Counter(expected):
                raise AssertionError(f"a batch came again as {got}, and was {expected}")
            self._commit(end, got)

    def _offset(self) -> dict[str, Any]:
        assert self.reader is not None
        if self.start is None:
            return _stored(self.reader.initialOffset())
        return self.start

    def _rows(self, start: Any, end: Any) -> list[Any]:
        assert self.reader is not None
        found: list[Any] = []
        for task in self.reader.partitions(start, end):
            for batch in self.reader.read(task):
                found += [
                    (row.get("_change_type", "+I"), row["id"], row["v"])
                    for row in batch.to_pylist()
                ]
        return found

    def _commit(self, end: Any, rows: list[Any]) -> None:
        self.start, self.open = end, None
        self.read += rows

    def batch(self, fail: bool = False) -> bool:
        """Read a batch, of which the sink may fail; return whether there was one."""
        if self.reader is None:
            self.restart()
        assert self.reader is not None
        start = self._offset()
        limit: ReadLimit = self.reader.getDefaultReadLimit()
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows)
        end = _stored(self.reader.latestOffset(start, limit))
        if end == start:
            return False
        rows = self._rows(start, end)
        self.log.append(f"batch of {len(rows)}{' fails' if fail else ''}")
        if fail:
            self.open = (end, rows)
            self.reader = None
        else:
            self._commit(end, rows)
        return True

    def available_now(self) -> None:
        self.restart()
        assert self.reader is not None
        self.reader.prepareForTriggerAvailableNow()
        self.log.append("available now")
        if self.rng.random() < 0.3:
            self.append()
        while self.batch():
            pass
        self.reader = None

    def run(self) -> None:
        rng = self.rng
        steps: list[Callable[[], object]] = [self.delete, self.add_column, self.again, self.drop]
        steps += [self.append] * 3 + [self.batch, self.batch, self.restart, self.available_now]
        steps.append(lambda: self.batch(True))
        for _ in range(rng.randint(5, 16)):
            rng.choice(steps)()
            if self.ended:
                return
        self.restart()
        while self.batch():
            pass
        missing = collections.Counter(self.wanted) - collections.Counter(self.read)
        if self.lost:
            missing = collections.Counter(
                {w: n for w, n in missing.items() if self.places[w[2]] not in self.lost}
            )
        more = collections.Counter(self.read) - collections.Counter(self.wanted)
        if missing or more:
            raise AssertionError(f"missing {missing}, more {more}")


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as a checkpoint gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def main() -> None:
    """Run the campaign."""
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    streams, seed = (*numbers, *(200, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedFluss(Path(name) / "data", port=0) as engine,
    ):
        connection = engine.connection()
        connection.get_admin().create_database("streams")
        for number in range(streams):
            stream = Stream(
                random.Random(f"{seed}-{number}"),
                connection,
                f"s{seed}_{number}",
                str(engine.address),
            )
            try:
                stream.run()
            except (AssertionError, FlussError) as error:
                counts["wrong"] += 1
                print(f"WRONG {number} {stream.options} keyed {stream.keyed} partitioned {stream.partitioned}"
                      f"\n  {stream.log}\n  {str(error)[:800]}", flush=True)  # fmt: skip
            counts["streams"] += 1
            counts["batches"] += sum("batch" in line for line in stream.log)
            counts["rows"] += len(stream.read)
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()

"""A stream that writes exactly once, as Spark calls its parts, into a table of an engine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark.plan.options import WriteOptions
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.write.exactly_once import ExactlyOnceWriter
from fluss_df.spark.write.publish import Publisher
from tests.waiting import wait_until

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string()})


def rows(start: int, stop: int, part: str = "a") -> pl.DataFrame:
    frame = pl.DataFrame({"id": range(start, stop)}, schema={"id": pl.Int64})
    return frame.with_columns(part=pl.lit(part))


# at which a batch is ended
STEPS = ["staged", "decided", "sent in part", "committed"]


class Killed(BaseException):
    """The process is as good as dead."""


class Sink:
    """Batches of a query as Spark would have them written, with its checkpoint in a folder."""

    def __init__(self, connection: FlussConnection, folder: Path, keep: bool) -> None:
        self.connection = connection
        self.query = str(uuid.uuid4())
        self.table = TablePath("sinks", f"t_{self.query[:8]}")
        self.ledger = f"ledger_{self.query[:8]}"
        self.folder = folder
        self.checkpoint = str(folder) if keep else ""
        connection.get_admin().create_database("sinks", ignore_if_exists=True)
        self.make()

    def make(self) -> None:
        descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2)
        self.connection.get_admin().create_table(self.table, descriptor)

    def writer(self, **options: str) -> ExactlyOnceWriter:
        given = {
            "path": str(self.table),
            "bootstrap.servers": self.connection.config.bootstrap_servers,
            "delivery.guarantee": "exactly-once",
            "ledger.database": self.ledger,
            **{key.replace("_", "."): value for key, value in options.items()},
        }
        if self.checkpoint:
            given["checkpointLocation"] = self.checkpoint
        return ExactlyOnceWriter(WriteOptions.parse(given), spark_schema(SCHEMA), False)

    def batch(self, number: int, start: int, stop: int, **options: str) -> None:
        """Write a batch: what its offsets say is in the checkpoint before."""
        writer = self.writer(**options)
        offsets = self.folder / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(number)).write_text(f'v1\n{{"batchTimestampMs": {number}}}\n{{"0": {stop}}}')
        messages: list[Any] = [
            writer.stage(self.query, number, iter(task.to_arrow().cast(SCHEMA).to_batches()))
            for task in self.tasks(start, stop)
        ]
        writer.commit(messages, number)

    def tasks(self, start: int, stop: int) -> list[pl.DataFrame]:
        middle = (start + stop) // 2
        return [rows(start, middle), rows(middle, stop)]

    def found(self) -> list[int]:
        return sorted(scan_fluss(self.table, connection=self.connection).collect()["id"])

    def refused(self, match: str, number: int, start: int, stop: int, **options: str) -> None:
        before = self.found()
        for _ in range(2):
            with pytest.raises(FlussError, match=match):
                self.batch(number, start, stop, **options)
            assert self.found() == before


@pytest.fixture(scope="module")
def engine() -> Iterator[FlussConnection]:
    with FlussConnection.create(":memory:") as made:
        yield made


@pytest.fixture(params=[True, False], ids=["checkpoint-read", "checkpoint-elsewhere"])
def sink(request: pytest.FixtureRequest, engine: FlussConnection, tmp_path: Path) -> Sink:
    made = Sink(engine, tmp_path / "checkpoint", request.param)
    for number in range(3):
        made.batch(number, 10 * number, 10 * number + 10)
    return made


def die(monkeypatch: pytest.MonkeyPatch, step: str, sink: Sink) -> None:
    """End batch 3 at a step."""

    def dead(*_: Any, **__: Any) -> Any:
        raise Killed

    send = Publisher._send_one
    sent: list[Any] = []

    async def sent_in_part(self: Publisher, *args: Any) -> None:
        if sent:
            raise Killed
        sent.append(args)
        await send(self, *args)

    with monkeypatch.context() as patch:
        if step == "staged":
            patch.setattr(ExactlyOnceWriter, "commit", dead)
        elif step == "decided":
            patch.setattr(Publisher, "publish", dead)
        elif step == "sent in part":
            patch.setattr(Publisher, "_send_one", sent_in_part)
        if step == "committed":
            sink.batch(3, 30, 40)
        else:
            with pytest.raises(Killed):
                sink.batch(3, 30, 40)
        # it was on its way
        wait_until(lambda: not sent or len(sink.found()) != 30, 10)

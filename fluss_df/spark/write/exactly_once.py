"""Streaming writes into log tables, exactly once; the design is in docs/spark.md."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.client.write.append import AppendWriter
from fluss_df.client.write.log_codec import LogCodec
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.losses import Losses
from fluss_df.io.sinks.target import Target
from fluss_df.record.python.coerce import coerce
from fluss_df.schema import TableInfo
from fluss_df.spark.boundary import called_by_spark
from fluss_df.spark.plan.options import WriteOptions, invalid
from fluss_df.spark.write.identity import (
    Content,
    ContentDigest,
    Identity,
    check_decided,
    check_same_batch,
    read_of_batch,
    sum_of_contents,
)
from fluss_df.spark.write.ledger import Ledger, Manifest, Piece, StagedTask, merged_ranges
from fluss_df.spark.write.publish import Publisher
from fluss_df.spark.write.writing import check_write, find_streamed, gathered, written_table

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The message of a task to the driver: its query, the table, and what it staged.

    ``staged`` is None when the batch was decided before, by an earlier run of it; ``content`` is
    a digest of the task's rows either way.
    """

    query_id: str
    table_id: int
    staged: StagedTask | None
    content: Content | None = None


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Stages a batch in its tasks, and publishes it in the driver, once it is decided."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        target = find_streamed(options, schema)
        if target.mode != "append":
            raise invalid(
                f"option 'delivery.guarantee': exactly-once is for log tables, and table"
                f" {target.path} has a primary key; without the option, a batch that is repeated"
                " leaves the same rows in it"
            )
        if overwrite:
            raise FlussError(
                f"output mode 'complete': table {target.path} is a log, which cannot be replaced;"
                " use output mode 'append'",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._ledger("check").create()

    def _ledger(self, query_id: str) -> Ledger:
        connection = self._options.connection.open()
        return Ledger(connection, self._options.ledger_database, query_id)

    # ---- in tasks

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task, unless the batch was decided before."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY)
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if not query_id or batch is None:
            raise FlussError(
                "an exactly-once write runs in a streaming query of Spark, which names its batches"
            )
        return self.stage(query_id, int(batch), iterator)

    def stage(self, query_id: str, batch: int, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage rows for a batch of a query."""
        ledger = self._ledger(query_id)
        found = ledger.find(batch)
        target = check_write(self._options, self._schema)
        table_id = target.existing.table_id
        digest = ContentDigest()
        # by the columns that rows bring: the table may get more before the batch comes again
        rows = digest.counted(coerced(target, iterator), self._schema.names)
        if found is None:
            pieces = encoded_pieces(target, rows, self._options.create_partitions)
            return StagedMessage(query_id, table_id, ledger.stage(batch, pieces), digest.content)
        # nothing is staged; the rows are only counted, to compare them with what was decided
        for _ in rows:
            pass
        return StagedMessage(query_id, table_id, None, digest.content)

    # ---- in the driver

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decide what the batch is, unless it is decided, and publish it."""
        known = [message for message in messages if isinstance(message, StagedMessage)]
        if not known:
            return
        ledger = self._ledger(known[0].query_id)
        # the bytes of the rows are made: columns that the table has got since make no difference
        connection, info = written_table(self._options, {m.table_id for m in known})
        publisher = self.publisher(connection, info, ledger)
        asked = self.asked(batchId, known, info)
        decided = ledger.decided(batchId)
        check_decided(known[0].query_id, batchId, info, decided, self._options)
        manifest, fresh = decided.manifest, False
        if manifest is None:
            proposal = self.propose(info, publisher, batchId, known)
            proposal = replace(proposal, read=asked.read, content=asked.content, table=asked.table)
            manifest = ledger.decide(batchId, proposal)
            fresh = manifest == proposal
        check_same_batch(known[0].query_id, batchId, manifest, asked, self._options)
        publisher.publish(batchId, manifest, fresh=fresh)
        ledger.clean(batchId)

    def asked(self, batch: int, messages: list[StagedMessage], info: TableInfo) -> Identity:
        """Return the identity of a batch, which another one of its number does not have."""
        return Identity(
            read=read_of_batch(self._options.checkpoint, batch),
            content=sum_of_contents(message.content for message in messages),
            table=str(info.table_path),
        )

    def publisher(self, connection: FlussConnection, info: TableInfo, ledger: Ledger) -> Publisher:
        """Return what publishes the batches of a query."""
        losses = Losses(
            "fail" if self._options.fail_on_data_loss else "ignore",
            "option 'fail.on.data.loss' with 'false' goes on without them",
        )
        return Publisher(connection, info, ledger, losses)

    def propose(
        self, info: TableInfo, publisher: Publisher, batch: int, messages: list[StagedMessage]
    ) -> Manifest:
        """Return a manifest of what the tasks of one run of a batch have staged."""
        tasks = [message.staged for message in messages if message.staged is not None]
        if len(tasks) < len(messages):
            raise FlussError(
                f"batch {batch}: its entry in database {self._options.ledger_database} was there"
                " when its tasks ran, and is gone: was the database dropped?",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        return proposed(info, publisher, tasks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what was staged and is not decided is never published."""


def proposed(info: TableInfo, publisher: Publisher, tasks: list[StagedTask]) -> Manifest:
    """Return a manifest of what some tasks have staged."""
    targets = dict.fromkeys(target for task in tasks for target in task.targets)
    return Manifest(
        name=uuid.uuid4().hex,
        table_id=info.table_id,
        writer_id=publisher.new_writer_id(),
        places=publisher.ends(list(targets)),
        attempts=tuple(task.attempt for task in tasks),
        ranges=merged_ranges(task.place for task in tasks),
        pieces=sum(task.pieces for task in tasks),
        rows=sum(task.rows for task in tasks),
    )


def coerced(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of a task with the columns and types of the table."""
    columns, name = target.existing.schema.columns, str(target.path)
    for table in gathered(batches):
        yield coerce(table, columns, table=name, allow_missing=target.merges)


def encoded_pieces(
    target: Target, tables: Iterator[pa.Table], create_partitions: bool
) -> Iterator[Piece]:
    """Yield the rows of a task as encoded batches, each for one bucket of the table."""
    info, connection = target.existing, target.connection
    codec = LogCodec(info, connection.config)
    with AppendWriter(connection, info, create_partitions=create_partitions) as writer:
        for rows in tables:
            for routed in writer.route(rows):
                bucket, piece = routed.bucket, routed.rows
                payload = pa.py_buffer(codec.encode(piece).to_bytes())
                yield Piece(bucket.partition_id, bucket.bucket_id, piece.num_rows, payload)

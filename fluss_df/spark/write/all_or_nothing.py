"""Batch writes into log tables that are there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluss_df.client.runtime.retry import STALE_METADATA, is_transient
from fluss_df.errors import FlussError
from fluss_df.io.runs.losses import Losses
from fluss_df.spark.boundary import called_by_spark
from fluss_df.spark.plan.options import WriteOptions, invalid
from fluss_df.spark.write.exactly_once import StagedMessage, coerced, encoded_pieces, proposed
from fluss_df.spark.write.ledger import Ledger, Manifest
from fluss_df.spark.write.publish import Publisher
from fluss_df.spark.write.writing import check_write, refuse_overwrite, written_table

logger = logging.getLogger(__name__)


# after this time nobody stages for a write that ended
_LEFT_OVER_S = 2 * 24 * 3600
_LOSSES = Losses("fail", "run the write again")
_NAME = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}")


def write_name(now: float) -> str:
    """Return a name that no other write has, and no query of Spark: the time is in it."""
    return f"{int(now):08x}{uuid.uuid4().hex[:24]}"


def is_left_over(name: str, now: float) -> bool:
    """Whether a name is that of a write which began days ago."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found[1], 16) < now - _LEFT_OVER_S


class AllOrNothingWriter(DataSourceArrowWriter):
    """A batch write whose tasks stage their rows, and whose driver publishes them at the end.

    A task that fails, is repeated or runs twice leaves nothing in the table. A driver that is
    killed while it publishes may leave a part, and so may one whose cluster fails for longer than
    its retries; then the error says so.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        target = check_write(options, schema)
        if overwrite:
            refuse_overwrite(options, target.path)
        if target.mode != "append":
            raise invalid(
                f"option 'all.or.nothing' is for log tables, and table {target.path} has a primary"
                " key: a write that failed is completed by writing the same rows once more"
            )
        self._table_id = target.existing.table_id
        # the name goes to the tasks with this object; its time shows later what was left over
        self._name = write_name(time.time())
        self._ledger().create()

    def _ledger(self) -> Ledger:
        connection = self._options.connection.open()
        return Ledger(connection, self._options.ledger_database, self._name)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        target = check_write(self._options, self._schema)
        pieces = encoded_pieces(target, coerced(target, iterator), self._options.create_partitions)
        staged = self._ledger().stage(0, pieces)
        return StagedMessage(self._name, target.existing.table_id, staged)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        known = [message for message in messages if isinstance(message, StagedMessage)]
        table_ids = {self._table_id, *(message.table_id for message in known)}
        connection, info = written_table(self._options, table_ids)
        publisher = Publisher(connection, info, self._ledger(), _LOSSES)
        tasks = [message.staged for message in known if message.staged is not None]
        manifest = proposed(info, publisher, tasks)
        try:
            self._publish(publisher, manifest, str(info.table_path))
        finally:
            self._forget()

    def _publish(self, publisher: Publisher, manifest: Manifest, table: str) -> None:
        """Publish, once more where that may help; then say what is there: what is staged goes.

        Raises FlussError when it failed for good.
        """
        for fresh in (True, False):
            try:
                publisher.publish(0, manifest, fresh=fresh)
                return
            except FlussError as error:
                if fresh and (is_transient(error) or error.error_code in STALE_METADATA):
                    logger.warning(
                        "publishing write %s into table %s failed, and is tried once more: %s",
                        *(self._name, table, error.message),
                    )
                    continue
                found: int | str = "an unknown number"
                with contextlib.suppress(FlussError):
                    found = publisher.landed(0, manifest)
                if found == 0 and not is_transient(error):
                    # the write was refused before anything was sent
                    raise
                raise FlussError(
                    f"{error.message}; a part of the write may be in table {table}, and stays:"
                    f" {found} of the {manifest.pieces} log batches that its {manifest.rows} rows"
                    " were sent in are there now. Look for its rows before it is run again, which"
                    " writes them twice",
                    error.error_code,
                ) from error

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self._forget()

    def _forget(self) -> None:
        """Drop what was staged, and what tasks staged after their write had failed, days ago."""
        try:
            ledger = self._ledger()
            ledger.forget(lambda name: name == self._name or is_left_over(name, time.time()))
        except FlussError as error:
            logger.warning("what was staged of write %s stays: %s", self._name, error.message)

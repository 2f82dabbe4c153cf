"""Tiering by a Spark job: executors write the data files, the driver commits."""

from __future__ import annotations

import base64
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError
from fluss_df.spark.plan.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluss_df.lake import TieringRound
    from fluss_df.lake.rounds.tasks import TaskWriter, WriteTask, Written
    from fluss_df.metadata import TablePath

_ROWS_PER_TASK: Final = 5_000_000
# rows of a bucket in one round: more than Fluss has of most tables
_MAX_ROWS: Final = 1 << 40
_MAX_CHANGES: Final = 5_000_000
# how a task's error gets through the text that Spark makes of it
_FAILED: Final = re.compile(r"fluss-df-tier-failure:([A-Za-z0-9+/=]+):")


def tier(
    spark: SparkSession,
    connection: str | None = None,
    tables: Iterable[str | TablePath] | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    rows_per_task: int = _ROWS_PER_TASK,
    max_changes: int = _MAX_CHANGES,
    keep_snapshots_s: float | None = None,
    lease_file: str | os.PathLike[str] | None = None,
) -> list[TieringRound]:
    """Tier the tables that are due now, with the executors of a Spark: what one machine cannot.

    The driver asks the coordinator for a table, and plans. Each bucket of each partition is a task
    of Spark; of log tables, each ``rows_per_task`` rows of it are. Tasks write data files, which
    nobody sees; the driver commits all of them as one snapshot, and tells the coordinator. It is
    :class:`fluss_df.lake.TieringService` but for where files are written: each row is in the lake
    exactly once, whatever is killed, and other services may run beside.

    Parameters
    ----------
    spark
        The session, classic or of Spark Connect. Its executors need fluss_df with the extra
        ``lake`` or ``paimon``, and must reach the cluster, the lake's catalog and its storage.
    connection
        The cluster (``host:port`` or a URL), as executors reach it, too; None where ``properties``
        say it.
    tables
        The tables to tier, as ``"db.table"`` or table paths; None for all that are due.
    properties
        Those of :class:`fluss_df.Config`; a password may be ``env:NAME``, which each process looks
        up by itself.
    rows_per_task
        Rows of a log table that one task writes.
    max_changes
        How many changes of a bucket of a primary-key table one round tiers at the most. A task
        holds them in memory.
    keep_snapshots_s, lease_file
        As for :class:`fluss_df.lake.TieringService`.

    Returns
    -------
    list of TieringRound
        What was done, a line for each round.

    Raises
    ------
    FlussError
        Of the first table that cannot be tiered; nothing of its round is in the lake.

    Examples
    --------
    >>> from fluss_df.spark import tier  # doctest: +SKIP
    >>> tier(spark, "localhost:9123", ["db.events"])  # doctest: +SKIP
    """
    if rows_per_task < 1:
        raise FlussError(f"rows_per_task must be at least 1, not {rows_per_task}")
    from fluss_df.lake import TieringService

    reached = Connection(connection, tuple(sorted((properties or {}).items())))
    with TieringService(
        reached.open(),
        tables,
        tables_at_once=1,
        max_rows=_MAX_ROWS,
        max_changes=max_changes,
        keep_snapshots_s=keep_snapshots_s,
        lease_file=lease_file,
        run_tasks=_InSpark(spark, reached, rows_per_task),
    ) as service:
        return service.run_due()


class _InSpark:
    """Runs the tasks of a round by a Spark."""

    def __init__(self, spark: SparkSession, connection: Connection, rows_per_task: int) -> None:
        self._spark = spark
        self._connection = connection
        self._rows = rows_per_task

    def __call__(
        self, writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]
    ) -> None:
        parts = [part for task in tasks for part in self._parts(writer, task)]
        run = _Run(
            self._connection,
            str(writer.info.table_path.database_name),
            str(writer.info.table_path.table_name),
            writer.info.table_id,
            writer.snapshot_id,
            tuple(pickle.dumps(part) for part in parts),
        )
        # one partition of Spark for each number, which makes one task of each
        numbers = self._spark.range(0, len(parts), 1, len(parts))
        try:
            rows = numbers.mapInArrow(run, "written binary").collect()
        except Exception as error:
            found = _FAILED.search(str(error))
            if found is None:
                raise
            raise pickle.loads(base64.b64decode(found[1])) from error
        written += [pickle.loads(bytes(row[0])) for row in rows]

    def _parts(self, writer: TaskWriter, task: WriteTask) -> Iterator[WriteTask]:
        """Cut the log of a bucket; changes of keys are put into files together."""
        split = task.split
        if split is None or writer.info.has_primary_key():
            yield task
            return
        for start in range(split.start, split.stop, self._rows):
            stop = min(start + self._rows, split.stop)
            yield replace(task, split=replace(split, start=start, stop=stop))


@dataclass(frozen=True)
class _Run:
    """What a task of Spark runs; it is sent to the task by pickle.

    ``tasks`` are all tasks of the round, each pickled: Spark gives the numbers of those to run. The
    round was planned with the lake snapshot ``snapshot_id``, None where there was none.
    """

    connection: Connection
    database: str
    table: str
    table_id: int
    snapshot_id: int | None
    tasks: tuple[bytes, ...]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    done = self._write(pickle.loads(self.tasks[number]))
                except FlussError as error:
                    plain = FlussError(error.message, error.error_code)
                    text = base64.b64encode(pickle.dumps(plain)).decode()
                    raise RuntimeError(f"{error} fluss-df-tier-failure:{text}:") from None
                made: Any = pa.array([pickle.dumps(done)], pa.binary())
                yield pa.RecordBatch.from_arrays([made], ["written"])

    def _write(self, task: WriteTask) -> Written:
        from fluss_df.lake.formats import open_tiered
        from fluss_df.metadata import TablePath

        connection = self.connection.open()
        info = TableQuestions(connection).get_table_info(TablePath(self.database, self.table))
        if info.table_id != self.table_id:
            raise FlussError(f"table {info.table_path} was dropped and created again meanwhile")
        return open_tiered(info).writer_at(connection, self.snapshot_id).write(task)

"""The tiering service: asks the coordinator for tables that are due, and tiers them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from fluss_df.client.context import ClientContext
from fluss_df.client.runtime.callbacks import call_whole, refuse_lazy
from fluss_df.client.runtime.processors import processors
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError
from fluss_df.hooks import Closing
from fluss_df.lake.rounds.tasks import InThreads, RunTasks
from fluss_df.lake.tiering.coordinator import Coordinator, Lease
from fluss_df.lake.tiering.leases import Leases
from fluss_df.lake.tiering.table_round import TableRound, TieringRound
from fluss_df.lake.tiering.upkeep import Upkeep
from fluss_df.metadata import TablePath

logger = logging.getLogger("fluss_df.lake.tiering")

_POLL_S = 1.0
_MAX_ROWS = 20_000_000
_MAX_CHANGES = 1_000_000


class TieringService(Closing):
    """Moves tables with ``table.datalake.enabled`` from Fluss into their lake tables.

    It does what Flink's tiering service does, beside it or instead of it, without Flink. The
    coordinator gives each table to one service at a time, when its freshness
    (``table.datalake.freshness``) is due. Each row is in the lake exactly once: how far a table is
    tiered stands in the lake's own snapshot, which is committed only on top of the one that the
    round was planned with. A service may be killed at any time, and others may run beside it.

    In Iceberg (extra ``lake``), primary-key tables are written by copy-on-write: a round writes
    files that have rows of changed keys again, so that every reader reads the table at the speed of
    its Parquet files. In Paimon (extra ``paimon``), a round adds files of changes, which readers
    merge.

    Parameters
    ----------
    connection
        The cluster.
    tables
        The tables to tier, as ``"db.table"`` or table paths; None for all that are due.
    workers
        How many buckets of a table to tier side by side; None for one for two cores. Each is read,
        decoded and written by several threads, and takes about 100 MB.
    tables_at_once
        How many tables to tier side by side.
    max_rows
        How many rows of a bucket of a log table one round tiers at the most.
    max_changes
        How many changes of a bucket of a primary-key table. They are held in memory.
    keep_snapshots_s
        For how many seconds a snapshot of the lake stays after queries began to read a newer one;
        then it is expired, and the files that only it has are deleted. The snapshots of the two
        newest rounds always stay. Files that killed rounds left go after as long, and a day at the
        least. None: that is done only for tables with ``table.datalake.auto-expire-snapshot``,
        after 5 days. The properties ``history.expire.max-snapshot-age-ms``,
        ``history.expire.min-snapshots-to-keep`` and ``gc.enabled`` of a lake table go before it.
    lease_file
        A file in which the service keeps which tables it holds, so that after a kill the next
        service with this file goes on at once. Without it, that takes two minutes.
    run_tasks
        How the tasks are run that write files; None for ``workers`` threads of this process.
        :func:`fluss_df.spark.tier` has a Spark run them.

    Examples
    --------
    >>> with TieringService(connection) as service:  # doctest: +SKIP
    ...     service.run_due()
    """

    def __init__(
        self,
        connection: ClientContext,
        tables: Iterable[str | TablePath] | None = None,
        *,
        workers: int | None = None,
        tables_at_once: int = 2,
        max_rows: int = _MAX_ROWS,
        max_changes: int = _MAX_CHANGES,
        keep_snapshots_s: float | None = None,
        lease_file: str | os.PathLike[str] | None = None,
        run_tasks: RunTasks | None = None,
    ) -> None:
        for name, value in (
            ("workers", workers),
            ("tables_at_once", tables_at_once),
            ("max_rows", max_rows),
            ("max_changes", max_changes),
        ):
            if value is not None and value < 1:
                raise FlussError(f"{name} must be at least 1, not {value}")
        if keep_snapshots_s is not None and not keep_snapshots_s >= 0:
            raise FlussError(f"keep_snapshots_s must be at least 0, not {keep_snapshots_s}")
        self._connection = connection
        self._upkeep = Upkeep(keep_snapshots_s)
        self._tables = None if tables is None else {_path(table) for table in tables}
        self._cancelled = threading.Event()
        threads = InThreads(workers or max(1, processors() // 2), self._cancelled)
        self._run_tasks: RunTasks = threads if run_tasks is None else run_tasks
        self._tables_at_once = tables_at_once
        self._max_rows = max_rows
        self._max_changes = max_changes
        self._stopping = threading.Event()
        file = None if lease_file is None else Path(lease_file).expanduser().absolute()
        self._leases = Leases(Coordinator(connection), file)

    def run(self, on_round: Callable[[TieringRound], object] | None = None) -> None:
        """Tier what is due, until :meth:`stop`; errors of a table are logged, and it is retried.

        Parameters
        ----------
        on_round
            Called after each round.
        """
        if on_round is not None:
            refuse_lazy("on_round", on_round)
        running: set[Future[TieringRound | None]] = set()
        with ThreadPoolExecutor(self._tables_at_once, "fluss-df-tier-table") as pool:
            while not self._stopping.is_set():
                found = False
                while len(running) < self._tables_at_once and not self._stopping.is_set():
                    lease = self._request()
                    if lease is None:
                        break
                    found = True
                    running.add(pool.submit(self._tier, lease))
                if running:
                    done, running = wait(running, _POLL_S, FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        if result is not None and on_round is not None:
                            call_whole("on_round", on_round, result)
                elif not found:
                    self._stopping.wait(_POLL_S)

    def run_due(self) -> list[TieringRound]:
        """Tier the tables that are due now, one after another; return what was done.

        A table that is due again before the others are done is left for the next call.

        Raises
        ------
        FlussError
            Of the first table that cannot be tiered, once the others are; those of more tables are
            logged.
        """
        rounds: list[TieringRound] = []
        complete: set[TablePath] = set()
        problem: Exception | None = None
        while (lease := self._leases.request(self._tables, complete)) is not None:
            try:
                result = self._tier(lease, raising=True)
            except Exception as error:
                if self._stopping.is_set():
                    raise
                if problem is not None:
                    self._warn("table %s was not tiered: %s", lease.path, error)
                problem = problem or error
                # it is due again at once, and would fail again
                complete.add(lease.path)
                continue
            assert result is not None
            rounds.append(result)
            if result.complete:
                complete.add(result.path)
        if problem is not None:
            raise problem
        return rounds

    def stop(self) -> None:
        """Let :meth:`run` end after the rounds that it is at; may be called from any thread."""
        self._stopping.set()

    def cancel(self) -> None:
        """Stop, and let the rounds that are not written yet fail; nothing is logged from now on.

        What they would have tiered comes with the next round of any service.
        """
        self._cancelled.set()
        self.stop()

    def close(self) -> None:
        """Stop, and give back what the coordinator gave."""
        self.stop()
        self._leases.close()

    def _request(self) -> Lease | None:
        try:
            return self._leases.request(self._tables)
        except FlussError as error:
            self._warn("the coordinator gave no table to tier: %s", error)
            return None

    def _tier(self, lease: Lease, *, raising: bool = False) -> TieringRound | None:
        try:
            info = TableQuestions(self._connection).get_table_info(lease.path)
            if info.table_id != lease.table_id:
                raise FlussError(f"table {lease.path} was dropped and created again meanwhile")
            table_round = TableRound(
                self._connection,
                info,
                max_rows=self._max_rows,
                max_changes=self._max_changes,
                run_tasks=self._run_tasks,
            )
            result = table_round.run(lambda: self._leases.check(lease))
        except Exception as error:
            self._give_up(lease)
            if raising:
                raise
            self._warn("table %s was not tiered: %s", lease.path, error)
            self._stopping.wait(_POLL_S)  # it is due again at once
            return None
        self._upkeep.after(info)
        try:
            self._leases.finish(lease, complete=result.complete)
        except FlussError as error:
            self._warn("the report of table %s failed: %s", lease.path, error)
        logger.info(
            "table %s: %d rows, %d files, %.2f s",
            result.path,
            result.rows,
            result.files,
            result.seconds,
        )
        return result

    def _give_up(self, lease: Lease) -> None:
        try:
            self._leases.fail(lease)
        except FlussError as error:
            self._warn("the report of table %s failed: %s", lease.path, error)

    def _warn(self, text: str, *values: object) -> None:
        if not self._cancelled.is_set():
            logger.warning(text, *values)


def _path(table: str | TablePath) -> TablePath:
    if isinstance(table, TablePath):
        return table
    database, dot, name = table.partition(".")
    return TablePath(database, name) if dot else TablePath("fluss", table)

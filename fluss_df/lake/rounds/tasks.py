"""The tasks of a round: each writes the files of one part of one bucket, wherever it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.lake.offsets import Offsets
from fluss_df.lake.rounds.split import Partition, Split
from fluss_df.schema import TableInfo


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A part of a round that can be written independently; plain values that pickle.

    ``partition`` has the values of the fields by which the lake table is partitioned. ``split`` is
    the part of the log to write. Where it is None, the partition's rows are written again without
    delete files.
    """

    partition: Partition
    split: Split | None


@dataclass(slots=True)
class Written:
    """What a task wrote; it pickles.

    Attributes
    ----------
    added, removed
        New data files, and those that they replace, as the lake's format has them.
    rows
        How many rows, or changes, were read from Fluss.
    offsets, timestamps
        The end of the bucket, and its newest timestamp in milliseconds.
    """

    added: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)
    rows: int = 0
    offsets: Offsets = field(default_factory=dict)
    timestamps: dict[tuple[int | None, int], int] = field(default_factory=dict)


class TaskWriter(Protocol):
    """Writes the tasks of one table's round, whatever the format of the lake."""

    @property
    def info(self) -> TableInfo:
        """The table."""

    @property
    def snapshot_id(self) -> int | None:
        """The lake snapshot that the round was planned with; None where there was none."""

    def write(self, task: WriteTask) -> Written:
        """Write a task's files; where that raises, none of them is left."""


class RunTasks(Protocol):
    """How the tasks of a round are run."""

    def __call__(
        self, writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]
    ) -> None:
        """Run tasks; ``written`` has what was written also where one fails.

        Raises the exception of the first task that failed.
        """


class InThreads:
    """Runs tasks side by side in threads of this process, ``workers`` at once.

    Once ``cancelled`` is set, no task begins any more, and the round fails.
    """

    def __init__(self, workers: int, cancelled: threading.Event | None = None) -> None:
        self._workers = workers
        self._cancelled = threading.Event() if cancelled is None else cancelled

    def __call__(
        self, writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]
    ) -> None:
        """Run tasks; see :class:`RunTasks`."""

        def write(task: WriteTask) -> Written:
            if self._cancelled.is_set():
                raise FlussError("the tiering was cancelled")
            return writer.write(task)

        futures: list[Future[Written]] = []
        try:
            with (
                ThreadPoolExecutor(self._workers, "fluss-df-tier") as pool,
                undoing(lambda: pool.shutdown(wait=False, cancel_futures=True)),
            ):
                # one by one: those that began are known when an interrupt comes
                for task in tasks:
                    futures.append(pool.submit(write, task))  # noqa: PERF401
                for future in futures:
                    future.result()
        finally:
            # after an interrupt, too: files of ended tasks must be known, to be deleted
            written += [
                future.result()
                for future in futures
                if future.done() and not future.cancelled() and future.exception() is None
            ]

"""Fluss as a part of Polars: ``pl.scan_fluss``, ``LazyFrame.sink_fluss``, ``lf.fluss``."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from fluss_df.io.lookup_join import JoinHow, lookup_join
from fluss_df.io.runs.micro_batches import MicroBatches
from fluss_df.io.runs.runner import RunResult, run
from fluss_df.io.scan import count, explain, fetched, read_fluss, scan_fluss
from fluss_df.io.scans.report import ScanReport
from fluss_df.io.sinks.sink import sink_fluss, write_fluss
from fluss_df.metadata import TablePath


class FlussFrame:
    """What ``lf.fluss`` offers on a lazy frame that reads Fluss tables.

    Examples
    --------
    >>> print(query.fluss.explain())  # doctest: +SKIP
    >>> query.collect()  # doctest: +SKIP
    >>> query.fluss.fetched()  # doctest: +SKIP
    """

    def __init__(self, frame: pl.LazyFrame) -> None:
        self._frame = frame

    def explain(self) -> str:
        """Return what the query would read of Fluss now; see :func:`fluss_df.explain`."""
        return explain(self._frame)

    def fetched(self) -> list[ScanReport]:
        """Return what the query fetched when it last ran; see :func:`fluss_df.fetched`."""
        return fetched(self._frame)

    def count(self) -> int:
        """Return the number of rows, from offsets where these tell; see :func:`fluss_df.count`."""
        return count(self._frame)

    def run(self, **options: Any) -> RunResult:
        """Run the query batch by batch as the log grows; see :func:`fluss_df.io.run`."""
        return run(self._frame, **options)

    def lookup_join(
        self,
        table: str | TablePath,
        *,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: JoinHow = "left",
        columns: Sequence[str] | None = None,
        suffix: str = "_right",
        connection: object | None = None,
    ) -> pl.LazyFrame:
        """Join with a primary-key table by looking keys up; see :func:`fluss_df.lookup_join`."""
        return lookup_join(
            self._frame,
            table,
            on=on,
            how=how,
            columns=columns,
            suffix=suffix,
            connection=connection,
        )

    def micro_batches(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        stream: str | TablePath | None = None,
        max_rows: int | None = None,
        poll_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> MicroBatches:
        """Return the batches of the query, each to be committed; at least once each.

        Examples
        --------
        >>> with lf.fluss.micro_batches("checkpoint") as batches:  # doctest: +SKIP
        ...     for batch in batches:
        ...         process(batch.frame.collect())
        ...         batch.commit()
        """
        return MicroBatches(
            self._frame, checkpoint, stream=stream, max_rows=max_rows, poll_s=poll_s, stop=stop
        )


def register() -> None:
    """Add the functions and the namespace to Polars; a second call changes nothing.

    Type checkers do not see what is added: use the functions of :mod:`fluss_df` where that matters.
    """
    for owner, name, function in (
        (pl, "scan_fluss", scan_fluss),
        (pl, "read_fluss", read_fluss),
        (pl.LazyFrame, "sink_fluss", sink_fluss),
        (pl.DataFrame, "write_fluss", write_fluss),
    ):
        setattr(owner, name, function)
    if not hasattr(pl.LazyFrame, "fluss"):
        pl.api.register_lazyframe_namespace("fluss")(FlussFrame)

"""What ``import fluss_df`` adds to Polars: ``pl.scan_fluss``, ``lf.fluss`` and others.

Everything else is imported when it is used. That takes two to three times as long as importing
Polars; most programs need a part, and ``fluss-df --version`` nothing.
"""

from __future__ import annotations

import importlib
import inspect
import os
import threading
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from fluss_df.hooks import set_folder_lake

if TYPE_CHECKING:
    from fluss_df.io.lookup_join import JoinHow
    from fluss_df.io.runs.micro_batches import MicroBatches
    from fluss_df.io.runs.runner import RunResult
    from fluss_df.io.scans.report import ScanReports
    from fluss_df.metadata import TablePath
    from fluss_df.pushdown.plan import Explanation


class _Function:
    """A function or method that is imported when it is called, or asked what it takes."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self.__name__ = self.__qualname__ = name
        self.__module__ = module

    @property
    def __wrapped__(self) -> Any:
        return getattr(importlib.import_module(self._module), self.__name__)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self.__wrapped__)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)

    def __get__(self, frame: object, owner: type | None = None) -> Any:
        return self if frame is None else types.MethodType(self, frame)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of {self._module}>"


class FlussFrame:
    """The namespace ``lf.fluss`` of a lazy frame that reads Fluss tables.

    Examples
    --------
    >>> print(query.fluss.explain())  # doctest: +SKIP
    >>> query.collect()  # doctest: +SKIP
    >>> query.fluss.fetched()  # doctest: +SKIP
    """

    def __init__(self, frame: pl.LazyFrame) -> None:
        self._frame = frame

    def explain(self) -> Explanation:
        """Return what the query would read of Fluss now; see :func:`fluss_df.explain`."""
        from fluss_df.io.scan import explain

        return explain(self._frame)

    def fetched(self) -> ScanReports:
        """Return what the query fetched when it last ran; see :func:`fluss_df.fetched`."""
        from fluss_df.io.scan import fetched

        return fetched(self._frame)

    def count(self) -> int:
        """Return the number of rows, from offsets where these tell; see :func:`fluss_df.count`."""
        from fluss_df.io.scan import count

        return count(self._frame)

    def run(self, **options: Any) -> RunResult:
        """Run the query batch by batch as the log grows; see :func:`fluss_df.io.run`."""
        from fluss_df.io.runs.runner import run

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
        from fluss_df.io.lookup_join import lookup_join

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
        from fluss_df.io.runs.micro_batches import MicroBatches

        return MicroBatches(
            self._frame, checkpoint, stream=stream, max_rows=max_rows, poll_s=poll_s, stop=stop
        )


def register() -> None:
    """Add the functions and the namespace to Polars; a second call changes nothing.

    Type checkers do not see what is added: use the functions of :mod:`fluss_df` where that matters.
    """
    for owner, name, module in (
        (pl, "scan_fluss", "fluss_df.io.scan"),
        (pl, "read_fluss", "fluss_df.io.scan"),
        (pl.LazyFrame, "sink_fluss", "fluss_df.io.sinks.sink"),
        (pl.DataFrame, "write_fluss", "fluss_df.io.sinks.sink"),
    ):
        setattr(owner, name, _Function(module, name))
    if not hasattr(pl.LazyFrame, "fluss"):
        pl.api.register_lazyframe_namespace("fluss")(FlussFrame)
    set_folder_lake(
        _Function("fluss_df.embedded.folder_lake", "FolderLake"),
        _Function("fluss_df.embedded.lake_check", "check_lake"),
    )

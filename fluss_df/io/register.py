"""Fluss as a part of Polars: ``pl.scan_fluss``, ``LazyFrame.sink_fluss``, ``lf.fluss``."""

from __future__ import annotations

import polars as pl

from fluss_df.io.report import ScanReport
from fluss_df.io.scan import explain, fetched, read_fluss, scan_fluss
from fluss_df.io.sink import sink_fluss, write_fluss


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

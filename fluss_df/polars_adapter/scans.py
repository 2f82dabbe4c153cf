"""Nodes and sources of Polars plans.

Polars asks a :class:`ScanNode` at each collect which frame it stands for, given the columns,
conjuncts and limit of the query. The answer is the frame of a :class:`Source`, which Polars reads
batch by batch. All conjuncts are left with Polars too, so that pruning can only make a query
cheaper, not change its result.
"""

from __future__ import annotations

import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
import polars.selectors as cs
from polars.io.external_reader import (
    FileReader,
    FileReaderBuilder,
    ReaderCapabilities,
    scan_external_reader,
)
from polars.io.plugins import register_io_source
from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps

if TYPE_CHECKING:
    from polars._typing import EngineType as EngineType
    from polars._typing import SchemaDict
    from polars.io.external_reader import FilterExpr


@dataclass(frozen=True, slots=True)
class Query:
    """The columns and rows of a node that a query of Polars needs.

    ``columns`` include those of the filters; None for all columns. ``filters`` are the conjuncts
    that Polars evaluates directly after the node. ``limit`` is how many rows before the filters are
    enough, None for all.
    """

    columns: list[str] | None
    filters: list[pl.Expr]
    limit: int | None


class ScanNode(LazyFrameResolver, ABC):
    """A node of a Polars plan that stands for a frame, which is made at each collect."""

    def __init__(self, schema: pl.Schema) -> None:
        self.polars_schema = schema

    @abstractmethod
    def frame(self, query: Query) -> pl.LazyFrame:
        """Return the frame that the node stands for in a query."""

    def schema(self) -> SchemaDict:
        """Return the schema as it was when the node was made."""
        return self.polars_schema

    def resolve_lazyframe(
        self,
        *,
        projection: list[str] | None,
        limit: int | None,
        filters: list[FilterExpr],
        filter_columns: list[str],
        filter_drop_columns_idx: int | None,
        existing_resolved_version_key: str | None,
    ) -> tuple[pl.LazyFrame, ResolvedLazyFrameProps]:
        """Plan the scan for a query."""
        columns = projection
        if projection is not None:
            columns = list(dict.fromkeys([*projection, *filter_columns]))
        frame = self.frame(Query(columns, [item.expr for item in filters], limit))
        # a key that is never the same has Polars ask, and offsets be pinned, at every collect
        return frame, ResolvedLazyFrameProps(version_key=uuid.uuid4().hex)


class Execution(ABC):
    """One execution of a source, in one collect of a query."""

    @abstractmethod
    def frames(
        self, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        """Read the rows of a slice (offset, length), a few MB at a time; of all rows for None."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def dropped(self) -> None:
        """Take note that Polars needs it no more."""


class Source(ABC):
    """What Polars reads batch by batch, any number of times."""

    # the name of the source in the plan of a query
    name: ClassVar[str]

    def __init__(self, schema: pl.Schema, path: str) -> None:
        self.schema = schema
        self._path = path

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """Return what ``LazyFrame.explain`` shows."""

    @abstractmethod
    def execute(self) -> Execution:
        """Begin an execution."""

    @abstractmethod
    def held(self, holder: object) -> None:
        """Take note of an object that lives as long as Polars holds an execution."""

    def lazy(self) -> pl.LazyFrame:
        """Return the frame of what is read.

        It is one source: of several, Polars holds back all but the first, for their order. Buckets
        are read in parallel behind it.
        """
        return scan_external_reader(_Builder(self), sources=[self._path], schema=self.schema)

    def lazy_without_rows(self) -> pl.LazyFrame:
        """Return the same of a source that is known to have no rows: nothing waits for a reader.

        An execution is noted, and the plan of a query shows the source. Beside another source it
        takes Polars 0.2 ms, where a reader takes 0.9 ms.
        """

        def nothing(names: list[str], rows: int | None) -> Iterable[pl.DataFrame]:
            self.execute().dropped()
            return ()

        # a plan shows one line
        detail = " | ".join(f"{key}: {text}" for key, text in self.properties().items())
        return scan_frames(nothing, self.schema, explain_name=self.name, explain_detail=detail)


class _Builder(FileReaderBuilder):
    """Makes a reader of a source at each execution of the query."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def reader_capabilities(self) -> ReaderCapabilities:
        """Slices are given to the reader; filters are Polars' own."""
        return ReaderCapabilities(pre_slice=True)

    def explain_properties(self) -> dict[str, str]:
        """Return what ``LazyFrame.explain`` shows."""
        return {"name": self._source.name, **self._source.properties()}

    def build_file_reader(self, source: str | bytes, multi_scan_context: dict[Any, Any]) -> _Reader:
        """Return the reader of one execution."""
        execution = self._source.execute()
        # the object that Polars lets go of last
        multi_scan_context[_LastHeld] = last = _LastHeld()
        self._source.held(last)
        reader = _Reader(self._source.schema, execution)
        self._source.held(reader)
        return reader


class _LastHeld:
    """Lives as long as Polars holds anything of an execution."""


class _Reader(FileReader):
    """One execution of a source, as Polars wants it."""

    def __init__(self, schema: pl.Schema, execution: Execution) -> None:
        self._schema = schema
        self._execution = execution

    def schema(self) -> SchemaDict:
        """Return the schema of the frame."""
        return self._schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        """Return the number of rows."""
        return self._execution.count()

    def on_drop(self) -> None:
        """Take note that Polars needs this reader no more."""
        self._execution.dropped()

    def collect_batches(
        self,
        *,
        columns: Sequence[str],
        row_index: tuple[str, int] | None,
        pre_slice: tuple[int, int] | None,
        filters: Sequence[FilterExpr],
        num_pipelines: int,
    ) -> Iterator[pl.DataFrame]:
        """Return the rows, a few MB at a time."""
        return _until_exit(self._execution.frames(columns, pre_slice))


_at_exit = threading.Event()


def end_reads() -> None:
    """Have every execution end with the frame that Polars asks for next: the program exits."""
    _at_exit.set()


def _until_exit(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    for frame in frames:
        yield frame
        if _at_exit.is_set():
            return


def with_known_schema(scan: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Return a scan of the columns over which every query runs.

    Where Polars 2.1 pushes a projection into a resolver, it goes on with the whole schema: window
    functions on the streaming engine and expressions used twice on the other panic, and batches of
    them are an empty result without an error. Renaming the columns, there and back, is a node whose
    schema is right; what is pushed passes it.
    """
    there = {name: f"{name}\0" for name in names}
    return scan.rename(there).rename({new: old for old, new in there.items()})


def polars_text(error: pl.exceptions.PolarsError | pl.exceptions.PanicException) -> str:
    """Return what an error of Polars says, with the names of columns as users know them."""
    return str(error).replace("\0", "")


def polars_reason(error: pl.exceptions.PolarsError | pl.exceptions.PanicException) -> str:
    """Return what an error of Polars says, without the plan in which it was found."""
    text = re.split(r"\n\n(?:Resolved plan|This error occurred)", polars_text(error))[0]
    if isinstance(error, pl.exceptions.StructFieldNotFoundError):
        # the message of Polars is only the name
        text = f'the row has no field "{text}"'
    # the message of Polars shows its objects
    text = re.sub(
        r"expression \w+ ?[\[({].* is not", "this expression is not", text, flags=re.DOTALL
    )
    return " ".join(text.split())


def scan_frames(
    read: Callable[[list[str], int | None], Iterable[pl.DataFrame]],
    schema: Mapping[str, Any],
    **shown: str,
) -> pl.LazyFrame:
    """Return a lazy frame of rows that Polars has no reader of.

    At each collect, ``read`` is called with the names of the wanted columns and with how many rows
    are enough, None for all. It yields parts of the rows, with these columns in this order.
    ``shown`` are texts for the plan of a query: ``explain_name`` and ``explain_detail``.
    """
    names = list(schema)

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for found in read(names if with_columns is None else with_columns, n_rows):
            if left is not None:
                found = found.head(left)
                left -= found.height
            yield found if predicate is None else found.filter(predicate)
            if left == 0:
                return

    return register_io_source(source, schema=dict(schema), **shown)  # type: ignore[arg-type]


def lazy_frames(frames: Callable[[], Iterable[pl.DataFrame]], schema: pl.Schema) -> pl.LazyFrame:
    """Return a lazy frame of what a function gives, which is called at each collect."""

    def read(names: list[str], rows: int | None) -> Iterator[pl.DataFrame]:
        # by_name takes a name like "*" literally
        return (found.select([cs.by_name(name) for name in names]) for found in frames())

    return scan_frames(read, schema)


def lazy_nothing(name: str, schema: Mapping[str, Any]) -> pl.LazyFrame:
    """Return a lazy frame without rows, which the plan of a query shows by a name."""
    return scan_frames(lambda names, rows: (), schema, explain_name=name)

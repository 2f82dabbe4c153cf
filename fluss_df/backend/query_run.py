"""One statement of SQL that runs: batch by batch, in bounded memory, until it ends or is ended."""

from __future__ import annotations

import contextlib
import enum
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.backend import Backend
from fluss_df.backend.parameters import bind, numbered, without_catalog
from fluss_df.backend.plain_reads import PlainQuery, PlainRead, plain_query, plain_read
from fluss_df.backend.sql.ddl import RESET
from fluss_df.backend.sql.dialect import Text
from fluss_df.backend.sql.operands.numbers import told_beyond
from fluss_df.backend.sql.queries import SqlScope, count_hints, require_no_files
from fluss_df.backend.sql.statements import bare_statement, explained_query, parsed_statement
from fluss_df.errors import FlussError
from fluss_df.hooks import Closing
from fluss_df.io.base.names import exact
from fluss_df.io.polars_reader import copy_with_scans
from fluss_df.io.scan import explain
from fluss_df.io.scans.flow import Flow
from fluss_df.io.scans.report import ScanReport
from fluss_df.polars_adapter.plans import plan_text
from fluss_df.polars_adapter.scans import polars_reason

#: About the size of a batch.
BATCH_BYTES: Final = 1 << 20
# how long close() waits for the thread of a query that was ended
_CLOSE_S: Final = 1.0


class _End(enum.Enum):
    """Marks the end of the tables; None says only that there are none yet."""

    END = enum.auto()


class QueryCancelledError(FlussError):
    """Somebody cancelled the query."""


class QueryLimitError(FlussError):
    """The query had more rows, or took more time, than it was allowed."""


class QueryRun(Closing):
    """One statement of SQL that runs on a backend.

    A query is planned when the object is made, and begins when the first batch is asked for. Its
    scans wait while batches are not taken: what is held is a few MB, however large the result is;
    a sort, a join or an aggregation holds what it needs to compute. A statement that is no query
    (``CREATE``, ``INSERT``, ``SHOW``, ...) runs as a whole when its schema or rows are asked for.

    Raises FlussError for what cannot be read, or a table or column that is not there.

    Parameters
    ----------
    backend
        Where it runs.
    statement
        One statement.
    max_rows
        The most rows; None for all. Where the result has more, the first ``max_rows`` are given,
        and then :class:`QueryLimitError` is raised. Scans read no more where the query allows it.
    max_seconds
        The most seconds from the beginning to the last batch that was taken; None for any time.
    batch_bytes
        About the most bytes in a batch; a single row may have more.
    parameters
        The values of its parameters, ``?`` or ``$1``: values of Python, or scalars of Arrow. They
        become literals of their types, never text of the statement.
    catalog
        What may stand in front of databases in names, for tools that write a catalog there.
    local_files
        Whether it may read files of this machine (``FROM read_csv('...')``), as ``raw_sql`` does.
        Not for statements that came over the network.

    Attributes
    ----------
    is_query
        Whether it reads rows and changes nothing.
    only_shows
        Whether it is ``SHOW``, ``DESCRIBE`` or ``EXPLAIN``, which change nothing either.
    rows
        How many rows were given so far.
    rows_written
        How many rows an ``INSERT``, ``UPDATE`` or ``DELETE`` wrote; None for other statements, and
        before it ran.

    Examples
    --------
    >>> run = QueryRun(backend, "SELECT * FROM orders", max_seconds=60)  # doctest: +SKIP
    >>> rows = sum(batch.num_rows for batch in run)  # doctest: +SKIP
    """

    def __init__(
        self,
        backend: Backend,
        statement: str,
        *,
        max_rows: int | None = None,
        max_seconds: float | None = None,
        batch_bytes: int = BATCH_BYTES,
        parameters: Sequence[Any] = (),
        catalog: str | None = None,
        local_files: bool = False,
    ) -> None:
        for name, limit in (("max_rows", max_rows), ("max_seconds", max_seconds)):
            if limit is not None and not limit > 0:
                raise FlussError(f"{name}={limit!r}: expected more than 0, or None")
        if batch_bytes < 1:
            raise FlussError(f"batch_bytes={batch_bytes!r}: expected at least 1")
        self.rows = 0
        self.rows_written: int | None = None
        self._backend = backend
        self._statement = statement
        self._max_rows = max_rows
        self._max_seconds = max_seconds
        self._batch_bytes = batch_bytes
        self._began: float | None = None
        self._ended: float | None = None
        self._lock = threading.Lock()
        self._iterated = False
        self._schema: pa.Schema | None = None
        self._result: pl.DataFrame | None = None
        self._failed: Exception | None = None
        self._flow = Flow(_errors)
        text = Text(statement)
        self._tree = parsed_statement(numbered(text))
        if not local_files:
            looked_at = explained_query(statement) if self._tree is None else self._tree
            if looked_at is not None:
                require_no_files(looked_at, "a statement here reads")
        if self._tree is not None:
            if catalog is not None:
                without_catalog(self._tree, catalog)
            self._tree = bind(self._tree, parameters)
        elif parameters:
            raise FlussError(f"{statement[:40]!r} has no parameters: {len(parameters)} values came")
        self.only_shows = self._tree is None and not RESET.fullmatch(bare_statement(text))
        self.is_query = isinstance(self._tree, exp.Query)
        self._frame: pl.LazyFrame | None = None
        self._plain: PlainQuery | None = None
        if self.is_query:
            assert self._tree is not None
            self._plan(self._tree, text)
        # the query also ends where nothing refers to this object any more
        weakref.finalize(self, self._flow.end, _cancelled(None)).atexit = False

    def _plan(self, tree: exp.Expr, text: Text) -> None:
        backend = self._backend
        with self._flow.running.planned(), _errors():
            if self._max_rows is None:
                self._plain = plain_query(tree, backend)
            frame = SqlScope(backend).run(tree, count_hints(text))
            if backend._tables and not backend.connection.config.uses_sasl:
                # Frames that the backend has names for were planned before this query: copies of
                # their scans are paused and cancelled with it. Not with SASL: a copy may have to
                # connect again, and has no password.
                with contextlib.suppress(FlussError):
                    frame, _ = copy_with_scans(frame)
        wide = [n for n, t in frame.collect_schema().items() if t in (pl.Int128, pl.UInt128)]
        frame = frame.with_columns(exact(n).cast(pl.Decimal(38, 0)) for n in wide)
        self._frame = frame
        self._schema = _arrow_schema(frame.collect_schema())

    # ---- before it runs

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result.

        For a statement that is not a query they are known once it ran: this runs it, and raises
        FlussError where it fails.
        """
        if self._schema is None:
            self._run_statement()
        assert self._schema is not None
        return self._schema

    def explain(self) -> str:
        """Return what the query would read of Fluss now; the plan of one that reads nothing there.

        Raises FlussError for a statement that is no query.
        """
        if self._frame is None:
            raise FlussError("only queries have a plan: this statement is run as it stands")
        with _errors():
            return explain(self._frame) or plan_text(self._frame)

    # ---- while it runs

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the record batches of the result, once.

        Raises
        ------
        QueryCancelledError
            After :meth:`cancel`.
        QueryLimitError
            For more rows than ``max_rows``, behind the last that was allowed; after
            ``max_seconds``.
        FlussError
            What failed, and when it is iterated again.
        """
        with self._lock:
            if self._iterated:
                raise FlussError("the rows of this query were asked for before: run it again")
            self._iterated = True
        return self._batches()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._plain_tables() or self._frames():
                for batch in self._cut(rows):
                    self._flow.running.check()
                    self.rows += batch.num_rows
                    yield batch
        finally:
            if self.is_query:
                self._ended = time.monotonic()
            self._flow.end(_cancelled(None))

    def _plain_tables(self) -> Iterator[pa.Table] | None:
        """Return the rows of a query for which nothing is computed, as they are decoded."""
        frame, query, schema = self._frame, self._plain, self._schema
        if frame is None or query is None or schema is None:
            return None
        self._flow.check()
        with _errors():
            planned = plain_read(query, frame, schema)
        return None if planned is None else self._decoded(planned, schema.names)

    def _decoded(self, read: PlainRead, names: Sequence[str]) -> Iterator[pa.Table]:
        self._start()
        with contextlib.closing(read.tables()) as tables:
            while True:
                with _errors():
                    table = next(tables, _End.END)
                if isinstance(table, _End):
                    return
                self._flow.check()
                if table is not None:
                    yield table.rename_columns(names)

    def _frames(self) -> Iterator[pl.DataFrame]:
        if self._frame is None:
            self._run_statement()
            assert self._result is not None
            yield from self._limited(iter((self._result,)))
            return
        frame = self._frame if self._max_rows is None else self._frame.head(self._max_rows + 1)
        self._start()
        flow = self._flow
        flow.start(lambda: flow.sink(frame))
        yield from self._limited(flow.frames())

    def _limited(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        left = self._max_rows
        for frame in frames:
            if left is not None and frame.height > left:
                if left:
                    yield frame.head(left)
                error = QueryLimitError(
                    f"the query has more than {self._max_rows} rows, which is the most that may be"
                    " asked for here: add a LIMIT or a narrower WHERE"
                )
                self._flow.end(error)
                raise error
            if left is not None:
                left -= frame.height
            yield frame

    def _cut(self, rows: pl.DataFrame | pa.Table) -> Iterator[pa.RecordBatch]:
        count = len(rows)
        size = rows.nbytes if isinstance(rows, pa.Table) else int(rows.estimated_size())
        # a batch of the log stays one batch here, even where it is a little larger
        step = max(1, -(-count // max(1, round(size / self._batch_bytes))))
        if isinstance(rows, pa.Table) and count >= rows.column(0).num_chunks * step // 2:
            # these batches are large enough: joining them would only copy them
            yield from rows.cast(self.schema).to_batches(max_chunksize=step)
            return
        for begin in range(0, count, step):
            part = rows.slice(begin, step)
            table = part if isinstance(part, pa.Table) else part.to_arrow()
            # batches of the log may have few rows, so they are joined
            yield from table.cast(self.schema).combine_chunks().to_batches()

    def read_all(self) -> pa.Table:
        """Return all rows as one table; errors as of iterating."""
        return pa.Table.from_batches(list(self), self.schema)

    def cancel(self, reason: str | None = None) -> None:
        """End it, from any thread: who waits for its rows gets QueryCancelledError at once.

        Its scans end within a quarter of a second. What Polars computes of rows that it has goes on
        in the background until it is done. What a statement has written stays written. The error
        also has the ``reason``, where one is given.
        """
        self._flow.end(_cancelled(reason))

    def close(self) -> None:
        """End it, and wait a moment for its scans; a second call does nothing."""
        self._flow.end(_cancelled(None))
        self._flow.join(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        """Whether its background thread still runs, also after it was cancelled."""
        return self._flow.is_alive

    @property
    def seconds(self) -> float:
        """How long it has run."""
        if self._began is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._began

    @property
    def scans(self) -> list[ScanReport]:
        """What its scans fetched so far, in the order in which they began."""
        return self._flow.running.scans

    # ---- statements that are no queries

    def _run_statement(self) -> None:
        with self._lock:
            if self._failed is not None:
                # running it again might write its rows again
                raise self._failed
            if self._result is None:
                try:
                    self._result = self._ran()
                except Exception as error:
                    self._failed = error
                    raise
                self._schema = _arrow_schema(self._result.schema)

    def _ran(self) -> pl.DataFrame:
        backend, statement, tree = self._backend, self._statement, self._tree
        self._start()
        found: list[pl.DataFrame] = []

        def work() -> None:
            with self._flow.running.planned():
                ran = (
                    backend.raw_sql(statement)
                    if tree is None
                    else backend.run_parsed(tree, statement)
                )
            found.append(ran)

        self._flow.start(work)
        try:
            for _ in self._flow.frames():
                pass
        finally:
            self._ended = time.monotonic()
            # the statement is done: taking its rows late must not make it an error
            self._flow.running.deadline = None
        result = found[0]
        if isinstance(tree, exp.Insert | exp.Update | exp.Delete) and "rows" in result.columns:
            self.rows_written = int(result["rows"].sum())
        return result

    def _start(self) -> None:
        self._began = time.monotonic()
        if self._max_seconds is not None:
            error = QueryLimitError(
                f"the statement took longer than {self._max_seconds:g} seconds, which is the most"
                " that it may take here"
            )
            self._flow.running.deadline = self._began + self._max_seconds, error

    def __repr__(self) -> str:
        return f"QueryRun({self._statement[:60]!r}, {self.rows} rows)"


def _cancelled(reason: str | None) -> QueryCancelledError:
    return QueryCancelledError("the query was cancelled" + (f": {reason}" if reason else ""))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise errors of Polars as FlussError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise FlussError(f"SQL cannot be run: {told_beyond(polars_reason(error))}") from error


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    """Return the Arrow types of a result: no large ones, and no dictionaries."""
    wide = pl.DataFrame(schema=schema).to_arrow().schema
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in wide])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))

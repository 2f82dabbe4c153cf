"""Expressions over logs that grow: batches as rows come, and runs that go on where they ended."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa
from ibis.formats.polars import PolarsSchema
from ibis.formats.pyarrow import PyArrowData, PyArrowSchema
from sqlglot import exp

from fluss_df.backend.results import with_digits
from fluss_df.backend.sql.dialect import spot
from fluss_df.backend.sql.queries import parse
from fluss_df.backend.sql.statements import Statements
from fluss_df.backend.streams.running import Emit, RunningAggregate, windowed_aggregate
from fluss_df.errors import FlussError
from fluss_df.io.base.durations import parse_duration
from fluss_df.io.runs.micro_batches import MicroBatches, with_marked_stream
from fluss_df.io.runs.runner import Destination, RunResult, run
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.row_by_row import needs_other_rows
from fluss_df.polars_adapter.scans import lazy_nothing

# what needs all rows for one of its results
_WHOLE = (
    ops.Aggregate,
    ops.Sort,
    ops.Distinct,
    ops.Limit,
    ops.Difference,
    ops.Intersection,
    ops.Sample,
    ops.WindowFunction,
)
_WHOLE_SQL = (
    exp.Group,
    exp.Order,
    exp.Distinct,
    exp.Limit,
    exp.Fetch,
    exp.Offset,
    exp.AggFunc,
    exp.Window,
    exp.Except,
    exp.Intersect,
)
# the groups of a running aggregate, in the plan of what stands above it
_GROUPS = "running_groups"


class Streaming(Statements):
    """What the backend does with logs that grow."""

    def follow(
        self,
        expr: ir.Table | str,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        stream: str | TablePath | None = None,
        every: str | float | dt.timedelta = "500ms",
        max_batch_rows: int | None = None,
        stop: threading.Event | None = None,
        lateness: str | float | dt.timedelta = 0.0,
        emit: Emit = "updates",
        max_groups: int = 1_000_000,
    ) -> Iterator[pa.RecordBatch]:
        """Give the rows of an expression as they come into the log that it reads.

        First come the rows that are there. Each batch is the expression over the rows that came
        since the batch before, with every pushdown; so it must be one whose rows need no others:
        columns, filters, joins with tables that are read whole for each batch: inner joins, and
        left, semi and anti joins with the table that is followed on the left.

        Or it has one aggregate, which groups by a window of time among others:
        ``t.group_by(t.at.truncate("m"), "page").agg(n=_.count())``, or ``.bucket(minutes=5)``.
        Then each batch gives the groups that it changed, with their values of now: of the rows with
        equal groups, the last counts. A window closes once another has begun that starts
        ``lateness`` behind its end or later; then its groups leave memory, and rows that still come
        for it are left out and counted in the log. Rows without a time are in no window.

        Parameters
        ----------
        expr
            A table expression, or a query in SQL.
        params
            Values of its parameters.
        stream
            Which table is followed, where it reads several.
        every
            How often new rows are looked for.
        max_batch_rows
            The most rows of the log in a batch.
        stop
            An event that ends it; else it ends when the iterator is closed.
        lateness
            How long a window of an aggregate stays open for rows that come late. Time is that of
            the rows: where nothing comes, nothing closes.
        emit
            ``"updates"``, or ``"final"`` for each group of a window once, when it has closed.
        max_groups
            How many groups of open windows there may be in memory.

        Yields
        ------
        pyarrow.RecordBatch
            None is empty.

        Raises
        ------
        FlussError
            For an expression with an aggregate without a window of time, a sort, distinct rows, a
            limit, a window function, a union with another table, or a join that keeps rows of the
            other table, which would need rows that are still to come. Of aggregates there are sum,
            count, min, max, mean, any and all.
        """
        if isinstance(expr, str):
            _refuse_whole_sql(expr)
            expr = self.sql(expr)
        options: dict[str, Any] = {
            "stream": stream,
            "max_rows": max_batch_rows,
            "poll_s": parse_duration("every", every),
            "stop": stop,
        }
        schema = expr.schema()
        aggregate = windowed_aggregate(expr)
        _refuse_whole(expr, aggregate)

        def convert(part: pl.DataFrame) -> pa.Table:
            kinds = with_digits(expr, dict(zip(schema, part.dtypes, strict=True)))
            made = PyArrowData.convert_table(part.to_arrow(), kinds)
            return made.cast(PyArrowSchema.from_ibis(kinds))

        if aggregate is None:
            frame = self.compile(expr, params=params)
            _refuse_dependent(*with_marked_stream(frame, stream))
            return self._batches(frame, convert, **options)
        seconds = parse_duration("lateness", lateness)
        try:
            late = dt.timedelta(seconds=seconds)
        except OverflowError:
            raise FlussError(
                f"lateness={lateness!r}: expected a duration of at most {dt.timedelta.max.days:,}"
                " days"
            ) from None
        running = RunningAggregate(expr, late, emit, max_groups)
        below = self.compile(aggregate.parent.to_expr(), params=params)
        _refuse_dependent(*with_marked_stream(below, stream))
        results_of = self._named(lazy_nothing(_GROUPS, PolarsSchema.from_ibis(aggregate.schema)))
        above = expr.op().replace({aggregate: results_of.op()}).to_expr()
        _refuse_dependent(self.compile(above, params=params), _GROUPS)

        def results(part: pl.DataFrame) -> pa.Table:
            changed = running.update(part)
            if changed is None:
                return PyArrowSchema.from_ibis(schema).empty_table()
            return convert(self.compile(changed, params=params).collect())

        return self._batches(self.compile(running.partial, params=params), results, **options)

    def _batches(
        self, frame: pl.LazyFrame, convert: Callable[[pl.DataFrame], pa.Table], **options: Any
    ) -> Iterator[pa.RecordBatch]:
        with (
            tempfile.TemporaryDirectory(prefix="fluss-follow-") as folder,
            MicroBatches(frame, os.path.join(folder, "checkpoint"), **options) as batches,
        ):
            for batch in batches:
                made = convert(batch.frame.collect()).combine_chunks().to_batches()
                yield from (part for part in made if part.num_rows)
                batch.commit()

    def run(
        self,
        expr: ir.Table | str,
        /,
        *,
        to: Destination,
        checkpoint: str | os.PathLike[str],
        params: Mapping[ir.Scalar, Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an expression over a log batch by batch, each row counted once.

        Parameters
        ----------
        expr
            A table expression, or a query in SQL, as for :meth:`follow`; without an aggregate.
        to, checkpoint, options
            As of :func:`fluss_df.run`: a folder for Parquet files, or a function; a folder of this
            run alone; ``trigger``, ``stream``, ``max_batch_rows``, ``stop`` and ``on_batch``.
        params
            Values of its parameters.
        """
        if isinstance(expr, str):
            _refuse_whole_sql(expr)
            expr = self.sql(expr)
        _refuse_whole(expr)
        frame = self.compile(expr, params=params)
        _refuse_dependent(*with_marked_stream(frame, options.get("stream")))
        return run(frame, to=to, checkpoint=checkpoint, **options)


def _refuse_whole(expr: ir.Table, aggregate: ops.Aggregate | None = None) -> None:
    for node in expr.op().find(_WHOLE):
        if node is aggregate:
            continue
        hint = "run it over what is there with execute, or follow the rows and reduce the batches"
        if isinstance(node, ops.Aggregate) and aggregate is None:
            hint += '; follow gives running results where it groups by a window of time, as in\
 group_by(t.at.truncate("h"))'
        raise FlussError(
            f"a {type(node).__name__} cannot be followed: it needs rows that are still to come;"
            f" {hint}"
        )


def _refuse_dependent(frame: pl.LazyFrame, source: str) -> None:
    """Raise where a row of a source has other results in a batch than among all rows.

    Nodes of Ibis and of SQL name what is refused best. The plan of Polars is what runs, so it is
    looked at, too: it also shows joins, views, and functions that only Polars knows.
    """
    found = needs_other_rows(frame, source)
    if found is not None:
        way_out = found.way_out or "run it over what is there with execute, or with sql"
        raise FlussError(f"{found.what} cannot be followed: {found.why}; {way_out}")


def _refuse_whole_sql(query: str) -> None:
    for part in parse(query).find_all(*_WHOLE_SQL):
        raise FlussError(
            f"{part.key.upper()} cannot be followed: it needs rows that are still to"
            f" come{spot(part)}; run the query over what is there with sql"
        )

"""Running results of aggregates over tumbling windows of time, as rows come.

Each micro-batch is aggregated by itself, with every pushdown, into partial results; these are
merged into the state, which has one row for each group of each window that is still open. What is
given out are the groups that a batch changed, whole and as they are now.
"""

from __future__ import annotations

import datetime as dt
import logging
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ibis
import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl

from fluss_df.backend.results import with_digits
from fluss_df.backend.translation import translate
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact, exact

logger = logging.getLogger(__name__)

Emit: TypeAlias = Literal["updates", "final"]
EMITS = ("updates", "final")

# the operations of Ibis that give the window that a time is in
_WINDOWS = (ops.TimestampTruncate, ops.DateTruncate, ops.TimestampBucket)
_ROWS = "_fluss_rows"
Merge: TypeAlias = Callable[[pl.Expr], pl.Expr]


def _sum(partial: pl.Expr) -> pl.Expr:
    # the sum of no values is null in Ibis, as in SQL; in Polars it is 0
    return pl.when(partial.is_not_null().any()).then(partial.sum())


_MERGES: dict[type[ops.Reduction], Merge] = {
    ops.Sum: _sum,
    ops.Count: pl.Expr.sum,
    ops.CountStar: pl.Expr.sum,
    ops.Min: pl.Expr.min,
    ops.Max: pl.Expr.max,
    ops.Any: lambda partial: partial.max(),
    ops.All: lambda partial: partial.min(),
}


def windowed_aggregate(expr: ir.Table) -> ops.Aggregate | None:
    """Return the aggregate over windows of time in an expression; None where there is none."""
    found = expr.op().find(ops.Aggregate)
    if len(found) != 1 or not _windows(found[0]):
        return None
    aggregate: ops.Aggregate = found[0]
    return aggregate


def _windows(aggregate: ops.Aggregate) -> dict[str, ops.Value]:
    """Return the groups of an aggregate that are windows of time, and what makes them."""
    made = ((name, _made_of(value)) for name, value in aggregate.groups.items())
    return {name: value for name, value in made if isinstance(value, _WINDOWS)}


def _made_of(value: ops.Value) -> ops.Value:
    """Return the expression of a column, looked for through projections and filters."""
    while isinstance(value, ops.Field):
        relation = value.rel
        if isinstance(relation, ops.Project):
            value = relation.values[value.name]
        elif isinstance(relation, ops.Filter):
            value = ops.Field(relation.parent, value.name)
        else:
            break
    return value


def _before(local: dt.datetime, late: dt.timedelta, zone: str) -> dt.datetime:
    """Return what the clock of a zone showed some time before it showed another time.

    Of a time that it shows twice the earlier one is meant, and of one that it skips the earlier of
    both that it may stand for: then windows close later, and not too soon.
    """
    clock = zoneinfo.ZoneInfo(zone)
    both = (local.replace(tzinfo=clock, fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    return (min(both) - late).astimezone(clock).replace(tzinfo=None, fold=0)


@dataclass
class RunningAggregate:
    """An aggregate over windows of time, and its state.

    Parameters
    ----------
    expr
        A table expression with one aggregate; what stands above it is evaluated for each result.
    lateness
        How long a window stays open behind its end.
    emit
        ``"updates"`` for the groups that changed, ``"final"`` for those of windows that closed.
    max_groups
        The most rows of the state.

    Attributes
    ----------
    state
        The partial results of the open windows.
    late
        How many rows came for windows that had closed.
    """

    expr: ir.Table
    lateness: dt.timedelta
    emit: Emit = "updates"
    max_groups: int = 1_000_000
    state: pl.DataFrame | None = field(default=None, init=False)
    late: int = field(default=0, init=False)
    _closed: Any = field(default=None, init=False)
    _newest: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.emit not in EMITS:
            raise FlussError(f"emit={self.emit!r}: expected one of {', '.join(map(repr, EMITS))}")
        if self.lateness < dt.timedelta():
            raise FlussError(f"lateness={self.lateness!r}: expected no less than 0")
        aggregate = windowed_aggregate(self.expr)
        assert aggregate is not None
        self._aggregate = aggregate
        windows = _windows(aggregate)
        self._window_name, self._window = next(iter(windows.items()))
        self._merges: dict[str, Merge] = {_ROWS: pl.Expr.sum}
        self._partials: dict[str, ops.Value] = {_ROWS: ops.CountStar(aggregate.parent)}
        self._names: dict[ops.Reduction, str] = {}
        for metric in aggregate.metrics.values():
            for reduction in metric.find(ops.Reduction, filter=ops.Value):
                self._add(reduction)

    def _add(self, reduction: ops.Reduction) -> None:
        if isinstance(reduction, ops.Mean):
            self._add(ops.Sum(reduction.arg, where=reduction.where))
            self._add(ops.Count(reduction.arg, where=reduction.where))
            return
        merge = _MERGES.get(type(reduction))
        if merge is None:
            there = ", ".join(sorted([*(t.__name__ for t in _MERGES), "Mean"]))
            raise FlussError(
                f"a {type(reduction).__name__} cannot be followed: of parts of a window it cannot"
                f" be told for the whole; there are {there}"
            )
        if reduction not in self._names:
            name = f"_fluss_part_{len(self._names)}"
            self._names[reduction] = name
            self._merges[name] = merge
            self._partials[name] = reduction

    @property
    def partial(self) -> ir.Table:
        """The expression that is to be run over each batch."""
        aggregate = self._aggregate
        made = ops.Aggregate(aggregate.parent, aggregate.groups, self._partials)
        table: ir.Table = made.to_expr()
        return table.filter(table[self._window_name].notnull())

    def update(self, batch: pl.DataFrame) -> ir.Table | None:
        """Take in the partial results of a batch; return a table of what is to be given out.

        The table is to be run once. Returns None where there is nothing to give out. Raises
        FlussError when the state gets too large.
        """
        window = exact(self._window_name)
        if self._closed is not None:
            late = batch.filter(window < self._closed)
            if late.height:
                rows = int(late[_ROWS].sum())
                self.late += rows
                logger.warning(
                    "%d rows of windows that had closed were left out (windows before %s are"
                    " closed, lateness is %s)",
                    *(rows, self._closed, self.lateness),
                )
                batch = batch.filter(window >= self._closed)
        if not batch.height:
            return None
        keys = list(self._aggregate.groups)
        before = batch.clear() if self.state is None else self.state
        touched = before.join(batch, on=all_exact(keys), how="semi", nulls_equal=True)
        merged = (
            pl.concat([touched, batch])
            .group_by(all_exact(keys))
            .agg(merge(exact(name)) for name, merge in self._merges.items())
        )
        merged = merged.select(exact(n).cast(t) for n, t in batch.schema.items())
        untouched = before.join(batch, on=all_exact(keys), how="anti", nulls_equal=True)
        state = pl.concat([untouched, merged])
        newest = batch[self._window_name].max()
        if self._newest is None or newest > self._newest:
            self._newest = newest
            closed = self._window_of(newest)
            # never back: a clock that is set back may have begun an earlier window
            if closed is not None and (self._closed is None or closed > self._closed):
                self._closed = closed
        final, self.state = state.clear(), state
        if self._closed is not None:
            final = state.filter(window < self._closed)
            self.state = state.filter(window >= self._closed)
        if self.state.height > self.max_groups:
            raise FlussError(
                f"there are {self.state.height} groups in windows that are open, more than"
                f" max_groups={self.max_groups}: group by less, or let windows close sooner"
                f" (lateness={self.lateness})"
            )
        given = merged if self.emit == "updates" else final
        return self._results(given) if given.height else None

    def _window_of(self, newest: Any) -> Any:
        """Return the earliest window that is open when the newest begins at this time.

        None where all are: it would begin before the year 1.
        """
        late = self.lateness
        try:
            if isinstance(newest, dt.datetime):
                zone = self._window.arg.dtype.timezone
                moment: Any = newest - late if zone is None else _before(newest, late, zone)
                # microseconds as Python has them: those of no finer type have all years
                kind = ibis.dtype("timestamp(6)")
            else:
                # a date: lateness is rounded up to whole days
                moment = newest - dt.timedelta(days=-(-late // dt.timedelta(days=1)))
                kind = self._window.arg.dtype
            made = translate(self._window.copy(arg=ops.Literal(moment, kind)))
            return pl.select(made).to_series()[0]
        except (OverflowError, ValueError):
            return None

    def _results(self, rows: pl.DataFrame) -> ir.Table:
        table = ibis.memtable(rows, schema=with_digits(self.partial, rows.schema)).op()
        values: dict[str, ops.Value] = {
            name: ops.Field(table, name) for name in self._aggregate.groups
        }
        parts = {reduction: ops.Field(table, name) for reduction, name in self._names.items()}
        for metric in self._aggregate.metrics.values():
            for mean in metric.find(ops.Mean, filter=ops.Value):
                total = parts[ops.Sum(mean.arg, where=mean.where)]
                count = parts[ops.Count(mean.arg, where=mean.where)]
                parts[mean] = ops.Cast(ops.Divide(total, count), mean.dtype)
        for name, metric in self._aggregate.metrics.items():
            values[name] = metric.replace(parts, filter=ops.Value)
        made: Mapping[ops.Node, ops.Node] = {self._aggregate: ops.Project(table, values)}
        results: ir.Table = self.expr.op().replace(made).to_expr()
        return results

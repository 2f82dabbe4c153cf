"""Window functions, which Ibis's Polars backend does not translate.

A function is evaluated on each group of rows in the order of its window, as Polars' ``over`` does
it. What a frame of rows or of values means is reduced to two positions a row: where its frame
begins, and where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import ibis.common.exceptions as com
import ibis.expr.operations as ops
import numpy as np
import polars as pl

from fluss_df.backend.compiler.digits import computed_type
from fluss_df.backend.translation import rule, translate
from fluss_df.io.base.names import exact

_ROW = pl.int_range(pl.len(), dtype=pl.Int64)
_HEIGHT = pl.len().cast(pl.Int64)


@rule(ops.WindowFunction)
def window_function(op: ops.WindowFunction, **kw: Any) -> pl.Expr:
    """Evaluate a function in each group, and give each row its result."""
    window = _Window(op, kw)
    function = _FUNCTIONS.get(type(op.func))
    if function is not None:
        result = function(window, op.func)
    elif window.is_whole:
        result = translate(op.func, **kw)
    else:
        result = _framed(window, op.func)
    groups = [translate(key, **kw) for key in op.group_by] or [pl.lit(1)]
    result = result.cast(computed_type(op))
    if not op.order_by:
        return result.over(groups)
    return result.over(groups, order_by=window.order)


@dataclass(frozen=True, slots=True)
class _Window:
    """The window of a function, with what its arguments are translated with."""

    op: ops.WindowFunction
    kw: dict[str, Any]

    @property
    def order(self) -> pl.Expr:
        """The position of each row in the order of the window, among all rows."""
        keys = self.op.order_by
        # one number stands for all keys, because `over` takes one direction for all of them
        return pl.arg_sort_by(
            self.keys(),
            descending=[key.descending for key in keys],
            nulls_last=[not key.nulls_first for key in keys],
            maintain_order=True,
        ).arg_sort()

    @property
    def is_whole(self) -> bool:
        """Whether every row's frame is its whole group."""
        return self.op.start is None and self.op.end is None

    def value(self, node: ops.Value) -> pl.Expr:
        translated: pl.Expr = translate(node, **self.kw)
        return translated

    def keys(self) -> list[pl.Expr]:
        return [self.column(key.arg) for key in self.op.order_by]

    def column(self, node: ops.Value) -> pl.Expr:
        """Return a value of each row, where it is the same in all rows too."""
        value = self.value(node)
        return pl.when(_ROW >= 0).then(value) if node.shape.is_scalar() else value

    def starts_peers(self) -> pl.Expr:
        """Whether a row's keys differ from those of the row before it."""
        keys = self.keys()
        if not keys:
            return _ROW == 0
        changed = (key.ne_missing(key.shift(1)) for key in keys)
        return (_ROW == 0) | reduce(pl.Expr.or_, changed)

    def peers(self) -> tuple[pl.Expr, pl.Expr]:
        """Return the first position of the rows with equal keys, and the one after their last."""
        first = self.starts_peers()
        begin = pl.when(first).then(_ROW).forward_fill()
        ends = first.shift(-1).fill_null(value=True)
        end = pl.when(ends).then(_ROW + 1).backward_fill()
        return begin, end

    def frame(self) -> tuple[pl.Expr, pl.Expr]:
        """Return the position where each row's frame begins, and the one after its end."""
        bound = self._rows if self.op.how == "rows" else self._range
        # multiplied, to give one position for each row where all are the same
        begin = _ROW * 0 if self.op.start is None else bound(self.op.start, end=False)
        end = _ROW * 0 + _HEIGHT if self.op.end is None else bound(self.op.end, end=True)
        begin = begin.clip(0, _HEIGHT)
        return begin, pl.max_horizontal(begin, end.clip(0, _HEIGHT))

    def _rows(self, boundary: ops.WindowBoundary, *, end: bool) -> pl.Expr:
        distance = self.value(boundary.value).cast(pl.Int64)
        position = _ROW - distance if boundary.preceding else _ROW + distance
        return position + int(end)

    def _range(self, boundary: ops.WindowBoundary, *, end: bool) -> pl.Expr:
        if _is_zero(boundary.value):
            return self.peers()[int(end)]
        if len(self.op.order_by) != 1:
            raise com.UnsupportedOperationError(
                "a range with a distance needs one key to order by, and the window has"
                f" {len(self.op.order_by)}"
            )
        (key,) = self.keys()
        back = boundary.preceding != self.op.order_by[0].descending
        distance = self.value(boundary.value)
        if self.op.order_by[0].descending:
            # positions are searched in ascending values
            raise com.UnsupportedOperationError(
                "a range with a distance needs an ascending key; order by the negative value"
            )
        wide = _wide(self.op.order_by[0].arg)
        if wide is not None:
            key = key.cast(wide)
        wanted = key - distance if back else key + distance

        def positions(both: Sequence[pl.Series]) -> pl.Series:
            values, sought = both
            side: Literal["right", "left"] = "right" if end else "left"
            # rows whose key is null are peers, before or after all others
            there = values.drop_nulls()
            nulls_first = values.len() > there.len() and values[0] is None
            found: pl.Series = there.search_sorted(sought, side=side).cast(pl.Int64)
            return found + (values.null_count() if nulls_first else 0)

        found = pl.map_batches([key, wanted], positions, return_dtype=pl.Int64)
        return pl.when(key.is_null()).then(self.peers()[int(end)]).otherwise(found)


def _wide(key: ops.Value) -> pl.DataType | None:
    """Return the type in which a key and a distance can be added; None for that of the key.

    In its own type a whole number wraps around at its bounds, and a date has no hours.
    """
    kind = key.dtype
    if kind.is_integer():
        return pl.Int64() if kind.nbytes < 8 else pl.Int128()
    return pl.Datetime("us") if kind.is_date() else None


def _is_zero(node: ops.Value) -> bool:
    while isinstance(node, ops.Cast):
        node = node.arg
    return isinstance(node, ops.Literal) and not node.value


# ---- positions in a group


def _percent_rank(window: _Window, _: Any) -> pl.Expr:
    begin = window.peers()[0]
    return pl.when(_HEIGHT > 1).then(begin / (_HEIGHT - 1)).otherwise(0.0)


def _ntile(window: _Window, func: ops.NTile) -> pl.Expr:
    """Return the number of parts that differ by one row at most, the larger ones first."""
    parts = window.value(func.buckets).cast(pl.Int64)
    size, larger = _HEIGHT // parts, _HEIGHT % parts
    boundary = larger * (size + 1)
    smaller = larger + (_ROW - boundary) // pl.max_horizontal(size, pl.lit(1, pl.Int64))
    return pl.when(boundary > _ROW).then(_ROW // (size + 1)).otherwise(smaller)


def _shift(window: _Window, func: ops.Lag | ops.Lead) -> pl.Expr:
    if func.offset is not None and func.offset.dtype.is_interval():
        raise com.UnsupportedOperationError("lag and lead count rows: an interval is none")
    value = window.value(func.arg)
    rows = pl.lit(1) if func.offset is None else window.value(func.offset)
    default = None if func.default is None else window.value(func.default)
    if default is not None:
        default = default.cast(computed_type(func))
    return value.shift(rows if isinstance(func, ops.Lag) else -rows, fill_value=default)


# ---- values of a frame


def _at(values: pl.Expr, position: pl.Expr, valid: pl.Expr) -> pl.Expr:
    """Take values at positions that are valid, and null elsewhere."""
    return pl.when(valid).then(values.gather(pl.when(valid).then(position).otherwise(0)))


def _kept(window: _Window, func: Any) -> pl.Expr:
    """Return the argument of a function, null where its condition does not hold."""
    value = window.value(func.arg)
    where = getattr(func, "where", None)
    return value if where is None else pl.when(window.value(where)).then(value)


def _nth(window: _Window, func: ops.NthValue) -> pl.Expr:
    begin, end = window.frame()
    position = begin + window.value(func.nth).cast(pl.Int64)
    return _at(window.value(func.arg), position, position < end)


def _first_last(window: _Window, func: ops.First | ops.Last) -> pl.Expr:
    """Take the end of a frame, passing over nulls unless they are wanted."""
    begin, end = window.frame()
    last = isinstance(func, ops.Last)
    value = _kept(window, func)
    if func.order_by or (not func.include_null and func.where is not None and last is None):
        raise com.UnsupportedOperationError("first and last have the order of their window")
    if func.include_null:
        return _at(value, end - 1 if last else begin, begin < end)
    # the nearest row with a value, from the end of the frame inwards
    there = pl.when(value.is_not_null()).then(_ROW)
    if last:
        found = _at(there.forward_fill(), end - 1, begin < end)
        return _at(value, found, found.is_not_null() & (found >= begin))
    found = _at(there.backward_fill(), begin, begin < end)
    return _at(value, found, found.is_not_null() & (found < end))


def _cumulative(values: pl.Expr, running: str, begin: Any, end: Any, *, reverse: bool) -> pl.Expr:
    """Take a running value at one end of frames that begin, or end, where the group does."""
    run = getattr(values, running)(reverse=reverse)
    # a running minimum is null where the value is null: the one before it holds
    run = run.backward_fill() if reverse else run.forward_fill()
    return _at(run, begin if reverse else end - 1, begin < end)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "cum_sum": np.add,
    # as in Polars, which ignores NaN where there are other values
    "cum_min": np.fmin,
    "cum_max": np.fmax,
}


def _reduced(values: pl.Expr, running: str, window: _Window, dtype: pl.DataType) -> pl.Expr:
    """Sum, minimum or maximum of each frame; null where a frame has no value."""
    begin, end = window.frame()
    values = values.cast(dtype)
    if window.op.start is None:
        return _cumulative(values, running, begin, end, reverse=False)
    if window.op.end is None:
        return _cumulative(values, running, begin, end, reverse=True)
    ufunc = _UFUNCS[running]

    def reduce_frames(columns: Sequence[pl.Series]) -> pl.Series:
        column, starts, stops = columns
        physical = column.to_physical()
        filled = physical.fill_null(_neutral(running, physical.dtype))
        # padded with one more value, so that a frame may end after the last one
        padded = np.append(filled.to_numpy(), filled.to_numpy()[-1:])
        bounds = np.column_stack([starts.to_numpy(), stops.to_numpy()]).ravel()
        made = pl.Series(ufunc.reduceat(padded, bounds)[::2])  # type: ignore[attr-defined]
        there = column.is_not_null().cast(pl.Int64).cum_sum()
        counts = np.concatenate([[0], there.to_numpy()])
        has = pl.Series(counts[stops.to_numpy()] > counts[starts.to_numpy()])
        return made.set(~has, None).cast(physical.dtype).cast(column.dtype)

    return pl.map_batches([values, begin, end], reduce_frames, return_dtype=dtype)


def _neutral(running: str, dtype: pl.DataType) -> Any:
    if running == "cum_sum":
        return 0
    if dtype == pl.Boolean:
        return running == "cum_min"
    if dtype.is_float():
        return np.nan
    largest = running == "cum_min"
    return pl.select(dtype.max() if largest else dtype.min()).item()  # type: ignore[attr-defined]


def _count(values: pl.Expr, window: _Window) -> pl.Expr:
    """Count the values of each frame."""
    begin, end = window.frame()
    there = values.is_not_null().cast(pl.Int64).cum_sum()

    def before(position: pl.Expr) -> pl.Expr:
        return _at(there, position - 1, position > 0).fill_null(0)

    return before(end) - before(begin)


def _framed(window: _Window, func: ops.Reduction) -> pl.Expr:
    """Reduce the frame of each row."""
    if isinstance(func, ops.CountStar):
        where = pl.lit(1) if func.where is None else pl.when(window.value(func.where)).then(1)
        return _count(where + 0 * _ROW, window)
    if isinstance(func, ops.Count):
        return _count(_kept(window, func), window)
    values = None if not hasattr(func, "arg") else _kept(window, func)
    dtype = computed_type(func)
    ended = window.op.start is not None and window.op.end is not None
    if ended and not (
        dtype.is_integer() or dtype.is_float() or dtype.is_temporal() or dtype == pl.Boolean
    ):
        # NumPy reduces frames with both ends, and has no whole numbers of 128 bits, and no texts
        return _each_frame(window, func)
    if values is not None and isinstance(func, ops.Sum):
        return _reduced(values, "cum_sum", window, dtype)
    if values is not None and isinstance(func, (ops.Min, ops.All)):
        return _reduced(values, "cum_min", window, dtype)
    if values is not None and isinstance(func, (ops.Max, ops.Any)):
        return _reduced(values, "cum_max", window, dtype)
    if values is not None and isinstance(func, ops.Mean):
        total = _reduced(values, "cum_sum", window, pl.Float64())
        return total / _count(values, window)
    return _each_frame(window, func)


def _each_frame(window: _Window, func: ops.Reduction) -> pl.Expr:
    """Evaluate any reduction frame by frame, for what has no faster way."""
    begin, end = window.frame()
    fields = list(func.find(ops.Field, filter=ops.Value))
    names = list(dict.fromkeys(field.name for field in fields))
    reduction = translate(func, **window.kw)
    dtype = computed_type(func)

    def evaluate(columns: Sequence[pl.Series]) -> pl.Series:
        starts, stops, *values = columns
        rows = pl.DataFrame(dict(zip(names, values, strict=True)))
        bounds = pl.DataFrame({"b": starts, "e": stops}).with_row_index("row")
        positions = bounds.select("row", at=pl.int_ranges("b", "e")).explode("at")
        framed = positions.drop_nulls("at")
        data = framed.select("row").hstack(rows[framed["at"]])
        found = data.group_by("row").agg(reduction.alias("result"))
        joined = bounds.select("row").join(found, on="row", how="left", maintain_order="left")
        return joined["result"].cast(dtype)

    if not names:
        raise com.UnsupportedOperationError(f"{type(func).__name__} over a frame needs a column")
    return pl.map_batches(
        [begin, end, *(exact(name) for name in names)], evaluate, return_dtype=dtype
    )


_FUNCTIONS: dict[type, Callable[[_Window, Any], pl.Expr]] = {
    ops.RowNumber: lambda _window, _func: _ROW,
    ops.MinRank: lambda window, _: window.peers()[0],
    ops.DenseRank: lambda window, _: window.starts_peers().cast(pl.Int64).cum_sum() - 1,
    ops.PercentRank: _percent_rank,
    ops.CumeDist: lambda window, _: window.peers()[1] / _HEIGHT,
    ops.NTile: _ntile,
    ops.Lag: _shift,
    ops.Lead: _shift,
    ops.NthValue: _nth,
    ops.First: _first_last,
    ops.Last: _first_last,
}

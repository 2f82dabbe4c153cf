"""The aggregate functions of Fluss, over whole runs of values at once.

A function gets the values of a column one after the other, run by run (a run is what happens to one
row from its insertion on), and returns what each value leads to: the aggregate of its run up to
there. It treats nulls, overflow and NaN as Fluss does.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.layout.unaligned import Bools, Int64s
from fluss_df.types import Column, TypeRoot

#: values, and for each the position where its run begins -> aggregates
Aggregate = Callable[[pa.Array, Int64s], pa.Array]

_R = TypeRoot
_INTEGERS: Final = (_R.TINYINT, _R.SMALLINT, _R.INTEGER, _R.BIGINT)
_NUMBERS: Final = (*_INTEGERS, _R.FLOAT, _R.DOUBLE, _R.DECIMAL)
_ORDERED: Final = (
    *_NUMBERS,
    _R.CHAR,
    _R.STRING,
    _R.DATE,
    _R.TIME_WITHOUT_TIME_ZONE,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE,
)
# which types each function takes; None for all
FUNCTIONS: Final[Mapping[str, tuple[TypeRoot, ...] | None]] = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "max": _ORDERED,
    "min": _ORDERED,
    "last_value": None,
    "last_value_ignore_nulls": None,
    "first_value": None,
    "first_value_ignore_nulls": None,
    "listagg": (_R.STRING,),
    "string_agg": (_R.STRING,),
    "bool_and": (_R.BOOLEAN,),
    "bool_or": (_R.BOOLEAN,),
}
_LONG_DIGITS: Final = 18
_DEFAULT: Final = "last_value_ignore_nulls"
_EXACT: Final = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
# runs up to this length are aggregated side by side, longer ones one by one
_SIDE_BY_SIDE: Final = 32


def function_name(name: str) -> str:
    """Return how a function is called here, whichever way a client wrote it."""
    return name.lower().replace("-", "_")


def aggregate_of(column: Column, is_key: bool) -> Aggregate:
    """Return the function of a column; without one, the last value that is not null."""
    name = "last_value" if is_key else function_name(column.aggregate or _DEFAULT)
    if name == "last_value":
        return last_value
    if name == "last_value_ignore_nulls":
        return _last_valid
    if name in ("first_value", "first_value_ignore_nulls"):
        return _first_valid
    if name in ("listagg", "string_agg"):
        delimiter = dict(column.aggregate_parameters).get("delimiter", ",")
        return _one_by_one(lambda old, new: f"{old}{delimiter}{new}")
    if name in ("max", "bool_or"):
        return _largest
    if name in ("min", "bool_and"):
        return _smallest
    if column.type.root is _R.DECIMAL:
        return _one_by_one(_decimals(column, name))
    if column.type.root in (_R.FLOAT, _R.DOUBLE):
        # -0.0 is what changes no sum, 0.0 would change -0.0
        return _numbers(np.add, -0.0) if name == "sum" else _numbers(np.multiply, 1.0)
    return _integer_sum if name == "sum" else _numbers(np.multiply, 1)


# ---- functions that choose one of the values


def last_value(values: pa.Array, begins: Int64s) -> pa.Array:
    """Return the values: each is the last one so far."""
    return values


def _last_valid(values: pa.Array, begins: Int64s) -> pa.Array:
    return _chosen(values, begins, _valid(values))


def _first_valid(values: pa.Array, begins: Int64s) -> pa.Array:
    valid = _valid(values)
    return _chosen(values, begins, valid & (_counts(valid, begins) == 1))


def _largest(values: pa.Array, begins: Int64s) -> pa.Array:
    # of equal values the first stays
    valid, keys = _comparable(values, begins, descending=False)
    before = np.empty_like(keys)
    before[:1] = -1
    np.maximum.accumulate(keys[:-1], out=before[1:])
    return _chosen(values, begins, valid & (keys > before))


def _smallest(values: pa.Array, begins: Int64s) -> pa.Array:
    # of equal values the last stays
    valid, keys = _comparable(values, begins, descending=True)
    return _chosen(values, begins, valid & (keys == np.maximum.accumulate(keys)))


def _valid(values: pa.Array) -> Bools:
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _counts(valid: Bools, begins: Int64s) -> Int64s:
    """Return how many values of its run are valid, up to each."""
    counts: Int64s = np.cumsum(valid, dtype=np.int64)
    found: Int64s = counts - counts[begins] + valid[begins]
    return found


def _chosen(values: pa.Array, begins: Int64s, wins: Bools) -> pa.Array:
    """Return for each value the last one of its run that wins, up to it; null for none."""
    if not len(values):
        return values
    places = np.maximum.accumulate(np.where(wins, np.arange(len(values)), -1))
    return values.take(pa.array(places, mask=places < begins))


def _comparable(values: pa.Array, begins: Int64s, *, descending: bool) -> tuple[Bools, Int64s]:
    """Return what is not null, and numbers that order values within a run, and run after run."""
    valid = _valid(values)
    if pa.types.is_floating(values.type):
        # as in Java, NaN is the largest, and -0.0 is less than 0.0
        distinct, ranks = np.unique(_in_total_order(values), return_inverse=True)
        count = len(distinct)
    else:
        encoded = values.dictionary_encode()
        count = len(encoded.dictionary)
        rank = np.empty(count + 1, np.int64)
        rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(count)
        ranks = rank[encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)]
    ranks = count - ranks if descending else ranks + 1
    keys: Int64s = begins * (count + 2) + np.where(valid, ranks, 0)
    return valid, keys


def _in_total_order(values: pa.Array) -> npt.NDArray[Any]:
    """Return the bits of floats as integers of the same order, with every NaN as one number."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)
    bits = numbers.view(np.int32 if numbers.dtype.itemsize == 4 else np.int64)
    # without the sign, larger bits are a larger number; of negative ones, a smaller
    ordered: npt.NDArray[Any] = np.where(bits < 0, ~(bits & np.iinfo(bits.dtype).max), bits)
    return ordered


# ---- functions that compute


def _integer_sum(values: pa.Array, begins: Int64s) -> pa.Array:
    # integers wrap around, as those of Java do: so what was before a run can be taken off again
    valid = _valid(values)
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    sums = np.add.accumulate(numbers, dtype=numbers.dtype)
    with np.errstate(over="ignore"):
        sums = sums - sums[begins] + numbers[begins]
    return pa.array(sums, values.type, mask=_counts(valid, begins) == 0)


def _numbers(function: np.ufunc, neutral: float) -> Aggregate:
    def aggregate(values: pa.Array, begins: Int64s) -> pa.Array:
        valid = _valid(values)
        numbers = np.where(valid, values.fill_null(0).to_numpy(zero_copy_only=False), neutral)
        numbers = numbers.astype(values.type.to_pandas_dtype())
        with np.errstate(all="ignore"):
            _accumulate(function, numbers, begins)
        return pa.array(numbers, values.type, mask=_counts(valid, begins) == 0, from_pandas=False)

    return aggregate


def _accumulate(function: np.ufunc, numbers: npt.NDArray[Any], begins: Int64s) -> None:
    """Replace numbers by the results of a function over their runs, each in its order."""
    place = np.arange(len(numbers)) - begins
    for step in range(1, min(_SIDE_BY_SIDE, int(place.max(initial=0)) + 1)):
        at = np.flatnonzero(place == step)
        numbers[at] = function(numbers[at - 1], numbers[at])
    # the rest of longer runs
    for start in np.flatnonzero(place == _SIDE_BY_SIDE).tolist():
        rest = slice(start - 1, int(np.searchsorted(begins, begins[start], "right")))
        function.accumulate(numbers[rest], out=numbers[rest])


def _one_by_one(merge: Callable[[Any, Any], Any]) -> Aggregate:
    def aggregate(values: pa.Array, begins: Int64s) -> pa.Array:
        made: list[Any] = []
        runs = (begins == np.arange(len(begins))).tolist()
        state: Any = None
        for value, is_first in zip(values.to_pylist(), runs, strict=True):
            if is_first or state is None:
                state = value
            elif value is not None:
                state = merge(state, value)
            made.append(state)
        return pa.array(made, values.type)

    return aggregate


def _decimals(
    column: Column, name: str
) -> Callable[[decimal.Decimal, decimal.Decimal], decimal.Decimal | None]:
    """Return sum or product of decimals.

    A result with too many digits is null; but sums of up to 18 digits are refused then, as Fluss
    finds out too late what it made. Arrow's decimals widen with every operation, Python's do not.
    """
    precision, scale = column.type.precision or 10, column.type.scale or 0
    unit = decimal.Decimal(1).scaleb(-scale)
    limit = decimal.Decimal(10) ** (precision - scale)

    def merge(old: decimal.Decimal, new: decimal.Decimal) -> decimal.Decimal | None:
        made = _EXACT.add(old, new) if name == "sum" else _EXACT.multiply(old, new)
        rounded = _EXACT.quantize(made, unit)
        # abs() would round to the digits of the thread's context, 28 by default
        if rounded.copy_abs() < limit:
            return rounded
        if name == "sum" and precision <= _LONG_DIGITS:
            raise FlussError(
                f"the sum {rounded} of column '{column.name}' has more digits than its type"
                f" {column.type}: make the column wider",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        return None

    return merge

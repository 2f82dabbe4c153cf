"""The aggregate functions of Fluss: an old and a new value of a column, to one.

The functions take Arrow arrays of one length, and treat nulls, overflow and NaN as Fluss does.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.types import Column, TypeRoot

Aggregate = Callable[[pa.Array, pa.Array], pa.Array]

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


def function_name(name: str) -> str:
    """Return how a function is called here, whichever way a client wrote it."""
    return name.lower().replace("-", "_")


def aggregate_of(column: Column, is_key: bool) -> Aggregate:
    """Return the function of a column; without one, the last value that is not null."""
    name = "last_value" if is_key else function_name(column.aggregate or _DEFAULT)
    root = column.type.root
    if name == "last_value":
        return _last
    if name == "last_value_ignore_nulls":
        return lambda old, new: _kept(new, old)
    if name in ("first_value", "first_value_ignore_nulls"):
        return _kept
    if name in ("listagg", "string_agg"):
        delimiter = dict(column.aggregate_parameters).get("delimiter", ",")
        return _both(lambda old, new: pc.binary_join_element_wise(old, new, delimiter))
    if name == "bool_and":
        return _both(pc.and_)
    if name == "bool_or":
        return _both(pc.or_)
    if name in ("max", "min"):
        return _both(_float_extreme(name) if root in (_R.FLOAT, _R.DOUBLE) else _EXTREMES[name])
    if root is _R.DECIMAL:
        return _both(_decimals(column, name))
    # integers wrap around, as those of Java do
    return _both(pc.add if name == "sum" else pc.multiply)


def _last(old: pa.Array, new: pa.Array) -> pa.Array:
    return new


def _kept(first: pa.Array, second: pa.Array) -> pa.Array:
    """Return the first value, or the second where there is none."""
    return pc.if_else(pc.is_valid(first), first, second)


def _both(merge: Aggregate) -> Aggregate:
    """Return a function that takes the other value where one is null."""

    def function(old: pa.Array, new: pa.Array) -> pa.Array:
        both = pc.and_(pc.is_valid(old), pc.is_valid(new))
        # a merge may end in a null, so it is not left to coalesce
        return pc.if_else(both, merge(old, new), _kept(old, new))

    return function


_EXTREMES: Final[Mapping[str, Aggregate]] = {
    "max": lambda old, new: pc.if_else(pc.less(old, new), new, old),
    "min": lambda old, new: pc.if_else(pc.less(old, new), old, new),
}


def _float_extreme(name: str) -> Aggregate:
    """Return max or min of floats: NaN is the largest, as in Java."""

    def function(old: pa.Array, new: pa.Array) -> pa.Array:
        old_is_less = pc.or_(pc.less(old, new), pc.and_(pc.is_nan(new), pc.invert(pc.is_nan(old))))
        return pc.if_else(old_is_less, *((new, old) if name == "max" else (old, new)))

    return function


def _decimals(column: Column, name: str) -> Aggregate:
    """Return sum or product of decimals.

    A result with too many digits is null; but sums of up to 18 digits are refused then, as Fluss
    finds out too late what it made.
    """
    precision, scale = column.type.precision or 10, column.type.scale or 0
    unit = decimal.Decimal(1).scaleb(-scale)
    limit = decimal.Decimal(10) ** (precision - scale)

    def merge(old: decimal.Decimal | None, new: decimal.Decimal | None) -> decimal.Decimal | None:
        if old is None or new is None:
            return None
        made = _EXACT.add(old, new) if name == "sum" else _EXACT.multiply(old, new)
        rounded = _EXACT.quantize(made, unit)
        if abs(rounded) < limit:
            return rounded
        if name == "sum" and precision <= _LONG_DIGITS:
            raise FlussError(
                f"the sum {rounded} of column '{column.name}' has more digits than its type"
                f" {column.type}: make the column wider",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        return None

    def function(old: pa.Array, new: pa.Array) -> pa.Array:
        # Arrow's decimals widen with every operation; Python's are exact, and rare enough
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return pa.array([merge(a, b) for a, b in pairs], old.type)

    return function

"""Which plain values of Python surely fit a column, without converting them.

Converting one value alone takes Arrow 50 us and more. What is asked of each row as it is appended
is therefore Python source, which costs a fraction of a microsecond for a value: it knows the usual
kinds of values, and says no to all others, which may yet fit.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from fluss_df.types import DataType, TypeRoot

_R = TypeRoot
_BITS: Final = {_R.TINYINT: 8, _R.SMALLINT: 16, _R.INTEGER: 32, _R.BIGINT: 64}
_LARGEST_FLOAT32: Final = 3.4028234e38
# integers up to here are exact as floats
_EXACT: Final = {_R.FLOAT: 1 << 24, _R.DOUBLE: 1 << 53}
# digits of a second that values of Python have
_DIGITS: Final = 6
# years of which an int64 of nanoseconds holds each moment, in each time zone
_NANOSECOND_YEARS: Final = (1678, 2261)
# years that a time zone does not move out of those of Python
_ZONED_YEARS: Final = (2, 9998)


def _encodes(text: str) -> bool:
    """Whether a string has no lone surrogates, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


#: What the source of :func:`condition` needs besides the names that it adds.
NAMES: Final[Mapping[str, object]] = {
    "encodes": _encodes,
    "Date": dt.date,
    "Time": dt.time,
    "DateTime": dt.datetime,
    "Decimal": Decimal,
    "integers": frozenset({int, np.int8, np.int16, np.int32, np.int64}),
    "floats": frozenset({float, np.float64}),
    "UTC": dt.UTC,
    "ZoneInfo": ZoneInfo,
}


def condition(t: DataType, value: str, names: dict[str, Any], digits: int = _DIGITS) -> str:
    """Return Python source that is true where a value surely fits.

    Parameters
    ----------
    t
        The type of the column. Whether it takes nulls is not looked at.
    value
        The name of the value in the source.
    names
        Gets the functions that the source calls, besides :data:`NAMES`.
    digits
        How many digits of a second a TIME may have at the most.
    """
    root = t.root
    if root in _BITS:
        limit = 1 << (_BITS[root] - 1)
        return f"type({value}) in integers and {-limit} <= {value} < {limit}"
    if root is _R.BOOLEAN:
        return f"type({value}) is bool"
    if root in _EXACT:
        limit = _EXACT[root]
        # the difference of NaN, and of infinities, is NaN
        inside = f"(-{_LARGEST_FLOAT32} < {value} < {_LARGEST_FLOAT32} or {value} - {value} != 0)"
        floats = f"type({value}) in floats{f' and {inside}' if root is _R.FLOAT else ''}"
        return f"({floats} or type({value}) is int and {-limit} <= {value} <= {limit})"
    if root is _R.STRING or root is _R.CHAR:
        length = f" and len({value}) <= {t.length}" if root is _R.CHAR else ""
        return f"type({value}) is str{length} and ({value}.isascii() or encodes({value}))"
    if root is _R.BYTES:
        return f"type({value}) is bytes"
    if root is _R.BINARY:
        return f"type({value}) is bytes and len({value}) == {t.length}"
    if root is _R.DECIMAL:
        return _decimal(t, value, names)
    if root is _R.DATE:
        return f"type({value}) is Date"
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        whole = _whole(value, min(t.precision or 0, digits))
        return f"type({value}) is Time and {value}.tzinfo is None{whole}"
    if root in (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        return _timestamp(t, value)
    name = f"nested{len(names)}"
    names[name] = _nested(t)
    return f"{name}({value})"


def _whole(value: str, precision: int) -> str:
    """Return the condition under which a moment has no more digits than its type."""
    return f" and not {value}.microsecond % {10 ** (_DIGITS - precision)}" if precision < 6 else ""


def _timestamp(t: DataType, value: str) -> str:
    precision = t.precision or 0
    zone = f"{value}.tzinfo is None"
    years = None if precision <= _DIGITS else _NANOSECOND_YEARS
    if t.root is _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE:
        # other zones may be away from UTC by fractions of a second, or fail
        zone = f"({zone} or {value}.tzinfo is UTC or type({value}.tzinfo) is ZoneInfo)"
        years = years or _ZONED_YEARS
    within = "" if years is None else f" and {years[0]} <= {value}.year <= {years[1]}"
    return f"type({value}) is DateTime and {zone}{within}{_whole(value, precision)}"


def _decimal(t: DataType, value: str, names: dict[str, Any]) -> str:
    scale = t.scale or 0
    limit = 10 ** ((t.precision or 0) - scale)
    # Python compares a Decimal with another in half of the time that it takes with an int
    bound, unit = f"bound{len(names)}", f"unit{len(names)}"
    names[bound], names[unit] = Decimal(limit), Decimal((0, (1,), -scale))
    finite = f"{value}.is_finite() and {-scale} <= {value}.as_tuple().exponent <= 0"
    number = (
        f"type({value}) is Decimal and ({value}.same_quantum({unit}) or {finite})"
        f" and -{bound} < {value} < {bound}"
    )
    return f"({number} or type({value}) is int and {-limit} < {value} < {limit})"


# ---- nested values


def checker(t: DataType) -> Callable[[Any], bool]:
    """Return a function that says whether a value surely fits, nulls included.

    Examples
    --------
    >>> fits = checker(DataType(TypeRoot.TINYINT))
    >>> fits(127), fits(None), fits(128)
    (True, True, False)
    """
    names = dict(NAMES)
    source = f"lambda v: {condition(t, 'v', names)}{' or v is None' if t.nullable else ''}"
    made: Callable[[Any], bool] = eval(source, names)
    return made


def _nested(t: DataType) -> Callable[[Any], bool]:
    if t.element is not None:
        return _array(t.element)
    if t.key is not None and t.value is not None:
        keys, values = _items(t.key.with_nullable(False)), _items(t.value)
        return lambda value: type(value) is dict and keys(value) and values(value.values())
    fields = [(field.name, checker(field.type)) for field in t.fields]
    count = len(fields)
    return lambda value: (
        type(value) is dict
        and len(value) == count
        and all(name in value and fits(value[name]) for name, fits in fields)
    )


_INTEGERS: Final = {
    root: (frozenset({int}), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for root, bits in _BITS.items()
}
# of numbers: the types of items that may be looked at together, and the least and greatest of them
_NUMBERS: Final = {
    **_INTEGERS,
    _R.FLOAT: (frozenset({float}), -_LARGEST_FLOAT32, _LARGEST_FLOAT32),
    _R.DOUBLE: (frozenset({float}), -float("inf"), float("inf")),
}
# NumPy's arrays whose items fit whatever they are
_ARRAYS: Final = {
    _R.TINYINT: np.dtype(np.int8),
    _R.SMALLINT: np.dtype(np.int16),
    _R.INTEGER: np.dtype(np.int32),
    _R.BIGINT: np.dtype(np.int64),
    _R.FLOAT: np.dtype(np.float32),
    _R.DOUBLE: np.dtype(np.float64),
}


def _array(t: DataType) -> Callable[[Any], bool]:
    """Return a function that says whether a value surely is an array of such items."""
    items = _items(t)
    number, dtype = _NUMBERS.get(t.root), _ARRAYS.get(t.root)
    if number is None:
        return lambda value: type(value) in (list, tuple) and items(value)
    kinds, least, greatest = number
    only = kinds.issuperset

    def fits(value: Any) -> bool:
        if type(value) is list or type(value) is tuple:
            # Looked at together, which takes a third of the time of one by one. Not so where a NaN
            # comes first: it hides what is behind it, and is not above the least number.
            alike = only(map(type, value))
            return (alike and (not value or (least <= min(value) and max(value) <= greatest))) or (
                items(value)
            )
        return type(value) is np.ndarray and value.ndim == 1 and value.dtype == dtype

    return fits


def _items(t: DataType) -> Callable[[Any], bool]:
    """Return a function that says whether all items surely fit."""
    one = checker(t)
    return lambda items: all(map(one, items))

"""Which plain values of Python surely fit a column, without converting them.

Converting one value alone takes Arrow 50 us and more. What is asked of each row as it is appended
is therefore Python source, which costs a fraction of a microsecond for a value: it knows the usual
kinds of values, and says no to all others, which may yet fit.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fluss_df.record.rows.single_numbers import ZONED_YEARS, in_seconds
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot
_BITS: Final = {_R.TINYINT: 8, _R.SMALLINT: 16, _R.INTEGER: 32, _R.BIGINT: 64}
_LARGEST_FLOAT32: Final = 3.4028234e38
# integers up to here are exact as floats
_EXACT: Final = {_R.FLOAT: 1 << 24, _R.DOUBLE: 1 << 53}
# digits of a second that values of Python have
_DIGITS: Final = 6
#: The digits of the longest DECIMAL. Arrow refuses numbers of more, or makes them 0.
MOST_DIGITS: Final = 38
# years of which an int64 of nanoseconds holds each moment, in each time zone
_NANOSECOND_YEARS: Final = (1678, 2261)


def _encodes(text: str) -> bool:
    """Whether a string has no lone surrogates, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_timestamp(value: Any) -> bool:
    """Whether a value is a timestamp of pandas, which need not be imported.

    Not so for other years than Python's: Arrow reads those as 1972.
    """
    kind = type(value)
    of_pandas = kind.__name__ == "Timestamp" and kind.__module__.partition(".")[0] == "pandas"
    return of_pandas and 1 <= value.year <= 9999


def _has_digits(number: Decimal, precision: int, scale: int) -> bool:
    """Whether a finite number, within its bounds, has no more digits than its type."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) > MOST_DIGITS or exponent < -MOST_DIGITS:
        return False
    if exponent > 0:
        # also of a zero, such as 0E+1, Arrow counts these digits
        return len(digits) + exponent <= precision - scale
    if exponent >= -scale:
        return True
    # digits beyond the last may be zeros
    return not any(digits[exponent + scale :]) and -exponent <= len(digits) + scale


#: What the source of :func:`condition` needs besides the names that it adds.
NAMES: Final[Mapping[str, object]] = {
    "encodes": _encodes,
    "Date": dt.date,
    "Time": dt.time,
    "DateTime": dt.datetime,
    "Decimal": Decimal,
    "IntEnum": enum.IntEnum,
    "integers": frozenset(
        (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
    ),
    "floats": frozenset((np.float32, np.float64)),
    "Bool": np.bool_,
    "infinity": float("inf"),
    "is_timestamp": _is_timestamp,
    "in_seconds": in_seconds,
    "has_digits": _has_digits,
    "UTC": dt.UTC,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a table takes less than its columns' types.

    Attributes
    ----------
    digits
        How many digits of a second a TIME may have at the most.
    padded
        Whether CHAR(n) takes n bytes at the most, and the last byte of CHAR and BINARY is not zero.
    required
        Columns that are not null although their types are nullable.
    check
        Raises SchemaMismatchError for rows beyond ``digits`` and ``padded``.
    """

    digits: int = _DIGITS
    padded: bool = False
    required: frozenset[str] = frozenset()
    check: Callable[[pa.RecordBatch, Sequence[Column], str], object] | None = None


NO_LIMITS: Final = Limits()


def condition(t: DataType, value: str, names: dict[str, Any], limits: Limits) -> str:
    """Return Python source that is true where a value surely fits.

    Parameters
    ----------
    t
        The type of the column. Whether it takes nulls is not looked at.
    value
        The name of the value in the source.
    names
        Gets the functions that the source calls, besides :data:`NAMES`.
    limits
        What the table takes less than the type.
    """
    root = t.root
    kind = f"type({value})"
    if root in _BITS:
        limit = 1 << (_BITS[root] - 1)
        integer = f"({kind} is int or {kind} in integers or isinstance({value}, IntEnum))"
        return f"{integer} and {-limit} <= {value} < {limit}"
    if root is _R.BOOLEAN:
        return f"({kind} is bool or {kind} is Bool)"
    if root in _EXACT:
        limit = _EXACT[root]
        floats = f"({kind} is float or {kind} in floats)"
        if root is _R.FLOAT:
            endless = f"{value} != {value} or {value} == infinity or {value} == -infinity"
            floats += f" and (-{_LARGEST_FLOAT32} < {value} < {_LARGEST_FLOAT32} or {endless})"
        return f"({floats} or {kind} is int and {-limit} <= {value} <= {limit})"
    if root is _R.STRING or root is _R.CHAR:
        length = f" and len({value}) <= {t.length}" if root is _R.CHAR else ""
        # an enum of strings is one, too
        text = f"({kind} is str or isinstance({value}, str))"
        good = f"{text}{length} and ({value}.isascii() or encodes({value}))"
        if root is _R.CHAR and limits.padded:
            short = f"({value}.isascii() or len({value}.encode()) <= {t.length})"
            good += f" and {short} and {value}[-1:] != '\\0'"
        return good
    if root is _R.BYTES or root is _R.BINARY:
        length = f" and len({value}) == {t.length}" if root is _R.BINARY else ""
        if root is _R.BINARY and limits.padded:
            length += f" and {value}[-1:] != b'\\0'"
        return f"({kind} is bytes or {kind} is bytearray){length}"
    if root is _R.DECIMAL:
        return _decimal(t, value, names)
    if root is _R.DATE:
        return f"type({value}) is Date"
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        whole = _whole(value, min(t.precision or 0, limits.digits))
        return f"type({value}) is Time and {value}.tzinfo is None{whole}"
    if root in (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        return _timestamp(t, value)
    name = f"nested{len(names)}"
    names[name] = _nested(t, limits)
    return f"{name}({value})"


def _whole(value: str, precision: int) -> str:
    """Return the condition under which a moment has no more digits than its type."""
    return f" and not {value}.microsecond % {10 ** (_DIGITS - precision)}" if precision < 6 else ""


def _timestamp(t: DataType, value: str) -> str:
    precision = t.precision or 0
    zone = f"{value}.tzinfo is None"
    years = None if precision <= _DIGITS else _NANOSECOND_YEARS
    if t.root is _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE:
        zone = f"({zone} or {value}.tzinfo is UTC or in_seconds({value}.tzinfo))"
        years = years or ZONED_YEARS
    within = "" if years is None else f" and {years[0]} <= {value}.year <= {years[1]}"
    least = 10 ** (9 - max(precision, _DIGITS))
    kind = f"type({value}) is DateTime or is_timestamp({value})"
    if least > 1:
        kind += f" and not {value}.nanosecond % {least}"
    return f"({kind}) and {zone}{within}{_whole(value, precision)}"


def _decimal(t: DataType, value: str, names: dict[str, Any]) -> str:
    precision, scale = t.precision or 0, t.scale or 0
    limit = 10 ** (precision - scale)
    # Python compares a Decimal with another in half of the time that it takes with an int
    bound, unit = f"bound{len(names)}", f"unit{len(names)}"
    names[bound], names[unit] = Decimal(limit), Decimal((0, (1,), -scale))
    finite = f"{value}.is_finite() and has_digits({value}, {precision}, {scale})"
    number = (
        f"type({value}) is Decimal and ({value}.same_quantum({unit}) or {finite})"
        f" and -{bound} < {value} < {bound}"
    )
    return f"({number} or type({value}) is int and {-limit} < {value} < {limit})"


# ---- nested values


def checker(t: DataType, limits: Limits = NO_LIMITS) -> Callable[[Any], bool]:
    """Return a function that says whether a value surely fits, nulls included.

    ``limits`` are as for :func:`condition`.

    Examples
    --------
    >>> fits = checker(DataType(TypeRoot.TINYINT))
    >>> fits(127), fits(None), fits(128)
    (True, True, False)
    """
    names = dict(NAMES)
    source = f"lambda v: {condition(t, 'v', names, limits)}{' or v is None' if t.nullable else ''}"
    made: Callable[[Any], bool] = eval(source, names)
    return made


def _nested(t: DataType, limits: Limits) -> Callable[[Any], bool]:
    if t.element is not None:
        return _array(t.element, limits)
    if t.key is not None and t.value is not None:
        return _map(_items(t.key.with_nullable(False), limits), _items(t.value, limits))
    return _row([(f.name, f.type.nullable, checker(f.type, limits)) for f in t.fields])


def _map(
    keys: Callable[[Iterable[Any]], bool], values: Callable[[Iterable[Any]], bool]
) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if type(value) in _DICTS:
            return keys(value) and values(value.values())
        return (
            type(value) in _SEQUENCES
            and all(type(pair) in _SEQUENCES and len(pair) == 2 for pair in value)
            and keys(pair[0] for pair in value)
            and values(pair[1] for pair in value)
        )

    return fits


def _row(fields: list[tuple[str, bool, Callable[[Any], bool]]]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if type(value) in _DICTS:
            found = 0
            for name, nullable, fits_field in fields:
                if name in value:
                    found += 1
                    if not fits_field(value[name]):
                        return False
                elif not nullable:
                    return False
            return found == len(value)
        return (
            type(value) in _SEQUENCES
            and len(value) == len(fields)
            and all(field[2](item) for field, item in zip(fields, value, strict=True))
        )

    return fits


_SEQUENCES: Final = (list, tuple)
_DICTS: Final = (dict, OrderedDict, defaultdict)
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


def _array(t: DataType, limits: Limits) -> Callable[[Any], bool]:
    """Return a function that says whether a value surely is an array of such items."""
    items = _items(t, limits)
    number, dtype = _NUMBERS.get(t.root), _ARRAYS.get(t.root)
    if number is None:
        # Arrow takes no integers of NumPy for decimals
        arrays = t.root is not _R.DECIMAL
        return lambda value: (
            items(value)
            if type(value) in _SEQUENCES
            else arrays and _is_plain(value) and items(value.tolist())
        )
    kinds, least, greatest = number
    only = kinds.issuperset

    def fits(value: Any) -> bool:
        if type(value) in _SEQUENCES:
            # Looked at together, which takes a third of the time of one by one. Not so where a NaN
            # comes first: it hides what is behind it, and is not above the least number.
            alike = only(map(type, value))
            return (alike and (not value or (least <= min(value) and max(value) <= greatest))) or (
                items(value)
            )
        return _is_plain(value) and (value.dtype == dtype or items(value.tolist()))

    return fits


def _is_plain(value: object) -> bool:
    """Whether a value is an array of NumPy whose items are numbers, booleans or strings."""
    return type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "iufbU"


def _items(t: DataType, limits: Limits) -> Callable[[Iterable[Any]], bool]:
    """Return a function that says whether all items surely fit."""
    one = checker(t, limits)
    return lambda items: all(map(one, items))

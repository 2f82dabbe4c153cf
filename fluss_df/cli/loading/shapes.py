"""Whether what JSON has fits a column: by the types that a reader found, and value by value.

A reader's types tell of millions of values at once, but not all: the one of Polars takes ``1`` for
``[1]`` beside lists, and ``1.50`` for the text ``1.5`` beside texts. Where types leave a doubt, the
values are looked at one by one, with their numbers as they are written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Protocol, cast

import polars as pl
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.io.base.texts import entries_of

#: The digits of a decimal number that a double keeps.
DOUBLE_DIGITS = 15
#: The largest whole number up to which a double holds all.
DOUBLE_WHOLE = 2**53


class Place(Protocol):
    """A file, and its errors."""

    def error(self, line: int | None, column: str | None, text: str) -> FlussError:
        """Return an error that names the file and the place in it."""


def _no_field(name: str, there: Iterable[str]) -> str:
    return f"the column has no field '{name}' (there are {list(there)})"


def _few_digits(kind: pl.DataType) -> str:
    return (
        f"numbers with a point are read with {DOUBLE_DIGITS} digits, and the column is of {kind}:"
        ' write them as texts, as "1.50"'
    )


def _is_long(kind: pl.DataType) -> bool:
    return isinstance(kind, pl.Decimal) and (kind.precision or 38) > DOUBLE_DIGITS


# ---- by types


def check_shape(source: Place, name: str, found: pl.DataType, wanted: pl.DataType) -> None:
    """Raise where JSON has values of another kind than a column, or fields that it has not."""
    wanted = entries_of(wanted)
    if isinstance(found, pl.List) and isinstance(wanted, pl.List):
        check_shape(source, name, _of(found.inner), _of(wanted.inner))
        return
    if isinstance(found, pl.Struct) and isinstance(wanted, pl.Struct):
        there = {f.name: _of(f.dtype) for f in wanted.fields}
        for part in found.fields:
            if part.name not in there:
                raise source.error(None, name, _no_field(part.name, there))
            check_shape(source, f"{name}.{part.name}", _of(part.dtype), there[part.name])
        return
    if found == pl.Null:
        return
    text = found == pl.String
    if wanted.is_nested() or found.is_nested():
        fits = False
    elif wanted == pl.Boolean:
        fits = text or found == pl.Boolean
    else:
        fits = text or (wanted.is_numeric() and found.is_numeric())
    if not fits:
        raise source.error(None, name, f"it has values of {found}, the column is of {wanted}")
    if _is_long(wanted) and found.is_float():
        raise source.error(None, name, _few_digits(wanted))


def surely_fits(found: pa.DataType, wanted: pl.DataType) -> bool:
    """Whether all values of a type that Arrow found in JSON are what a column takes.

    Where it is false, some may be none: Arrow's type has not kept how numbers were written.
    """
    wanted = entries_of(wanted)
    if pa.types.is_null(found):
        return True
    if isinstance(wanted, pl.List):
        if not isinstance(found, pa.ListType):
            return False
        return surely_fits(cast("pa.DataType", found.value_type), _of(wanted.inner))
    if isinstance(wanted, pl.Struct):
        there = {f.name: _of(f.dtype) for f in wanted.fields}
        return isinstance(found, pa.StructType) and all(
            part.name in there and surely_fits(part.type, there[part.name])
            for part in (found.field(at) for at in range(found.num_fields))
        )
    # Arrow makes moments of texts that look like them
    if pa.types.is_string(found) or pa.types.is_timestamp(found):
        return True
    if wanted == pl.Boolean:
        return bool(pa.types.is_boolean(found))
    if pa.types.is_integer(found):
        return wanted.is_numeric()
    if pa.types.is_floating(found):
        return wanted.is_float() or (isinstance(wanted, pl.Decimal) and not _is_long(wanted))
    return False


def leaves(kind: pl.DataType) -> Iterator[pl.DataType]:
    """Give a type, or of a nested one the types that it is made of."""
    kind = entries_of(kind)
    if isinstance(kind, pl.List):
        yield from leaves(_of(kind.inner))
    elif isinstance(kind, pl.Struct):
        for field in kind.fields:
            yield from leaves(_of(field.dtype))
    else:
        yield kind


def _of(kind: object) -> pl.DataType:
    return cast("pl.DataType", kind)


# ---- value by value


class Whole(str):
    """A whole number of JSON, as it is written."""


class Real(str):
    """A number of JSON with a point or an exponent, as it is written."""


class Fields(list[tuple[str, object]]):
    """An object of JSON, with fields that stand there twice."""


def no_constant(text: str) -> object:
    """Refuse NaN and Infinity, which Python's reader takes."""
    raise ValueError(f"JSON has no number {text}")


def values_of(text: str | bytes) -> object:
    """Return what JSON says, with numbers as they are written.

    Raises ValueError for what is no JSON, and RecursionError for what is nested too deep.
    """
    return json.loads(
        text,
        parse_int=Whole,
        parse_float=Real,
        parse_constant=no_constant,
        object_pairs_hook=Fields,
    )


def wrong(
    name: str, value: object, kind: pl.DataType, *, guessed: bool = False
) -> tuple[str, str] | None:
    """Return the column and what is wrong with a value of :func:`values_of`; None if nothing is.

    ``guessed`` says that no user asked for the type.
    """
    kind = entries_of(kind)
    if value is None:
        return None
    if isinstance(value, Fields):
        if isinstance(kind, pl.Struct):
            return _wrong_fields(name, value, kind, guessed=guessed)
    elif isinstance(value, list):
        if isinstance(kind, pl.List):
            inner = _of(kind.inner)
            found = (wrong(name, part, inner, guessed=guessed) for part in value)
            return next(filter(None, found), None)
    elif not kind.is_nested():
        text = _wrong_leaf(value, kind, guessed=guessed)
        return None if text is None else (name, text)
    return name, f"{_shown(value)}, the column is of {kind}"


def _wrong_fields(
    name: str, value: Fields, kind: pl.Struct, *, guessed: bool
) -> tuple[str, str] | None:
    there = {f.name: _of(f.dtype) for f in kind.fields}
    seen: set[str] = set()
    for part, inner in value:
        if part not in there:
            return name, _no_field(part, there)
        if part in seen:
            return f"{name}.{part}", "the field stands there twice"
        seen.add(part)
        found = wrong(f"{name}.{part}", inner, there[part], guessed=guessed)
        if found is not None:
            return found
    return None


def _wrong_leaf(value: object, kind: pl.DataType, *, guessed: bool) -> str | None:
    if isinstance(value, bool):
        return None if kind == pl.Boolean else f"{_shown(value)}, the column is of {kind}"
    if isinstance(value, Real | Whole):
        if not kind.is_numeric():
            way = f': write it as a text, as "{value}"' if kind == pl.String else ""
            return f"{_shown(value)}, the column is of {kind}{way}"
        return _wrong_number(value, kind, guessed=guessed)
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "a text has half of a surrogate pair by itself, which is no character"
    return None


def _wrong_number(value: Real | Whole, kind: pl.DataType, *, guessed: bool) -> str | None:
    if isinstance(value, Real):
        if math.isinf(float(value)):
            return f"{str(value)!r} is no value of {kind}"
        if _is_long(kind):
            return _few_digits(kind)
        # a reader makes a double of it first
        if kind.is_integer() and Decimal(value) != Decimal(float(value)):
            return _few_digits(kind)
    elif guessed and kind.is_float() and abs(int(value)) > DOUBLE_WHOLE:
        return (
            f"{value} is a whole number beyond 2^53, and others of the column have a point: DOUBLE"
            " would change its digits. Write the numbers of the column as texts"
        )
    return None


def _shown(value: object) -> str:
    match value:
        case bool():
            return f"{str(value).lower()} is no text or number"
        case Real() | Whole():
            return f"{value} is a number"
        case Fields():
            return "an object stands there"
        case list():
            return "a list stands there"
    return f"{value!r:.80} is a text"

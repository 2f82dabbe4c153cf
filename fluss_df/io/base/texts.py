"""Values as texts and back, without loss: what CSV and JSON have no form for has one here.

Binary values are written as hexadecimal digits; decimals, dates and times as in SQL, with all their
digits; floats that JSON has no number for (NaN, infinities) as texts. In CSV, lists, maps and rows
are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl

from fluss_df.io.base.names import exact, exact_fields

_WRAPPED = '{"v":'
_SUBSECOND = "%.f"
#: The most seconds since 1970 that Polars can write as a date: the year 255,000.
MOST_SECONDS = 8 * 10**12
_MOST_DAYS = 95_000_000


def json_lines(frame: pl.DataFrame) -> str:
    """Return a frame as JSON, one object a line."""
    if all(map(_is_finite, frame.get_columns())):
        return frame.select(
            _plain(exact(name), kind).alias(name) for name, kind in frame.schema.items()
        ).write_ndjson()
    members = [
        pl.lit(json.dumps(name, ensure_ascii=False) + ":") + _json(exact(name), kind)
        for name, kind in frame.schema.items()
    ]
    row = pl.lit("{") + pl.concat_str(members, separator=",") + pl.lit("}\n")
    return "".join(frame.select(row.alias("row")).to_series().to_list())


def for_csv(schema: pl.Schema) -> list[pl.Expr]:
    """Return the columns of a frame as CSV takes them."""
    return [_csv_text(exact(name), kind).alias(name) for name, kind in schema.items()]


def _csv_text(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if not kind.is_nested():
        return _plain(value, kind)
    return pl.when(value.is_not_null()).then(_json(value, kind))


def _is_finite(column: pl.Series) -> bool:
    return all(leaf.is_finite().all() for leaf in _leaves(column) if leaf.dtype.is_float())


def _json(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return values as JSON, with texts for the floats that it has no number for."""
    match kind:
        case pl.Map():
            entries = _entries(kind)
            made = _json(value.cast(entries), entries)
        case pl.List():
            inner = _json(pl.element(), _of(kind.inner))
            made = pl.lit("[") + value.list.eval(inner).list.join(",") + pl.lit("]")
        case pl.Struct():
            members = [
                pl.lit(json.dumps(f.name, ensure_ascii=False) + ":") + _json(part, _of(f.dtype))
                for part, f in _parts(value, kind)
            ]
            made = pl.lit("{") + pl.concat_str(members, separator=",") + pl.lit("}")
        case pl.Float32() | pl.Float64():
            text = value.cast(pl.String)
            made = pl.when(value.is_finite()).then(text).otherwise(pl.format('"{}"', text))
        case _:
            wrapped = pl.struct(_plain(value, kind).alias("v")).struct.json_encode()
            made = wrapped.str.strip_prefix(_WRAPPED).str.head(-1)
    return pl.when(value.is_not_null()).then(made).otherwise(pl.lit("null"))


def _entries(kind: pl.Map) -> pl.List:
    """Return the type of a map as the list of its entries: JSON's objects have texts as keys."""
    return pl.List(pl.Struct({"key": kind.key, "value": kind.value}))


def _plain(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return values as booleans, numbers and texts, and lists and structs of them."""
    match kind:
        case pl.Map():
            entries = _entries(kind)
            return _plain(value.cast(entries), entries)
        case pl.List():
            return value.list.eval(_plain(pl.element(), _of(kind.inner)))
        case pl.Struct():
            fields = [_plain(part, _of(f.dtype)).alias(f.name) for part, f in _parts(value, kind)]
            return pl.when(value.is_not_null()).then(pl.struct(fields))
        case pl.Binary():
            return value.bin.encode("hex")
        case pl.Datetime():
            zone = "" if kind.time_zone is None else "Z"
            moment = value if kind.time_zone is None else value.dt.convert_time_zone("UTC")
            form = f"%Y-%m-%dT%H:%M:%S{_SUBSECOND}"
            if kind.time_unit == "ns":
                return moment.dt.strftime(form) + pl.lit(zone)
            # Polars panics for later ones, so their number since 1970 is written
            far = _is_far(value.to_physical(), kind)
            text = pl.when(~far).then(moment).dt.strftime(form) + pl.lit(zone)
            return pl.when(far).then(value.to_physical().cast(pl.String)).otherwise(text)
        case pl.Time():
            # a cast leaves parts of a second out
            return value.dt.strftime(f"%H:%M:%S{_SUBSECOND}")
        case pl.Date():
            far = _is_far(value.to_physical(), kind)
            text = pl.when(~far).then(value).cast(pl.String)
            return pl.when(far).then(value.to_physical().cast(pl.String)).otherwise(text)
        case pl.Decimal():
            return value.cast(pl.String)
    return value


def _is_far(number: Any, kind: pl.DataType) -> Any:
    """Whether dates or moments, as numbers since 1970, are none that Polars can write out."""
    if isinstance(kind, pl.Datetime):
        most = MOST_SECONDS * {"ms": 10**3, "us": 10**6}[kind.time_unit]
    else:
        most = _MOST_DAYS
    return (number >= most) | (number <= -most)


def writable(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame that Polars can print, with texts for columns that have dates too far away."""
    far = [column.name for column in frame.get_columns() if any(map(_has_far, _leaves(column)))]
    return frame.with_columns(_plain(exact(name), frame.schema[name]).alias(name) for name in far)


def _has_far(leaf: pl.Series) -> bool:
    kind = leaf.dtype
    if not isinstance(kind, pl.Date | pl.Datetime) or getattr(kind, "time_unit", "") == "ns":
        return False
    return bool(_is_far(leaf.to_physical(), kind).any())


def _parts(value: pl.Expr, kind: pl.Struct) -> Iterator[tuple[pl.Expr, pl.Field]]:
    """Give the fields of structs with what the type says of them."""
    return zip(exact_fields(value, (f.name for f in kind.fields)), kind.fields, strict=True)


def _of(kind: object) -> pl.DataType:
    assert isinstance(kind, pl.DataType)
    return kind


def _leaves(column: pl.Series) -> Iterator[pl.Series]:
    """Give a column, or of a nested one the columns that it is made of."""
    # renamed, because methods of a series look it up by its name, which may be a pattern
    column = column.alias("v")
    if isinstance(column.dtype, pl.Map):
        yield from _leaves(column.cast(_entries(column.dtype)))
    elif isinstance(column.dtype, pl.List):
        yield from _leaves(column.list.explode(empty_as_null=False, keep_nulls=False))
    elif isinstance(column.dtype, pl.Struct):
        for field in column.struct.unnest().get_columns():
            yield from _leaves(field)
    else:
        yield column


# ---- and back


def entries_of(kind: pl.DataType) -> pl.DataType:
    """Return the type of a map as the list of its entries; another as it is."""
    return _entries(kind) if isinstance(kind, pl.Map) else kind


def raw_type(kind: pl.DataType) -> pl.DataType:
    """Return the type with texts in place of all values."""
    match kind:
        case pl.Map():
            return raw_type(_entries(kind))
        case pl.List():
            return pl.List(raw_type(_of(kind.inner)))
        case pl.Struct():
            return pl.Struct({f.name: raw_type(_of(f.dtype)) for f in kind.fields})
    return pl.String()


def decoded(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a column of CSV whose nested values are JSON as one of :func:`raw_type`."""
    if not kind.is_nested():
        return exact(name)
    wrapped = pl.lit(_WRAPPED) + exact(name) + pl.lit("}")
    made = wrapped.str.json_decode(pl.Struct({"v": raw_type(kind)}))
    return made.struct.field("v").alias(name)


def typed(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return texts as values; null where a text is not a value of the type."""
    match kind:
        case pl.Map():
            return typed(value, _entries(kind)).cast(kind)
        case pl.List():
            return value.list.eval(typed(pl.element(), _of(kind.inner)))
        case pl.Struct():
            fields = [typed(part, _of(f.dtype)).alias(f.name) for part, f in _parts(value, kind)]
            return pl.when(value.is_not_null()).then(pl.struct(fields))
        case pl.Boolean():
            return value.str.to_lowercase().replace_strict(
                {"true": True, "false": False}, default=None, return_dtype=pl.Boolean
            )
        case pl.Binary():
            return value.str.decode("hex", strict=False)
        case pl.Date():
            return value.str.to_date("%Y-%m-%d", strict=False)
        case pl.Time():
            return value.str.to_time(f"%H:%M:%S{_SUBSECOND}", strict=False)
        case pl.Datetime():
            return _moment(value, kind)
        case pl.Decimal():
            # null, because the cast would round
            excess = value.str.contains(rf"\.\d{{{kind.scale}}}\d*[1-9]") | value.str.contains(
                "[eE]"
            )
            return pl.when(~excess).then(value.cast(kind, strict=False))
        case pl.Float32() | pl.Float64():
            return value.map_batches(
                lambda texts: _floats(texts, kind), return_dtype=kind, is_elementwise=True
            )
    return value if kind == pl.String else value.cast(kind, strict=False)


def _floats(texts: pl.Series, kind: pl.DataType) -> pl.Series:
    # methods of a series look it up by its name, which may be a pattern
    texts = texts.alias("texts")
    made = texts.cast(kind, strict=False)
    infinite = made.is_infinite()
    if not infinite.any():
        return made
    # null, because the cast makes an infinity of a number that is too large
    return made.set(infinite & texts.str.contains("[0-9]"), None)


def _moment(value: pl.Expr, kind: pl.Datetime) -> pl.Expr:
    text = value.str.replace(" ", "T", literal=True)
    text = pl.when(text.str.len_bytes() == 10).then(text + pl.lit("T00:00:00")).otherwise(text)
    # null, because the cast would cut off digits that the type does not have
    digits = {"ms": 3, "us": 6, "ns": 9}[kind.time_unit]
    fits = ~text.str.contains(rf"\.\d{{{digits}}}\d*[1-9]")
    form = f"%Y-%m-%dT%H:%M:%S{_SUBSECOND}"
    if kind.time_zone is None:
        made = text.str.to_datetime(form, time_unit=kind.time_unit, strict=False)
    else:
        text = text.str.replace("Z$", "+00:00")
        zoned = text.str.contains(r"[+-]\d{2}:?\d{2}$")
        text = pl.when(zoned).then(text).otherwise(text + pl.lit("+00:00"))
        made = text.str.to_datetime(f"{form}%z", time_unit=kind.time_unit, strict=False)
        made = made.dt.convert_time_zone(kind.time_zone)
    return pl.when(fits).then(made)


def misfit(texts: pl.Series, values: pl.Series) -> int | None:
    """Return the first row of which a text became null; None where there is none."""
    if _nulls(texts) == _nulls(values):
        return None
    first, end = 0, texts.len()
    while end - first > 1:
        middle = (first + end) // 2
        part = slice(first, middle)
        if _nulls(texts[part]) == _nulls(values[part]):
            first = middle
        else:
            end = middle
    return first


def _nulls(column: pl.Series) -> int:
    if column.dtype.is_nested():
        return column.null_count() + sum(leaf.null_count() for leaf in _leaves(column))
    return column.null_count()

"""The rows of a table: the first, the last, one by its key; and its changes."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import polars as pl
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from fluss_df.errors import FlussError
from fluss_df.io.base.arrow import to_polars
from fluss_df.io.base.names import exact
from fluss_df.io.scan import scan_fluss
from fluss_df.metadata import COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN, TableBucket
from fluss_df.pushdown.plan import Bucket
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot
from fluss_df.ui.shown import texts
from fluss_df.ui.state import State, asks, number, path_of

_ROWS: Final = (20, 100, 500)
_MOST_VALUES: Final = 20_000
# partitions that are read at once, and how long others are looked at where these have no rows
_PARTITIONS: Final = 20
_LONGEST_S: Final = 4.0
_MOST_BUCKETS: Final = 64
# how many buckets are asked about at once
_ASKED: Final = 256
_LATELY_S: Final = (10, 60, 600, 3600, 86_400, 30 * 86_400)
_DECIMAL_DIGITS: Final = 38
# the usual context would round to 28 digits
_EXACT: Final = decimal.Context(decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_WHOLE: Final = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)

Ranges: TypeAlias = dict[Bucket, tuple[int, int]]


@asks
def rows(state: State, request: Request) -> Response:
    """Return the page with rows."""
    path = path_of(request)
    info = state.watch.info(path)
    asked = request.query_params
    which = asked.get("which", "first")
    wanted = _wanted(info, asked.get("rows"))
    keys = info.get_primary_keys()
    given = {key: asked.get(f"key.{key}", "") for key in keys}
    problem = ""
    frame = pl.DataFrame()
    looked = ""
    try:
        if which == "key" and keys:
            frame = _looked_up(state, info, given)
        elif which == "last" and not keys:
            frame = _last(state, info, wanted, changes=False)
        elif info.has_primary_key() and info.is_partitioned():
            which = "first"
            frame, looked = _current(state, info, wanted)
        else:
            which = "first"
            frame = _first(state, info, wanted)
    except FlussError as error:
        # the form keeps what was typed, so that it can be corrected
        problem = error.message
    return state.page(
        request,
        "rows.html",
        path=path,
        info=info,
        here="rows",
        which=which,
        keys=[(column, given[column.name]) for column in _columns(info, keys)],
        wanted=wanted,
        choices=_ROWS,
        problem=problem,
        looked=looked,
        **shown(frame),
    )


@asks
def changes(state: State, request: Request) -> Response:
    """Return the page with the last changes, the newest first."""
    path = path_of(request)
    info = state.watch.info(path)
    wanted = _wanted(info, request.query_params.get("rows"))
    frame = _last(state, info, wanted, changes=True).reverse()
    return state.page(
        request,
        "changes.html",
        path=path,
        info=info,
        here="changes",
        wanted=wanted,
        choices=_ROWS,
        **shown(frame),
    )


def shown(frame: pl.DataFrame) -> dict[str, Any]:
    """Return a frame as its template takes it."""
    return {
        "names": [texts.visible(name) for name in frame.columns],
        "kinds": [texts.kind_name(kind) for kind in frame.dtypes],
        "numeric": [kind.is_numeric() for kind in frame.dtypes],
        "cells": texts.cells(frame),
    }


def _wanted(info: TableInfo, asked: str | None) -> int:
    """Return how many rows are shown: fewer of a wide table, so that a page stays a page."""
    wanted = number(asked, _ROWS[1] if asked else _ROWS[0], _ROWS[-1])
    return max(1, min(wanted, _MOST_VALUES // max(1, info.get_column_count())))


def _offsets(state: State, info: TableInfo, enough: int | None = None) -> Ranges:
    """Return where the buckets begin and end that have something.

    With ``enough`` it asks of no more buckets than have that many rows.
    """
    path = info.table_path
    partitions = state.admin.list_partition_infos(path) if info.is_partitioned() else []
    buckets = state.watch.buckets(info, partitions)
    size = len(buckets) if enough is None else _ASKED
    found: Ranges = {}
    rows = 0
    for start in range(0, len(buckets), max(1, size)):
        for bucket, (first, end) in state.watch.offsets(
            info, buckets[start : start + size]
        ).items():
            if end > first:
                found[bucket] = first, end
                rows += end - first
        if enough is not None and rows >= enough:
            break
    return found


def _first(state: State, info: TableInfo, wanted: int) -> pl.DataFrame:
    """Return the first rows of a log, of as few buckets as have them, or some current rows."""
    options: dict[str, Any] = {}
    if not info.has_primary_key():
        filled = _offsets(state, info, wanted)
        chosen: Ranges = {}
        rows = 0
        for bucket, (first, end) in filled.items():
            if rows >= wanted:
                break
            chosen[bucket] = first, end
            rows += end - first
        if not chosen:
            return to_polars(info.schema.arrow_schema.empty_table())
        options = _only(info, chosen, filled)
    scan = scan_fluss(info.table_path, connection=state.connection, lake=False, **options)
    return scan.head(wanted).collect()


def _current(state: State, info: TableInfo, wanted: int) -> tuple[pl.DataFrame, str]:
    """Return some current rows of a table with partitions, and which of these were looked at.

    That is empty where all of them were, or where there are as many rows as wanted.
    """
    path = info.table_path
    changed = {bucket.partition_name for bucket in _offsets(state, info, wanted)}
    names = [p.partition_name for p in state.admin.list_partition_infos(path)]
    # rows stay when their changes have expired: any partition may have some, and these rather
    names.sort(key=lambda name: name not in changed)
    found: list[pl.DataFrame] = []
    rows = looked = 0
    end = time.monotonic() + _LONGEST_S
    while looked < len(names) and rows < wanted and (not looked or time.monotonic() < end):
        chosen = names[looked : looked + _PARTITIONS]
        scan = scan_fluss(path, connection=state.connection, lake=False, partitions=chosen)
        found.append(scan.head(wanted - rows).collect())
        looked += len(chosen)
        rows += found[-1].height
    whole = rows >= wanted or looked == len(names)
    told = "" if whole else f"{looked:,} of {texts.things(len(names), 'partition')}"
    if not found:
        return to_polars(info.schema.arrow_schema.empty_table()), told
    return pl.concat(found), told


def _last(state: State, info: TableInfo, wanted: int, *, changes: bool) -> pl.DataFrame:
    """Return the last rows of a log, by the time at which they were committed."""
    filled = _offsets(state, info)
    chosen = {b: (max(first, end - wanted), end) for b, (first, end) in filled.items()}
    if len(chosen) > _MOST_BUCKETS:
        chosen = _newest(state, info, chosen, wanted)
    # without buckets only the columns are read
    options = _only(info, chosen, filled) if chosen else {"start": "latest"}
    if not chosen and info.is_partitioned():
        options = {**options, "partitions": []}
    frame = scan_fluss(
        info.table_path,
        connection=state.connection,
        mode="changelog" if changes else "log",
        include_metadata=not changes,
        lake=None if changes else False,
        **options,
    )
    found = frame.collect().sort(
        exact(COMMIT_TIMESTAMP_COLUMN), exact(LOG_OFFSET_COLUMN), maintain_order=True
    )
    return found.tail(wanted)


def _newest(state: State, info: TableInfo, filled: Ranges, wanted: int) -> Ranges:
    """Return the ends of those buckets into which something came lately."""
    keys = {
        bucket: TableBucket(info.table_id, bucket.bucket_id, bucket.partition_id)
        for bucket in filled
    }
    now = int(time.time() * 1000)
    for seconds in _LATELY_S:
        at = state.admin.get_offsets_by_clock(info, list(keys.values()), now - seconds * 1000)
        found = {}
        for bucket, (first, end) in filled.items():
            offset = at[keys[bucket]]
            if offset is not None and offset < end:
                found[bucket] = max(first, offset), end
        if sum(end - first for first, end in found.values()) >= wanted:
            return found
    return filled


def _only(info: TableInfo, chosen: Ranges, filled: Ranges) -> dict[str, Any]:
    """Return arguments by which a scan reads only some buckets, from some offsets on.

    Partitions and buckets are chosen apart: other pairs of them are read from their end on.
    """
    if not info.is_partitioned():
        starts = {bucket.bucket_id: first for bucket, (first, _) in chosen.items()}
        return {"buckets": list(starts), "start": starts}
    partitions = list(dict.fromkeys(bucket.partition_name for bucket in chosen))
    buckets = sorted({bucket.bucket_id for bucket in chosen})
    of_pairs = {
        (b.partition_name, b.bucket_id): chosen[b][0] if b in chosen else end
        for b, (_, end) in filled.items()
        if b.partition_name in partitions and b.bucket_id in buckets
    }
    return {"partitions": partitions, "buckets": buckets, "start": of_pairs}


# ---- values that are typed in


def _columns(info: TableInfo, names: list[str]) -> list[Column]:
    known = {column.name: column for column in info.schema.columns}
    return [known[name] for name in names]


def _looked_up(state: State, info: TableInfo, given: Mapping[str, str]) -> pl.DataFrame:
    """Return the row with a key, if there is one.

    As Arrow has it: moments of Python have no nanoseconds.
    """
    keys = {
        column.name: exact_value(
            column, info.schema.arrow_schema.field(column.name).type, given[column.name]
        )
        for column in _columns(info, info.get_primary_keys())
    }
    lookup = state.connection.get_table(info.table_path).new_lookup()
    found = lookup.lookup_arrow(pa.table(keys), found_column=_FOUND)
    return to_polars(found.filter(found[_FOUND]).drop_columns(_FOUND))


def exact_value(column: Column, kind: pa.DataType, text: str) -> pa.Array:
    """Return a typed text as one value of the Arrow type of a column.

    Raises FlussError where it is none, and where the column would have another value in its place.
    """
    more = _NANOSECONDS.search(text)
    if more is not None and pa.types.is_timestamp(kind) and kind.unit == "ns":
        moment = value_of(column, text[: more.start(2)] + text[more.end(2) :])
        whole = pa.array([moment], pa.timestamp("us", kind.tz)).cast(pa.int64())[0].as_py()
        number = whole * 1000 + int(more[2].ljust(3, "0"))
        if -(2**63) <= number < 2**63:
            return pa.array([number], kind)
        raise _no_value(column, text)
    value = value_of(column, text)
    try:
        if pa.types.is_timestamp(kind):
            # PyArrow cuts values of Python, and refuses to cut its own
            return pa.array([value], pa.timestamp("us", kind.tz)).cast(kind)
        if pa.types.is_time(kind):
            return pa.array([value], pa.time64("us")).cast(kind)
        made = pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        raise _no_value(column, text) from None
    if pa.types.is_float32(kind) and math.isfinite(value):
        found = made[0].as_py()
        if math.isinf(found) or (not found and value):
            raise _no_value(column, text)
    return made


def value_of(column: Column, text: str) -> Any:
    """Return a typed text as a value of a column.

    Raises FlussError where it is none, saying how such values are written.
    """
    root = column.type.root
    text = text.strip() if root not in (TypeRoot.STRING, TypeRoot.CHAR) else text
    try:
        return _value(root, text)
    except (ValueError, KeyError, ArithmeticError):
        raise _no_value(column, text) from None


def _no_value(column: Column, text: str) -> FlussError:
    example = _EXAMPLES.get(column.type.root)
    how = f": write it as in {example}" if example else ""
    return FlussError(
        f"column '{column.name}' is {column.type}, and {text[:80]!r} is no such value{how}"
    )


_EXAMPLES: Final = {
    **dict.fromkeys(_WHOLE, "12"),
    TypeRoot.FLOAT: "1.5",
    TypeRoot.DOUBLE: "1.5",
    TypeRoot.DECIMAL: "1.50",
    TypeRoot.BOOLEAN: "true",
    TypeRoot.DATE: "2026-01-31",
    TypeRoot.TIME_WITHOUT_TIME_ZONE: "12:30:00",
    TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE: "2026-01-31 12:30:00",
    TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE: "2026-01-31 12:30:00Z",
    TypeRoot.BYTES: "00ff (hexadecimal)",
    TypeRoot.BINARY: "00ff (hexadecimal)",
}


# digits beyond the sixth that would be lost; zeros would not
_MORE_DIGITS: Final = re.compile(r"[.,]\d{6}\d*[1-9]")
# digits of a second after the sixth
_NANOSECONDS: Final = re.compile(r"[.,](\d{6})(\d{1,3})(?!\d)")
# a name that no column can have
_FOUND: Final = "\0found"
_BOOLEANS: Final = {"true": True, "false": False}


def _of_six_digits(text: str) -> str:
    """Return a time, of which Python would pass over digits behind the sixth of a second."""
    if _MORE_DIGITS.search(text):
        raise ValueError
    return text


def _decimal(text: str) -> decimal.Decimal:
    """Return a number of at most 38 digits: Polars panics at others, and at NaN."""
    found = decimal.Decimal(text)
    if not found.is_finite():
        raise ValueError
    # without zeros at its end, and without an exponent
    found = found.normalize(_EXACT)
    _, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) + max(exponent, 0) > _DECIMAL_DIGITS or -exponent > _DECIMAL_DIGITS:
        raise ValueError
    return decimal.Decimal(f"{found:f}")


def _fraction(text: str) -> float:
    """Return a number; Python makes an infinity, or nothing, of one that is too large or small."""
    found = float(text)
    if math.isinf(found) or not found:
        written = decimal.Decimal(text)
        if written.is_finite() and (written or math.isinf(found)):
            raise ValueError
    return found


def _value(root: TypeRoot, text: str) -> Any:
    if root in _WHOLE:
        if len(text) > 20:
            raise ValueError
        return int(text)
    match root:
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return _fraction(text)
        case TypeRoot.DECIMAL:
            return _decimal(text)
        case TypeRoot.BOOLEAN:
            return _BOOLEANS[text.lower()]
        case TypeRoot.DATE:
            return dt.date.fromisoformat(text)
        case TypeRoot.TIME_WITHOUT_TIME_ZONE:
            return dt.time.fromisoformat(_of_six_digits(text))
        case TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE:
            found = dt.datetime.fromisoformat(_of_six_digits(text))
            if found.tzinfo is not None:
                raise ValueError
            return found
        case TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE:
            found = dt.datetime.fromisoformat(_of_six_digits(text))
            return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return bytes.fromhex(text)
        case TypeRoot.STRING | TypeRoot.CHAR:
            return text
    raise ValueError

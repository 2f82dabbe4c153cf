"""The rows of a table: the first, the last, one by its key; and its changes."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any, Final

import polars as pl
from starlette.requests import Request
from starlette.responses import Response

from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.scan import scan_fluss
from fluss_df.metadata import COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from fluss_df.schema import TableInfo
from fluss_df.types import Column, TypeRoot
from fluss_df.ui.shown import texts
from fluss_df.ui.state import State, asks, number, path_of

_ROWS: Final = (20, 100, 500)
_MOST_VALUES: Final = 20_000
_WHOLE: Final = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)


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
    try:
        if which == "key" and keys:
            frame = _looked_up(state, info, given)
        elif which == "last" and not keys:
            frame = _last(state, info, wanted, changes=False)
        else:
            which = "first"
            found = scan_fluss(path, connection=state.connection, lake=False).head(wanted)
            frame = found.collect()
    except FlussError as error:
        # the form stays, to be mended
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
        "kinds": [texts.visible(str(kind)) for kind in frame.dtypes],
        "cells": texts.cells(frame),
    }


def _wanted(info: TableInfo, asked: str | None) -> int:
    """Return how many rows are shown: fewer of a wide table, so that a page stays a page."""
    wanted = number(asked, _ROWS[1] if asked else _ROWS[0], _ROWS[-1])
    return max(1, min(wanted, _MOST_VALUES // max(1, info.get_column_count())))


def _last(state: State, info: TableInfo, wanted: int, *, changes: bool) -> pl.DataFrame:
    """Return the last rows of a log, by the time at which they were committed."""
    partitions = (
        state.admin.list_partition_infos(info.table_path) if info.is_partitioned() else []
    )
    offsets = state.watch.offsets(info, state.watch.buckets(info, partitions))
    # an update is two changes, which come together
    start: dict[Any, int] = {
        (b.partition_name, b.bucket_id) if info.is_partitioned() else b.bucket_id: max(
            first, end - wanted
        )
        for b, (first, end) in offsets.items()
    }
    if not any(end > first for first, end in offsets.values()):
        start = {}
    frame = scan_fluss(
        info.table_path,
        connection=state.connection,
        mode="changelog" if changes else "log",
        start=start or "earliest",
        include_metadata=not changes,
        lake=None if changes else False,
    )
    found = frame.collect().sort(
        exact(COMMIT_TIMESTAMP_COLUMN), exact(LOG_OFFSET_COLUMN), maintain_order=True
    )
    return found.tail(wanted)


# ---- values that are typed in


def _columns(info: TableInfo, names: list[str]) -> list[Column]:
    known = {column.name: column for column in info.schema.columns}
    return [known[name] for name in names]


def _looked_up(state: State, info: TableInfo, given: Mapping[str, str]) -> pl.DataFrame:
    """Return the row with a key, if there is one."""
    key = {
        column.name: value_of(column, given[column.name])
        for column in _columns(info, info.get_primary_keys())
    }
    found = state.connection.get_table(info.table_path).new_lookup().lookup(key)
    empty = pl.from_arrow(info.schema.arrow_schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    if found is None:
        return empty
    return pl.DataFrame([dict(found)], schema=empty.schema, orient="row")


def value_of(column: Column, text: str) -> Any:
    """Return what somebody typed as a value of a column.

    Raises
    ------
    FlussError
        Where it is none, saying how such values are written.
    """
    root = column.type.root
    text = text.strip() if root not in (TypeRoot.STRING, TypeRoot.CHAR) else text
    try:
        return _value(root, text)
    except (ValueError, KeyError, ArithmeticError):
        example = _EXAMPLES.get(root)
        how = f": write it as in {example}" if example else ""
        raise FlussError(
            f"column '{column.name}' is {column.type}, and {text[:80]!r} is no such value{how}"
        ) from None


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


_BOOLEANS: Final = {"true": True, "false": False}


def _value(root: TypeRoot, text: str) -> Any:
    if root in _WHOLE:
        if len(text) > 20:
            raise ValueError
        return int(text)
    match root:
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return float(text)
        case TypeRoot.DECIMAL:
            return decimal.Decimal(text)
        case TypeRoot.BOOLEAN:
            return _BOOLEANS[text.lower()]
        case TypeRoot.DATE:
            return dt.date.fromisoformat(text)
        case TypeRoot.TIME_WITHOUT_TIME_ZONE:
            return dt.time.fromisoformat(text)
        case TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE:
            return dt.datetime.fromisoformat(text).replace(tzinfo=None)
        case TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE:
            found = dt.datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return bytes.fromhex(text)
        case TypeRoot.STRING | TypeRoot.CHAR:
            return text
    raise ValueError

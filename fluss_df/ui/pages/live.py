"""The rows that come into a table, as they come: a page, and the stream of events that it shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import polars as pl
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fluss_df.client.scan.fetch_buffer import Taken
from fluss_df.client.scan.log_scanner import LogScanner
from fluss_df.errors import FlussError
from fluss_df.io.base.arrow import to_polars
from fluss_df.io.base.names import exact
from fluss_df.metadata import (
    CHANGELOG_COLUMNS,
    COMMIT_TIMESTAMP_COLUMN,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    LOG_OFFSET_COLUMN,
    require_columns,
)
from fluss_df.schema import TableInfo
from fluss_df.types import TypeRoot
from fluss_df.ui.pages.rows import exact_value, value_of
from fluss_df.ui.shown import texts
from fluss_df.ui.state import State, asks, path_of, state_of

#: Conditions, and how a page names them.
CONDITIONS: Final = {
    "": "no filter",
    "eq": "is",
    "ne": "is not",
    "lt": "is less than",
    "ge": "is at least",
    "contains": "contains the text",
    "null": "is null",
    "set": "is not null",
}
_PAUSE_S: Final = 0.25
_POLL_MS: Final = 500
_PARTITIONS_S: Final = 5.0
_QUIET_S: Final = 5.0
_SEND_S: Final = 30.0
#: The most rows that one event has: a browser shows no more anyway.
_MOST_ROWS: Final = 200


@asks
def page(state: State, request: Request) -> Response:
    """Return the page that shows the stream."""
    path = path_of(request)
    info = state.watch.info(path)
    asked = request.query_params
    column, condition = asked.get("column", ""), asked.get("condition", "")
    value = asked.get("value", "")
    problem = ""
    try:
        _filter(info, column, condition, value)
    except FlussError as error:
        problem = error.message
    names = [*info.get_column_names(), *_metadata(info)]
    return state.page(
        request,
        "live.html",
        path=path,
        info=info,
        here="live",
        columns=info.get_column_names(),
        names=[texts.visible(name) for name in names],
        column=column,
        condition=condition if condition in CONDITIONS else "",
        value=value,
        conditions=CONDITIONS,
        problem=problem,
    )


async def stream(request: Request) -> Response:
    """Return the stream of events, to which :func:`page` listens."""
    state = state_of(request)
    if state.streams >= state.settings.limits.streams:
        return PlainTextResponse("There are as many live tails as there may be.\n", 503)
    return _Stream(request)


class _Stream(Response):
    """Events until the browser goes away, or something fails."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = state_of(self._request)
        if state.streams >= state.settings.limits.streams:
            await PlainTextResponse("Too many live tails.\n", 503)(scope, receive, send)
            return
        state.streams += 1
        gone = asyncio.ensure_future(receive())
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with contextlib.aclosing(_events(state, self._request)) as events:
                async for event in events:
                    if gone.done():
                        break
                    body = {"type": "http.response.body", "body": event, "more_body": True}
                    # a browser that does not read loses its place
                    await asyncio.wait_for(send(body), _SEND_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass
        finally:
            state.streams -= 1
            gone.cancel()


async def _events(state: State, request: Request) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    given_up = threading.Event()
    tail = _Tail(state, request, given_up)
    try:
        while True:
            began = loop.time()
            event = await loop.run_in_executor(state.tails, tail.next)
            yield event
            if tail.failed:
                return
            await asyncio.sleep(max(0.0, _PAUSE_S - (loop.time() - began)))
    finally:
        given_up.set()
        state.tails.submit(tail.close)


class _Tail:
    """Reads what comes; one call at a time, each on a thread."""

    def __init__(self, state: State, request: Request, given_up: threading.Event) -> None:
        self._state = state
        self._request = request
        self._given_up = given_up
        self._scanner: LogScanner | None = None
        self._keep: pl.Expr | None = None
        # partition ids, with their buckets
        self._known: dict[int, list[int]] = {}
        self._looked = 0.0
        self._told = 0.0
        self._lock = threading.Lock()
        self.failed = False

    def next(self) -> bytes:
        """Return what came meanwhile as an event, or a sign that nothing did."""
        with self._lock:
            if self._given_up.is_set():
                return b""
            try:
                if self._scanner is None:
                    self._open()
                    return _event("open", {})
                return self._poll()
            except (FlussError, pl.exceptions.PolarsError) as error:
                self.failed = True
                message = error.message if isinstance(error, FlussError) else str(error)
                return _event("failed", {"message": texts.visible(message)})

    def close(self) -> None:
        """Read nothing more."""
        with self._lock:
            if self._scanner is not None:
                self._scanner.close()

    def _open(self) -> None:
        path, asked = path_of(self._request), self._request.query_params
        info = self._info = self._state.admin.get_table_info(path)
        self._keep = _filter(
            info, asked.get("column", ""), asked.get("condition", ""), asked.get("value", "")
        )
        self._scanner = LogScanner(
            self._state.connection, info, None, records=False, metadata_columns=_metadata(info)
        )
        if info.is_partitioned():
            self._look_for_partitions(LATEST_OFFSET)
        else:
            self._scanner.subscribe_buckets(dict.fromkeys(range(info.num_buckets), LATEST_OFFSET))

    def _look_for_partitions(self, offset: int) -> bool:
        """Subscribe to partitions that are new, and leave those that are gone, if there are any."""
        assert self._scanner is not None
        self._looked = time.monotonic()
        there = self._state.admin.list_partition_infos(self._info.table_path)
        gone = self._known.keys() - {p.partition_id for p in there}
        for partition in gone:
            for bucket in self._known.pop(partition):
                self._scanner.unsubscribe_partition(partition, bucket)
        new = [p for p in there if p.partition_id not in self._known]
        buckets = self._state.watch.buckets(self._info, new)
        self._scanner.subscribe_partition_buckets(
            {(b.partition_id, b.bucket_id): offset for b in buckets if b.partition_id is not None}
        )
        for b in buckets:
            if b.partition_id is not None:
                self._known.setdefault(b.partition_id, []).append(b.bucket_id)
        return bool(gone)

    def _take(self) -> Taken:
        """Return what came; of partitions that are dropped meanwhile, what was read before."""
        assert self._scanner is not None
        if self._info.is_partitioned() and time.monotonic() - self._looked > _PARTITIONS_S:
            self._look_for_partitions(EARLIEST_OFFSET)
        try:
            return self._scanner.take(_POLL_MS, records=False, given_up=self._given_up)
        except FlussError:
            # tables with a time to live drop partitions all the time
            if not self._info.is_partitioned() or not self._look_for_partitions(EARLIEST_OFFSET):
                raise
            return []

    def _poll(self) -> bytes:
        assert self._scanner is not None
        taken = self._take()
        rows = to_polars(self._scanner.as_table(taken))
        seen = rows.height
        if self._keep is not None:
            rows = rows.filter(self._keep)
        now = time.monotonic()
        if not seen and now - self._told < _QUIET_S:
            return b""
        self._told = now
        last = rows.tail(_MOST_ROWS)
        values = [[[c.text, c.kind] for c in row] for row in texts.cells(last)]
        return _event("rows", {"seen": seen, "matched": rows.height, "rows": values})


def _event(kind: str, value: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode()


def _metadata(info: TableInfo) -> tuple[str, ...]:
    """Return the columns that are shown behind those of the table, if those have other names."""
    own = set(info.get_column_names())
    wanted = (
        CHANGELOG_COLUMNS
        if info.has_primary_key()
        else (LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN)
    )
    return () if own & set(wanted) else wanted


def _filter(info: TableInfo, column: str, condition: str, value: str) -> pl.Expr | None:
    """Return the condition on the rows; None where there is none."""
    if not condition or not column:
        return None
    require_columns([column], info.get_column_names(), f"table {info.table_path}:")
    found = next(c for c in info.schema.columns if c.name == column)
    values = exact(column)
    if condition == "null":
        return values.is_null()
    if condition == "set":
        return values.is_not_null()
    if found.type.root in (TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW):
        raise FlussError(
            f"column '{column}' is {found.type}: filter it by 'is null' or 'is not null' only"
        )
    if condition == "contains":
        if found.type.root not in (TypeRoot.STRING, TypeRoot.CHAR):
            raise FlussError(f"column '{column}' is {found.type}, which contains no text: use 'is'")
        return values.str.contains(value, literal=True)
    kind = info.schema.arrow_schema.field(column).type
    if pa.types.is_timestamp(kind):
        # Polars compares times of two units in the coarser one
        moment = to_polars(pa.table({column: exact_value(found, kind, value)})).to_series()
        wanted = pl.lit(moment.to_physical().item(), pl.Int64).cast(moment.dtype)
    else:
        wanted = pl.lit(value_of(found, value))
    match condition:
        case "eq":
            return values == wanted
        case "ne":
            return values != wanted
        case "lt":
            return values < wanted
        case "ge":
            return values >= wanted
    raise FlussError(f"there is no condition {condition[:20]!r}: there are {', '.join(CONDITIONS)}")

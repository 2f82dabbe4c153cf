"""Requests that move records: produce, fetch, limit scan."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.engine.access.authorizer import Rights
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.workers import paced
from fluss_df.engine.log.append_checks import Appended
from fluss_df.engine.log.log_reads import Piece
from fluss_df.engine.requests.answer_room import AnswerRoom
from fluss_df.engine.requests.filtered_read import LookBudget, read_filtered
from fluss_df.engine.requests.kv_requests import limit_rows
from fluss_df.engine.requests.row_requests import (
    acknowledge,
    parse_rows,
    without_frames,
    write_each,
)
from fluss_df.engine.tables.buckets import java_name, listed
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import OperationType
from fluss_df.protocol.api import FETCH_LOG
from fluss_df.protocol.fetch import (
    FetchReply,
    ReplyBucket,
    fetch_response_bucket,
    fetch_response_table,
)
from fluss_df.protocol.message_parts import bucket_of, parse_request, partition_of, set_error
from fluss_df.protocol.wire import Buffer
from fluss_df.pushdown.batch_filter import BatchFilter
from fluss_df.record.layout.headers import HEADER_SIZE, OVERHEAD, scan_headers
from fluss_df.record.log.cut import ColumnLayout, Cutter

logger = logging.getLogger(__name__)

_CLIENT: Final = -1
_EARLIEST_OFFSET: Final = -2
_MAX_WAIT_MS: Final = 600_000
# A request for some columns may look at this many times the bytes that it asks for.
_PROJECTION_FACTOR: Final = 8
_LENGTH_SIZE: Final = 4
# to look at the columns of a batch takes 25 us
_SAMPLED_BATCHES: Final = 64
# the largest request that is kept parsed while it waits; a larger one is parsed again
_KEPT_BYTES: Final = 1 << 10
# an answer of more parts has its small ones joined, to pieces of this many bytes
_MANY_PARTS: Final = 1 << 10
_PIECE_BYTES: Final = 64 << 10


# ---- produce


async def produce_log(
    engine: Engine, body: pa.Buffer, rights: Rights | None
) -> Awaitable[list[Buffer]]:
    """Append; the awaitable that is returned waits for the disk and is the response."""

    def parse() -> tuple[pb.ProduceLogRequest, list[memoryview]]:
        return parse_rows(pb.ProduceLogRequest(), "PRODUCE_LOG", 4, body, rights)

    def append(bucket: TableBucket, data: memoryview) -> tuple[Table, Appended]:
        table, tablet = engine.bucket(bucket)
        if table.has_primary_key:
            raise FlussError(
                f"table {table.path} has a primary key: its log is its changelog, upsert rows",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        layouts = table.layouts if table.arrow else dict.fromkeys(table.schemas)
        return table, tablet.append(data, layouts)

    request, written = await write_each(engine, parse, append)
    return acknowledge(engine, request, written, pb.ProduceLogResponse(), _taken)


def _taken(answer: pb.ProduceLogResponseForBucket, appended: Appended) -> None:
    answer.base_offset = appended.base_offset


# ---- fetch


async def fetch_log(
    engine: Engine, body: pa.Buffer, rights: Rights | None, *, large: bool, in_place: bool
) -> Awaitable[list[Buffer]]:
    """Read; the awaitable that is returned waits for new records and is the response."""
    read = functools.partial(_read_all, engine, rights=rights, in_place=in_place)
    if len(body) <= _KEPT_BYTES:
        return _fetch(engine, engine.run, read, _parse_fetch(body))
    run = engine.run_large if large else engine.run
    return _fetch(engine, run, read, await run(_parse_fetch, body), body)


def _parse_fetch(body: pa.Buffer) -> pb.FetchLogRequest:
    request = parse_request(FETCH_LOG, body)
    for table in request.tables_req:
        if table.HasField("filter_predicate") and table.filter_schema_id < 0:
            raise FlussError(
                f"Invalid filterSchemaId ({table.filter_schema_id}) for table {table.table_id}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        if table.HasField("filter_predicate") and not table.HasField("filter_schema_id"):
            raise FlussError(
                f"Filter predicate is set but filterSchemaId is missing for table {table.table_id}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
    return request


def fetch_at_once(engine: Engine, body: pa.Buffer) -> list[Buffer] | None:
    """Read on this thread; None for a request that may wait for new records."""
    request = _parse_fetch(body)
    return None if request.max_wait_ms else _read_all(engine, request, in_place=True)[0]


# the answer to a fetch: what :func:`_read_all` returns
_Answer = tuple[list[Buffer], int, bool]


async def _fetch(
    engine: Engine,
    run: Callable[..., Awaitable[_Answer]],
    read: Callable[[pb.FetchLogRequest], _Answer],
    request: pb.FetchLogRequest,
    body: pa.Buffer | None = None,
) -> list[Buffer]:
    """Answer a fetch; one of many buckets, whose body is given, is read again whenever it waited.

    What is made of it takes ten times as much memory, and many peers may wait.
    """
    wait = request.max_wait_ms if request.HasField("max_wait_ms") else 0
    wanted = request.min_bytes if request.HasField("min_bytes") else -1
    until = time.monotonic() + min(wait, _MAX_WAIT_MS) / 1000
    parts, size, at_once = await run(read, request)
    if at_once or size >= wanted or time.monotonic() >= until:
        return parts
    event = asyncio.Event()
    buckets = _buckets_of(request) if body is None else await engine.run(_buckets_of, request)
    read_again: Callable[[], Awaitable[_Answer]]
    if body is None:
        read_again = functools.partial(run, read, request)
    else:
        read_again = functools.partial(run, _parse_and_read, read, body)
        del request
    with engine.watching(buckets, event):
        del buckets
        while True:
            # cleared before it is read, so that nothing new is missed between the two
            event.clear()
            parts, size, at_once = await read_again()
            left = until - time.monotonic()
            if at_once or size >= wanted or left <= 0:
                return parts
            del parts
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await event.wait()


def _buckets_of(request: pb.FetchLogRequest) -> set[TableBucket]:
    return {
        bucket_of(table.table_id, part)
        for table in request.tables_req
        for part in paced(table.buckets_req)
    }


def _parse_and_read(read: Callable[[pb.FetchLogRequest], _Answer], body: pa.Buffer) -> _Answer:
    return read(_parse_fetch(body))


def _read_all(
    engine: Engine, request: pb.FetchLogRequest, *, rights: Rights | None = None, in_place: bool
) -> _Answer:
    """Return the response, the bytes of records in it, and whether it may not wait for more.

    It is not to wait where a bucket has an error, or batches were left out: the client goes on
    behind them. In place, for a reader in this process, nothing is made to be sent, and columns
    are cut out of the log only where it is filtered.
    """
    reply = FetchReply()
    response: list[Buffer] = []
    total = 0
    at_once = False
    look = LookBudget()
    for table_id, buckets in _by_bucket(request).items():
        parts: list[Buffer] = []
        # a right that was taken away meanwhile ends a fetch that waits
        refusal = rights.refusal_by_id(OperationType.READ, table_id) if rights else None
        before = total
        for wanted, part in paced(buckets.values()):
            answer = pb.FetchLogResponseForBucket(
                bucket_id=part.bucket_id, partition_id=partition_of(part)
            )
            bucket = ReplyBucket(table_id, answer)
            try:
                if refusal:
                    raise without_frames(refusal)
                at_once |= _read(engine, request, wanted, part, bucket, total, look, in_place)
                total += sum(map(len, bucket.records or ()))
            except FlussError as error:
                at_once = True
                set_error(answer, error)
            # objects of many buckets that are kept until the end cost time: Python's collector
            # looks at them
            if in_place:
                reply.buckets.append(bucket)
            else:
                parts += fetch_response_bucket(answer, bucket.records)
        if total > before:
            table = engine.catalog.table_by_id(table_id)
            if table is not None:
                engine.counters.tables.of(table.path).add(bytes_out=total - before)
        if not in_place:
            response += fetch_response_table(table_id, parts)
    if in_place:
        return reply, total, at_once
    if len(response) > _MANY_PARTS:
        response = _joined(response)
    return response, total, at_once


class _Wanted:
    """What a fetch wants of the buckets of a table; looked at once, however many these are."""

    __slots__ = ("_looked_at", "_problem", "asked", "batch_filter", "columns")

    def __init__(self, asked: pb.FetchLogRequestForTable) -> None:
        self.asked = asked
        self.columns: list[int] | None = None
        self.batch_filter: BatchFilter | None = None
        self._looked_at = False
        self._problem: FlussError | None = None

    def look_at(self, table: Table) -> None:
        """Read the columns and the filter.

        Raises ``INVALID_COLUMN_PROJECTION``.
        """
        if not self._looked_at:
            self._looked_at = True
            asked = self.asked
            try:
                if asked.projection_pushdown_enabled and table.arrow:
                    self.columns = list(asked.projected_fields)
                    _check_projection(self.columns, len(table.descriptor.schema.columns))
                self.batch_filter = _batch_filter(table, asked)
            except FlussError as error:
                self._problem = without_frames(error)
        if self._problem is not None:
            raise without_frames(self._problem)


# bucket and partition -> what is wanted of it, and from where on
_Buckets = dict[tuple[int, int | None], tuple[_Wanted, pb.FetchLogRequestForBucket]]


def _by_bucket(request: pb.FetchLogRequest) -> dict[int, _Buckets]:
    """Return the buckets that a fetch names, by table.

    Each is read once: of several wishes for one bucket the last counts, as in Fluss.
    """
    tables: dict[int, _Buckets] = {}
    for asked in request.tables_req:
        buckets = tables.setdefault(asked.table_id, {})
        wanted = _Wanted(asked)
        for part in paced(asked.buckets_req):
            buckets[part.bucket_id, partition_of(part)] = wanted, part
    return tables


def _joined(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return an answer of many buckets in fewer pieces: the event loop walks them all."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for part in paced(parts):
        # slices of the log stay what they are
        fits = isinstance(part, bytes)
        if small and (not fits or size > _PIECE_BYTES):
            pieces.append(b"".join(small))
            small, size = [], 0
        if fits:
            small.append(part)
            size += len(part)
        else:
            pieces.append(part)
    return [*pieces, b"".join(small)] if small else pieces


def _read(
    engine: Engine,
    request: pb.FetchLogRequest,
    wanted: _Wanted,
    part: pb.FetchLogRequestForBucket,
    reply: ReplyBucket,
    taken: int,
    look: LookBudget,
    in_place: bool,
) -> bool:
    """Read a bucket; return whether batches were left out, or not looked at."""
    answer = reply.answer
    bucket = bucket_of(wanted.asked.table_id, part)
    table, tablet = engine.bucket(bucket)
    reply.checked = tablet.checked
    if request.follower_server_id != _CLIENT:
        raise FlussError(
            f"Replica {request.follower_server_id} is not recognized as a valid replica of"
            f" {java_name(bucket)}",
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
    wanted.look_at(table)
    columns, batch_filter = wanted.columns, wanted.batch_filter
    offset = part.fetch_offset
    if offset == _EARLIEST_OFFSET:
        offset = tablet.start_offset
    room = min(part.max_fetch_bytes, request.max_bytes - taken)
    if batch_filter is not None:
        cut = None if columns is None else functools.partial(_cut, columns, table.layouts, {})
        found = read_filtered(tablet, offset, max(0, room), batch_filter, look, cut)
        answer.high_watermark = tablet.high_watermark
        answer.log_start_offset = tablet.start_offset
        if found.end is not None:
            answer.filtered_end_offset = found.end
        reply.records = found.parts
        return found.end is not None or look.used_up
    # it is for what is sent, which is a part of what is read
    most = room if columns is None else room * _PROJECTION_FACTOR
    piece = tablet.read(offset, most, at_least_one=taken == 0, partial=columns is None)
    answer.high_watermark = tablet.high_watermark
    answer.log_start_offset = tablet.start_offset
    if piece is None:
        reply.records = []
        return False
    reply.records, reply.headers = [piece.data], piece.headers
    if columns is not None and in_place:
        reply.projected_bytes = projected_size(piece, columns, table.layouts)
    elif columns is not None:
        reply.records = project(piece, columns, table.layouts, room, taken == 0)
    return False


def _batch_filter(table: Table, asked: pb.FetchLogRequestForTable) -> BatchFilter | None:
    """Return the filter of a fetch; None where there is none that makes sense, as in Fluss."""
    if not asked.HasField("filter_predicate") or not table.arrow:
        return None
    try:
        return BatchFilter(asked.filter_predicate, asked.filter_schema_id, table.schemas)
    except FlussError as error:
        logger.debug("table %s is read without a filter: %s", table.path, error.message)
        return None


def _check_projection(columns: Sequence[int], count: int) -> None:
    shown = listed(columns)
    problem = None
    if not columns:
        problem = "The projection indexes should not be empty"
    elif any(not 0 <= column < count for column in columns):
        problem = f"Projected fields {shown} is out of bound for schema with {count} fields."
    elif len(set(columns)) != len(columns):
        problem = f"The projection indexes should not contain duplicated fields, but is {shown}"
    elif list(columns) != sorted(columns):
        problem = f"The projection indexes should be in field order, but is {shown}"
    if problem:
        raise FlussError(problem, ErrorCode.INVALID_COLUMN_PROJECTION)


def projected_size(piece: Piece, columns: Sequence[int], layouts: dict[int, ColumnLayout]) -> int:
    """Return about how many bytes :func:`project` would return.

    Columns that a batch lacks have none. The bytes of more than 64 batches are estimated: by the
    batches that stand at 64 places at equal distances, so that the largest are among them.
    """
    headers, data = piece.headers, piece.data
    starts = headers.messages
    ends = headers.position + headers.size
    # statistics stay behind, but for their length
    statistics = np.where(
        headers.magic, headers.payload - headers.position - HEADER_SIZE - _LENGTH_SIZE, 0
    )
    heads = int((starts - headers.position - statistics).sum())
    cutters = {i: Cutter(layouts[i], columns) for i in set(headers.schema_id.tolist())}
    lengths = np.cumsum(ends - starts)
    looked_at = np.arange(len(starts))
    if len(starts) > _SAMPLED_BATCHES:
        places = (np.arange(_SAMPLED_BATCHES) + 0.5) * (lengths[-1] / _SAMPLED_BATCHES)
        looked_at = np.searchsorted(lengths, places, "right")
    chosen = (values[looked_at].tolist() for values in (headers.schema_id, starts, ends))
    batches = zip(*chosen, strict=True)
    parts = np.array([cutters[i].size(data, start, end) for i, start, end in batches], np.float64)
    if len(parts) < len(starts):
        # the batches were met in proportion to their bytes
        parts *= lengths[-1] / _SAMPLED_BATCHES / (ends - starts)[looked_at]
    return heads + int(parts.sum())


def _cut(
    columns: Sequence[int],
    layouts: dict[int, ColumnLayout],
    cutters: dict[int, Cutter],
    batch: memoryview,
) -> list[Buffer]:
    piece = Piece(batch, scan_headers(batch))
    return project(piece, columns, layouts, len(batch), at_least_one=True, cutters=cutters)


def project(
    piece: Piece,
    columns: Sequence[int],
    layouts: dict[int, ColumnLayout],
    room: int,
    at_least_one: bool,
    cutters: dict[int, Cutter] | None = None,
) -> list[Buffer]:
    """Return batches with some of their columns; the buffers stay slices.

    As in Fluss, the checksum of the whole batch stays, and is of no use to the reader. ``layouts``
    says where the columns are in batches of each schema. At most ``room`` bytes are returned; with
    ``at_least_one``, one batch is returned even where it is larger. ``cutters`` keeps
    those of each schema for the next call.

    Raises ``INVALID_COLUMN_PROJECTION`` where a batch was written before a column was added.
    """
    headers, data = piece.headers, piece.data
    parts: list[Buffer] = []
    cutters = {} if cutters is None else cutters
    for i in range(len(headers)):
        schema_id = int(headers.schema_id[i])
        cutter = cutters.get(schema_id)
        if cutter is None:
            layout = layouts.get(schema_id)
            if layout is None or columns[-1] >= layout.columns:
                count = 0 if layout is None else layout.columns
                _check_projection(columns, count)
                raise FlussError("unknown schema of a batch", ErrorCode.SCHEMA_NOT_EXIST)
            cutter = cutters[schema_id] = Cutter(layout, columns)
        start, payload = int(headers.position[i]), int(headers.payload[i])
        end = start + int(headers.size[i])
        message_at = payload
        if not headers.append_only[i]:
            message_at += int(headers.record_count[i])
        message = cutter.cut(data, message_at, end)
        if headers.magic[i]:
            # statistics stay behind, and in their place stands that there are none
            head = bytearray(data[start : start + HEADER_SIZE]) + bytes(_LENGTH_SIZE)
        else:
            head = bytearray(data[start : start + HEADER_SIZE])
        head += data[payload:message_at]
        size = len(head) + sum(len(part) for part in message)
        room -= size
        if room < 0 and (parts or not at_least_one):
            break
        head[8:12] = (size - OVERHEAD).to_bytes(4, "little")
        parts += (bytes(head), *message)
    return parts


# ---- offsets, limit scan


def limit_scan(engine: Engine, request: pb.LimitScanRequest) -> pb.LimitScanResponse:
    """Return the batches with the last records of a bucket."""
    bucket = bucket_of(request.table_id, request)
    try:
        table, tablet = engine.bucket(bucket)
        room = AnswerRoom(engine.settings.answer_bytes, "set a smaller limit, or scan the table")
        if table.has_primary_key:
            return limit_rows(engine.kv_bucket(bucket)[1], request.limit, room)
        pieces = tablet.last_records(max(0, request.limit), room.take)
        records = b"".join(piece.data for piece in pieces)
    except FlussError as error:
        return pb.LimitScanResponse(error_code=error.error_code, error_message=error.message)
    return pb.LimitScanResponse(is_log_table=True, records=records)

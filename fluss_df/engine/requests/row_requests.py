"""Requests that carry rows (PRODUCE_LOG, PUT_KV), read so that the rows stay where they are."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError

from fluss_df.engine.access.authorizer import Rights
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.files import disk_refused
from fluss_df.engine.files.workers import give_turn
from fluss_df.engine.kv.kv_tablet import PutResult
from fluss_df.engine.log.append_checks import Appended
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import OperationType
from fluss_df.protocol.message_parts import answer_to, bucket_of, set_error
from fluss_df.protocol.wire import BYTES, VARINT, Buffer, int32, next_field, signed

T = TypeVar("T")
RowsT = TypeVar("RowsT", pb.ProduceLogRequest, pb.PutKvRequest)
WrittenT = TypeVar("WrittenT", Appended, PutResult)

# fields of one request, at all levels; outermost ones, each bucket that it writes to among them;
# and bytes of what is not for buckets
_MOST_FIELDS: Final = 128 << 10
_MOST_BUCKETS: Final = 16 << 10
_MOST_OTHERS: Final = 1 << 20
# fields that are read before others get a turn: 0.3 ms
_STEP_FIELDS: Final = 256
_PARTITION, _BUCKET, _RECORDS = 1, 2, 3
# fewer bytes are written at once: to hand them to other threads takes longer
_LARGE_BYTES: Final = 256 << 10
# threads that write one request
_SHARES: Final = 4


def parse_rows(
    request: RowsT, name: str, buckets_field: int, body: pa.Buffer, rights: Rights | None = None
) -> tuple[RowsT, list[memoryview]]:
    """Read a request; its records stay slices of the body, and are missing in the message.

    ``request`` is an empty message, which is filled and returned; ``name`` is that of the kind of
    request, for errors. ``buckets_field`` is the number of its field with what is for a bucket.
    ``rights`` are those of the user who sent it; None allows everything.

    Raises ``AUTHORIZATION_EXCEPTION``; :class:`ProtocolError` where the bytes are not such a
    message; ``RECORD_TOO_LARGE_EXCEPTION`` where it has too many fields; ``INVALID_REQUIRED_ACKS``.
    """
    data = memoryview(body).cast("B")
    _count_fields(data, name)
    others: list[memoryview] = []
    records: list[memoryview] = []
    found = at = 0
    while at < len(data):
        begin = at
        number, kind, value, length, at = next_field(data, at, len(data))
        found += 1
        if number == buckets_field and kind == BYTES:
            bucket = request.buckets_req.add()
            part = data[:0]
            end = value + length
            while value < end:
                inner, inner_kind, place, count, value = next_field(data, value, end)
                found += 1
                if inner_kind == VARINT and inner == _PARTITION:
                    bucket.partition_id = signed(place)
                elif inner_kind == VARINT and inner == _BUCKET:
                    bucket.bucket_id = int32(place)
                elif inner_kind == BYTES and inner == _RECORDS:
                    part = data[place : place + count]
                    bucket.records = b""
                if not found % _STEP_FIELDS:
                    give_turn()
                if found > _MOST_FIELDS:
                    raise _too_many(name)
            records.append(part)
        else:
            others.append(data[begin:at])
        if not found % _STEP_FIELDS:
            give_turn()
    if sum(map(len, others)) > _MOST_OTHERS:
        raise _too_many(name)
    try:
        request.MergeFromString(b"".join(others))
    except DecodeError as error:
        raise ProtocolError(f"a {name} request cannot be read: {error}") from error
    if not request.IsInitialized():
        raise ProtocolError(f"a {name} request lacks required fields")
    if request.acks not in (-1, 0, 1):
        raise FlussError(f"Invalid required acks: {request.acks}", ErrorCode.INVALID_REQUIRED_ACKS)
    if rights is not None:
        rights.require_table(OperationType.WRITE, request.table_id)
    return request, records


async def write_each(
    engine: Engine,
    parse: Callable[[], tuple[RowsT, list[memoryview]]],
    write: Callable[[TableBucket, memoryview], tuple[Table, WrittenT]],
) -> tuple[RowsT, Awaitable[list[WrittenT | FlussError]]]:
    """Write the records of each bucket; what fails in one does not stop the others.

    Returns the request, and an awaitable of the results: of a large request they are written
    later, and what comes behind it to another bucket does not wait.

    ``parse`` returns the request, and the records of each of its buckets. ``write`` writes records
    into a bucket.
    """

    def begin() -> tuple[RowsT, list[memoryview], list[WrittenT | FlussError] | None]:
        request, records = parse()
        small = sum(map(len, records)) < _LARGE_BYTES
        if small and engine.turns.are_over(_buckets_of(request)):
            return request, records, _write_some(engine, request, records, write, 0, 1)
        return request, records, None

    request, records, results = await engine.run(begin)
    if results is not None:
        written = asyncio.get_running_loop().create_future()
        written.set_result(results)
        return request, written
    buckets = _buckets_of(request)
    shares = [
        engine.turns.enter(
            buckets[first::_SHARES],
            functools.partial(
                engine.run, _write_some, engine, request, records, write, first, _SHARES
            ),
        )
        for first in range(min(_SHARES, len(records)))
    ]
    # begun at once, as its peer may be gone before anybody waits for it; a single share is a task
    whole = shares[0] if len(shares) == 1 else None
    return request, whole or asyncio.ensure_future(_put_together(shares, len(records)))


async def _put_together(shares: Iterable[Awaitable[list[T]]], count: int) -> list[T]:
    """Return the results of all buckets, of which each share has every ``_SHARES``-th."""
    done = await asyncio.gather(*shares)
    return [done[at % _SHARES][at // _SHARES] for at in range(count)]


def _buckets_of(request: pb.ProduceLogRequest | pb.PutKvRequest) -> list[TableBucket]:
    return [bucket_of(request.table_id, part) for part in request.buckets_req]


def _write_some(
    engine: Engine,
    request: RowsT,
    records: Sequence[memoryview],
    write: Callable[[TableBucket, memoryview], tuple[Table, WrittenT]],
    first: int,
    step: int,
) -> list[WrittenT | FlussError]:
    """Write the records of every ``step``-th bucket of a request, from the ``first`` on."""
    results: list[WrittenT | FlussError] = []
    buckets = request.buckets_req[first::step]
    for part, data in zip(buckets, records[first::step], strict=True):
        try:
            engine.lock.verify()
            table, written = write(bucket_of(request.table_id, part), data)
            of_table = engine.counters.tables.of(table.path)
            of_table.add(messages_in=written.records, bytes_in=len(data))
            results.append(written)
        except FlussError as error:
            results.append(without_frames(error))
        except OSError as error:
            results.append(without_frames(disk_refused("cannot write", engine.folder, error)))
    return results


async def acknowledge(
    engine: Engine,
    request: RowsT,
    written: Awaitable[Sequence[WrittenT | FlussError]],
    response: pb.ProduceLogResponse | pb.PutKvResponse,
    taken: Callable[[Any, WrittenT], None],
) -> list[Buffer]:
    """Wait until what is written is durable, and return the response."""
    results = await written
    buckets = _buckets_of(request)

    async def durable(first: int) -> list[FlussError | None]:
        refused: list[FlussError | None] = []
        for bucket, result in zip(buckets[first::_SHARES], results[first::_SHARES], strict=True):
            try:
                if isinstance(result, FlussError):
                    raise result
                await engine.acknowledged(bucket, result.durable_at)
                refused.append(None)
            except FlussError as error:
                refused.append(without_frames(error))
        return refused

    # a few side by side: a request of very many buckets must not have all threads
    shares = [durable(first) for first in range(min(_SHARES, len(buckets)))]
    # a single share needs no task
    refusals = await (shares[0] if len(shares) == 1 else _put_together(shares, len(buckets)))
    for part, result, refused in zip(request.buckets_req, results, refusals, strict=True):
        answer = answer_to(response, part)
        if refused is None and not isinstance(result, FlussError):
            taken(answer, result)
        elif refused is not None:
            set_error(answer, refused)
    return [response.SerializeToString()]


def without_frames(error: FlussError) -> FlussError:
    """Return an error that is kept as a result, without where it was raised.

    Its frames have the results, and so itself, and the request's bytes: they would stay in memory
    until Python's collector of cycles comes.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _count_fields(data: memoryview, name: str) -> None:
    """Refuse a request of too many fields before an object is made for each of them."""
    found = at = 0
    while at < len(data):
        at = next_field(data, at, len(data))[-1]
        found += 1
        if not found % _STEP_FIELDS:
            give_turn()
        if found > _MOST_BUCKETS:
            raise _too_many(name)


def _too_many(name: str) -> FlussError:
    return FlussError(
        f"a {name} request for more than {_MOST_BUCKETS:,} buckets, or with more than"
        f" {_MOST_FIELDS:,} fields: write to fewer buckets in one request",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )

"""Requests about the rows of primary-key tables: put, lookup, prefix lookup, statistics."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.engine.access.authorizer import Rights
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.workers import paced
from fluss_df.engine.kv.batch_changes import counts_rows
from fluss_df.engine.kv.kv_tablet import KvTablet, PutResult
from fluss_df.engine.requests.answer_room import AnswerRoom
from fluss_df.engine.requests.row_requests import (
    acknowledge,
    parse_rows,
    without_frames,
    write_each,
)
from fluss_df.engine.tables.buckets import listed
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import OperationType
from fluss_df.protocol.api import LOOKUP
from fluss_df.protocol.message_parts import (
    answer_to,
    bucket_of,
    parse_request,
    partition_of,
    path_of,
    set_error,
)
from fluss_df.protocol.wire import Buffer, bytes_header
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.primary_key import key_columns, key_lake_format
from fluss_df.record.kv.values import encode_value_batch
from fluss_df.record.layout.unaligned import Blobs, Words, assemble, padded
from fluss_df.record.rows.compacted import RowDecoder

_OVERWRITE = 1
_VALUES_FIELD = 5
_VALUE_FIELD = 1
# bytes of a value from which on it costs less to send than to copy it
_LARGE = 16 << 10
# an answer with more values is put together by a worker, and not on the event loop
_MANY_VALUES = 16 << 10
# the largest request of this process that is answered on the asking thread
_AT_ONCE_BYTES: Final = 4 << 10
# about what a list of values takes in memory besides them
_LIST_BYTES = 128


# ---- put


async def put_kv(engine: Engine, body: pa.Buffer, rights: Rights | None) -> Awaitable[list[Buffer]]:
    """Write; the awaitable that is returned waits for the disk and is the response."""
    request = pb.PutKvRequest()
    targets: tuple[int, ...] | FlussError | None = None

    def parse() -> tuple[pb.PutKvRequest, list[memoryview]]:
        nonlocal targets
        parsed = parse_rows(request, "PUT_KV", 5, body, rights)
        targets = _targets(engine, request)
        return parsed

    def put(bucket: TableBucket, data: memoryview) -> tuple[Table, PutResult]:
        table, kv = engine.kv_bucket(bucket)
        if isinstance(targets, FlussError):
            # several threads write
            raise FlussError(targets.message, targets.error_code)
        return table, kv.put(data, targets, overwrite=request.agg_mode == _OVERWRITE)

    _, written = await write_each(engine, parse, put)
    return acknowledge(engine, request, written, pb.PutKvResponse(), _taken)


def _targets(engine: Engine, request: pb.PutKvRequest) -> tuple[int, ...] | FlussError | None:
    """Return the columns that a request writes, None for all; they are those of all its buckets.

    The error is for each bucket, as a server answers.
    """
    table = engine.catalog.table_by_id(request.table_id)
    count = len(request.target_columns)
    if table is None or not count:
        return None
    most = len(table.descriptor.schema.columns)
    if count > most:
        return FlussError(
            f"{count:,} target columns ({listed(request.target_columns)}) of table {table.path},"
            f" which has {most:,} columns: name each column once",
            ErrorCode.INVALID_TARGET_COLUMN,
        )
    return tuple(request.target_columns)


def _taken(answer: pb.PutKvResponseForBucket, put: PutResult) -> None:
    answer.log_end_offset = put.log_end_offset


# ---- lookup


@dataclass(slots=True)
class _Found:
    values: list[bytes | None]
    # what is to be acknowledged before the answer is given
    durable_at: int = 0


async def lookup(
    engine: Engine, body: pa.Buffer, rights: Rights | None, *, large: bool
) -> Awaitable[list[Buffer]]:
    """Look keys up, and insert those that are missing where that is asked for."""
    run = engine.run_large if large else engine.run
    return _found(engine, *await run(_lookup_all, engine, body, rights))


def lookup_at_once(engine: Engine, body: pa.Buffer) -> list[Buffer] | None:
    """Look a few keys up on this thread; None for a request that may take its time."""
    if len(body) > _AT_ONCE_BYTES:
        return None
    request = parse_request(LOOKUP, body)
    if request.insert_if_not_exists:
        return None
    # to open a bucket may mean to recover it, which takes time
    if not engine.are_open(bucket_of(request.table_id, part) for part in request.buckets_req):
        return None
    response: list[Buffer] = []
    for part, result in zip(request.buckets_req, _lookup_each(engine, request), strict=True):
        values = lookup_values(result.values) if isinstance(result, _Found) else []
        response += _answer(part, result, values)
    return response


def _lookup_all(
    engine: Engine, body: pa.Buffer, rights: Rights | None
) -> tuple[pb.LookupRequest, list[_Found | FlussError]]:
    request = parse_request(LOOKUP, body)
    if rights is not None and request.insert_if_not_exists:
        rights.require_table(OperationType.WRITE, request.table_id)
    elif rights is not None:
        refusal = rights.refusal_by_id(OperationType.READ, request.table_id)
        if refusal is not None:
            # Fluss's servers give the error for each bucket
            return request, [refusal for _ in request.buckets_req]
    return request, _lookup_each(engine, request)


def _lookup_each(engine: Engine, request: pb.LookupRequest) -> list[_Found | FlussError]:
    results: list[_Found | FlussError] = []
    room = _lookup_room(engine)
    for part in paced(request.buckets_req):
        try:
            table, kv = engine.kv_bucket(bucket_of(request.table_id, part))
            keys = list(part.keys)
            found = _Found(room.values(kv, keys))
            if request.insert_if_not_exists and None in found.values:
                found.durable_at = _insert_missing(table, kv, keys, found.values)
            results.append(found)
        except FlussError as error:
            results.append(without_frames(error))
    return results


def _lookup_room(engine: Engine) -> AnswerRoom:
    return AnswerRoom(engine.settings.answer_bytes, "look up fewer keys in one request")


async def _found(
    engine: Engine, request: pb.LookupRequest, results: Sequence[_Found | FlussError]
) -> list[Buffer]:
    response: list[Buffer] = []
    for part, result in zip(request.buckets_req, results, strict=True):
        values: list[Buffer] = []
        if isinstance(result, _Found):
            try:
                if result.durable_at:
                    bucket = bucket_of(request.table_id, part)
                    await engine.acknowledged(bucket, result.durable_at)
                    _, kv = engine.kv_bucket(bucket)
                    room = _lookup_room(engine)
                    result.values = await engine.run(room.values, kv, list(part.keys))
                many = len(result.values) > _MANY_VALUES
                values = (
                    await engine.run_large(lookup_values, result.values)
                    if many
                    else lookup_values(result.values)
                )
            except FlussError as error:
                result = error
        response += _answer(part, result, values)
    return response


def _answer(
    part: pb.LookupRequestForBucket, result: _Found | FlussError, values: Sequence[Buffer]
) -> list[Buffer]:
    """Return the part of a response that is about one bucket."""
    answer = pb.LookupResponseForBucket(bucket_id=part.bucket_id, partition_id=partition_of(part))
    if isinstance(result, FlussError):
        set_error(answer, result)
    head = answer.SerializeToString()
    size = len(head) + sum(len(part) for part in values)
    return [bytes_header(1, size), head, *values]


def lookup_values(values: Sequence[bytes | None]) -> list[Buffer]:
    """Return the ``values`` fields of a response: a message of a value for each key."""
    lengths = {len(value) for value in values if value is not None}
    heads = {}
    for length in lengths:
        inner = bytes_header(_VALUE_FIELD, length)
        heads[length] = bytes_header(_VALUES_FIELD, len(inner) + length) + inner
    missing = bytes_header(_VALUES_FIELD, 0)
    if max(lengths, default=0) < _LARGE:
        joined = [missing if value is None else heads[len(value)] + value for value in values]
        return [b"".join(joined)]
    # large ones are not copied; the same one may be there many times
    parts: list[Buffer] = []
    for value in values:
        parts += (missing,) if value is None else (heads[len(value)], value)
    return parts


def _insert_missing(
    table: Table, kv: KvTablet, keys: Sequence[bytes], values: Sequence[bytes | None]
) -> int:
    """Insert rows of nothing but their keys; return what is to be acknowledged.

    Raises ``UNKNOWN_SERVER_ERROR`` for bytes that are no key, and others as :meth:`KvTablet.put`.
    """
    info = table.info()
    columns = key_columns(info)
    if key_lake_format(info) is not None or len(columns) != len(info.get_primary_keys()):
        raise FlussError(
            f"table {table.path}: rows of missing keys are inserted for tables without"
            " partitions and without a data lake only; upsert them",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    missing = list(dict.fromkeys(k for k, v in zip(keys, values, strict=True) if v is None))
    # a key is a compacted row without null bits
    lengths = np.array([len(key) for key in missing], np.int64)
    ends = np.cumsum(lengths)
    heads = [Words(np.zeros(len(missing), np.uint64), 1) for _ in range((len(columns) + 7) // 8)]
    rows = assemble(
        [*heads, Blobs(padded(b"".join(missing)), ends - lengths, lengths)], len(missing)
    )
    try:
        decoded = RowDecoder(columns).decode(rows.data.data, rows.offsets[:-1], rows.offsets[1:])
    except ProtocolError as error:
        # a corrupt message is sent again, and this would be the same
        raise FlussError(
            f"a row for table bucket {kv.name} cannot be inserted, as its key is none of table"
            f" {table.path}: {error.message}",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ) from error
    all_columns = info.descriptor.schema.columns
    names = [column.name for column in all_columns]
    encoder = KvEncoder(
        info.schema_id,
        all_columns,
        [column.name for column in columns],
        kv_format=info.kv_format,
        target_columns=[column.name for column in columns],
    )
    there = frozenset(decoded.column_names)
    batch = encoder.encode(decoded.select([name for name in names if name in there]))
    batch.stamp(-1, -1)
    place = {name: number for number, name in enumerate(names)}
    targets = tuple(place[column.name] for column in columns)
    return kv.put(memoryview(batch.to_bytes()), targets).durable_at


# ---- prefixes, statistics


def prefix_lookup(engine: Engine, request: pb.PrefixLookupRequest) -> pb.PrefixLookupResponse:
    """Return the values of the keys that begin with others."""
    response = pb.PrefixLookupResponse()
    room = AnswerRoom(
        engine.settings.answer_bytes,
        "look up fewer prefixes in one request, or scan the table with a filter",
    )
    for part in paced(request.buckets_req):
        bucket = bucket_of(request.table_id, part)
        answer = answer_to(response, part)
        try:
            table, _ = engine.bucket(bucket)
            if not table.has_primary_key:
                raise FlussError(
                    f"Try to do prefix lookup on a non primary key table: {table.path}",
                    ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
                )
            _, kv = engine.kv_bucket(bucket)
            for prefix in paced(part.keys):
                room.take(_LIST_BYTES)
                answer.value_lists.add(values=room.rows(kv.prefix(prefix)))
        except FlussError as error:
            answer.ClearField("value_lists")
            set_error(answer, error)
    return response


def limit_rows(kv: KvTablet, limit: int, room: AnswerRoom) -> pb.LimitScanResponse:
    """Return the first rows of a bucket."""
    rows = room.rows(itertools.islice(kv.scan()[0], max(0, limit)))
    return pb.LimitScanResponse(is_log_table=False, records=encode_value_batch(rows))


def table_stats(engine: Engine, request: pb.GetTableStatsRequest) -> pb.GetTableStatsResponse:
    """Return the number of rows of buckets."""
    response = pb.GetTableStatsResponse()
    there = engine.having_folders(bucket_of(request.table_id, part) for part in request.buckets_req)
    for part in paced(request.buckets_req):
        bucket = bucket_of(request.table_id, part)
        answer = answer_to(response, part)
        try:
            start, end = engine.log_bounds(bucket, there)
            table = engine.catalog.table_by_id(bucket.table_id)
            if table is not None and table.has_primary_key:
                if not end and bucket not in there and counts_rows(table):
                    # nobody wrote to it: to open it would make a RocksDB
                    answer.row_count = 0
                    continue
                answer.row_count = engine.kv_bucket(bucket, scans=True)[1].row_count
            else:
                answer.row_count = end - start
        except FlussError as error:
            set_error(answer, error)
    return response


def latest_snapshots(
    engine: Engine, request: pb.GetLatestKvSnapshotsRequest
) -> pb.GetLatestKvSnapshotsResponse:
    """Return that no bucket has a snapshot: its rows are the fold of its changelog.

    Raises FlussError as Fluss; ``KV_SNAPSHOT_NOT_EXIST_EXCEPTION`` where the beginning of a
    changelog has expired, and is not to be had without a snapshot.
    """
    path = path_of(request.table_path)
    table = engine.catalog.table(path)
    if not table.has_primary_key:
        raise FlussError(
            f"Table '{path}' is not a primary key table, so it doesn't have any kv snapshots.",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    response = pb.GetLatestKvSnapshotsResponse(table_id=table.id)
    partition = None
    if request.HasField("partition_name"):
        if not table.partitioned:
            raise FlussError(
                f"Table '{path}' is not a partitioned table.",
                ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
            )
        partition = table.partitions.get(request.partition_name)
    if table.partitioned:
        if partition is None:
            problem = (
                f"Table partition '{path}(p={request.partition_name})' does not exist."
                if request.partition_name
                else f"Table '{path}' is a partitioned table, but partition name is not provided."
            )
            raise FlussError(problem, ErrorCode.PARTITION_NOT_EXISTS)
        response.partition_id = partition.id
    partition_id = None if partition is None else partition.id
    buckets = [TableBucket(table.id, number, partition_id) for number in range(table.buckets)]
    there = engine.having_folders(buckets)
    for number, bucket in enumerate(buckets):
        if engine.log_bounds(bucket, there)[0]:
            raise FlussError(
                f"the changelog of {path} no longer has its beginning, and the embedded engine"
                " makes no snapshots: scan the current rows (SCAN_KV), or set table.log.ttl to 0",
                ErrorCode.KV_SNAPSHOT_NOT_EXIST,
            )
        response.latest_snapshots.add(bucket_id=number)
    return response

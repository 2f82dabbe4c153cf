"""Lookups on their way to the servers: alone when idle, together under load.

A lookup is sent at once when its server has nothing to do for this table; those that come while a
request is in flight go together in the next one. Everything here runs on the I/O thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.runtime.retry import STALE_METADATA, Backoff, is_transient
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.metadata import ServerNode, TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LOOKUP, PREFIX_LOOKUP
from fluss_df.protocol.frames import server_error
from fluss_df.protocol.message_parts import partition_of
from fluss_df.schema import TableInfo

# A value: schema id and row; empty where there is none. A prefix has a list of them.
Value = bytes
Answer = Sequence[Any]

_KEYS_PER_REQUEST = 8192
# With at least this many waiting keys, another request is sent while others are in flight.
_KEYS_WORTH_A_REQUEST = 512
_REQUESTS_IN_FLIGHT = 4
# the bytes of values that one answer should have at the most, as far as their sizes are known
_RESPONSE_BYTES = 4 << 20
_FIRST_KEYS = 1024
_BULK_WORKERS = 8


@dataclass(slots=True, eq=False)
class _Query:
    """Keys of one bucket, and who waits for their values."""

    bucket: TableBucket
    keys: Sequence[bytes]
    future: asyncio.Future[Answer]
    metrics: Metrics | None = None


class LookupQueue:
    """The lookups of one table."""

    def __init__(self, cluster: Cluster, info: TableInfo, *, prefix: bool) -> None:
        self._cluster = cluster
        self._info = info
        self._prefix = prefix
        self._waiting: dict[ServerNode, deque[_Query]] = {}
        self._waiting_keys: dict[ServerNode, int] = {}
        self._in_flight: dict[ServerNode, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys_at_once = _FIRST_KEYS

    async def ask(
        self, bucket: TableBucket, keys: Sequence[bytes], metrics: Metrics | None = None
    ) -> Answer | None:
        """Return the values of keys in their order; None where the bucket's partition is gone.

        The requests in which they go are counted in ``metrics``.

        Raises what the server said, after ``retry-timeout`` where it might have passed.
        """
        cluster = self._cluster
        backoff = Backoff(cluster.config.retry_timeout_ms)
        first = True
        while True:
            try:
                node = await cluster.leader(self._info.table_path, bucket)
                return await self._enqueue(node, bucket, keys, metrics)
            except FlussError as error:
                code = error.error_code
                if bucket.partition_id is not None and code == ErrorCode.PARTITION_NOT_EXISTS:
                    return None
                if code in STALE_METADATA or isinstance(error, TimeoutError):
                    cluster.forget_leader(bucket)
                if not (is_transient(error) or code in STALE_METADATA) or backoff.expired:
                    raise FlussError(
                        f"{error.message} (lookup in table {self._info.table_path}, bucket"
                        f" {bucket.bucket_id})",
                        code,
                    ) from error
                cluster.note_retry(error)
                if not (first and isinstance(error, NetworkError)):
                    await asyncio.sleep(backoff.next_pause())
                first = False

    async def ask_all(
        self, parts: Sequence[tuple[TableBucket, Sequence[bytes]]], metrics: Metrics | None = None
    ) -> list[list[Any] | None]:
        """Return the values of many keys, for each part as :meth:`ask` does."""
        results: list[list[Any] | None] = [[None] * len(keys) for _, keys in parts]
        chunks = self._chunks(parts)

        async def work() -> None:
            for part, start, bucket, keys in chunks:
                answer = await self._ask_in_parts(bucket, keys, metrics)
                found = results[part]
                if answer is None or found is None:
                    results[part] = None
                    continue
                found[start : start + len(keys)] = answer
                self._adapt(answer)

        workers = [asyncio.ensure_future(work()) for _ in range(_BULK_WORKERS)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return results

    async def _ask_in_parts(
        self, bucket: TableBucket, keys: Sequence[bytes], metrics: Metrics | None
    ) -> Answer | None:
        """Ask as :meth:`ask` does, for fewer keys at once where the server finds it too much."""
        try:
            return await self.ask(bucket, keys, metrics)
        except FlussError as error:
            if error.error_code != ErrorCode.RECORD_TOO_LARGE_EXCEPTION or len(keys) == 1:
                raise
        half = len(keys) // 2
        self._keys_at_once = min(self._keys_at_once, half)
        answers = [
            await self._ask_in_parts(bucket, part, metrics) for part in (keys[:half], keys[half:])
        ]
        return None if None in answers else [value for part in answers for value in part or ()]

    def _chunks(
        self, parts: Sequence[tuple[TableBucket, Sequence[bytes]]]
    ) -> Iterator[tuple[int, int, TableBucket, Sequence[bytes]]]:
        """Cut parts as they are asked for, by what is known of the size of values by then."""
        # buckets in turn, so that all servers have something to do
        starts = [0] * len(parts)
        open_parts = deque(range(len(parts)))
        while open_parts:
            part = open_parts.popleft()
            bucket, keys = parts[part]
            start = starts[part]
            end = min(len(keys), start + self._keys_at_once)
            starts[part] = end
            if end < len(keys):
                open_parts.append(part)
            if end > start:
                yield part, start, bucket, keys[start:end]

    def _adapt(self, answer: Answer) -> None:
        if self._prefix:
            size = sum(len(value) for values in answer for value in values)
        else:
            size = sum(map(len, answer))
        each = max(1, size // max(1, len(answer)))
        self._keys_at_once = max(1, min(_KEYS_PER_REQUEST, _RESPONSE_BYTES // each))

    # ---- requests

    def _enqueue(
        self, node: ServerNode, bucket: TableBucket, keys: Sequence[bytes], metrics: Metrics | None
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, deque()).append(_Query(bucket, keys, future, metrics))
        self._waiting_keys[node] = self._waiting_keys.get(node, 0) + len(keys)
        self._pump(node)
        return future

    def _pump(self, node: ServerNode) -> None:
        waiting = self._waiting.get(node)
        while waiting:
            in_flight = self._in_flight.get(node, 0)
            many = self._waiting_keys[node] >= _KEYS_WORTH_A_REQUEST
            if in_flight and not (many and in_flight < _REQUESTS_IN_FLIGHT):
                return
            queries: list[_Query] = []
            keys = 0
            while waiting and (not queries or keys + len(waiting[0].keys) <= self._keys_at_once):
                query = waiting.popleft()
                self._waiting_keys[node] -= len(query.keys)
                if query.future.done():  # nobody waits any more
                    continue
                keys += len(query.keys)
                queries.append(query)
            if not queries:
                continue
            self._in_flight[node] = in_flight + 1
            task = asyncio.ensure_future(self._send(node, queries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, node: ServerNode, queries: list[_Query]) -> None:
        groups: dict[TableBucket, list[_Query]] = {}
        for counted in {query.metrics for query in queries}:
            if counted is not None:
                counted.add(requests=1)
        for query in queries:
            groups.setdefault(query.bucket, []).append(query)
        try:
            answers = await self._request(node, groups)
        except FlussError as error:
            for query in queries:
                _fail(query, error)
        except BaseException as error:
            failure = FlussError(f"the lookup was given up: {error!r}")
            for query in queries:
                _fail(query, failure)
            raise
        else:
            for bucket, group in groups.items():
                self._hand_out(bucket, group, answers.get((bucket.partition_id, bucket.bucket_id)))
        finally:
            self._in_flight[node] -= 1
            self._pump(node)

    async def _request(
        self, node: ServerNode, groups: dict[TableBucket, list[_Query]]
    ) -> dict[tuple[int | None, int], Any]:
        connection = await self._cluster.connection_to(node)
        timeout_ms = self._cluster.config.request_timeout_ms
        request = lookup_request(self._info, self._prefix)
        for bucket, group in groups.items():
            keys = [key for query in group for key in query.keys]
            add_keys(request, bucket, keys, self._cluster.told_count(bucket))
        response = await connection.request(lookup_api(self._prefix), request, timeout_ms)
        return {(partition_of(a), a.bucket_id): a for a in response.buckets_resp}

    def _hand_out(self, bucket: TableBucket, group: list[_Query], answer: Any) -> None:
        where = f"table {self._info.table_path}, bucket {bucket.bucket_id}"
        error: FlussError | None = None
        values: list[Any] = []
        if answer is None:
            error = NetworkError(f"a server did not answer the lookup in {where}")
        elif answer.error_code:
            error = server_error(answer.error_code, answer.error_message, where)
        else:
            values = values_of(answer, self._prefix)
        wanted = sum(len(query.keys) for query in group)
        if error is None and len(values) != wanted:
            error = FlussError(
                f"a server answered {len(values)} values for {wanted} keys of {where}",
                ErrorCode.CORRUPT_MESSAGE,
            )
        start = 0
        for query in group:
            end = start + len(query.keys)
            if error is not None:
                _fail(query, error)
            elif not query.future.done():
                query.future.set_result(values[start:end])
            start = end


def lookup_api(prefix: bool) -> Any:
    """Return the request's API."""
    return PREFIX_LOOKUP if prefix else LOOKUP


def lookup_request(info: TableInfo, prefix: bool) -> Any:
    """Return a request for rows of a table."""
    kind = pb.PrefixLookupRequest if prefix else pb.LookupRequest
    return kind(table_id=info.table_id)


def add_keys(
    request: Any, bucket: TableBucket, keys: Sequence[bytes], count: int | None = None
) -> None:
    """Ask for keys of a bucket in a request."""
    part = request.buckets_req.add()
    if bucket.partition_id is not None:
        part.partition_id = bucket.partition_id
    part.bucket_id = bucket.bucket_id
    if count is not None:
        part.bucket_count = count
    part.keys.extend(keys)


def values_of(answer: Any, prefix: bool) -> list[Any]:
    """Return the values that a server has for the keys of a bucket."""
    return [found.values for found in (answer.value_lists if prefix else answer.values)]


def _fail(query: _Query, error: FlussError) -> None:
    if not query.future.done():
        # each waiter raises an error of its own: tracebacks are not shared
        query.future.set_exception(type(error)(error.message, error.error_code))

"""The client's metadata of its cluster, and requests to the right server.

Everything here runs on the I/O thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fluss_df.client.runtime.io_thread import IOThread
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.runtime.retry import retrying
from fluss_df.client.transport.endpoint import Endpoint, credentials_of
from fluss_df.client.transport.folders import engine_here, is_attached
from fluss_df.client.transport.multiplexed import CountedConnection
from fluss_df.client.transport.pool import ConnectionPool
from fluss_df.client.transport.tls import tls_of
from fluss_df.config import Config
from fluss_df.errors import DeadlineExceededError, ErrorCode, FlussError, NetworkError
from fluss_df.metadata import PartitionInfo, ServerNode, TableBucket, TablePath
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_METADATA, TABLE_EXISTS, Api, RequestT, ResponseT
from fluss_df.protocol.message_parts import path_message

if TYPE_CHECKING:
    from fluss_df.engine.serve.server import LocalEngine
    from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

COORDINATOR = "CoordinatorServer"
TABLET_SERVER = "TabletServer"

# A connection that was opened this long after its server was named the leader may be to a server
# that restarted meanwhile. A restart takes longer than this time.
_CONNECT_S: Final = 1.0
_COORDINATOR_S: Final = 2.0
# what servers of 0.9.1 say of a table that is made, or dropped, at the moment; and of a partition
_NEW: Final = ("Failed to get tables", '"tablePath" is null')

_user_ids = itertools.count()


class _Leader(NamedTuple):
    """The server that leads a bucket, and when that was learned (by the monotonic clock)."""

    server_id: int
    learned_at: float


class Cluster:
    """Servers, leaders, and requests to them."""

    def __init__(self, config: Config, io: IOThread, metrics: Metrics) -> None:
        self.config = config
        self.io = io
        self.metrics = metrics
        self.closed = False
        self._engine = engine_here(config)
        # the user by whom, and the encryption with which, servers are connected to
        self._identity = credentials_of(config), tls_of(config)
        self._user = next(_user_ids)
        self._pool = io.resource(ConnectionPool)
        self._coordinator: ServerNode | None = None
        self._tablet_servers: dict[int, ServerNode] = {}
        self._leaders: dict[TableBucket, _Leader] = {}
        self._refreshing: dict[object, asyncio.Task[pb.MetadataResponse]] = {}
        self._turn = itertools.count()
        # the number of buckets by the id of the partition, where servers tell it; it never changes
        self.bucket_counts: dict[int | None, int] = {}
        # the ids of partitioned tables that the coordinator is known to know, see table_creation.py
        self.noted_tables: set[int] = set()

    @property
    def engine(self) -> LocalEngine | None:
        """The engine in this process that this is, while it is open; from any thread."""
        engine = self._engine
        return None if engine is None or engine.closed or self.closed else engine

    # ---- connections

    def endpoint(self, node: ServerNode) -> Endpoint:
        """Return where and as whom to connect to a server."""
        return Endpoint(node.host, node.port, *self._identity)

    async def _connection(self, endpoint: Endpoint) -> CountedConnection:
        if self.closed:
            raise FlussError("the connection to the cluster is closed: open a new one")
        connection = await self._pool.get(
            endpoint, self.config.connect_timeout_ms, self.metrics, self._user
        )
        return CountedConnection(connection, self.metrics)

    async def connection_to(self, node: ServerNode) -> CountedConnection:
        """Return a connection to a server."""
        return await self._connection(self.endpoint(node))

    def open_connection_to(self, node: ServerNode) -> CountedConnection | None:
        """Return a connection to a server where there is one."""
        if self.closed:
            return None
        connection = self._pool.opened(self.endpoint(node), self._user)
        return None if connection is None else CountedConnection(connection, self.metrics)

    def close(self) -> None:
        """Give up the connections."""
        self.closed = True
        self._pool.release(self._user)

    # ---- requests

    async def request_any(self, api: Api[RequestT, ResponseT], message: RequestT) -> ResponseT:
        """Ask any server that can be reached, retrying for a while."""

        async def attempt(tries: int) -> ResponseT:
            connection = await self._any_connection()
            return await connection.request(api, message, self.config.request_timeout_ms)

        return await retrying(attempt, self.config.retry_timeout_ms, on_retry=self.note_retry)

    async def request_coordinator(
        self,
        api: Api[RequestT, ResponseT],
        message: RequestT,
        *,
        done_by_lost_try: int | None = None,
        on_lost_try: Callable[[], object] | None = None,
        retry_timeout_ms: float | None = None,
    ) -> ResponseT:
        """Ask the coordinator, retrying for a while: by default for ``retry-timeout``.

        A try counts as lost where its answer did not come, or too late: the coordinator may have
        acted on it. ``on_lost_try`` is called then. ``done_by_lost_try`` is the error code that
        means success after a lost try: "already exists" for a create.
        """
        lost = False

        async def attempt(tries: int) -> ResponseT:
            nonlocal lost
            if tries or self._coordinator is None:
                await self.refresh()
            if self._coordinator is None:
                raise FlussError(
                    "the cluster has no coordinator at the moment",
                    ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION,
                )
            connection = await self.connection_to(self._coordinator)
            try:
                return await connection.request(api, message, self.config.request_timeout_ms)
            except (NetworkError, DeadlineExceededError):
                lost = True
                if on_lost_try is not None:
                    on_lost_try()
                raise
            except FlussError as error:
                if lost and error.error_code == done_by_lost_try:
                    return api.response()
                raise

        if retry_timeout_ms is None:
            retry_timeout_ms = self.config.retry_timeout_ms
        return await retrying(attempt, retry_timeout_ms, on_retry=self.note_retry)

    async def request_tablet_server(
        self, api: Api[RequestT, ResponseT], message: RequestT
    ) -> ResponseT:
        """Ask any tablet server, retrying for a while: some requests the coordinator lacks."""

        async def attempt(tries: int) -> ResponseT:
            if tries or not self._tablet_servers:
                await self.refresh()
            nodes = list(self._tablet_servers.values())
            if not nodes:
                raise FlussError(
                    "the cluster has no tablet server at the moment",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
            connection = await self.connection_to(nodes[next(self._turn) % len(nodes)])
            return await connection.request(api, message, self.config.request_timeout_ms)

        return await retrying(attempt, self.config.retry_timeout_ms, on_retry=self.note_retry)

    async def request_leader(
        self, path: TablePath, bucket: TableBucket, api: Api[RequestT, ResponseT], message: RequestT
    ) -> ResponseT:
        """Ask the leader of a bucket once: errors per bucket are for the caller to judge.

        A server that was away may be a follower now, which answers LIST_OFFSETS all the same, with
        what it has heard of so far: its leaders are asked for again.

        Raises ``NOT_LEADER_OR_FOLLOWER`` when that may be so: forget the leader and ask again.
        """
        node = await self.leader(path, bucket)
        connection = await self.connection_to(node)
        leader = self._leaders.get(bucket)
        if leader is None or connection.opened_at > leader.learned_at + _CONNECT_S:
            raise FlussError(
                f"server {node.id} was away, and bucket {bucket.bucket_id} of table {path} may have"
                " another leader now",
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
        return await connection.request(api, message, self.config.request_timeout_ms)

    def note_retry(self, error: FlussError) -> None:
        """Count and log that something is tried again."""
        self.metrics.add(retries=1)
        logger.info("trying again after: %s", error)

    async def _any_connection(self) -> CountedConnection:
        """Return a connection to a known server, else to a bootstrap server.

        Tablet servers before the coordinator: there are more of them, and they know as much.
        """
        nodes = list(self._tablet_servers.values())
        if nodes:
            first = next(self._turn) % len(nodes)
            nodes = nodes[first:] + nodes[:first]
        endpoints = [self.endpoint(node) for node in nodes]
        endpoints += [
            Endpoint(host, port, *self._identity) for host, port in self.config.addresses()
        ]
        problems: list[str] = []
        for endpoint in dict.fromkeys(endpoints):
            try:
                return await self._connection(endpoint)
            except (NetworkError, DeadlineExceededError) as error:
                logger.info("trying another server: %s", error.message)
                problems.append(error.message)
        raise NetworkError(
            f"no Fluss server can be reached: {'; '.join(problems)};"
            " is the cluster running, and are the bootstrap servers right?"
        )

    # ---- metadata

    async def bootstrap(self) -> None:
        """Connect to a bootstrap server and learn the servers.

        A wrong address fails at once rather than being retried: it is what a user most often
        gets wrong. The engine of a folder may end meanwhile, and be followed by another one.
        """
        if all(is_attached(host) for host, _ in self.config.addresses()):
            await retrying(lambda _: self._refresh_once((), ()), self.config.connect_timeout_ms)
        else:
            await self._refresh_once((), ())

    async def server_nodes(self) -> list[ServerNode]:
        """Return the servers that are alive, the coordinator first."""
        await self.refresh()
        nodes = [self._coordinator, *self._tablet_servers.values()]
        return [node for node in nodes if node is not None]

    async def refresh(
        self, paths: Sequence[TablePath] = (), partition_ids: Sequence[int] = ()
    ) -> pb.MetadataResponse:
        """Ask for the servers, and the leaders of tables and partitions; retried for a while."""
        return await retrying(
            lambda _: self._refresh_once(tuple(paths), tuple(partition_ids)),
            self.config.retry_timeout_ms,
            on_retry=self.note_retry,
        )

    async def ask_metadata(self, path: TablePath) -> pb.MetadataResponse:
        """Ask once for the servers, and the leaders of a table."""
        return await self._refresh_once((path,), ())

    async def _refresh_once(
        self,
        paths: tuple[TablePath, ...],
        partition_ids: tuple[int, ...],
        coordinator: ServerNode | None = None,
    ) -> pb.MetadataResponse:
        # callers that ask for the same at the same time share one request
        key = (paths, partition_ids, coordinator)
        task = self._refreshing.get(key)
        if task is None:
            task = asyncio.ensure_future(self._ask_metadata(*key))
            self._refreshing[key] = task
            task.add_done_callback(lambda done: self._refreshed(key, done))
        return await asyncio.shield(task)

    def _refreshed(self, key: object, task: asyncio.Task[pb.MetadataResponse]) -> None:
        self._refreshing.pop(key, None)
        if not task.cancelled():
            task.exception()  # looked at, since asyncio warns of errors that nobody looked at

    async def _ask_metadata(
        self,
        paths: tuple[TablePath, ...],
        partition_ids: tuple[int, ...],
        coordinator: ServerNode | None,
    ) -> pb.MetadataResponse:
        whom = self._any_connection() if coordinator is None else self.connection_to(coordinator)
        connection = await whom
        names = [path_message(path) for path in paths]
        asked = pb.MetadataRequest(table_path=names, partitions_id=partition_ids)
        try:
            response = await connection.request(GET_METADATA, asked, self.config.request_timeout_ms)
        except FlussError as error:
            # servers answer -1 and a stack trace for a table that is gone: ask what is the matter
            if error.error_code != ErrorCode.UNKNOWN_SERVER_ERROR:
                raise
            for path in paths:
                await self._require_table(connection, path)
            why = error.message
            if not any(text in why for text in _NEW):
                raise
            # Tablet servers may not know the table of a new partition for minutes. The coordinator
            # knows.
            if partition_ids and coordinator is None and self._coordinator is not None:
                try:
                    return await self._ask_metadata(paths, partition_ids, self._coordinator)
                except FlussError as again:
                    why = again.message
            raise FlussError(
                f"{', '.join(map(str, paths)) or 'a table'}, or a partition, is new: {why}",
                ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
            ) from None
        self._learn(response)
        return response

    async def _require_table(self, connection: CountedConnection, path: TablePath) -> None:
        found = await connection.request(
            TABLE_EXISTS,
            pb.TableExistsRequest(table_path=path_message(path)),
            self.config.request_timeout_ms,
        )
        if not found.exists:
            raise FlussError(f"table {path} does not exist", ErrorCode.TABLE_NOT_EXIST)

    def _learn(self, response: pb.MetadataResponse) -> None:
        if response.HasField("coordinator_server"):
            node = response.coordinator_server
            self._coordinator = ServerNode(node.node_id, node.host, node.port, COORDINATOR)
        if response.tablet_servers:
            self._tablet_servers = {
                node.node_id: ServerNode(node.node_id, node.host, node.port, TABLET_SERVER)
                for node in response.tablet_servers
            }
        for table in response.table_metadata:
            self._learn_buckets(table.table_id, None, table.bucket_metadata)
        for partition in response.partition_metadata:
            if partition.bucket_count:
                self.bucket_counts[partition.partition_id] = partition.bucket_count
            self._learn_buckets(
                partition.table_id, partition.partition_id, partition.bucket_metadata
            )

    def _learn_buckets(
        self, table_id: int, partition_id: int | None, buckets: Sequence[pb.BucketMetadata]
    ) -> None:
        now = time.monotonic()
        for bucket in buckets:
            key = TableBucket(table_id, bucket.bucket_id, partition_id)
            if bucket.HasField("leader_id") and bucket.leader_id >= 0:
                self._leaders[key] = _Leader(bucket.leader_id, now)
            else:
                self._leaders.pop(key, None)

    def learn_partitions(self, partitions: Iterable[PartitionInfo]) -> None:
        """Take note of how many buckets partitions have; in any thread."""
        for partition in partitions:
            if partition.num_buckets is not None:
                self.bucket_counts[partition.partition_id] = partition.num_buckets

    def buckets_of(self, info: TableInfo, partition_id: int | None) -> int:
        """Return how many buckets a partition has that is known, or a table; in any thread."""
        if partition_id is None:
            return info.num_buckets
        return self.bucket_counts.get(partition_id, info.num_buckets)

    def told_count(self, bucket: TableBucket) -> int | None:
        """Return what requests say of the number of buckets; None to servers that do not ask.

        Servers refuse a request whose number is not theirs (``STALE_METADATA``): it was counted
        with when keys were given their buckets.
        """
        return None if bucket.partition_id is None else self.bucket_counts.get(bucket.partition_id)

    def forget_leader(self, bucket: TableBucket) -> None:
        """Have the leader of a bucket asked for again before its next request."""
        self._leaders.pop(bucket, None)

    def known_leader(self, bucket: TableBucket) -> ServerNode | None:
        """Return the leader of a bucket where it is known."""
        leader = self._leaders.get(bucket)
        return None if leader is None else self._tablet_servers.get(leader.server_id)

    async def leader(self, path: TablePath, bucket: TableBucket) -> ServerNode:
        """Return the leader of a bucket, asking for it once where it is not known.

        Raises ``LEADER_NOT_AVAILABLE_EXCEPTION`` while none is elected, ``TABLE_NOT_EXIST`` or
        ``PARTITION_NOT_EXISTS`` when the bucket is gone.
        """
        node = self.known_leader(bucket)
        if node is None:
            response = await self.require_partition(path, bucket)
            node = self.known_leader(bucket)
            if node is None:
                self._check_still_there(path, bucket, response)
                node = await self._asked_leader(path, bucket)
            if node is None:
                raise FlussError(
                    f"bucket {bucket.bucket_id} of table {path} has no leader at the moment: are"
                    " all tablet servers up? A table that is new is best created again",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
        return node

    async def _asked_leader(self, path: TablePath, bucket: TableBucket) -> ServerNode | None:
        """Return the leader of a bucket that the coordinator names, if any.

        A tablet server of 0.9.1 that is asked for a new table reads it in ZooKeeper, and keeps that
        for good, also where the coordinator told it meanwhile of leaders that it had not read yet.
        """
        partitions = () if bucket.partition_id is None else (bucket.partition_id,)
        try:
            asked = self._refresh_once((path,), partitions, self._coordinator)
            await asyncio.wait_for(asked, _COORDINATOR_S)
        except (FlussError, TimeoutError) as error:
            logger.debug("the coordinator names no leader of table %s: %r", path, error)
        return self.known_leader(bucket)

    async def require_partition(self, path: TablePath, bucket: TableBucket) -> pb.MetadataResponse:
        """Ask once for the leaders of the partition of a bucket.

        Raises ``PARTITION_NOT_EXISTS`` and ``TABLE_NOT_EXIST`` where it is gone, or its table.
        """
        if bucket.partition_id is None:
            return await self._refresh_once((path,), ())
        try:
            return await self._refresh_once((path,), (bucket.partition_id,))
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            # its table may be gone too
            self._check_still_there(path, bucket, await self._refresh_once((path,), ()))
            raise FlussError(
                f"the partition of table {path} whose id is {bucket.partition_id} was dropped; one"
                " that was created again under its name has another id",
                ErrorCode.PARTITION_NOT_EXISTS,
            ) from None

    def _check_still_there(
        self, path: TablePath, bucket: TableBucket, response: pb.MetadataResponse
    ) -> None:
        for table in response.table_metadata:
            if table.table_id != bucket.table_id:
                raise FlussError(
                    f"table {path} was dropped and created again since it was opened"
                    f" (table id {bucket.table_id}, now {table.table_id}): open it again",
                    ErrorCode.TABLE_NOT_EXIST,
                )

"""Requests to responses, without a socket: the same for every way that they come in."""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message

from fluss_df.engine.access import acl_requests
from fluss_df.engine.access.authorizer import AllRights, Authorizer, Rights
from fluss_df.engine.access.login_attempts import Attempts
from fluss_df.engine.access.passwords import Passwords, is_hash
from fluss_df.engine.access.rules import Rule, guarded, rules
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.files.workers import paced
from fluss_df.engine.lake.lake_of_table import shown
from fluss_df.engine.lake_requests import LakeRequests
from fluss_df.engine.requests import data_requests, kv_requests, offset_requests
from fluss_df.engine.requests.answer_room import AnswerRoom
from fluss_df.engine.requests.catalog_requests import CatalogRequests
from fluss_df.engine.requests.cluster_requests import SERVER, ClusterRequests
from fluss_df.engine.requests.kv_scans import Scans
from fluss_df.engine.requests.request_limits import check_entries, may_be_large, refuse_size
from fluss_df.engine.tables.buckets import unknown_partition
from fluss_df.engine.tables.tables import Table, TableVersion
from fluss_df.engine.upkeep.backup import BACKUP_KEY, back_up
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.observe.counters import Durations
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import FlussPrincipal
from fluss_df.protocol.frames import TYPE_ERROR, TYPE_OK, Request
from fluss_df.protocol.handshake import FOLDER_PROTOCOL
from fluss_df.protocol.message_parts import parse_request, partition_of, path_of
from fluss_df.protocol.text import replace_malformed
from fluss_df.protocol.wire import Buffer

logger = SeldomLogger(logging.getLogger(__name__))

Reply = tuple[int, list[Buffer]]
# requests of up to these bytes are parsed on the event loop, larger ones by a worker
_READ_HERE: Final = 16 << 10
# requests of up to these bytes are searched for too many entries there, larger ones by a worker
_LOOKED_AT_HERE: Final = 1 << 20
# about what a bucket in an answer takes in memory
_BUCKET_BYTES: Final = 256

# requests that change or list rights, for which the asking user's own rights count
_ABOUT_RIGHTS: Final = (api.CREATE_ACLS, api.LIST_ACLS, api.DROP_ACLS)
# questions that are answered from memory, on any thread
_AT_ONCE: Final = (
    api.GET_TABLE_INFO,
    api.LIST_PARTITION_INFOS,
    api.LIST_OFFSETS,
    api.GET_LAKE_SNAPSHOT,
)


@dataclass(slots=True)
class Session:
    """One connection, as far as requests care.

    Attributes
    ----------
    host, port
        Where this peer reaches the server: its own metadata says so. The host is "" until it is
        known, where the server listens on all addresses.
    users
        User -> password of those who may in, or its hash; None to let everyone in.
    user
        Who it is. None before it signed in; "" for a peer of this machine, which knew the secret.
    local
        Whether it is the user of this process, who may ask for backups.
    secret
        What a peer on the Unix socket must send first; None where it needs none.
    address
        Where the peer is; "" for one on this machine, not by TCP.
    failures
        How many wrong passwords it sent.
    """

    host: str
    port: int
    users: Mapping[str, str] | None = None
    user: str | None = None
    local: bool = False
    secret: str | None = None
    address: str = ""
    failures: int = 0

    @property
    def principal(self) -> FlussPrincipal:
        """The user, as the authorizer knows it."""
        return FlussPrincipal(self.user) if self.user else FlussPrincipal.ANONYMOUS

    @property
    def trusted(self) -> bool:
        """Whether it may ask for everything."""
        return (self.users is None and self.secret is None) or self.user is not None


@dataclass(slots=True)
class Dispatcher:
    """Answers requests on an engine.

    Used on the event loop that the engine was started on, but for what answers at once: that is
    called on the thread of the caller.
    """

    engine: Engine
    authorizer: Authorizer | None = None
    _handlers: dict[int, tuple[api.Api[Any, Any], Callable[..., Any]]] = field(init=False)
    _scans: Scans = field(init=False)
    _cluster: ClusterRequests = field(init=False)
    _rules: Mapping[int, Rule] = field(init=False)
    _names: dict[int, str] = field(init=False)
    _requests: Durations = field(init=False)
    _attempts: Attempts = field(init=False, default_factory=Attempts)
    _passwords: Passwords = field(init=False, default_factory=Passwords)

    def __post_init__(self) -> None:
        self._cluster = ClusterRequests(self.engine)
        self._scans = Scans(self.engine)

        def of_engine(answer: Callable[..., Message]) -> Callable[..., Message]:
            return functools.partial(answer, self.engine)

        handlers: list[tuple[api.Api[Any, Any], Callable[..., Any]]] = [
            (api.API_VERSIONS, self._api_versions),
            (api.AUTHENTICATE, self._authenticate),
            (api.GET_METADATA, self._metadata),
            (api.INIT_WRITER, self._init_writer),
            (api.LIST_OFFSETS, of_engine(offset_requests.list_offsets)),
            (api.LIMIT_SCAN, of_engine(data_requests.limit_scan)),
            (api.GET_FILESYSTEM_SECURITY_TOKEN, self._token),
            (api.PRODUCE_LOG, data_requests.produce_log),
            (api.FETCH_LOG, data_requests.fetch_log),
            (api.PUT_KV, kv_requests.put_kv),
            (api.LOOKUP, kv_requests.lookup),
            (api.PREFIX_LOOKUP, of_engine(kv_requests.prefix_lookup)),
            (api.SCAN_KV, self._scans.answer),
            (api.GET_TABLE_STATS, of_engine(kv_requests.table_stats)),
            (api.GET_LATEST_KV_SNAPSHOTS, of_engine(kv_requests.latest_snapshots)),
            (api.CREATE_ACLS, acl_requests.create_acls),
            (api.LIST_ACLS, acl_requests.list_acls),
            (api.DROP_ACLS, acl_requests.drop_acls),
            *CatalogRequests(self.engine, self._cluster).handlers(),
            *self._cluster.handlers(),
            *LakeRequests(self.engine).handlers(),
        ]
        self._handlers = {kind.key: (kind, handler) for kind, handler in handlers}
        self._rules = rules(self._cluster.producer_tables, self._scans.table_of)
        self._names = {kind.key: kind.name for kind, _ in handlers}
        self._requests = self.engine.counters.requests

    async def begin(
        self, session: Session, request: Request, *, in_place: bool = False
    ) -> Reply | Awaitable[Reply]:
        """Do what must be done in the order of the requests; return the reply, or what to await.

        Never raises: whatever goes wrong becomes an error response. With ``in_place``, a fetch is
        answered with a :class:`~fluss_df.protocol.fetch.FetchReply`, whose records are not copied:
        for a reader in this process.
        """
        began = time.monotonic()
        try:
            result = await self._begin(session, request, in_place)
        except Exception as error:
            self._count(request.key, began, failed=True)
            return _error(error)
        if isinstance(result, list):
            self._count(request.key, began)
            return TYPE_OK, result
        # it begins now: the peer may be gone before anyone awaits it
        finishing = asyncio.ensure_future(self._finish(request.key, began, result))
        if asyncio.iscoroutine(result):
            # a task that is cancelled before its first step never awaits it, of which Python warns
            close = result.close
            finishing.add_done_callback(lambda _: close())
        return finishing

    def reply_at_once(self, request: Request) -> Reply | None:
        """Answer a fetch or lookup of this process on its thread; None for one that may wait."""
        looks_up = request.key == api.LOOKUP.key
        at_once = kv_requests.lookup_at_once if looks_up else data_requests.fetch_at_once
        began = time.monotonic()
        try:
            result = at_once(self.engine, request.body)
        except Exception as error:
            self._count(request.key, began, failed=True)
            return _error(error)
        if result is None:
            return None
        self._count(request.key, began)
        return TYPE_OK, result

    def answer_at_once(
        self, kind: api.Api[api.RequestT, api.ResponseT], message: api.RequestT
    ) -> api.ResponseT | None:
        """Answer a question of this process on its own thread; None for one that takes its time.

        Raises what the answer would say.
        """
        if kind not in _AT_ONCE:
            return None
        if isinstance(message, pb.ListOffsetsRequest):
            partition = partition_of(message)
            buckets = (TableBucket(message.table_id, b, partition) for b in message.bucket_id)
            # to open a bucket may mean to recover it, which takes time
            if not self.engine.are_open(buckets):
                return None
        began = time.monotonic()
        try:
            answer: api.ResponseT = self._handlers[kind.key][1](message)
        except Exception:
            self._count(kind.key, began, failed=True)
            raise
        self._count(kind.key, began)
        return answer

    async def _finish(self, key: int, began: float, rest: Awaitable[list[Buffer]]) -> Reply:
        try:
            body = await rest
        except Exception as error:
            self._count(key, began, failed=True)
            return _error(error)
        self._count(key, began)
        return TYPE_OK, body

    def _count(self, key: int, began: float, *, failed: bool = False) -> None:
        # peers may ask for any number
        name = self._names.get(key, "UNKNOWN")
        self._requests.add(name, time.monotonic() - began, failed)

    async def _begin(
        self, session: Session, request: Request, in_place: bool
    ) -> list[Buffer] | Awaitable[list[Buffer]]:
        if request.key == BACKUP_KEY and session.local and session.trusted:
            file = Path(os.fsdecode(bytes(request.body)))
            return [str(await self.engine.run(back_up, self.engine, file)).encode()]
        known = self._handlers.get(request.key)
        if known is None:
            raise FlussError(
                f"the embedded engine has no request {request.key}: use an Apache Fluss server",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        kind, handler = known
        if request.dropped:
            raise refuse_size(kind, request.dropped)
        if not session.trusted and kind not in (api.API_VERSIONS, api.AUTHENTICATE):
            raise FlussError(
                "The connection is not authenticated: send user and password first (SASL/PLAIN),"
                " as fluss://USER:PASSWORD@HOST:PORT says them",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        rights = self._rights_of(session)
        # these read and write bytes, and wait on the event loop
        rest: Awaitable[list[Buffer]]
        if kind in (api.PRODUCE_LOG, api.PUT_KV):
            # these requests are large by their rows, and count their buckets themselves
            rest = await handler(self.engine, request.body, rights)
            return rest
        large = await self._is_large(kind, request.body)
        if kind is api.LOOKUP:
            rest = await handler(self.engine, request.body, rights, large=large)
            return rest
        if kind is api.FETCH_LOG:
            rest = await handler(self.engine, request.body, rights, large=large, in_place=in_place)
            return rest
        if kind is api.AUTHENTICATE:
            asked = _parse(api.AUTHENTICATE, request.body)
            return [(await self._authenticate(session, asked)).SerializeToString()]
        if kind is api.API_VERSIONS:
            return [_answer(self._api_versions, _parse(kind, request.body), session)]
        more: tuple[object, ...] = ()
        if kind is api.GET_METADATA:
            # its answer says where the peer reaches the server
            more = (session,)
        elif kind in _ABOUT_RIGHTS:
            more = (self._rights_to_rights(session),)
        if rights is not None:
            handler = guarded(self._rules.get(kind.key), kind.name, rights, handler)
        if len(request.body) <= _READ_HERE:
            message = _parse(kind, request.body)
            return [await self.engine.run(_answer, handler, message, *more)]
        run = self.engine.run_large if large else self.engine.run
        return [await run(_parse_and_answer, kind, handler, request.body, *more)]

    def _rights_of(self, session: Session) -> Rights | None:
        """Return what somebody may do; None for everything."""
        if self.authorizer is None or session.local:
            return None
        return self.authorizer.rights_of(session.principal, session.address)

    def _rights_to_rights(self, session: Session) -> Rights | None:
        """Return what somebody may do about rights; None where there are none."""
        if self.authorizer is None or not session.local:
            return self._rights_of(session)
        return AllRights(self.authorizer, session.principal, "")

    async def _is_large(self, kind: api.Api[Any, Any], body: pa.Buffer) -> bool:
        """Whether a request is to be answered one at a time.

        Raises ``RECORD_TOO_LARGE_EXCEPTION`` for one that has too many entries.
        """
        if len(body) <= _LOOKED_AT_HERE:
            large = may_be_large(kind, body)
        else:
            large = await self.engine.run(may_be_large, kind, body)
        if large:
            await self.engine.run_large(check_entries, kind, body)
        return large

    def versions(self) -> dict[int, tuple[int, int]]:
        """Return the requests that are answered, with their oldest and newest versions."""
        return {key: (0, self._handlers[key][0].max_version) for key in sorted(self._handlers)}

    # ---- connection

    def _api_versions(
        self, request: pb.ApiVersionsRequest, session: Session
    ) -> pb.ApiVersionsResponse:
        # server_type stays unset: an engine is coordinator and tablet server in one, and official
        # clients compare it where it is set
        response = pb.ApiVersionsResponse()
        for key, (oldest, newest) in self.versions().items():
            response.api_versions.add(api_key=key, min_version=oldest, max_version=newest)
        return response

    async def sign_in(self, session: Session, user: str, password: str) -> None:
        """Check a password that came by another protocol; raises as for one of Fluss's."""
        token = b"\0".join((b"", user.encode(), password.encode()))
        await self._authenticate(session, pb.AuthenticateRequest(protocol="PLAIN", token=token))

    async def _authenticate(
        self, session: Session, request: pb.AuthenticateRequest
    ) -> pb.AuthenticateResponse:
        if session.secret is not None and request.protocol == FOLDER_PROTOCOL:
            if hmac.compare_digest(request.token, session.secret.encode()):
                session.user = ""
                return pb.AuthenticateResponse()
            session.failures += 1
            raise FlussError(
                "Authentication failed: this is not the secret in the folder of the engine",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        if session.users is None:
            raise FlussError(
                "Authenticate protocol not match: protocol of server is 'PLAINTEXT' while protocol"
                f" of client is '{request.protocol}'",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        if request.protocol.upper() not in ("PLAIN", "SASL"):
            raise FlussError(
                "Authenticate protocol not match: protocol of server is 'SASL' while protocol of"
                f" client is '{request.protocol}'",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        parts = request.token.split(b"\0")
        name = parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
        async with self._attempts.turn(session.address, name) as attempt:
            if len(parts) == 3:
                expected = session.users.get(name)
                hashed = any(map(is_hash, session.users.values()))
                attempt.right = await self._passwords.matches(parts[2], expected, hashed=hashed)
        if attempt.right:
            session.user = name
            return pb.AuthenticateResponse()
        session.failures += 1
        logger.warning("a wrong password for a user at %s", session.address)
        raise FlussError(
            "Authentication failed: Invalid username or password", ErrorCode.AUTHENTICATE_EXCEPTION
        )

    # ---- where things are

    def _metadata(self, request: pb.MetadataRequest, session: Session) -> pb.MetadataResponse:
        node = pb.ServerNode(node_id=SERVER, host=session.host, port=session.port)
        response = pb.MetadataResponse(coordinator_server=node, tablet_servers=[node])
        catalog = self.engine.catalog
        room = AnswerRoom(self.engine.settings.answer_bytes, "ask for fewer tables in one request")
        # a table may be named many times
        told: dict[int, tuple[TableVersion, bytes]] = {}
        for path in paced(request.table_path):
            table = catalog.table(path_of(path))
            # once: an ALTER that comes in between would give its id to columns of before
            version, text = told.get(table.id) or (table.version, None)
            if text is None:
                text = shown(version, self.engine.lake).to_json()
                told[table.id] = version, text
            room.take(len(text) + _BUCKET_BYTES * (1 + (not table.partitioned) * table.buckets))
            response.table_metadata.add(
                table_path=path,
                table_id=table.id,
                schema_id=version.schema_id,
                table_json=text,
                created_time=table.created,
                modified_time=version.modified,
                # the buckets of a partitioned table are those of its partitions
                bucket_metadata=[] if table.partitioned else _buckets(table),
            )
        for asked in paced(request.partitions_path):
            # Also where there is no such table: writers for Java then send what they have for other
            # tables. By TABLE_NOT_EXIST they would ask the same again without end.
            found = catalog.partition(path_of(asked), asked.partition_name)
            if found is None:
                raise FlussError(
                    f"Table partition '{path_of(asked)}(p={asked.partition_name})' does not exist.",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            table, partition = found
            room.take(_BUCKET_BYTES * (1 + table.buckets))
            self._add_partition(response, table, partition.name, partition.id)
        for partition_id in paced(request.partitions_id):
            found = catalog.partition_by_id(partition_id)
            if found is None:
                raise unknown_partition(partition_id)
            room.take(_BUCKET_BYTES * (1 + found[0].buckets))
            self._add_partition(response, found[0], found[1].name, found[1].id)
        return response

    @staticmethod
    def _add_partition(
        response: pb.MetadataResponse, table: Table, name: str, partition_id: int
    ) -> None:
        response.partition_metadata.add(
            table_id=table.id,
            partition_name=name,
            partition_id=partition_id,
            bucket_metadata=_buckets(table),
        )

    def _init_writer(self, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
        return pb.InitWriterResponse(writer_id=self.engine.catalog.writer_id())

    def _token(
        self, request: pb.GetFileSystemSecurityTokenRequest
    ) -> pb.GetFileSystemSecurityTokenResponse:
        return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")


def _parse(kind: api.Api[api.RequestT, Any], body: pa.Buffer) -> api.RequestT:
    message = parse_request(kind, body)
    replace_malformed(message)
    return message


def _answer(handler: Callable[..., Message], message: Message, *more: object) -> bytes:
    return handler(message, *more).SerializeToString()


def _parse_and_answer(
    kind: api.Api[Any, Any], handler: Callable[..., Message], body: pa.Buffer, *more: object
) -> bytes:
    return _answer(handler, _parse(kind, body), *more)


def _buckets(table: Table) -> list[pb.BucketMetadata]:
    return [
        pb.BucketMetadata(bucket_id=i, leader_id=SERVER, replica_id=[SERVER], leader_epoch=0)
        for i in range(table.buckets)
    ]


def _error(error: Exception) -> Reply:
    if isinstance(error, FlussError):
        code, message = error.error_code, error.message
        if code == ErrorCode.CLIENT_ERROR:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
    else:
        logger.log(logging.ERROR, "a request failed", error=error)
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}"
    response = pb.ErrorResponse(error_code=code, error_message=message)
    return TYPE_ERROR, [response.SerializeToString()]

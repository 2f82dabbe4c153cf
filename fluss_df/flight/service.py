"""The calls of Flight: who asks, what for, and the answer or the refusal."""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import grpc
import pyarrow as pa
from sqlglot import exp

from fluss_df.errors import FlussError
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.calls import Call, Calls
from fluss_df.flight.ingest import ingest, replaces
from fluss_df.flight.metadata import sql_info, tables
from fluss_df.flight.options import FlightLimits
from fluss_df.flight.refusals import invalid, status_of, unauthenticated, unsupported
from fluss_df.flight.sessions import Session, Sessions
from fluss_df.flight.statements import Statements, no_transactions
from fluss_df.flight.values import bound_values, rows_of
from fluss_df.flight.wire import Upload, packed, parse, schema_bytes, stream, unpacked

SERVICE: Final = "arrow.flight.protocol.FlightService"
# how long a client may take to send the first message of a call
_FIRST_S: Final = 10.0
# how long a client may take to read that its statement took too long
_LATE_S: Final = 10.0
# How much later than the last message the word may be heard that a client was cut off. It is waited
# for where a table is replaced: what came of other rows is written, and the client knows of none.
_SETTLE_S: Final = 0.1

_Asked = tuple[pa.Schema, Callable[[Session, Any], Iterator[pa.RecordBatch]]]
_QUESTIONS: Final[dict[type, _Asked]] = {
    pb.CommandGetCatalogs: (tables.CATALOGS, tables.catalogs),
    pb.CommandGetDbSchemas: (tables.SCHEMAS, tables.schemas),
    pb.CommandGetTables: (tables.TABLES, tables.tables),
    pb.CommandGetTableTypes: (tables.TABLE_TYPES, tables.table_types),
    pb.CommandGetPrimaryKeys: (tables.PRIMARY_KEYS, tables.primary_keys),
    pb.CommandGetExportedKeys: (tables.FOREIGN_KEYS, tables.no_keys),
    pb.CommandGetImportedKeys: (tables.FOREIGN_KEYS, tables.no_keys),
    pb.CommandGetCrossReference: (tables.FOREIGN_KEYS, tables.no_keys),
    pb.CommandGetSqlInfo: (sql_info.SQL_INFO, sql_info.sql_info),
    pb.CommandGetXdbcTypeInfo: (sql_info.TYPE_INFO, sql_info.type_info),
}
_ACTIONS: Final = {
    "CreatePreparedStatement": "Prepare a statement.",
    "ClosePreparedStatement": "Forget a prepared statement.",
    "CancelFlightInfo": "End a statement.",
    "CancelQuery": "End a statement (the older action).",
    "SetSessionOptions": "Set the database of names without one ('schema').",
    "GetSessionOptions": "Say which database that is.",
    "CloseSession": "Sign out.",
}
_TRANSACTIONS: Final = ("BeginTransaction", "EndTransaction", "BeginSavepoint", "EndSavepoint")


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the calls of clients.

    All of them are streams to gRPC, so that none waits for its first message on a thread that
    nobody looks after.
    """

    def __init__(
        self, sessions: Sessions, statements: Statements, calls: Calls, limits: FlightLimits
    ) -> None:
        self._sessions = sessions
        self._statements = statements
        self._calls = calls
        self._limits = limits
        answers: dict[str, Callable[..., Iterator[bytes]]] = {
            "Handshake": self._handshake,
            "ListFlights": self._list_flights,
            "GetFlightInfo": self._flight_info,
            "GetSchema": self._schema,
            "DoGet": self._get,
            "DoPut": self._put,
            "DoAction": self._act,
            "ListActions": self._list_actions,
        }
        self._handlers = {
            f"/{SERVICE}/{name}": grpc.stream_stream_rpc_method_handler(self._guarded(answer))
            for name, answer in answers.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; None for a call that does not exist."""
        return self._handlers.get(handler_call_details.method)

    def _guarded(self, answer: Callable[..., Iterator[bytes]]) -> Any:
        """Return a handler that makes a status of what goes wrong."""

        def handler(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            peer = _Peer(self._sessions, context)
            with self._calls.entered(context, _FIRST_S) as call, contextlib.closing(peer):
                try:
                    yield from answer(peer, requests, call)
                    return
                except (grpc.RpcError, GeneratorExit):
                    raise
                except BaseException as error:
                    if not context.is_active():
                        return
                    status, text = status_of(error)
                context.abort(status, text)

        return handler

    # ---- who asks

    def _handshake(self, peer: _Peer, _: Iterator[bytes], call: Call) -> Iterator[bytes]:
        call.may_take(self._limits.silent_s)
        token = peer.sign_in()
        header = (("authorization", f"Bearer {token}"),)
        peer.context.send_initial_metadata(header)
        yield pb.HandshakeResponse(payload=token.encode()).SerializeToString()

    # ---- what is there

    def _list_flights(self, peer: _Peer, _: Iterator[bytes], __: Call) -> Iterator[bytes]:
        peer.session()
        yield from ()

    def _list_actions(self, peer: _Peer, _: Iterator[bytes], __: Call) -> Iterator[bytes]:
        peer.session()
        for name, description in _ACTIONS.items():
            yield pb.ActionType(type=name, description=description).SerializeToString()

    def _flight_info(self, peer: _Peer, requests: Iterator[bytes], call: Call) -> Iterator[bytes]:
        session, descriptor = peer.session(), _only(pb.FlightDescriptor, requests)
        call.may_take(self._limits.statement_s + _LATE_S)
        command = _command(descriptor)
        schema, ticket = self._planned(session, command, descriptor.cmd, call)
        yield pb.FlightInfo(
            schema=schema_bytes(schema),
            flight_descriptor=descriptor,
            endpoint=[pb.FlightEndpoint(ticket=pb.Ticket(ticket=ticket))],
            total_records=-1,
            total_bytes=-1,
            ordered=True,
        ).SerializeToString()

    def _planned(
        self, session: Session, command: Any, cmd: bytes, call: Call
    ) -> tuple[pa.Schema, bytes]:
        """Return the columns of a result, and the ticket by which it is fetched."""
        if type(command) in _QUESTIONS:
            return _question(command)[0], cmd
        handle, schema = self._statements.plan(session, call, *_statement(session, command))
        return schema, packed(pb.TicketStatementQuery(statement_handle=handle))

    def _schema(self, peer: _Peer, requests: Iterator[bytes], call: Call) -> Iterator[bytes]:
        session, descriptor = peer.session(), _only(pb.FlightDescriptor, requests)
        call.may_take(self._limits.statement_s + _LATE_S)
        command = _command(descriptor)
        if type(command) in _QUESTIONS:
            schema = _question(command)[0]
        else:
            schema = self._statements.schema(session, call, *_statement(session, command))
        yield pb.SchemaResult(schema=schema_bytes(schema)).SerializeToString()

    # ---- results

    def _get(self, peer: _Peer, requests: Iterator[bytes], call: Call) -> Iterator[bytes]:
        session, ticket = peer.session(), _only(pb.Ticket, requests)
        call.may_take(self._limits.statement_s + _LATE_S)
        command = unpacked(ticket.ticket)
        if type(command) in _QUESTIONS:
            schema, answer = _question(command)
            yield from stream(schema, answer(session, command))
            return
        if not isinstance(command, pb.TicketStatementQuery):
            raise _no_command(command, "is no ticket")
        schema, run = self._statements.fetch(session, command.statement_handle)
        try:
            # the query is cancelled when its client goes away
            if not peer.context.add_callback(lambda: run.cancel("its client is gone")):
                return
            # as was promised
            batches = (b if b.schema.equals(schema) else b.cast(schema) for b in run)
            yield from stream(schema, batches)
        finally:
            self._statements.done(session, command.statement_handle, run)

    # ---- what clients send

    def _put(self, peer: _Peer, requests: Iterator[bytes], call: Call) -> Iterator[bytes]:
        session = peer.session()
        first = _only(pb.FlightData, requests)
        command = _command(first.flight_descriptor)
        settle_s = _SETTLE_S if replaces(command) else 0.0
        busy_s = self._limits.statement_s + _LATE_S
        messages = call.messages(requests, self._limits.silent_s, busy_s, settle_s)
        if isinstance(command, pb.CommandStatementUpdate):
            _refuse_transaction(command)
            call.may_take(self._limits.statement_s + _LATE_S)
            rows = self._statements.update(session, call, command.query, None)
            yield _updated(rows)
        elif isinstance(command, pb.CommandPreparedStatementUpdate):
            prepared = session.prepared(command.prepared_statement_handle)
            # bound values are used once, because they take memory
            bound, prepared.bound = prepared.bound, None
            if first.data_header:
                bound = bound_values(prepared.tree, Upload(first, messages))
            call.may_take(self._limits.statement_s + _LATE_S)
            statement = prepared.statement
            yield _updated(self._statements.update(session, call, statement, bound))
        elif isinstance(command, pb.CommandPreparedStatementQuery):
            prepared = session.prepared(command.prepared_statement_handle)
            prepared.bound = bound_values(prepared.tree, Upload(first, messages))
            handle = command.prepared_statement_handle
            result = pb.DoPutPreparedStatementResult(prepared_statement_handle=handle)
            yield pb.PutResult(app_metadata=result.SerializeToString()).SerializeToString()
        elif isinstance(command, pb.CommandStatementIngest):
            yield _updated(ingest(session, command, Upload(first, messages)))
        else:
            raise _no_command(command, "takes no rows")

    # ---- actions

    def _act(self, peer: _Peer, requests: Iterator[bytes], call: Call) -> Iterator[bytes]:
        session, action = peer.session(), _only(pb.Action, requests)
        call.may_take(self._limits.statement_s + _LATE_S)
        if action.type in _TRANSACTIONS:
            raise no_transactions(action.type)
        if action.type not in _ACTIONS:
            raise unsupported(f"there is no action {action.type[:80]!r} here")
        if action.type == "CreatePreparedStatement":
            result = self._prepare(session, action.body, call)
        else:
            result = getattr(self, f"_{action.type}")(session, action.body)
        if result is not None:
            yield pb.Result(body=result).SerializeToString()

    def _prepare(self, session: Session, body: bytes, call: Call) -> bytes:
        asked = unpacked(body)
        if not isinstance(asked, pb.ActionCreatePreparedStatementRequest):
            raise _no_command(asked, "prepares nothing")
        _refuse_transaction(asked)
        handle, schema, parameters = self._statements.prepare(session, call, asked.query)
        return packed(
            pb.ActionCreatePreparedStatementResult(
                prepared_statement_handle=handle,
                dataset_schema=schema_bytes(schema) if len(schema) else b"",
                parameter_schema=schema_bytes(parameters) if len(parameters) else b"",
            )
        )

    def _ClosePreparedStatement(self, session: Session, body: bytes) -> None:  # noqa: N802
        asked = unpacked(body)
        if not isinstance(asked, pb.ActionClosePreparedStatementRequest):
            raise _no_command(asked, "closes nothing")
        session.unprepare(asked.prepared_statement_handle)

    def _CancelFlightInfo(self, session: Session, body: bytes) -> bytes:  # noqa: N802
        info = parse(pb.CancelFlightInfoRequest, body).info
        status = _cancelled(session, info)
        return pb.CancelFlightInfoResult(status=status).SerializeToString()

    def _CancelQuery(self, session: Session, body: bytes) -> bytes:  # noqa: N802
        asked = unpacked(body)
        if not isinstance(asked, pb.ActionCancelQueryRequest):
            raise _no_command(asked, "cancels nothing")
        status = _cancelled(session, parse(pb.FlightInfo, asked.info))
        return packed(pb.ActionCancelQueryResult(result=status))

    def _SetSessionOptions(self, session: Session, body: bytes) -> bytes:  # noqa: N802
        asked = parse(pb.SetSessionOptionsRequest, body)
        result = pb.SetSessionOptionsResult()
        kinds = pb.SetSessionOptionsResult
        for name, value in asked.session_options.items():
            if name == "catalog" and value.string_value in ("", "fluss"):
                continue
            if name != "schema" or session.shared:
                result.errors[name].value = kinds.INVALID_NAME
                continue
            try:
                session.backend.raw_sql(f'USE "{value.string_value.replace(chr(34), chr(34) * 2)}"')
            except FlussError:
                result.errors[name].value = kinds.INVALID_VALUE
        return result.SerializeToString()

    def _GetSessionOptions(self, session: Session, _: bytes) -> bytes:  # noqa: N802
        result = pb.GetSessionOptionsResult()
        result.session_options["catalog"].string_value = "fluss"
        result.session_options["schema"].string_value = session.backend.current_database
        return result.SerializeToString()

    def _CloseSession(self, session: Session, _: bytes) -> bytes:  # noqa: N802
        closed = self._sessions.close_one(session)
        kinds = pb.CloseSessionResult
        status = kinds.CLOSED if closed else kinds.NOT_CLOSEABLE
        return pb.CloseSessionResult(status=status).SerializeToString()


class _Peer:
    """Who makes a call."""

    def __init__(self, sessions: Sessions, context: grpc.ServicerContext) -> None:
        self._sessions = sessions
        self._session: Session | None = None
        self.context = context

    def session(self) -> Session:
        """Return the session of the client, which it keeps while the call is open.

        Raises FlussError where clients must sign in, and this one did not.
        """
        assert self._session is None
        self._session = self._found()
        return self._session

    def close(self) -> None:
        """Take note that the call is over."""
        if self._session is not None:
            self._session.leave()

    def _found(self) -> Session:
        scheme, credentials = self._authorization()
        if scheme == "bearer":
            return self._sessions.of_token(credentials)
        if scheme == "basic":
            return self._sessions.of_password(*_basic(credentials), self._address())
        if scheme:
            raise unauthenticated(f"{scheme[:20]!r} is no way to sign in here: use Basic or Bearer")
        return self._sessions.anonymous(self._address())

    def sign_in(self) -> str:
        """Let the client in by the password that it sent; return its token."""
        scheme, credentials = self._authorization()
        if scheme != "basic":
            raise unauthenticated("user and password are needed to sign in (Basic)")
        return self._sessions.sign_in(*_basic(credentials), self._address())

    def _authorization(self) -> tuple[str, str]:
        for key, value in self.context.invocation_metadata():
            if key == "authorization" and isinstance(value, str):
                scheme, _, credentials = value.partition(" ")
                return scheme.lower(), credentials.strip()
        return "", ""

    def _address(self) -> str:
        # ipv4:127.0.0.1:4711, ipv6:[::1]:4711
        peer = unquote(self.context.peer())
        return peer.partition(":")[2].rpartition(":")[0].strip("[]")


def _basic(credentials: str) -> tuple[str, str]:
    # drivers leave out the padding at the end, as Go's base64.RawStdEncoding does
    padded = credentials + "=" * (-len(credentials) % 4)
    try:
        user, colon, password = base64.b64decode(padded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon or not user:
        raise unauthenticated("user and password cannot be read (Basic)")
    return user, password


def _only(kind: Any, requests: Iterator[bytes]) -> Any:
    message = next(requests, None)
    if message is None:
        # drivers end the call without its schema where rows come in no batch at all
        way_out = (
            ": send one batch without rows, where there are none" if kind is pb.FlightData else ""
        )
        name = kind.DESCRIPTOR.name
        raise invalid(f"the client sent nothing where a {name} is expected{way_out}")
    return parse(kind, message)


def _command(descriptor: pb.FlightDescriptor) -> Any:
    if descriptor.type != pb.FlightDescriptor.CMD:
        raise invalid("only commands of Flight SQL are known here, and no paths")
    return unpacked(descriptor.cmd)


def _question(command: Any) -> _Asked:
    schema, answer = _QUESTIONS[type(command)]
    if isinstance(command, pb.CommandGetTables) and command.include_schema:
        schema = tables.TABLES_WITH_SCHEMAS
    return schema, answer


def _statement(session: Session, command: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the statement of a command that asks for a result, and its values."""
    if isinstance(command, pb.CommandStatementQuery):
        _refuse_transaction(command)
        return command.query, ()
    if not isinstance(command, pb.CommandPreparedStatementQuery):
        raise _no_command(command, "asks for no result")
    prepared = session.prepared(command.prepared_statement_handle)
    rows = list(itertools.islice(rows_of(prepared.bound or ()), 2))
    if len(rows) > 1:
        raise invalid("several rows of values are bound, and what has a result takes one")
    if not isinstance(prepared.tree, exp.Query):
        # the values are taken out, because a second execution would write them again
        prepared.bound = None
    return prepared.statement, rows[0] if rows else ()


def _no_command(command: Any, why: str) -> Exception:
    return invalid(f"{command.DESCRIPTOR.name} {why}")


def _refuse_transaction(command: Any) -> None:
    if command.transaction_id:
        raise no_transactions("a statement in a transaction")


def _cancelled(session: Session, info: pb.FlightInfo) -> Any:
    found = False
    for endpoint in info.endpoint:
        command = unpacked(endpoint.ticket.ticket)
        if isinstance(command, pb.TicketStatementQuery):
            found |= session.cancel(command.statement_handle)
    return pb.CANCEL_STATUS_CANCELLED if found else pb.CANCEL_STATUS_NOT_CANCELLABLE


def _updated(rows: int) -> bytes:
    result = pb.DoPutUpdateResult(record_count=rows).SerializeToString()
    return pb.PutResult(app_metadata=result).SerializeToString()

"""A folder that is served while it is open: the engine, its threads, its sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss_df.engine.access.authorizer import Authorizer
from fluss_df.engine.access.passwords import checked_users
from fluss_df.engine.access.security import Security, principals_of
from fluss_df.engine.auto_partitions import keep_partitions
from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.files.files import disk_refused
from fluss_df.engine.files.runtime_folder import RuntimeFolder
from fluss_df.engine.lake.lake_of_table import has_lake
from fluss_df.engine.requests.dispatch import Dispatcher, Reply, Session
from fluss_df.engine.serve.accepting import Acceptor
from fluss_df.engine.serve.admission import Connections, Limits
from fluss_df.engine.serve.channel import Channel
from fluss_df.engine.serve.connection import Connection
from fluss_df.engine.serve.tls import ServerTls
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.hooks import Closing, ForkStep, after_fork, open_folder_lake, undoing
from fluss_df.observe.counters import engines
from fluss_df.protocol.address import local_host
from fluss_df.protocol.api import Api, RequestT, ResponseT
from fluss_df.protocol.frames import Request

T = TypeVar("T")
# seconds that opening waits for partitions to be created
_PARTITIONS_S: Final = 2.0


class EngineServer(Closing):
    """Serves an engine; :class:`~fluss_df.embedded.EmbeddedFluss` says how users open one.

    Parameters
    ----------
    path, port, host, sasl, options, limits, security
        As of :class:`~fluss_df.embedded.EmbeddedFluss`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        sasl: Mapping[str, str] | None = None,
        options: EngineOptions | None = None,
        limits: Limits | None = None,
        security: Security | None = None,
    ) -> None:
        self._users = None if sasl is None else checked_users(sasl)
        security = security or Security()
        tls = None if security.tls_cert is None else ServerTls(security)
        self._temporary = path is None
        self._address: str | None = None
        self._closed = False
        self._ending = threading.RLock()
        self._acceptors: list[Acceptor] = []
        self._requests: set[asyncio.Task[Any]] = set()
        self._runtime = RuntimeFolder()
        with undoing(self._runtime.remove):
            folder = self._runtime.make_data() if path is None else Path(path)
            self.folder = folder.expanduser().absolute()
            self.engine = Engine(self.folder, options)
        self.socket_path = self._runtime.socket_path
        reached = local_host(self.socket_path)
        self._session = Session(*reached, local=True)  # of requests without a connection
        try:
            self._prepare(security, limits, f"{reached[0]}:{reached[1]}")
        except BaseException as error:
            # nothing uses the folder yet, and nobody could give it back later
            self._closed = True
            self.engine.close()
            self._runtime.remove()
            if isinstance(error, OSError | RuntimeError):
                raise disk_refused(f"cannot serve {self.folder}", self.folder, error) from error
            raise
        try:
            self._runtime.name_data(self.folder)
            lake_tables = [t for t in self.engine.catalog.all_tables() if has_lake(t)]
            if lake_tables and self.engine.lake is not None:
                # before anybody reads of it
                self.engine.lake.opened(
                    (table.path, table.descriptor, table.lake.get("snapshot", {}).get("id"))
                    for table in lake_tables
                )
            self._run(self._start(host, port, tls))
            self.engine.lock.announce(self.socket_path)
            _open.add(self)
            engines.enter(self, self.engine.counters)
            if lake_tables and self.engine.lake is not None:
                self.engine.lake.created()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | RuntimeError):
                raise disk_refused(f"cannot serve {self.folder}", self.folder, error) from error
            raise
        # later this runs once a minute; now too, for programs that end sooner
        with contextlib.suppress(RuntimeError, TimeoutError):  # no thread for it, or much to remove
            # not waited for, and not left for the end, which a program that is killed has not
            self.engine.workers.submit(self.engine.expire)
            self.engine.workers.submit(keep_partitions, self.engine).result(_PARTITIONS_S)

    def _prepare(self, security: Security, limits: Limits | None, address: str) -> None:
        """Make what answers requests, and start its thread."""
        self.engine.at_checks(functools.partial(keep_partitions, self.engine))
        dispatcher = Dispatcher(self.engine, self._authorizer(security))
        self._connections = Connections[Connection](dispatcher, limits or Limits())
        settings = self.engine.settings
        self.engine.lake = open_folder_lake(
            self.folder, address, settings.lake_tiering, settings.lake_snapshots_s
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="fluss-df-embedded", daemon=True)
        with undoing(self._loop.close):
            self._thread.start()

    def _authorizer(self, security: Security) -> Authorizer | None:
        if not security.authorizer_enabled:
            return None
        return Authorizer(
            self.engine.acls,
            self.engine.catalog,
            principals_of(security.super_users),
            ignore_case=security.acl_principal_ignore_case,
        )

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, host: str, port: int | None, tls: ServerTls | None) -> None:
        self.engine.start()
        unix_host, unix_port = local_host(self.socket_path)
        secret = self.engine.lock.secret
        local, where = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), self.socket_path
        try:
            local.bind(self.socket_path)
            os.chmod(self.socket_path, 0o600)
            where = f"{host}:{port}"
            listening = None if port is None else socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            local.close()
            raise NetworkError(f"cannot listen on {where}: {error}") from error
        self._accept(local, lambda _: Session(unix_host, unix_port, local=True, secret=secret))
        if listening is None:
            return
        bound = int(listening.getsockname()[1])
        # where it listens on all addresses of this machine, each peer is told the one that it came
        # to
        shown = "" if host == "0.0.0.0" else host
        self._accept(
            listening, lambda address: Session(shown, bound, self._users, address=address), tls
        )
        self._address = f"{shown or '127.0.0.1'}:{bound}"

    def _accept(
        self,
        listening: socket.socket,
        session: Callable[[str], Session],
        tls: ServerTls | None = None,
    ) -> None:
        connections = self._connections

        def make(peer: str) -> Connection:
            return Connection(connections, session(peer))

        self._acceptors.append(Acceptor(listening, connections, make, tls))

    @property
    def address(self) -> str:
        """``host:port``, for clients of Fluss.

        Raises
        ------
        FlussError
            When it does not serve TCP.
        """
        if self._address is None:
            raise FlussError("this engine serves no TCP: pass port=0 for a free port")
        return self._address

    @property
    def is_temporary(self) -> bool:
        """Whether its folder is removed when it is closed."""
        return self._temporary

    @property
    def open_connections(self) -> Connections[Connection]:
        """The open connections, those of this process too, and their limits."""
        return self._connections

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def submit(
        self, request: Request, session: Session | None = None
    ) -> concurrent.futures.Future[Reply]:
        """Begin a request of this process; return the future of its answer.

        Raises
        ------
        RuntimeError
            When the engine is closed.
        """
        return self._begin(self._answer(request, session or self._session))

    def reply_at_once(self, request: Request) -> Reply | None:
        """Answer a fetch or lookup of this process on this thread; None for one that may wait.

        Raises
        ------
        RuntimeError
            When the engine is closed.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        return self._connections.dispatcher.reply_at_once(request)

    def answer_at_once(self, kind: Api[RequestT, ResponseT], message: RequestT) -> ResponseT | None:
        """Answer a question of this process on this thread; None for one that is to be sent.

        Raises
        ------
        FlussError
            What the answer would say.
        RuntimeError
            When the engine is closed.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        return self._connections.dispatcher.answer_at_once(kind, message)

    def open_channel(
        self,
        answered: Callable[[int, Reply], None],
        ended: Callable[[], None],
        session: Session | None = None,
    ) -> Callable[[Request | None], None]:
        """Open a connection of this process that needs no socket.

        Parameters
        ----------
        answered
            Called on the engine's thread with the id of a request and its answer.
        ended
            Called there once there will be no more answers.
        session
            Who asks; by default the user of this process.

        Returns
        -------
        Callable
            Sends a request; None ends it. RuntimeError when the engine is closed.
        """
        asks = session or self._session
        channel = Channel(self._connections.dispatcher, asks, answered, ended)
        self._begin(self._run_channel(channel))

        def send(request: Request | None) -> None:
            if request is None:
                self._loop.call_soon_threadsafe(channel.close)
            else:
                self._loop.call_soon_threadsafe(channel.send, request)

        return send

    async def _run_channel(self, channel: Channel) -> None:
        self._remember_request()
        await channel.run()

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._closed:
            work.close()
            raise RuntimeError("the engine is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _remember_request(self) -> None:
        """Have the task that runs ended with the engine."""
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _answer(self, request: Request, session: Session) -> Reply:
        self._remember_request()
        reply = await self._connections.dispatcher.begin(session, request, in_place=True)
        return reply if isinstance(reply, tuple) else await reply

    @property
    def has_users(self) -> bool:
        """Whether who comes in by TCP needs a password."""
        return self._users is not None

    def sign_in(self, user: str, password: str, address: str) -> None:
        """Check a password as that of a peer that comes in by TCP.

        Raises
        ------
        FlussError
            ``AUTHENTICATE_EXCEPTION`` where it is wrong, and where there are no users; after
            several wrong ones it waits, and refuses who tries on.
        """
        if self._closed:
            raise FlussError("the engine is closed", ErrorCode.NETWORK_EXCEPTION)
        session = Session("", 0, self._users, address=address)
        self._run(self._connections.dispatcher.sign_in(session, user, password))

    def view_of(self, user: str | None, address: str) -> UserView:
        """Return the engine as a user at an address has it: with that user's rights."""
        return UserView(self, user, address)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Return the requests that there are, with their oldest and newest versions."""
        return self._connections.dispatcher.versions()

    def close(self) -> None:
        """Finish what is being done, sync, and give up the folder; a second call does nothing.

        Raises
        ------
        FlussError
            When data could not be synced.
        """
        # another thread that closes it waits until that is done
        with self._ending:
            if not self._closed:
                self._end()

    def _end(self) -> None:
        if self.engine.lake is not None:
            # the lake tiers by requests, which are still answered here
            self.engine.lake.close()
        self._closed = True
        try:
            self._run(self._stop())
        finally:
            try:
                self.engine.close()
            finally:
                engines.leave(self.engine.counters)
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(5)
                if not self._loop.is_running():
                    self._loop.close()
                self._runtime.remove()

    async def _stop(self) -> None:
        for acceptor in self._acceptors:
            await acceptor.close()
        await self._connections.close()
        requests = list(self._requests)
        for task in requests:
            task.cancel()
        # requests end here: a coroutine that outlives its loop cannot
        await asyncio.gather(*requests, return_exceptions=True)
        await self.engine.stop()

    def __repr__(self) -> str:
        state = "closed" if self._closed else (self._address or "open")
        return f"EngineServer({str(self.folder)!r}, {state})"


class UserView:
    """An engine of this process as one of its users has it, for connections without a socket.

    Connections find it by :attr:`socket_path`, while somebody holds it.

    Parameters
    ----------
    server
        The engine.
    user
        Who asks; None for who gave no name.
    address
        Where the user is, for access control lists.

    Attributes
    ----------
    socket_path
        What stands for it in an address; there is no such file.
    closed
        Whether the engine or the view is.
    """

    def __init__(self, server: EngineServer, user: str | None, address: str) -> None:
        self._server = server
        self._closed = False
        # nobody guesses it
        self.socket_path = f"{server.socket_path}/{secrets.token_hex(16)}"
        self._session = Session(*local_host(self.socket_path), user=user, address=address)
        _views[self.socket_path] = self
        # what sends to each channel that is open, by what is set at its end
        self._channels: dict[threading.Event, Callable[[Request | None], None]] = {}

    @property
    def closed(self) -> bool:
        """Whether the engine or the view is closed."""
        return self._closed or self._server.closed

    def close(self) -> None:
        """Answer nothing more; the engine stays open."""
        self._closed = True
        _views.pop(self.socket_path, None)
        for send in list(self._channels.values()):
            with contextlib.suppress(RuntimeError):  # the engine is closed
                send(None)

    def _opened(self) -> EngineServer:
        if self.closed:
            raise RuntimeError("the engine is closed")
        return self._server

    def submit(self, request: Request) -> concurrent.futures.Future[Reply]:
        """As :meth:`EngineServer.submit`, for the user."""
        return self._opened().submit(request, self._session)

    def open_channel(
        self, answered: Callable[[int, Reply], None], ended: Callable[[], None]
    ) -> Callable[[Request | None], None]:
        """As :meth:`EngineServer.open_channel`, for the user; it ends with the view."""
        over = threading.Event()

        def gone() -> None:
            over.set()
            self._channels.pop(over, None)
            ended()

        send = self._opened().open_channel(answered, gone, self._session)
        self._channels[over] = send
        # either may have happened meanwhile, on another thread
        if over.is_set():
            self._channels.pop(over, None)
        elif self._closed:
            send(None)
        return send

    def reply_at_once(self, request: Request) -> Reply | None:
        """Return None: what a user may do is looked at where requests are answered."""
        self._opened()
        return None

    def answer_at_once(self, kind: Api[RequestT, ResponseT], message: RequestT) -> ResponseT | None:
        """Return None, as :meth:`reply_at_once`."""
        self._opened()
        return None

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """As :meth:`EngineServer.api_versions`."""
        return self._opened().api_versions()


LocalEngine = EngineServer | UserView

_views: weakref.WeakValueDictionary[str, UserView] = weakref.WeakValueDictionary()
_open: weakref.WeakSet[EngineServer] = weakref.WeakSet()


def engine_at(socket_path: str) -> LocalEngine | None:
    """Return the engine of this process that has a Unix socket, while it is open; or a view."""
    view = _views.get(socket_path)
    if view is not None:
        return None if view.closed else view
    for engine in list(_open):
        if engine.socket_path == socket_path and not engine.closed:
            return engine
    return None


def _forget_engines() -> None:
    """Leave engines to the parent: a forked child has no thread that serves them."""
    for engine in list(_open):
        engine._closed = True
        # a thread of the parent may have it
        engine._ending = threading.RLock()


after_fork(ForkStep.ENGINES, _forget_engines)

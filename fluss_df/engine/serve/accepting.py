"""Listening sockets: who is let in, and what happens when there is no descriptor for more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.serve.admission import Connections, Handshake
from fluss_df.engine.serve.connection import Connection
from fluss_df.engine.serve.tls import ServerTls, shake_hands
from fluss_df.engine.serve.tls_transport import TlsTransport
from fluss_df.local_peers import peer_uid

logger = SeldomLogger(logging.getLogger(__name__))

_BACKLOG: Final = 256
# connections taken before others have a turn
_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.2
_SHORT: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Accepts the connections of one listening socket.

    Not asyncio's server: without descriptors, that tries a hundred times at once, logs each, and
    doubles its tries. Here accepting pauses, and a peer that does nothing has to go.

    The listening socket is closed with this. ``connections`` says whether there is room. ``make``
    makes the protocol of a connection, by its peer's address. ``tls`` shakes hands with peers; None
    where they come without TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections[Connection],
        make: Callable[[str], Connection],
        tls: ServerTls | None = None,
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        # a descriptor in reserve: it is given back to accept, and close, a waiting peer when there
        # are no others
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._loop.add_reader(listening, self._ready)

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                peer, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._admit(peer, address)

    def _admit(self, peer: socket.socket, address: object) -> None:
        peer.setblocking(False)
        local = peer.family == socket.AF_UNIX
        if local and peer_uid(peer) not in {os.geteuid(), 0}:
            logger.warning(
                "a connection of user id %s was closed: it is another user's", peer_uid(peer)
            )
            peer.close()
            return
        name = "" if local else str(address[0]) if isinstance(address, tuple) else str(address)
        if not self._connections.admit(name):
            peer.close()
            return
        if self._tls is None:
            task = self._loop.create_task(self._open(peer, name))
        else:
            task = self._loop.create_task(self._encrypt(peer, name, self._tls.context()))
            # a peer counts, and may be closed for another one, before hands are shaken
            guest = Handshake(name, self._loop.time(), task)
            self._connections.shaking.add(guest)
            task.add_done_callback(lambda _: self._connections.shaking.discard(guest))
            # closes the peer of a task that was cancelled before its first step; any other task has
            # let go of its peer
            task.add_done_callback(lambda _: peer.close())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _encrypt(self, peer: socket.socket, name: str, tls: ssl.SSLContext) -> None:
        try:
            async with asyncio.timeout(self._connections.limits.unauthenticated_s):
                encrypted = await shake_hands(peer, tls)
        except TimeoutError:
            logger.warning("a peer at %s did not shake hands in time (TLS)", name)
            return
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            logger.warning("a peer at %s could not shake hands (TLS): %s", name, reason)
            return
        if encrypted is None:
            logger.log(logging.DEBUG, "a peer at %s came without TLS", name)
            return
        task = asyncio.current_task()
        self._connections.shaking -= {
            guest for guest in self._connections.shaking if guest.task is task
        }
        TlsTransport(self._loop, encrypted, self._make(name))

    async def _open(self, peer: socket.socket, name: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(name), peer)
        except OSError as error:
            logger.warning("a connection could not be opened: %s", error)
            peer.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment, and make room."""
        if error.errno not in _SHORT:
            logger.warning("a connection could not be accepted: %s", error)
        else:
            logger.warning(
                "no connection can be accepted: %s. Close some, or raise the limit (ulimit -n)",
                error,
            )
            self._connections.make_room("")
            self._turn_away()
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(_PAUSE_S, self._go_on)

    def _turn_away(self) -> None:
        """Take who waits longest and close it: it learns at once that it is not served."""
        if self._reserve < 0:
            return
        os.close(self._reserve)
        self._reserve = -1
        with contextlib.suppress(OSError):
            self._socket.accept()[0].close()
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _go_on(self) -> None:
        self._timer = None
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._loop.add_reader(self._socket, self._ready)

    async def close(self) -> None:
        """Accept nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._tls is not None:
            for task in self._opening:
                task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

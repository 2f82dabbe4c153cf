"""A transport of encrypted bytes on a socket that has shaken hands.

Not asyncio's own: that one moves each byte through two buffers in memory more, and keeps the alert
to itself by which a peer learns why it is refused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, Final

from fluss_df.protocol.wire import Buffer

# bytes that wait to be sent: with more than the first, the protocol is told to pause; with less
# than the second, to go on
_HIGH: Final = 64 << 10
_LOW: Final = 16 << 10
# records of TLS, of 16 KB, that are received or sent before others have a turn
_AT_ONCE: Final = 16
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class TlsTransport(asyncio.Transport):
    """Receives and sends on an encrypted socket that does not block.

    ``encrypted`` is the socket after its handshake; it is closed with this. ``protocol`` gets what
    is received. It is told at once that there is a connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        encrypted: ssl.SSLSocket,
        protocol: asyncio.BufferedProtocol,
    ) -> None:
        super().__init__({"socket": encrypted})
        self._loop = loop
        self._socket = encrypted
        self._protocol = protocol
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._closing = False
        self._ended = False
        self._reading = self._writing = False
        self._told_to_pause = False
        # what is decrypted already makes no socket readable
        self._again: asyncio.Handle | None = None
        protocol.connection_made(self)
        if not self._closing:
            self.resume_reading()

    # ---- what comes in

    def pause_reading(self) -> None:
        """Receive nothing more for now."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def resume_reading(self) -> None:
        """Receive again."""
        if self._reading or self._closing:
            return
        self._reading = True
        self._loop.add_reader(self._socket, self._receive)
        # also what was decrypted before the pause, and what came with the handshake
        self._again = self._loop.call_soon(self._receive)

    def is_reading(self) -> bool:
        """Whether it receives."""
        return self._reading

    def _receive(self) -> None:
        self._again = None
        for _ in range(_AT_ONCE):
            if not self._reading:
                return
            try:
                count = self._socket.recv_into(self._protocol.get_buffer(-1))
            except ssl.SSLWantWriteError:
                self._watch_writing()
                return
            except _LATER:
                return
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                count = 0
            except OSError as error:
                self._end(error)
                return
            if not count:
                self._end(None)
                return
            self._protocol.buffer_updated(count)
        if self._reading and self._socket.pending():
            self._again = self._loop.call_soon(self._receive)

    # ---- what goes out

    def write(self, data: Buffer) -> None:
        """Send bytes; those that the peer does not take yet are copied, as they may change."""
        if self._closing or not len(data):
            return
        view = memoryview(data).cast("B")
        if not self._waiting:
            sent = self._send(view)
            if sent < 0 or sent == len(view):
                return
            view = view[sent:]
        self._waiting.append(memoryview(bytes(view)))
        self._size += len(view)
        self._watch_writing()
        if self._size > _HIGH and not self._told_to_pause:
            self._told_to_pause = True
            self._protocol.pause_writing()

    def _send(self, view: memoryview) -> int:
        """Return how many bytes were sent; -1 where the connection ended."""
        sent = 0
        try:
            while sent < len(view):
                sent += self._socket.send(view[sent:])
        except _LATER:
            pass
        except OSError as error:
            self._end(error)
            return -1
        return sent

    def _watch_writing(self) -> None:
        if not self._writing and not self._ended:
            self._writing = True
            self._loop.add_writer(self._socket, self._flush)

    def _flush(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._waiting:
                break
            view = self._waiting[0]
            sent = self._send(view)
            if sent < 0:
                return
            self._size -= sent
            if sent < len(view):
                self._waiting[0] = view[sent:]
                break
            self._waiting.popleft()
        if not self._waiting:
            self._writing = False
            self._loop.remove_writer(self._socket)
            if self._reading:
                # what is received may have waited for what was sent
                self._again = self._again or self._loop.call_soon(self._receive)
            if self._closing:
                self._end(None)
                return
        if self._told_to_pause and self._size <= _LOW:
            self._told_to_pause = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait to be sent."""
        return self._size

    # ---- the end

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._closing

    def close(self) -> None:
        """Send what waits, then end."""
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if not self._waiting:
            self._end(None)

    def abort(self) -> None:
        """End at once."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self.pause_reading()
        self._closing = self._ended = True
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)
        self._waiting.clear()
        self._size = 0
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()

    # ---- what else asyncio has

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Refuse: they are what they are."""
        raise NotImplementedError

    def write_eof(self) -> None:
        """Refuse: TLS ends in both directions at once."""
        raise NotImplementedError

    def can_write_eof(self) -> bool:
        """Return False."""
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who gets what is received."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Have another one get it."""
        self._protocol = protocol

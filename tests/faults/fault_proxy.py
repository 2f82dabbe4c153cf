"""A TCP proxy that understands request frames, to break connections at chosen requests."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

PRODUCE_LOG = 1014
FETCH_LOG = 1015


@dataclass
class Rule:
    """What happens to some requests of one kind.

    ``action`` is "reset before" (the server never sees it), "reset after" (the server answers, the
    client never hears), "silent" (the server answers, the answer is kept back), or "delay".
    """

    api_key: int
    action: str
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def applies(self, api_key: int) -> bool:
        with self.lock:
            if api_key != self.api_key:
                return False
            if self.skip:
                self.skip -= 1
                return False
            if self.hits >= self.times:
                return False
            self.hits += 1
            return True


class FaultProxy:
    """Forwards connections to a server, applying rules to requests."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: Callable[[], tuple[str, int]] | None = None
        self.rules: list[Rule] = []
        # the requests of some kinds, and what servers answered, with their frame's length
        self.kept_keys: frozenset[int] = frozenset()
        # makes other answers of those that servers give to requests of a kind
        self.rewrite: Callable[[int, bytes], bytes] | None = None
        self.requests: list[tuple[int, bytes]] = []
        self.responses: list[tuple[int, bytes]] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self.target is not None
            try:
                server = socket.create_connection(self.target())
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            _Pipe(self, client, server)


class _Pipe:
    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._actions: dict[int, Rule] = {}
        self._keys: dict[int, int] = {}
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._responses, daemon=True).start()

    def _close(self) -> None:
        for sock in (self._client, self._server):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                sock.close()

    def _requests(self) -> None:
        try:
            while True:
                frame = _read_frame(self._client)
                api_key, _, request_id = struct.unpack_from(">hhi", frame, 4)
                self._keys[request_id] = api_key
                if api_key in self._proxy.kept_keys:
                    self._proxy.requests.append((api_key, frame))
                for rule in self._proxy.rules:
                    if rule.applies(api_key):
                        if rule.action == "reset before":
                            self._close()
                            return
                        self._actions[request_id] = rule
                self._server.sendall(frame)
        except (OSError, EOFError):
            self._close()

    def _responses(self) -> None:
        try:
            while True:
                frame = _read_frame(self._server)
                (request_id,) = struct.unpack_from(">i", frame, 5)
                api_key = self._keys.pop(request_id, -1)
                if api_key in self._proxy.kept_keys:
                    self._proxy.responses.append((api_key, frame))
                if self._proxy.rewrite is not None:
                    frame = self._proxy.rewrite(api_key, frame)
                rule = self._actions.pop(request_id, None)
                if rule is not None and rule.action == "reset after":
                    self._close()
                    return
                if rule is not None and rule.action == "silent":
                    continue
                if rule is not None and rule.action == "delay":
                    threading.Event().wait(rule.seconds)
                self._client.sendall(frame)
        except (OSError, EOFError):
            self._close()


def _read_frame(sock: socket.socket) -> bytes:
    head = _read(sock, 4)
    (length,) = struct.unpack(">i", head)
    return head + _read(sock, length)


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)

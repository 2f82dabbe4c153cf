"""Free TCP ports on 127.0.0.1."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"

# Below the ports that Linux (32768) and macOS (49152) give to outgoing connections: a port that is
# free now is not taken by chance while a server of ours is down.
_FIRST, _LAST = 10_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as server:
        # As the servers do it: connections that have just ended do not keep a port.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
            server.listen(1)
        except OSError:
            return False
    return True


def is_open(port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout):
            return True
    except OSError:
        return False


class PortChooser:
    """Chooses distinct free ports, at random, so that clusters started at once rarely collide."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._random = random.SystemRandom()

    def choose(self, preferred: int | None = None) -> int:
        """Return a free port: the preferred one where possible."""
        if preferred is not None and preferred not in self._taken and is_free(preferred):
            self._taken.add(preferred)
            return preferred
        while True:
            port = self._random.randrange(_FIRST, _LAST)
            if port not in self._taken and is_free(port):
                self._taken.add(port)
                return port

"""Addresses that are Unix sockets: an embedded engine on this machine.

Servers are known by host and port everywhere in the protocol, so the path of a socket is written
as a host: ``unix-`` and the path in hexadecimal digits. It survives being pickled, and being told
by a server in its metadata.
"""

from __future__ import annotations

_PREFIX = "unix-"
# the protocol wants a port with each host; that of a Unix socket has no meaning
_PORT = 1


def shown_host(host: str, otherwise: str) -> str:
    """Return the text that users see for a host: a phrase for a Unix socket, else ``otherwise``."""
    return "a socket of this machine" if local_path(host) is not None else otherwise


def local_host(path: str) -> tuple[str, int]:
    """Return the host and port that stand for a Unix socket."""
    return _PREFIX + path.encode(errors="surrogateescape").hex(), _PORT


def local_path(host: str) -> str | None:
    """Return the path of the Unix socket that a host stands for; None for other hosts.

    Examples
    --------
    >>> local_path(local_host("/tmp/s")[0])
    '/tmp/s'
    """
    if not host.startswith(_PREFIX):
        return None
    try:
        path = bytes.fromhex(host.removeprefix(_PREFIX)).decode(errors="surrogateescape")
    except ValueError:
        return None
    # the path may have any bytes, but it must be absolute, or empty
    return path if not path or path.startswith("/") else None

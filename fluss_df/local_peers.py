"""The user at the other end of a Unix socket, as the operating system tells it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Final

# struct ucred: pid, uid, gid
_UCRED: Final = struct.Struct("iII")
# on macOS and BSD: <sys/un.h>, and struct xucred begins with a version and the uid
_LOCAL_PEERCRED: Final = 1
_XUCRED: Final = struct.Struct("II")
_XUCRED_SIZE: Final = 76


def peer_uid(connected: socket.socket) -> int | None:
    """Return the user id of the process at the other end; None where the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(data)[1])
    if sys.platform == "darwin" or "bsd" in sys.platform:
        data = connected.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_SIZE)
        return int(_XUCRED.unpack_from(data)[1])
    return None


def require_own(connected: socket.socket, path: str) -> None:
    """Make sure that the engine at a Unix socket is one of this user; root may use all.

    Raises PermissionError where it is another user's, who may have taken the path.
    """
    found = peer_uid(connected)
    own = os.geteuid()
    if found is not None and found != own and own != 0:
        raise PermissionError(f"the process at {path} is of another user (user id {found})")

"""Addresses of connections: servers, and folders of embedded engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fluss_df.errors import ErrorCode, FlussError

_MEMORY: Final = ":memory:"
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):(\d{1,5})$")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; IPv6 hosts stand in brackets."""
    match = _ADDRESS.match(text.strip())
    if match is None or not 0 < int(match[2]) < 65536:
        raise FlussError(
            f"invalid address {text.strip()!r}: expected 'host:port', as in '127.0.0.1:9123'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return match[1].strip("[]"), int(match[2])


def embedded_folder(description: object) -> Path | str | None:
    """Return the folder that a user names as a connection, or None where it is something else.

    A folder is a ``Path``, ``":memory:"``, ``"file:..."``, or a string that begins with a slash,
    ``./``, ``../`` or ``~``: a bare word may be a host's name.
    """
    if isinstance(description, Path):
        return description
    if not isinstance(description, str):
        return None
    if description == _MEMORY:
        return _MEMORY
    if description.startswith("file:"):
        rest = description.removeprefix("file:")
        return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
    if description in (".", "..") or description.startswith(("/", "./", "../", "~")):
        return Path(description)
    return None

"""Addresses of connections: servers, and folders of embedded engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from fluss_df.errors import ErrorCode, FlussError

_MEMORY: Final = ":memory:"
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):(\d{1,5})$")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; IPv6 hosts stand in brackets."""
    match = _ADDRESS.match(text.strip())
    if match is None or not 0 < int(match[2]) < 65536:
        raise FlussError(
            f"invalid address {_shown(text)!r}: expected 'host:port', as in '127.0.0.1:9123'"
            f"; a folder begins with a slash, or a dot and a slash: './data'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return match[1].strip("[]"), int(match[2])


def _shown(text: str) -> str:
    """Return an invalid address without what may be a password before its host."""
    before, at, host = text.strip().rpartition("@")
    return f"***@{host}" if at and before else text.strip()


def embedded_folder(description: object) -> Path | str | None:
    """Return the folder that a user names as a connection, or None where it is something else.

    A folder is a ``Path``, ``":memory:"``, ``"file:..."``, or a string that begins with a slash,
    ``./``, ``../`` or ``~``: a bare word may be a host's name. What follows ``file:`` is a path as
    it is; ``file:///...`` is a URL, as ``Path.as_uri`` makes it, with ``%20`` for a space.

    Raises ``INVALID_CONFIG_EXCEPTION`` for ``file:`` without a path, and for a URL that names
    another machine.

    Examples
    --------
    >>> embedded_folder("file:my data"), embedded_folder("file:///tmp/my%20data")
    (PosixPath('my data'), PosixPath('/tmp/my data'))
    """
    if isinstance(description, Path):
        return description
    if not isinstance(description, str):
        return None
    if description == _MEMORY:
        return _MEMORY
    if description.startswith("file:"):
        return _folder_of_url(description, description.removeprefix("file:"))
    if description in (".", "..") or description.startswith(("/", "./", "../", "~")):
        return Path(description)
    return None


def _folder_of_url(url: str, rest: str) -> Path:
    if rest.startswith("//"):
        host, slash, path = rest.removeprefix("//").partition("/")
        if host not in ("", "localhost") or not slash:
            raise FlussError(
                f"invalid folder {url!r}: behind 'file://' stands the name of a machine; a whole"
                f" path is 'file:///folder', and one from here 'file:{rest.lstrip('/')}'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        return Path(unquote(f"/{path}"))
    if not rest:
        raise FlussError(
            "invalid folder 'file:': expected a path behind it, as in 'file:./data'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return Path(rest)

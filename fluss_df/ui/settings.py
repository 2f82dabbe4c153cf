"""Where the console listens, whom it lets in, and how much one visitor may take."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fluss_df.errors import ErrorCode, FlussError

#: The fewest characters of a token that a user chooses.
SHORTEST_TOKEN: Final = 16
_ANY: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the console, for all its visitors together.

    Parameters
    ----------
    body_bytes
        The size of a form, with the SQL in it.
    receive_seconds
        How long the head of a request may take, and how long its body.
    connections
        Open connections; further requests are answered with 503.
    reads
        How many pages may ask the cluster at the same time.
    queries, query_seconds
        How many queries may run at the same time, and how long one may run.
    query_memory
        The most memory of the process that runs one statement, in bytes.
    result_rows, result_bytes
        The most rows and bytes that are kept of a result.
    kept_results
        How many results are kept; the oldest one goes first.
    streams
        How many live tails there may be at the same time.
    sessions
        How many browsers may be logged in; the oldest one goes first.
    """

    body_bytes: int = 1 << 20
    receive_seconds: float = 10.0
    connections: int = 64
    reads: int = 8
    queries: int = 4
    query_seconds: float = 60.0
    query_memory: int = 1 << 30
    result_rows: int = 10_000
    result_bytes: int = 64 << 20
    kept_results: int = 8
    streams: int = 8
    sessions: int = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """How a console is served.

    Raises ``INVALID_CONFIG_EXCEPTION`` for what would not be safe.

    Parameters
    ----------
    host, port
        Where the console listens; port 0 for a free one.
    token
        The secret that a browser sends to log in. By default a new one of 256 random bits.
    read_only
        Refuse whatever would change something.
    names
        Further host names under which browsers may open the console.
    tls_cert, tls_key
        A certificate and its key (PEM files). Without them, the console listens on loopback
        addresses only.
    runs
        Checkpoint folders of runs, or folders that contain such folders.
    limits
        Limits for all visitors together.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    read_only: bool = False
    names: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    runs: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise _refused("--tls-cert and --tls-key go together: give both, or neither")
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise _refused(f"there is no file {file}")
        if len(self.token) < SHORTEST_TOKEN or not (
            self.token.isascii() and self.token.isprintable() and " " not in self.token
        ):
            raise _refused(
                f"the token has to be {SHORTEST_TOKEN} or more ASCII characters without spaces;"
                " leave it out for one that is made at each start"
            )
        if not self.is_local and self.tls_cert is None:
            raise _refused(
                f"the console would listen on {self.host}, where others reach it: that takes a"
                " certificate (--tls-cert, --tls-key); or listen on 127.0.0.1, and use a tunnel"
                " (SSH)"
            )
        if self.host in _ANY and not self.names:
            raise _refused(
                f"--host {self.host or repr('')} is every address of this machine: say by which"
                " names browsers ask for the console, as in --name fluss.example.org"
            )

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "http" if self.tls_cert is None else "https"

    def hosts(self, port: int) -> frozenset[str]:
        """Return the permitted values of the header Host, for the port that it listens on."""
        names = {name.lower() for name in self.names}
        if self.host not in _ANY:
            names.add(self.host.lower())
        if self.is_local:
            names |= {"127.0.0.1", "localhost", "::1"}
        shown = {f"[{name}]" if ":" in name else name for name in names}
        found = {f"{name}:{port}" for name in shown}
        if port == {"http": 80, "https": 443}[self.scheme]:
            found |= shown
        return frozenset(found)


def _refused(why: str) -> FlussError:
    return FlussError(why, ErrorCode.INVALID_CONFIG_EXCEPTION)

"""The endpoint of a server: its address, and the credentials of the client."""

from __future__ import annotations

from dataclasses import dataclass

from fluss_df.client.transport.tls import Tls
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.address import local_path
from fluss_df.protocol.handshake import Credentials


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect, as whom and how; the key of the connection cache."""

    host: str
    port: int
    credentials: Credentials | None
    tls: Tls | None = None

    @property
    def address(self) -> str:
        """``host:port``, or the path of a Unix socket."""
        return local_path(self.host) or f"{self.host}:{self.port}"


def credentials_of(config: Config) -> Credentials | None:
    """Return the credentials in a configuration.

    Raises ``AUTHENTICATE_EXCEPTION``, when SASL is on and user or password is missing.
    """
    if not config.uses_sasl:
        return None
    if not config.security_sasl_username or not config.security_sasl_password:
        raise FlussError(
            "security.protocol is 'sasl': set security.sasl.username and security.sasl.password",
            ErrorCode.AUTHENTICATE_EXCEPTION,
        )
    return Credentials(config.security_sasl_username, config.security_sasl_password)

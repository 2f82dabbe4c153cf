"""Who may come in, and over which connection a user's statements run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fluss_df.client.connection import FlussConnection, resolve_connection, unconnected
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.address import local_path


@dataclass(frozen=True, slots=True)
class Way:
    """The connection of one user.

    ``close`` gives it up. ``recheck`` raises ``AUTHENTICATE_EXCEPTION`` where the user would not be
    let in any more.
    """

    connection: FlussConnection
    close: Callable[[], None]
    recheck: Callable[[], None]


class Access(Protocol):
    """How users are known, and what they reach."""

    @property
    def needs_password(self) -> bool:
        """Whether everybody has to sign in."""

    def open(self, user: str | None, password: str | None, address: str) -> Way:
        """Let a user in.

        Raises
        ------
        FlussError
            ``AUTHENTICATE_EXCEPTION`` for a wrong password.
        """


class FolderAccess:
    """The users and rights of an engine of this process; its folder is read without a socket."""

    def __init__(self, engine: EmbeddedFluss) -> None:
        self._engine = engine

    @property
    def needs_password(self) -> bool:
        """Whether the engine has users."""
        return self._engine.has_users

    def open(self, user: str | None, password: str | None, address: str) -> Way:
        """Let a user in, as the engine does by TCP."""
        if self._engine.has_users:
            self._engine.sign_in(user or "", password or "", address)
        else:
            user = None  # without users nobody checks the name
        view = self._engine.view_of(user, address)
        connection = self._engine.connection_of(view)

        def close() -> None:
            with contextlib.suppress(Exception):
                connection.close()
            view.close()

        # the users of an engine stay what they are as long as it is open
        return Way(connection, close, lambda: None)


class ClusterAccess:
    """A cluster, to which each user is connected with the user's own password.

    Parameters
    ----------
    connection
        The cluster, as :func:`fluss_df.connect` takes it. Where it has a user of its own, that
        one is asked for nothing but for whom gave no name.
    needs_password
        Whether everybody has to sign in.

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for a folder, whose process takes no password from this one,
        where everybody has to sign in.
    """

    def __init__(self, connection: object | None, *, needs_password: bool) -> None:
        self._described = (
            resolve_connection(None) if connection is None else unconnected(connection)
        )
        self._needs_password = needs_password
        host = self._described.config.bootstrap_servers.rpartition(":")[0]
        self._is_folder = local_path(host) is not None
        if self._is_folder and needs_password:
            raise FlussError(
                "passwords are not checked where a folder is shared with the process that serves"
                " it: connect to that server's address, or have it serve Flight SQL itself"
                " ('fluss-df serve --flight-sql')",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

    @property
    def needs_password(self) -> bool:
        """Whether everybody has to sign in."""
        return self._needs_password

    def open(self, user: str | None, password: str | None, address: str) -> Way:
        """Connect with the user's password; without a user, as the server was told to connect."""
        config = self._described.config
        if user is not None and not self._is_folder:
            config = config.copy(
                security_protocol="sasl",
                security_sasl_username=user,
                security_sasl_password=password or "",
            )
        connection = FlussConnection.create(config)
        connection.default_database = self._described.default_database

        def close() -> None:
            with contextlib.suppress(Exception):
                connection.close()

        def recheck() -> None:
            with FlussConnection.create(config):
                pass

        return Way(connection, close, recheck)

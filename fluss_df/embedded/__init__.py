"""A single-node Fluss in Python: durable tables in a folder, without a server to run."""

from fluss_df.client.connection import FlussConnection
from fluss_df.engine.access.passwords import hash_password
from fluss_df.engine.access.security import Security
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.serve.admission import Limits
from fluss_df.engine.serve.server import EngineServer, UserView
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol.address import local_host

__all__ = ["EmbeddedFluss", "EngineOptions", "Limits", "Security", "hash_password"]


class EmbeddedFluss(EngineServer):
    """A single-node Fluss in this process.

    It stores what it acknowledged: a log is on the disk before a write is answered (see
    :class:`~fluss_df.engine.engine_options.EngineOptions`). Clients of Apache Fluss use it over
    TCP, this process and others on the machine by its Unix socket.

    Parameters
    ----------
    path
        The folder with its data, created where it is missing; one engine at a time may have it.
        None for a temporary folder that is removed at the end.
    port
        Serve TCP on this port; 0 for a free one, None not to.
    host
        The address to listen on.
    sasl
        User -> password of those who may connect by TCP, or what :func:`hash_password` returned;
        None to let everyone in. The Unix socket is for the user of the process alone, and asks for
        no password.
    options
        Durability, sizes.
    limits
        What peers may use.
    security
        Who may do what, and TLS.

    Raises
    ------
    FlussError
        ``STORAGE_EXCEPTION`` when the folder is in use (the owner's process id is named) or
        cannot be read; ``NETWORK_EXCEPTION`` when the port is taken; ``INVALID_CONFIG_EXCEPTION``
        when ``sasl`` has no user.

    Examples
    --------
    >>> with EmbeddedFluss(None) as engine, engine.connection() as connection:
    ...     connection.get_admin().list_databases()
    ['fluss']
    """

    def connection(self) -> FlussConnection:
        """Return a new connection of this process."""
        if self.closed:
            raise FlussError("the engine is closed", ErrorCode.NETWORK_EXCEPTION)
        return _connected(self.socket_path)

    def connection_of(self, view: UserView) -> FlussConnection:
        """Return a new connection of this process that has a user's rights, for a live view."""
        return _connected(view.socket_path)


def _connected(socket_path: str) -> FlussConnection:
    host, port = local_host(socket_path)
    return FlussConnection.create(f"{host}:{port}")

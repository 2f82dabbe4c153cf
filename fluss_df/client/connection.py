"""A connection to a cluster: :class:`FlussConnection`, and how users name one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluss_df.addresses import embedded_folder
from fluss_df.client.admin import FlussAdmin
from fluss_df.client.cluster import in_process_questions as direct_questions
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.context import ClientContext
from fluss_df.client.runtime.awaitable import Ready, answered_at_once, blocking, ready
from fluss_df.client.table import FlussTable
from fluss_df.client.transport.folders import (
    HOME_VARIABLE,
    attached_config,
    close_temporary,
    home_folder,
)
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import Closing, ForkStep, after_fork
from fluss_df.metadata import TablePath
from fluss_df.observe.counters import clients
from fluss_df.record.change_tables import ChangeTable, split_name
from fluss_df.texts.secret_texts import without_secrets

BOOTSTRAP_VARIABLE = "FLUSS_BOOTSTRAP_SERVERS"


class FlussConnection(ClientContext, Ready, Closing):
    """A connection to a Fluss cluster, for any number of threads.

    Obtain one from :meth:`create` or :func:`fluss_df.connect`; close it with :meth:`close`, or use
    it in a ``with`` statement, which flushes its writers and reports what was not acknowledged.
    Sockets belong to the process, and connections to the same servers share them.

    Attributes
    ----------
    config
        Its settings.
    default_database
        The database of table names without one, where a URL named it.
    metrics
        Counters of requests, bytes, retries and waits.
    """

    def __init__(self, config: Config, default_database: str | None = None) -> None:
        if not isinstance(config, Config):
            raise FlussError(f"expected a Config, not {type(config).__name__}")
        super().__init__(config)
        self.default_database = default_database
        _made[id(self)] = self

    @staticmethod
    def create(config: Config | Mapping[str, Any] | str) -> FlussConnection:
        """Connect to a cluster.

        Parameters
        ----------
        config
            A Config, its properties as a dict, or an address.

        Raises
        ------
        FlussError
            ``NETWORK_EXCEPTION`` when no bootstrap server can be reached,
            ``AUTHENTICATE_EXCEPTION`` when user or password are wrong.

        Examples
        --------
        >>> conn = FlussConnection.create(Config({"bootstrap.servers": "127.0.0.1:9123"}))
        ... # doctest: +SKIP
        """
        connection = unconnected(config)
        connection._bootstrap()
        return connection

    @staticmethod
    def connect(config: Config | Mapping[str, Any] | str) -> FlussConnection:
        """Connect to a cluster; the older name of :meth:`create`."""
        return FlussConnection.create(config)

    @blocking
    async def _bootstrap(self) -> None:
        cluster = self.cluster
        try:
            await cluster.bootstrap()
        except BaseException:
            self._closed = True
            # closed at once: the traceback of an error, or of Ctrl-C, may keep this object alive
            # for long
            await _close(cluster)
            clients.leave(self.metrics)
            raise

    def _leave(self) -> None:
        """Close the temporary engine that this connection was to, once none is to it any more."""
        if id(self) not in _made:
            return
        servers = self.config.bootstrap_servers
        # a list that is made in one step: other threads may connect meanwhile
        others = [made for ref in _made.valuerefs() if (made := ref()) is not None]
        if all(made._closed or made.config.bootstrap_servers != servers for made in others):
            close_temporary(self.config)

    def get_admin(self) -> FlussAdmin:
        """Return the admin interface."""
        return FlussAdmin(self)

    def _known_table(self, table_path: TablePath | str) -> FlussTable | None:
        path, changes = self._parse(table_path)
        info = direct_questions.table_info(self.cluster, path)
        return None if info is None else FlussTable(self, info, changes)

    @answered_at_once(_known_table)
    async def get_table(self, table_path: TablePath | str) -> FlussTable:
        """Open a table, or one of its virtual tables.

        Parameters
        ----------
        table_path
            ``table`` or ``database.table``; with ``$changelog`` or, for primary-key tables,
            ``$binlog`` behind it for the changes of its rows as a table.

        Raises
        ------
        FlussError
            ``TABLE_NOT_EXIST`` or ``DATABASE_NOT_EXIST``, naming what there is.
        """
        path, changes = self._parse(table_path)
        return FlussTable(self, await FlussAdmin(self).table_info(path), changes)

    def _parse(self, table_path: TablePath | str) -> tuple[TablePath, ChangeTable | None]:
        name, changes = split_name(str(table_path))
        path = TablePath.parse(table_path if changes is None else name, self.default_database)
        return path, changes

    def close(self) -> None:
        """Flush the writers, then give up the sockets; a second call does nothing.

        The temporary engine of ``":memory:"`` ends with the last connection to it.

        Raises
        ------
        FlussError
            When rows could not be written; the connection is closed all the same.
        """
        if self._closed:
            return ready(None)
        failures: list[FlussError] = []
        try:
            for writer in list(self._writers):
                # one that fails does not keep the others from being flushed
                try:
                    writer.close()
                except FlussError as error:
                    failures.append(error)
        finally:
            with self._lock:
                self._closed = True
                cluster, self._cluster = self._cluster, None
            if cluster is not None:
                cluster.io.run(_close(cluster))
            clients.leave(self.metrics)
            self._leave()
        if len(failures) > 1:
            said = "; ".join(error.message for error in failures)
            raise FlussError(said, failures[0].error_code) from failures[0]
        if failures:
            raise failures[0]
        return ready(None)

    def __reduce__(self) -> tuple[Any, ...]:
        # the password does not travel: see reconnect()
        return reconnect, (self.config.without_secrets(), self.default_database)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"FlussConnection({self.config.bootstrap_servers!r}, {state})"


# connections that keep a temporary engine open
_made: weakref.WeakValueDictionary[int, FlussConnection] = weakref.WeakValueDictionary()


def uncounted(connection: FlussConnection) -> FlussConnection:
    """Return a connection that keeps no temporary engine open: it is the engine's own."""
    _made.pop(id(connection), None)
    return connection


async def _close(cluster: Cluster) -> None:
    cluster.close()
    lane_pool().release(cluster)


def reconnect(config: Config, default_database: str | None) -> FlussConnection:
    """Return the connection that a pickled one stands for.

    Pickles carry no password: one that used some takes those of the process's default connection,
    if that is for the same servers and user.
    """
    default = _default
    if (
        isinstance(default, FlussConnection)
        and default.config.bootstrap_servers == config.bootstrap_servers
        and default.config.security_sasl_username == config.security_sasl_username
    ):
        config = config.with_secrets_of(default.config)
    return FlussConnection(config, default_database)


# ---- the default connection

_default: FlussConnection | None = None
_cache_lock = threading.Lock()
_cache: dict[tuple[Config, str | None], FlussConnection] = {}


def set_default_connection(connection: object | None) -> None:
    """Set what is used where no connection is given; None unsets it.

    Parameters
    ----------
    connection
        An address, URL, Config, dict, or open connection, as :func:`connect` takes.

    Examples
    --------
    >>> set_default_connection("127.0.0.1:9123")  # doctest: +SKIP
    """
    global _default
    _default = None if connection is None else resolve_connection(connection)


def connect(connection: object | None = None) -> FlussConnection:
    """Open a connection to a cluster.

    Parameters
    ----------
    connection
        ``"host:port[,host:port]"``, ``"fluss://[user:password@]host:port[/database]"``, a
        :class:`Config`, or a dict of properties; None for another connection to where that of
        :func:`set_default_connection` leads, else to ``FLUSS_BOOTSTRAP_SERVERS``, and so for a dict
        without ``bootstrap.servers``. A folder (a
        ``Path``, ``"file:..."``, a string with a slash, or ``":memory:"`` for a temporary one)
        is an embedded Fluss: it is opened in this process, or used through the process that has
        it.

    Examples
    --------
    >>> conn = connect("127.0.0.1:9123")  # doctest: +SKIP
    """
    if connection is None:
        if _default is not None:
            # the caller closes what it opened, and the default stays open
            made = FlussConnection(_default.config.copy(), _default.default_database)
            made._bootstrap()
            return made
        connection = os.environ.get(BOOTSTRAP_VARIABLE) or home_folder()
        if not connection:
            raise _no_connection()
    return FlussConnection.create(connection)  # type: ignore[arg-type]


def resolve_connection(connection: object | None = None) -> FlussConnection:
    """Return the open connection that a user means.

    The same address or settings give the same connection, so that queries share its sockets.

    ``connection`` is what :func:`connect` takes, an open connection, or None for the default one:
    that of :func:`set_default_connection`, else ``FLUSS_BOOTSTRAP_SERVERS``.

    Raises FlussError when there is no default, naming the ways to set one.
    """
    if isinstance(connection, FlussConnection):
        return connection
    if connection is None:
        if _default is not None:
            return _default
        connection = os.environ.get(BOOTSTRAP_VARIABLE) or home_folder()
        if not connection:
            raise _no_connection()
    made = unconnected(connection)
    key = (made.config, made.default_database)
    with _cache_lock:
        cached = _cache.get(key)
        if cached is not None and not cached._closed:
            return cached
    made._bootstrap()
    with _cache_lock:
        return _cache.setdefault(key, made) if key not in _cache else _replace_closed(key, made)


def _replace_closed(key: tuple[Config, str | None], made: FlussConnection) -> FlussConnection:
    if _cache[key]._closed:
        _cache[key] = made
    return _cache[key]


def _after_fork_in_child() -> None:
    # a thread of the parent may have held it
    global _cache_lock
    _cache_lock = threading.Lock()


after_fork(ForkStep.CACHED_CONNECTIONS, _after_fork_in_child)


def _no_connection() -> FlussError:
    return FlussError(
        "no connection given: pass connection='host:port', or a folder, './data', for an embedded"
        " Fluss (or a 'fluss://' URL, Config, dict or an open connection); on the command line it"
        " is --connection; or call fluss_df.set_default_connection(...), or set"
        f" {BOOTSTRAP_VARIABLE}, or {HOME_VARIABLE} to a folder",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )


def _default_with(config: Config) -> FlussConnection:
    """Return what leads to the same place as the default connection, with further settings."""
    base = _default
    if base is None:
        address = os.environ.get(BOOTSTRAP_VARIABLE) or home_folder()
        if not address:
            raise _no_connection()
        base = unconnected(address)
    settings = base.config.copy(**config.to_dict()).with_secrets_of(config)
    return FlussConnection(settings, base.default_database)


def unconnected(description: object) -> FlussConnection:
    """Return the connection that is described, which has not connected to anything yet."""
    if isinstance(description, (Config, Mapping)):
        config = description.copy() if isinstance(description, Config) else Config(description)
        if not isinstance(description, Config) and not config.is_set("bootstrap.servers"):
            return _default_with(config)
        folder = embedded_folder(config.bootstrap_servers)
        return FlussConnection(config if folder is None else attached_config(folder, config))
    folder = embedded_folder(description)
    if folder is not None:
        return FlussConnection(attached_config(folder))
    if isinstance(description, str) and description.startswith("fluss://"):
        config, database = Config.from_url(description)
        return FlussConnection(config, database)
    if isinstance(description, str) and "://" not in description:
        return FlussConnection(Config({"bootstrap.servers": description}))
    shown = (
        type(description).__name__
        if not isinstance(description, (str, Path))
        else repr(without_secrets(str(description)))
    )
    raise FlussError(
        f"cannot connect to {shown}: expected 'host:port', 'fluss://host:port/database', a folder"
        " ('./data', a Path, 'file:...' or ':memory:'), a Config, a dict of properties, or an open"
        " connection",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )

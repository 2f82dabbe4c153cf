"""A real Apache Fluss cluster on this machine: :class:`LocalCluster`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fluss_df.cluster.errors import (
    ClusterAlreadyRunningError,
    ClusterError,
    ClusterUnavailableError,
)
from fluss_df.cluster.processes.launcher import Launcher
from fluss_df.cluster.processes.ports import HOST
from fluss_df.cluster.servers.jars import resolve_jars
from fluss_df.cluster.servers.java import find_java
from fluss_df.cluster.servers.servers import STOP_SECONDS, Servers, merged_settings
from fluss_df.cluster.servers.settings import (
    COORDINATOR,
    FLINK_TIERING,
    ZOOKEEPER,
    Folder,
    State,
    option_text,
    tablet_server_name,
)
from fluss_df.cluster.status import ClusterStatus, Health, ProcessStatus, TabletServer
from fluss_df.hooks import ExitStep, at_exit


class LocalCluster:
    """A real Apache Fluss cluster on this machine: ZooKeeper, a coordinator, tablet servers.

    Use it in a ``with`` statement, or call :meth:`start` and :meth:`stop`. Its servers end with
    the process that started it, however that ends (``kill -9`` included), unless ``detached``.
    Everything listens on 127.0.0.1 only. Methods may be called from any thread.

    It is set up for tests and trials, not for production: see
    :func:`fluss_df.cluster.servers.configuration.default_options`.

    Parameters
    ----------
    dir
        The folder of the cluster. Its data lasts: a later cluster in the folder has it again, and
        the settings of last time are the defaults. None for a temporary folder, removed at the end.
    port
        The port of :attr:`bootstrap_servers`. None for that of last time, or a free one.
    tablet_servers
        Their number, from 1 to 32; None for that of last time, or 1. It can grow, not shrink.
    sasl
        User -> password of those who may connect (SASL/PLAIN); empty to let everyone. The servers
        among themselves use no passwords.
    super_users
        Users that may do everything on a cluster with an authorizer (``authorizer.enabled``,
        ``super.users``); the rights of others are ACLs
        (:meth:`~fluss_df.client.admin.FlussAdmin.create_acls`). ``[]`` for an authorizer without
        such users, None for what was last time, or no authorizer: everyone may do everything.
    jar
        A Fluss server jar. None for that of the environment variable FLUSS_SERVER_JAR, else that of
        last time, else Apache Fluss 0.9.1-incubating, fetched with Maven the first time.
    server_options
        Further lines of ``server.yaml`` of all servers, as in ``{"kv.snapshot.interval": "5s"}``.
    coordinator_options, tablet_server_options
        The same for one kind of server.
    heap
        Maximum heap of each tablet server; None for 1g where there is one, else 256m.
    datalake
        "iceberg", "paimon" or "lance" for a data lake in the folder, that tables with
        ``table.datalake.enabled`` are tiered into: Iceberg by a catalog in SQLite, others by files.
        None for that of last time, or none.
    detached
        Whether the servers live on after this process; needs ``dir``.
    start_timeout
        Seconds that the servers may take to be ready.

    Raises
    ------
    ClusterError
        When a value is not allowed. :meth:`start` raises it when the cluster does not come up, and
        :class:`ClusterUnavailableError` where this machine lacks Java or the server.

    Examples
    --------
    >>> with LocalCluster(tablet_servers=3) as cluster:  # doctest: +SKIP
    ...     print(cluster.bootstrap_servers)
    ...     cluster.kill_tablet_server(2)
    ...     cluster.start_tablet_server(2)
    127.0.0.1:10487
    """

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        tablet_servers: int | None = None,
        sasl: Mapping[str, str] | None = None,
        super_users: Sequence[str] | None = None,
        jar: str | os.PathLike[str] | None = None,
        server_options: Mapping[str, object] | None = None,
        coordinator_options: Mapping[str, object] | None = None,
        tablet_server_options: Mapping[str, object] | None = None,
        heap: str | None = None,
        datalake: str | None = None,
        detached: bool = False,
        start_timeout: float = 90.0,
    ) -> None:
        if os.name != "posix":
            raise ClusterUnavailableError("a local cluster runs on Linux and macOS only")
        if detached and dir is None:
            raise ClusterError("a detached cluster needs a folder of its own: give dir")
        if port is not None and (
            isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536
        ):
            raise ClusterError(f"port must be a number from 1 to 65535, not {port!r}")
        given: dict[str, object] = {
            "tablet_servers": tablet_servers,
            "sasl": _dictionary("sasl", sasl),
            "super_users": _users(super_users),
            "server_options": _options("server_options", server_options),
            "coordinator_options": _options("coordinator_options", coordinator_options),
            "tablet_server_options": _options("tablet_server_options", tablet_server_options),
            "heap": heap,
            "datalake": datalake,
        }
        self._changes = {name: value for name, value in given.items() if value is not None}
        merged_settings(None, self._changes, None)  # complain here, not at the start
        self._temporary = dir is None
        self._process = os.getpid()
        self._folder = None if dir is None else Folder(Path(dir).expanduser().absolute())
        self._port = port
        self._jar = jar
        self._detached = detached
        self._start_timeout = start_timeout
        self._state: State | None = None
        self._launcher: Launcher | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(cls, dir: str | os.PathLike[str]) -> Self:
        """Return the cluster of a folder, whether it runs or not, without starting it.

        What is started through it is detached.

        Raises
        ------
        ClusterError
            When there was never a cluster in the folder.
        """
        cluster = cls(dir, detached=True)
        assert cluster._folder is not None
        cluster._state = cluster._folder.load()
        if cluster._state is None:
            raise ClusterError(f"there is no cluster in {cluster._folder.path}")
        return cluster

    # ---- what it is

    @property
    def dir(self) -> Path:
        """The folder of the cluster."""
        if self._folder is None:
            raise ClusterError("the cluster has not been started: its folder does not exist yet")
        return self._folder.path

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients connect to: ``127.0.0.1:PORT`` of the coordinator."""
        return f"{HOST}:{self._known().ports[COORDINATOR].client}"

    @property
    def server_version(self) -> str:
        """The version that the server jar states, as in "0.9.1-incubating"."""
        return self._known().server_version

    @property
    def tablet_servers(self) -> list[TabletServer]:
        """The tablet servers, running or not, as they are now."""
        state, folder = self._known(), self._known_folder()
        running = state.running()
        return [
            TabletServer(
                number,
                state.ports[name].client,
                running[name].pid if name in running else None,
                folder.log(name),
                folder.data(name),
            )
            for number in range(state.settings.tablet_servers)
            for name in [tablet_server_name(number)]
        ]

    def status(self) -> ClusterStatus:
        """Return how the cluster is; asks its servers, which takes milliseconds if all is well."""
        folder = self._known_folder()
        state = folder.load() or self._known()
        self._state = state
        running = state.running()
        names = [ZOOKEEPER, COORDINATOR, *_tablet_server_names(state)]
        missing = [name for name in names if name not in running]
        problem: str | None = None
        if len(missing) == len(names):
            health: Health = "stopped"
        else:
            problem = (
                f"not running: {', '.join(missing)}" if missing else self._servers(state).problem()
            )
            health = "unhealthy" if problem else "healthy"
        return ClusterStatus(
            health,
            problem,
            f"{HOST}:{state.ports[COORDINATOR].client}",
            state.server_version,
            tuple(state.settings.sasl),
            tuple(
                ProcessStatus(
                    name,
                    running[name].pid if name in running else None,
                    tuple(sorted({state.ports[name].internal, state.ports[name].client})),
                    folder.log(name),
                )
                for name in names
            ),
        )

    # ---- the whole of it

    def start(self) -> Self:
        """Start all servers; return when clients see every tablet server.

        Raises
        ------
        ClusterAlreadyRunningError
            When servers of the folder are running.
        ClusterUnavailableError
            Where Java, or what fetches the server, is missing.
        ClusterError
            When a server dies or does not get ready; no process is left behind.
        """
        with self._lock:
            self._process = os.getpid()
            java = find_java()
            remembered = self._folder.load() if self._folder else None
            jars = resolve_jars(self._jar, remembered.jar if remembered else None)
            if self._folder is None:
                self._folder = Folder(Path(tempfile.mkdtemp(prefix="fluss-cluster-")).resolve())
            self._folder.create()
            try:
                with self._folder.lock():
                    servers = self._servers(self._state_to_start())
                    try:
                        servers.start_all(java, jars, self._port)
                    finally:
                        self._state = servers.state
            except ClusterAlreadyRunningError:
                raise
            except BaseException:
                self._release()
                raise
            if self._detached:
                self._release()
            else:
                _to_stop.add(self)
        return self

    def _state_to_start(self) -> State:
        folder = self._known_folder()
        remembered = folder.load()
        if remembered is not None and (running := remembered.running()):
            raise ClusterAlreadyRunningError(
                f"the cluster in {folder.path} is already running at"
                f" {HOST}:{remembered.ports[COORDINATOR].client}"
                f" ({', '.join(f'{name}: pid {process.pid}' for name, process in running.items())})"
            )
        settings = merged_settings(
            remembered.settings if remembered else None, self._changes, folder.path
        )
        return replace(remembered or State(settings), settings=settings)

    def stop(self) -> None:
        """End all servers, and remove the folder if it is a temporary one; again does no harm."""
        with self._lock:
            _to_stop.discard(self)
            try:
                if self._folder is not None and self._folder.load() is not None:
                    # Whose data goes anyway need not be asked to put it in order first.
                    with self._changing() as servers:
                        servers.stop_all(patience=0 if self._temporary else STOP_SECONDS)
            finally:
                self._release()

    def _release(self) -> None:
        """End the supervisor and, with it, what it still runs and the temporary folder."""
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder.path, ignore_errors=True)
            self._folder = None
            self._state = None

    def __enter__(self) -> Self:
        if self._state is None or not self._state.running():
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() == self._process:  # a forked child does not own the servers
            self.stop()

    def __repr__(self) -> str:
        where = "temporary" if self._folder is None else repr(str(self._folder.path))
        return f"LocalCluster({where})"

    # ---- its parts

    def kill_tablet_server(self, id: int) -> None:
        """Kill a tablet server (SIGKILL): clients and the cluster are not told."""
        self._kill(self._tablet_server(id))

    def stop_tablet_server(self, id: int) -> None:
        """Ask a tablet server to stop (SIGTERM): it hands its buckets over first."""
        name = self._tablet_server(id)
        with self._lock, self._changing() as servers:
            if name not in servers.state.running():
                raise ClusterError(f"{name} is not running")
            servers.end_one(name)

    def start_tablet_server(self, id: int) -> None:
        """Start a tablet server that was killed or stopped, with its old port and data.

        Returns when clients see it.
        """
        self._start_one(self._tablet_server(id))

    def kill_coordinator(self) -> None:
        """Kill the coordinator (SIGKILL); :attr:`bootstrap_servers` refuses connections then."""
        self._kill(COORDINATOR)

    def start_coordinator(self) -> None:
        """Start the coordinator that was killed; return when clients see the tablet servers."""
        self._start_one(COORDINATOR)

    def start_flink_tiering(self, options: Mapping[str, object] | None = None) -> None:
        """Start Flink's own tiering service in one JVM, about 510 MB; it ends with the cluster.

        Its jars, 195 MB, are fetched with Maven the first time. It asks for tables every second.

        Parameters
        ----------
        options
            Further arguments of the service, as in ``{"fluss.tiering.poll.table.interval": "5s"}``.
        """
        given = _options("options", options) or {}
        with self._lock, self._changing() as servers:
            servers.start_flink_tiering(find_java(), given)

    def stop_flink_tiering(self) -> None:
        """Ask Flink's tiering service to stop; where none runs, do nothing."""
        with self._lock, self._changing() as servers:
            servers.end_one(FLINK_TIERING)

    def kill_flink_tiering(self) -> None:
        """Kill Flink's tiering service (SIGKILL)."""
        self._kill(FLINK_TIERING)

    def _kill(self, name: str) -> None:
        with self._lock, self._changing() as servers:
            servers.kill_one(name)

    def _start_one(self, name: str) -> None:
        with self._lock:
            java = find_java()
            with self._changing() as servers:
                servers.start_one(name, java, resolve_jars(self._jar, servers.state.jar))
            if self._detached:
                self._release()

    def _tablet_server(self, id: int) -> str:
        number = self._known().settings.tablet_servers
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < number:
            known = "0" if number == 1 else f"0 to {number - 1}"
            raise ClusterError(f"there is no tablet server {id!r}; there is {known}")
        return tablet_server_name(id)

    # ---- inside

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Servers]:
        """Yield the servers as the folder knows them now, and nobody else changes them."""
        folder = self._known_folder()
        with folder.lock():
            servers = self._servers(folder.load() or self._known())
            try:
                yield servers
            finally:
                self._state = servers.state

    def _servers(self, state: State) -> Servers:
        return Servers(self._known_folder(), state, self._started_launcher, self._start_timeout)

    def _started_launcher(self) -> Launcher:
        if self._launcher is None:
            folder = self._known_folder()
            self._launcher = Launcher(
                folder.log("supervisor"),
                detach=self._detached,
                remove=folder.path if self._temporary else None,
            )
        return self._launcher

    def _known(self) -> State:
        if self._state is None:
            raise ClusterError("the cluster has not been started")
        return self._state

    def _known_folder(self) -> Folder:
        if self._folder is None:
            raise ClusterError("the cluster has not been started")
        return self._folder


# Kept alive until stopped: who starts a cluster without `with` and forgets it finds it running,
# and at the end of the process it ends in order.
_to_stop: set[LocalCluster] = set()
_owner = os.getpid()


def _stop_all() -> None:
    if os.getpid() != _owner:  # a forked child does not own the servers
        return
    for cluster in list(_to_stop):
        with contextlib.suppress(ClusterError, OSError):
            cluster.stop()


at_exit(ExitStep.SERVERS, _stop_all)


def _dictionary(name: str, value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise ClusterError(f"{name} must be a dictionary, not {type(value).__name__}")
    return None if value is None else dict(value)


def _options(name: str, value: Mapping[str, object] | None) -> dict[str, str] | None:
    options = _dictionary(name, value)
    return options and {str(key): option_text(value) for key, value in options.items()}


def _users(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise ClusterError(f"super_users must be a list of user names, not the text {names!r}")
    return None if names is None else tuple(names)


def _tablet_server_names(state: State) -> list[str]:
    return [tablet_server_name(number) for number in range(state.settings.tablet_servers)]

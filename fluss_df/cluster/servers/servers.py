"""Starts, watches and ends the processes of one cluster folder."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from fluss_df.cluster.errors import ClusterError, PortInUseError
from fluss_df.cluster.processes.launcher import Launcher
from fluss_df.cluster.processes.ports import HOST, PortChooser, is_free, is_open
from fluss_df.cluster.processes.processes import end, wait_until_gone
from fluss_df.cluster.servers.class_data import ClassData
from fluss_df.cluster.servers.configuration import command, heap_of, write_configuration
from fluss_df.cluster.servers.jars import ServerJars
from fluss_df.cluster.servers.lake import link_plugins, tiering_command
from fluss_df.cluster.servers.probe import TabletServerNode, has_database, tablet_server_nodes
from fluss_df.cluster.servers.settings import (
    COORDINATOR,
    FLINK_TIERING,
    ZOOKEEPER,
    Folder,
    Ports,
    Settings,
    State,
    tablet_server_name,
)
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.protocol.handshake import Credentials

_ATTEMPTS = 5
_POLL_SECONDS = 0.05
_PROBE_SECONDS = 5.0
# a coordinator has its first database within half a second, on a busy machine within a few
_DATABASE_SECONDS = 10.0
STOP_SECONDS = 20.0
_TAIL_LINES = 20
_TAIL_BYTES = 65_536
_IN_USE = ("Address already in use", "BindException")


class Servers:
    """The processes of a cluster folder; callers hold the folder's lock."""

    def __init__(
        self,
        folder: Folder,
        state: State,
        new_launcher: Callable[[], Launcher],
        start_timeout: float,
    ) -> None:
        self._folder = folder
        self.state = state
        self._new_launcher = new_launcher
        self._start_timeout = start_timeout
        self._log_starts: dict[str, int] = {}

    # ---- starting

    def start_all(self, java: Path, jars: ServerJars, port: int | None) -> None:
        """Start all servers, on other ports where theirs are taken; return when they serve.

        Clients are told ``port``; None takes the one of last time, or any. Raises PortInUseError
        when it belongs to another program. Raises ClusterError when a server dies or is not ready
        in time; none is left running then.
        """
        self.state = replace(self.state, server_version=jars.version, jar=jars.named)
        for attempt in range(1, _ATTEMPTS + 1):
            self.state = replace(self.state, ports=self._choose_ports(port), processes={})
            self._save()
            write_configuration(self._folder, self.state.settings, self.state.ports)
            try:
                self._launch_all(java, jars)
            except PortInUseError:
                # Another program took a port between our look and the server's bind.
                self.stop_all(patience=0)
                if attempt == _ATTEMPTS:
                    raise
            except BaseException:
                self.stop_all(patience=0)
                raise
            else:
                return

    def _choose_ports(self, port: int | None) -> dict[str, Ports]:
        if port is not None and not is_free(port):
            raise PortInUseError(
                f"port {port} of {HOST} is in use by another program; give another port"
            )
        chooser = PortChooser()
        # The address that clients know comes first, so that no other port of ours takes it.
        if port is None and COORDINATOR in self.state.ports:
            port = self.state.ports[COORDINATOR].client
        client = chooser.choose(port)

        def ports_of(name: str, client: int | None = None) -> Ports:
            old = self.state.ports.get(name)
            client = client or chooser.choose(old.client if old else None)
            if name == ZOOKEEPER:
                return Ports(client, client)
            return Ports(chooser.choose(old.internal if old else None), client)

        return {
            COORDINATOR: ports_of(COORDINATOR, client),
            ZOOKEEPER: ports_of(ZOOKEEPER),
            **{name: ports_of(name) for name in self._tablet_server_names()},
        }

    def _launch_all(self, java: Path, jars: ServerJars) -> None:
        deadline = time.monotonic() + self._start_timeout
        class_data = ClassData(java, jars.classpath, record=True)
        self._launch(ZOOKEEPER, java, jars, class_data)
        self._wait_for_zookeeper(deadline)
        names = [COORDINATOR, *self._tablet_server_names()]
        for name in names:
            self._launch(name, java, jars, class_data)
        # ZooKeeper included: what accepted connections on its port may have been another program.
        self._wait_until_ready([ZOOKEEPER, *names], deadline)
        self._wait_for_database(min(deadline, time.monotonic() + _DATABASE_SECONDS))
        class_data.make()

    def start_one(self, name: str, java: Path, jars: ServerJars) -> None:
        """Start one server of a running cluster, with its old ports and data.

        Raises ClusterError when it runs already, dies, or is not ready in time.
        """
        running = self.state.running()
        if name in running:
            raise ClusterError(f"{name} is running already (pid {running[name].pid})")
        if ZOOKEEPER not in running:
            raise ClusterError(
                f"{name} cannot start: the cluster in {self._folder.path} is not running"
            )
        self._launch(name, java, jars, ClassData(java, jars.classpath))
        with undoing(lambda: self.end_one(name, patience=0)):
            self._wait_until_ready([name], time.monotonic() + self._start_timeout)

    def _launch(self, name: str, java: Path, jars: ServerJars, class_data: ClassData) -> None:
        log = self._folder.log(name)
        self._log_starts[name] = log.stat().st_size if log.exists() else 0
        shared = class_data.options(self._folder.home(name))
        heap = heap_of(name, self.state.settings)
        argv = command(self._folder, name, java, jars, heap, shared)
        datalake = self.state.settings.datalake
        env = {} if datalake is None else link_plugins(self._folder, datalake)
        process = self._new_launcher().start(argv, log, self._folder.home(name), env)
        self.state = self.state.with_process(name, process)
        self._save()

    def start_flink_tiering(self, java: Path, options: dict[str, str]) -> None:
        """Start Flink's tiering service; it ends with the servers.

        Raises ClusterError when it runs already, the cluster does not run, or the cluster has no
        data lake.
        """
        running = self.state.running()
        if FLINK_TIERING in running:
            raise ClusterError(
                f"{FLINK_TIERING} is running already (pid {running[FLINK_TIERING].pid})"
            )
        if COORDINATOR not in running:
            raise ClusterError(f"the cluster in {self._folder.path} is not running")
        argv = tiering_command(self._folder, self.state, java, options)
        log = self._folder.log(FLINK_TIERING)
        process = self._new_launcher().start(argv, log, self._folder.path)
        self.state = self.state.with_process(FLINK_TIERING, process)
        self._save()

    # ---- watching

    def _wait_for_zookeeper(self, deadline: float) -> None:
        port = self.state.ports[ZOOKEEPER].client
        while not is_open(port):
            self._check_alive([ZOOKEEPER])
            if time.monotonic() > deadline:
                raise self._not_ready("ZooKeeper does not accept connections")
            time.sleep(_POLL_SECONDS)

    def _wait_until_ready(self, names: Iterable[str], deadline: float) -> None:
        """Wait until every running server tells clients of every running tablet server."""
        names = list(names)
        while True:
            self._check_alive(names)
            problem = self.problem()
            if problem is None:
                return
            if time.monotonic() > deadline:
                raise self._not_ready(problem)
            time.sleep(_POLL_SECONDS)

    def _wait_for_database(self, deadline: float) -> None:
        """Wait until the coordinator has made the first database of a new cluster.

        It makes the database soon after it has begun to answer. A user without the right to see
        databases is never told of it, so it is no error when the deadline passes.
        """
        port = self.state.ports[COORDINATOR].client
        while time.monotonic() < deadline:
            with contextlib.suppress(FlussError):
                if has_database(HOST, port, self.credentials(), _PROBE_SECONDS):
                    return
            time.sleep(_POLL_SECONDS)

    def problem(self) -> str | None:
        """Return what keeps the running servers from serving; None when they do."""
        running = self.state.running()
        expected = {
            TabletServerNode(number, HOST, self.state.ports[name].client)
            for number, name in enumerate(self._tablet_server_names())
            if name in running
        }
        for name in [COORDINATOR, *self._tablet_server_names()]:
            if name not in running:
                continue
            try:
                seen = tablet_server_nodes(
                    HOST, self.state.ports[name].client, self.credentials(), _PROBE_SECONDS
                )
            except FlussError as error:
                return f"{name} does not answer: {error}"
            missing = sorted(node.id for node in expected - seen)
            if missing:
                return f"{name} does not yet know of the tablet servers {missing}"
        return None

    def credentials(self) -> Credentials | None:
        """Return those of the first user, where the cluster has any."""
        for user, password in self.state.settings.sasl.items():
            return Credentials(user, password)
        return None

    def _check_alive(self, names: Iterable[str]) -> None:
        for name in names:
            process = self.state.processes.get(name)
            if process is None or not process.is_alive:
                raise self._died(name)

    def _died(self, name: str) -> ClusterError:
        log = self._folder.log(name)
        text = _read_from(log, self._log_starts.get(name, 0))
        # Without the frames of Java's stack traces, which would push the reasons out of sight.
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
        tail = "\n".join(lines[-_TAIL_LINES:]) or "(empty)"
        message = f"{name} died while it was starting; the end of its log, {log}:\n{tail}"
        if any(mark in text for mark in _IN_USE):
            return PortInUseError(message)
        return ClusterError(message)

    def _not_ready(self, problem: str) -> ClusterError:
        return ClusterError(
            f"the cluster was not ready within {self._start_timeout:g} seconds: {problem};"
            f" its logs are in {self._folder.logs}"
        )

    # ---- ending

    def end_one(self, name: str, patience: float = STOP_SECONDS) -> None:
        """End one server: at once with patience 0, else by asking it to stop."""
        process = self.state.processes.get(name)
        if process is not None:
            end([process], patience)
        self._forget([name])

    def kill_one(self, name: str) -> None:
        """Kill one server and return when it is gone.

        Raises ClusterError when it is not running.
        """
        process = self.state.running().get(name)
        if process is None or not process.send_signal(signal.SIGKILL):
            raise ClusterError(f"{name} is not running")
        wait_until_gone([process], STOP_SECONDS)
        self._forget([name])

    def stop_all(self, patience: float = STOP_SECONDS) -> None:
        """End all servers: at once with patience 0, else each gets that many seconds to stop.

        ZooKeeper is the last: without it the others hang in their shutdown.
        """
        running = self.state.running()
        first = [name for name in running if name not in (COORDINATOR, ZOOKEEPER)]
        groups = [first, [COORDINATOR], [ZOOKEEPER]]
        if patience == 0:
            groups = [[name for group in groups for name in group]]
        for group in groups:
            end([running[name] for name in group if name in running], patience)
        self._forget(self.state.processes)

    def _forget(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.state = self.state.with_process(name, None)
        self._save()

    def _save(self) -> None:
        self._folder.save(self.state)

    def _tablet_server_names(self) -> list[str]:
        return [tablet_server_name(number) for number in range(self.state.settings.tablet_servers)]


def merged_settings(
    remembered: Settings | None, changes: dict[str, object], folder: Path | None
) -> Settings:
    """Return the settings of a start: those given, else those of last time, else the defaults.

    Raises ClusterError when they are invalid, or would leave out tablet servers that hold data.
    """
    settings = replace(remembered or Settings(), **changes)  # type: ignore[arg-type]
    settings.check()
    if remembered is not None and settings.tablet_servers < remembered.tablet_servers:
        raise ClusterError(
            f"the cluster in {folder} has {remembered.tablet_servers} tablet servers with data;"
            f" it cannot start with {settings.tablet_servers}. Leave the number out, or use another"
            " folder"
        )
    return settings


def _read_from(log: Path, start: int) -> str:
    """Return the end of a log, of what was written from ``start`` on."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""

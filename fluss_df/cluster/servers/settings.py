"""The settings of a cluster, and the folder that keeps them.

The folder of a cluster::

    cluster.json          settings and running processes; for its owner's eyes only
    zookeeper/            zk.properties, data
    coordinator/          server.yaml
    tablet-server-N/      server.yaml, data
    remote/               what the servers tier and snapshot
    lake/                 the data lake, where there is one: catalog.db, warehouse
    plugins/              links to the lake's jars
    logs/                 a log file for each process
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluss_df.cluster.errors import ClusterError
from fluss_df.cluster.processes.processes import ProcessId
from fluss_df.texts.secret_texts import shown_option

ZOOKEEPER = "zookeeper"
COORDINATOR = "coordinator"
FLINK_TIERING = "flink-tiering"
DATALAKES = ("iceberg", "paimon", "lance")
_TABLET_SERVER = "tablet-server-"
_FORMAT = 1
_LOCK_SECONDS = 180
MAX_TABLET_SERVERS = 32

# These hold the cluster together: another value would tear it apart.
_RESERVED_OPTIONS = frozenset(
    {
        "bind.listeners",
        "data.dir",
        "internal.listener.name",
        "tablet-server.id",
        "zookeeper.address",
    }
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]*")
_HEAP = re.compile(r"[1-9][0-9]*[kmgKMG]")


def tablet_server_name(number: int) -> str:
    """Return the name of a tablet server's process."""
    return f"{_TABLET_SERVER}{number}"


@dataclass(frozen=True, slots=True)
class Ports:
    """The listeners of a server: one for the other servers, one for clients."""

    internal: int
    client: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a cluster.

    Parameters
    ----------
    tablet_servers
        Their number.
    sasl
        User -> password; empty for a cluster without authentication.
    server_options, coordinator_options, tablet_server_options
        Lines of ``server.yaml`` for all servers, the coordinator, the tablet servers.
    heap
        Maximum heap of each tablet server, as in ``1g``; None for the default.
    datalake
        The format of the data lake; None where the cluster has none.
    super_users
        Users that the authorizer lets do everything; None where there is no authorizer.
    """

    tablet_servers: int = 1
    sasl: Mapping[str, str] = field(default_factory=dict, repr=False)
    server_options: Mapping[str, str] = field(default_factory=dict)
    coordinator_options: Mapping[str, str] = field(default_factory=dict)
    tablet_server_options: Mapping[str, str] = field(default_factory=dict)
    heap: str | None = None
    datalake: str | None = None
    super_users: tuple[str, ...] | None = None

    def check(self) -> None:
        """Refuse what no server could be started with.

        Raises
        ------
        ClusterError
            With the value at fault; passwords excepted.
        """
        number = self.tablet_servers
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or not (1 <= number <= MAX_TABLET_SERVERS)
        ):
            raise ClusterError(
                f"tablet_servers must be a number from 1 to {MAX_TABLET_SERVERS}, not {number!r}"
            )
        if self.heap is not None and not _HEAP.fullmatch(str(self.heap)):
            raise ClusterError(f"heap must be a size such as '256m' or '1g', not {self.heap!r}")
        if self.datalake is not None and self.datalake not in DATALAKES:
            raise ClusterError(
                f"datalake must be one of {', '.join(DATALAKES)}, not {self.datalake!r}"
            )
        for user, password in self.sasl.items():
            _check_credentials(user, password)
        for user in self.super_users or ():
            _check_user(user)
        for options in (self.server_options, self.coordinator_options, self.tablet_server_options):
            for key, value in options.items():
                _check_option(key, value)


def _check_user(user: str) -> None:
    if not isinstance(user, str) or not _USER.fullmatch(user):
        raise ClusterError(
            f"invalid user name {user!r}: letters, digits and _ are allowed, after the first also"
            " the characters . $ -"
        )


def _check_credentials(user: str, password: str) -> None:
    _check_user(user)
    if not isinstance(password, str) or not password or not password.isprintable():
        raise ClusterError(f"the password of user {user!r} must be non-empty printable text")


def _check_option(key: str, value: str) -> None:
    # The servers read their server.yaml line by line, cut each at '#' and split it at ': '.
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", key):
        raise ClusterError(
            f"invalid server option {key!r}: expected a key such as 'kv.snapshot.interval'"
        )
    if key in _RESERVED_OPTIONS:
        raise ClusterError(f"the server option {key!r} is set by the local cluster itself")
    if not value.strip() or not value.isprintable() or "#" in value:
        raise ClusterError(
            f"invalid value {shown_option(key, value)!r} of the server option {key!r}: it must be"
            " one line of text without '#'"
        )


def option_text(value: object) -> str:
    """Return an option's value as it stands in ``server.yaml``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class State:
    """The settings of a cluster as its folder keeps them.

    Parameters
    ----------
    settings
        What the cluster consists of.
    ports
        The ports of each process, by its name; both ports of ZooKeeper are the same.
    processes
        By name the processes that were started and not stopped.
    server_version
        The version of the server that was started last.
    jar
        Its jar, where the user named it.
    """

    settings: Settings
    ports: Mapping[str, Ports] = field(default_factory=dict)
    processes: Mapping[str, ProcessId] = field(default_factory=dict)
    server_version: str = "unknown"
    jar: str | None = None

    def running(self) -> dict[str, ProcessId]:
        """Return the processes that are alive."""
        return {name: process for name, process in self.processes.items() if process.is_alive}

    def with_process(self, name: str, process: ProcessId | None) -> State:
        """Return the state with a process added, or (None) removed."""
        processes = dict(self.processes)
        processes.pop(name, None)
        if process is not None:
            processes[name] = process
        return replace(self, processes=processes)


class Folder:
    """The folder of a cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if "#" in str(path) or ": " in str(path) or not str(path).isprintable():
            raise ClusterError(
                f"Fluss servers cannot work in the folder {str(path)!r}: its path must not contain"
                " '#', ': ' or unprintable characters"
            )

    @property
    def logs(self) -> Path:
        """The folder of the log files."""
        return self.path / "logs"

    @property
    def remote(self) -> Path:
        """The folder of tiered segments and snapshots."""
        return self.path / "remote"

    @property
    def lake(self) -> Path:
        """The folder of the data lake: its catalog and its warehouse."""
        return self.path / "lake"

    @property
    def plugins(self) -> Path:
        """The folder of the servers' plugins."""
        return self.path / "plugins"

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.logs / f"{name}.log"

    def home(self, name: str) -> Path:
        """Return the folder of a process: its configuration and its data."""
        return self.path / name

    def data(self, name: str) -> Path:
        """Return the data folder of a process."""
        return self.home(name) / "data"

    @property
    def _state(self) -> Path:
        return self.path / "cluster.json"

    def load(self) -> State | None:
        """Return what the folder remembers; None where no cluster was ever started in it."""
        try:
            text = self._state.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ClusterError(f"cannot read {self._state}: {error.strerror}") from error
        try:
            return _state_from_json(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{self._state} is not what a cluster wrote there; remove the folder to start again"
            ) from error

    def save(self, state: State) -> None:
        """Remember the state: all of it or, after a crash, the state before."""
        temporary = self._state.with_suffix(".new")
        write_private(temporary, json.dumps(_state_to_json(state), indent=1) + "\n")
        temporary.replace(self._state)

    def create(self) -> None:
        """Make the folder, and what it always contains."""
        try:
            for folder in (self.path, self.logs, self.remote):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"cannot make the folder {error.filename}: {error.strerror}"
            ) from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from starting and stopping servers of the folder meanwhile.

        Raises ClusterError when another process has kept the lock for three minutes.
        """
        import fcntl  # POSIX only, and so are local clusters; the package imports everywhere

        with open(self.path / "cluster.lock", "w", encoding="ascii") as file:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ClusterError(
                            f"another process is starting or stopping the cluster in {self.path}"
                        ) from None
                    time.sleep(0.05)
            yield


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read: it holds passwords."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # a file that was there keeps its mode otherwise
        file.write(text)


def _state_to_json(state: State) -> dict[str, Any]:
    settings = state.settings
    return {
        "format": _FORMAT,
        "tablet_servers": settings.tablet_servers,
        "sasl": dict(settings.sasl),
        "server_options": dict(settings.server_options),
        "coordinator_options": dict(settings.coordinator_options),
        "tablet_server_options": dict(settings.tablet_server_options),
        "heap": settings.heap,
        "datalake": settings.datalake,
        "super_users": settings.super_users,
        "ports": {name: [ports.internal, ports.client] for name, ports in state.ports.items()},
        "processes": {
            name: {"pid": process.pid, "started": process.started}
            for name, process in state.processes.items()
        },
        "server_version": state.server_version,
        "jar": state.jar,
    }


def _state_from_json(content: Any) -> State:
    if content["format"] != _FORMAT:
        raise ValueError("unknown format")
    return State(
        Settings(
            int(content["tablet_servers"]),
            dict(content["sasl"]),
            dict(content["server_options"]),
            dict(content["coordinator_options"]),
            dict(content["tablet_server_options"]),
            content["heap"],
            content.get("datalake"),
            None if content.get("super_users") is None else tuple(content["super_users"]),
        ),
        {name: Ports(*ports) for name, ports in content["ports"].items()},
        {
            name: ProcessId(int(process["pid"]), str(process["started"]))
            for name, process in content["processes"].items()
        },
        str(content["server_version"]),
        content["jar"],
    )

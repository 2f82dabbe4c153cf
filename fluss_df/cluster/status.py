"""The status of a local cluster at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fluss_df.cluster.processes.ports import HOST

Health = Literal["healthy", "unhealthy", "stopped"]


@dataclass(frozen=True, slots=True)
class TabletServer:
    """A tablet server of a local cluster, as it was when asked.

    Parameters
    ----------
    id
        Its number in the cluster, from 0.
    port
        Its port for clients.
    pid
        Its process; None while it is not running.
    log
        Its log file.
    data_dir
        The folder of its data.
    """

    id: int
    port: int
    pid: int | None
    log: Path
    data_dir: Path

    @property
    def address(self) -> str:
        """Its address for clients, ``127.0.0.1:PORT``."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of a local cluster: name, ports, log file, and its pid while it runs."""

    name: str
    pid: int | None
    ports: tuple[int, ...]
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """How a local cluster is.

    Parameters
    ----------
    health
        "healthy": all servers run, and clients see every tablet server. "stopped": none runs.
        "unhealthy": anything between.
    problem
        What is wrong, where it is unhealthy.
    bootstrap_servers
        The address for clients.
    server_version
        The version of the Fluss server.
    users
        Names of the SASL users; empty where clients need none.
    processes
        ZooKeeper, the coordinator, the tablet servers.
    """

    health: Health
    problem: str | None
    bootstrap_servers: str
    server_version: str
    users: tuple[str, ...]
    processes: tuple[ProcessStatus, ...]

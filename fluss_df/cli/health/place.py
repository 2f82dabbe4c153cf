"""Checks of where a connection leads: to the servers of a cluster, or to a folder."""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss_df.addresses import embedded_folder
from fluss_df.cli.health.finding import Finding, ok, problem, warning
from fluss_df.cli.health.machine import space
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection

# the locks of all processes, on Linux
_LOCKS = Path("/proc/locks")
_WAIT_S = 5.0
_REQUESTS = 20
# what servers of fluss_df answer to a client that does not use TLS
_ASKS_FOR_TLS = "this port speaks TLS"
_SLOW_MS = 100.0
_CLOCK_OFF_S = 1.0
# ms since 1970: a time in the future of every server
_FAR_MS = 1 << 60
_NOW = re.compile(r"current timestamp (\d+)")
# how many tables are tried until one tells the time of its server
_TABLES_ASKED = 20
_READY = "another address: fluss-df doctor host:port"


def place(connection: str | None) -> Iterator[Finding]:
    """Yield findings about the servers or the folder that a connection leads to.

    Nothing is written. A folder that no process has open is not opened.
    """
    from fluss_df.client.transport.folders import home_folder

    found: Any = home_folder() if connection is None else connection
    if not found:
        yield ok("connection", "none given: fluss-df doctor host:port, or a folder, checks one")
        return
    folder = embedded_folder(found)
    if isinstance(folder, Path):
        yield from _folder(folder)
    elif folder is not None:
        yield ok("connection", "an embedded Fluss in memory, gone with its process")
    else:
        yield from _servers(str(found))


# ---- folders


def _folder(given: Path) -> Iterator[Finding]:
    from fluss_df.engine.files.files import holds_data, read_format
    from fluss_df.engine.files.lock_file import owner_of
    from fluss_df.engine.files.ownership import lives

    try:
        folder = given.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        yield problem("folder", f"{given}: {error}", "name another folder")
        return
    yield space("folder", folder, "name another folder")
    if not folder.is_dir():
        if not folder.exists():
            yield ok("data", f"{folder} does not exist: the first connection creates it")
        return
    try:
        names = os.listdir(folder)
    except OSError as error:
        yield problem("data", f"{folder} cannot be read: {error.strerror}", "change its rights")
        return
    if not names:
        yield ok("data", "the folder is empty")
        return
    if not holds_data(folder):
        yield problem(
            "data",
            f"{folder} holds files, but none of an embedded Fluss",
            "name a folder that is new, empty, or of an embedded Fluss",
        )
        return
    try:
        version, damage = read_format(folder)
    except FlussError as error:
        yield problem("data", error.message, "install a newer fluss_df")
        return
    if damage is not None:
        yield warning("data", damage, f"fluss-df check {folder}")
    else:
        yield ok("data", f"layout {version}; fluss-df check {folder} reads every byte")
    owner = owner_of(folder)
    if owner is None or not lives(owner[0]) or _is_locked(folder) is False:
        yield ok("owner", "nobody has the folder open")
        return
    pid, path = owner
    if not os.path.exists(path):
        yield warning(
            "owner",
            f"process {pid} has the folder open, or is ending; its socket {path} does not exist",
            f"try again; if the socket is still missing, end process {pid}",
        )
        return
    yield ok("owner", f"process {pid} has the folder open; others connect to it by {path}")
    yield from _connected(folder)


def _is_locked(folder: Path) -> bool | None:
    """Whether a process holds the lock of a folder; None if the system does not tell.

    The lock is not tried: a process that opens the folder at that moment would be refused.
    """
    try:
        lines = _LOCKS.read_text().splitlines()
        inode = folder.stat().st_ino
    except OSError:
        return None
    return any(line.split()[-3].endswith(f":{inode}") for line in lines if len(line.split()) > 5)


# ---- servers


def _servers(given: str) -> Iterator[Finding]:
    from fluss_df.client.connection import unconnected

    try:
        config = unconnected(given).config
        addresses = config.addresses()
    except FlussError as error:
        # a word without a slash is taken for the name of a host
        folder = f"a folder needs a slash: fluss-df doctor ./{given}"
        yield problem("connection", error.message, folder if os.path.isdir(given) else _READY)
        return
    reached = 0
    for host, port in addresses:
        finding = _reach("address", host, port)
        reached += finding.status == "ok"
        yield finding
    if reached:
        yield from _connected(given)


def _reach(check: str, host: str, port: int) -> Finding:
    """Return whether something listens at an address, and how long connecting takes."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    began = time.monotonic()
    try:
        socket.create_connection((host, port), _WAIT_S).close()
    except socket.gaierror as error:
        return problem(
            check, f"{shown}: no such host ({error.strerror})", "correct the name, or the DNS"
        )
    except UnicodeError:
        return problem(check, f"{shown}: not a valid name of a host", "correct the name")
    except TimeoutError:
        return problem(
            check, f"{shown}: no answer within {_WAIT_S:g} s", "look at firewalls and the network"
        )
    except OSError as error:
        return problem(
            check, f"{shown}: {error.strerror or error}", "start the server, or correct the address"
        )
    return ok(check, f"{shown} accepts connections ({(time.monotonic() - began) * 1000:.1f} ms)")


def _connected(given: object) -> Iterator[Finding]:
    """Yield findings about login, servers, versions, latency and clocks, from a connection."""
    from fluss_df.client.connection import FlussConnection, unconnected
    from fluss_df.client.transport.tls import TlsError
    from fluss_df.protocol.address import local_path

    opened: FlussConnection | None = None
    try:
        config = _with_short_timeouts(unconnected(given).config)
        opened = FlussConnection.create(config)
        if config.security_ssl_enabled and not all(
            local_path(host) for host, _ in config.addresses()
        ):
            yield ok("tls", "encrypted, and the server's certificate is valid")
        yield _login(config)
        yield from _nodes(opened)
        yield _latency(opened)
        yield _clock(opened)
    except FlussError as error:
        if isinstance(error, TlsError) or _ASKS_FOR_TLS in error.message:
            yield problem("tls", error.message, "set client.security.ssl.*: page 'Access and TLS'")
        elif error.error_code == ErrorCode.AUTHENTICATE_EXCEPTION:
            yield problem("login", error.message, "fluss://user:password@host:port")
        else:
            yield problem(
                "protocol",
                error.message,
                "is it a Fluss server's client port? the servers' logs say more",
            )
    finally:
        if opened is not None:
            opened.close()


def _with_short_timeouts(config: Config) -> Config:
    made = config.copy()
    most = int(_WAIT_S * 1000)
    made.connect_timeout_ms = min(made.connect_timeout_ms, most)
    made.request_timeout_ms = min(made.request_timeout_ms, most)
    made.retry_timeout_ms = min(made.retry_timeout_ms, most)
    return made


def _login(config: Config) -> Finding:
    if config.uses_sasl:
        return ok("login", f"as user {config.security_sasl_username!r}")
    return ok("login", "without user and password, and the server asks for none")


def _nodes(opened: FlussConnection) -> Iterator[Finding]:
    from fluss_df.protocol.address import local_path

    cluster = opened.cluster
    nodes = opened.get_admin().get_server_nodes()
    for node in nodes:
        what = f"{node.server_type} {node.host}:{node.port}"
        local = local_path(node.host)
        if local is not None:
            what = f"{node.server_type} {local}"
        else:
            there = _reach("server", node.host, node.port)
            if there.status != "ok":
                yield problem(
                    "server",
                    f"{what}: the cluster names this address, and it cannot be reached from here"
                    f" ({there.message})",
                    "set advertised.listeners of the server to an address for clients",
                )
                continue
        apis = cluster.io.run(cluster.connection_to(node)).apis
        release = "1.0 or newer" if apis.batch_statistics else "0.9"
        yield ok(
            "server",
            f"{what}: Fluss {release} by its requests; {len(apis.versions)} kinds of requests"
            f" ({_versions(apis.versions)})",
        )
    if not any(node.server_type == "CoordinatorServer" for node in nodes):
        yield problem("server", "the cluster has no coordinator", "start it, or look at its log")
    if not any(node.server_type == "TabletServer" for node in nodes):
        yield problem("server", "the cluster has no tablet server", "start one, or look at its log")


def _versions(versions: dict[int, tuple[int, int]]) -> str:
    """Return the API keys that have other versions than 0, with their versions, as text."""
    newer = [f"{key}: {a} to {b}" for key, (a, b) in sorted(versions.items()) if (a, b) != (0, 0)]
    return "; ".join(["all in version 0", *newer] if not newer else ["version 0, but", *newer])


def _latency(opened: FlussConnection) -> Finding:
    admin = opened.get_admin()
    times = []
    for _ in range(_REQUESTS):
        began = time.monotonic()
        admin.list_databases()
        times.append((time.monotonic() - began) * 1000)
    said = (
        f"{statistics.median(times):.1f} ms in the median, {min(times):.1f} to {max(times):.1f} ms,"
        f" over {_REQUESTS} requests"
    )
    if statistics.median(times) > _SLOW_MS:
        return warning("latency", said, "run nearer to the servers, or in larger batches")
    return ok("latency", said)


def _clock(opened: FlussConnection) -> Finding:
    """Return the difference between a tablet server's clock and the local clock.

    No response of the protocol has the server's time. But a server that is asked for the offset of
    a time in the future refuses, and its error message has the current time.
    """
    from fluss_df.metadata import OffsetSpec, TablePath

    admin = opened.get_admin()
    asked = 0
    for database in admin.list_databases():
        for name in admin.list_tables(database):
            asked += 1
            if asked > _TABLES_ASKED:
                return ok("clock", f"not known: none of {_TABLES_ASKED} tables told the time")
            path = TablePath(database, name)
            try:
                if admin.get_table_info(path).is_partitioned():
                    continue
                began = time.time()
                admin.list_offsets(path, [0], OffsetSpec.timestamp(_FAR_MS))
            except FlussError as error:
                ended = time.time()
                now = _NOW.search(error.message)
                if now is None:
                    continue
                return _difference(int(now[1]) / 1000, began, ended)
    return ok("clock", "not known: servers tell their time only of a table without partitions")


def _difference(server: float, began: float, ended: float) -> Finding:
    # a time between the request and its answer is no difference
    off = 0.0 if began <= server <= ended else server - (began + ended) / 2
    doubt = (ended - began) / 2
    said = f"the server's is {abs(off):.3f} s {'ahead' if off > 0 else 'behind'}, ± {doubt:.3f} s"
    if abs(off) > _CLOCK_OFF_S + doubt:
        return warning(
            "clock", said, "synchronise the clocks (NTP): scans from a time and TTLs go by them"
        )
    return ok("clock", said)

"""The configuration files and command lines of the servers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluss_df.cluster.processes.ports import HOST
from fluss_df.cluster.servers.jars import ServerJars
from fluss_df.cluster.servers.java import java_options
from fluss_df.cluster.servers.lake import lake_options
from fluss_df.cluster.servers.settings import (
    COORDINATOR,
    ZOOKEEPER,
    Folder,
    Ports,
    Settings,
    tablet_server_name,
    write_private,
)

_ZOOKEEPER_MAIN = (
    "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"
)
_COORDINATOR_MAIN = "org.apache.fluss.server.coordinator.CoordinatorServer"
_TABLET_SERVER_MAIN = "org.apache.fluss.server.tablet.TabletServer"
_LOGIN_MODULE = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule"

_SESSION_TIMEOUT = "3s"
_TICK_MS = 500  # ZooKeeper grants sessions of 2 to 20 ticks

_JVM = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",  # Arrow's memory
    "-Dfile.encoding=UTF-8",  # the servers read server.yaml in it
    "-XX:+UseSerialGC",  # several small heaps on few cores
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    # It logs every option, those with passwords in clear.
    "-Dorg.slf4j.simpleLogger.log.org.apache.fluss.config.GlobalConfiguration=error",
)


def default_options(tablet_servers: int) -> dict[str, str]:
    """Return the options that make a local cluster quick; each can be overridden.

    With them a small acknowledged append takes 15 ms rather than 450 (three replicas), and a killed
    server is noticed in 3 s rather than 40.
    """
    return {
        "default.bucket.number": "1",
        "default.replication.factor": str(min(3, tablet_servers)),
        "log.replica.fetch.wait-max-time": "20ms",
        "zookeeper.client.session-timeout": _SESSION_TIMEOUT,
        # 1.0 refuses writes, and clients wait, while a disk is 85 % full
        "server.data-disk.write-limit-ratio": "1.0",
    }


def _property(value: str) -> str:
    """Return a value as Java reads it from a file of properties, which is Latin-1 to it."""
    units = memoryview(value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")).cast("B")
    numbers = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in numbers)


def write_configuration(folder: Folder, settings: Settings, ports: Mapping[str, Ports]) -> None:
    """Write the files that the servers of a cluster start from."""
    zookeeper = folder.home(ZOOKEEPER)
    zookeeper.mkdir(exist_ok=True)
    (zookeeper / "zk.properties").write_text(
        f"dataDir={_property(str(folder.data(ZOOKEEPER)))}\n"
        f"clientPort={ports[ZOOKEEPER].client}\n"
        f"clientPortAddress={HOST}\n"
        f"tickTime={_TICK_MS}\n"
        "maxClientCnxns=0\n"
        "admin.enableServer=false\n",
        encoding="utf-8",
    )
    common = {
        "zookeeper.address": f"{HOST}:{ports[ZOOKEEPER].client}",
        "internal.listener.name": "INTERNAL",
        "remote.data.dir": str(folder.remote),
        **default_options(settings.tablet_servers),
        **_security(settings.sasl),
        **_authorizer(settings.super_users),
        **lake_options(folder, settings.datalake),
        **settings.server_options,
    }
    _write_server_yaml(
        folder, COORDINATOR, ports[COORDINATOR], {**common, **settings.coordinator_options}
    )
    for number in range(settings.tablet_servers):
        name = tablet_server_name(number)
        _write_server_yaml(
            folder,
            name,
            ports[name],
            {"tablet-server.id": str(number), **common, **settings.tablet_server_options},
        )


def _write_server_yaml(folder: Folder, name: str, ports: Ports, options: Mapping[str, str]) -> None:
    lines = {
        "bind.listeners": f"INTERNAL://{HOST}:{ports.internal}, CLIENT://{HOST}:{ports.client}",
        "data.dir": str(folder.data(name)),
        **options,
    }
    folder.home(name).mkdir(exist_ok=True)
    write_private(
        folder.home(name) / "server.yaml",
        "".join(f"{key}: {value}\n" for key, value in lines.items()),
    )


def _security(sasl: Mapping[str, str]) -> dict[str, str]:
    if not sasl:
        return {}
    users = " ".join(f'user_{user}="{_quoted(password)}"' for user, password in sasl.items())
    return {
        # The servers among themselves listen on 127.0.0.1 only and need no passwords.
        "security.protocol.map": "CLIENT:SASL, INTERNAL:PLAINTEXT",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.jaas.config": f"{_LOGIN_MODULE} required {users};",
    }


def _authorizer(super_users: Sequence[str] | None) -> dict[str, str]:
    if super_users is None:
        return {}
    options = {"authorizer.enabled": "true"}
    if super_users:
        options["super.users"] = ";".join(f"User:{user}" for user in super_users)
    return options


def _quoted(password: str) -> str:
    """Return a password as it stands between the quotes of a JAAS entry in ``server.yaml``.

    JAAS knows octal escapes, so that what has a meaning to either format is hidden from both.
    """
    return "".join(f"\\{ord(char):03o}" if char in '"\\#: ' else char for char in password)


def command(
    folder: Folder,
    name: str,
    java: Path,
    jars: ServerJars,
    heap: str,
    class_data: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a server; it holds no secrets."""
    classpath = os.pathsep.join(str(path) for path in jars.classpath)
    start = [str(java), f"-Xmx{heap}", *_JVM, *class_data, *java_options(), "-cp", classpath]
    home = folder.home(name)
    if name == ZOOKEEPER:
        return [*start, _ZOOKEEPER_MAIN, str(home / "zk.properties")]
    main = _COORDINATOR_MAIN if name == COORDINATOR else _TABLET_SERVER_MAIN
    return [*start, main, "--configDir", str(home)]


def heap_of(name: str, settings: Settings) -> str:
    """Return the maximum heap of a server."""
    if name == ZOOKEEPER:
        return "128m"
    if name == COORDINATOR:
        return "256m" if settings.datalake is None else "384m"
    return settings.heap or ("1g" if settings.tablet_servers == 1 else "256m")

"""A cluster's data lake: its jars and options, and Flink's tiering service."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from fluss_df.cluster.errors import ClusterError
from fluss_df.cluster.processes.ports import HOST
from fluss_df.cluster.servers.jars import (
    SERVER_VERSION,
    copy_artifact,
    copy_dependencies,
    made_once,
)
from fluss_df.cluster.servers.java import java_options
from fluss_df.cluster.servers.settings import COORDINATOR, Folder, State
from fluss_df.texts.secret_texts import is_secret

_HADOOP = "3.4.0"
_FLINK = "1.20.3"
_SQLITE_JDBC = "3.46.1.3"
_PAIMON = "1.3.1"
_PLUGINS_VARIABLE = "FLUSS_PLUGINS_DIR"

_ARTIFACTS = {
    "iceberg": (
        f"org.apache.fluss:fluss-lake-iceberg:{SERVER_VERSION}",
        f"org.xerial:sqlite-jdbc:{_SQLITE_JDBC}",
        f"org.apache.hadoop:hadoop-client-api:{_HADOOP}",
        f"org.apache.hadoop:hadoop-client-runtime:{_HADOOP}",
    ),
    "paimon": (
        f"org.apache.fluss:fluss-lake-paimon:{SERVER_VERSION}",
        f"org.apache.paimon:paimon-bundle:{_PAIMON}",
        f"org.apache.hadoop:hadoop-client-api:{_HADOOP}",
        f"org.apache.hadoop:hadoop-client-runtime:{_HADOOP}",
    ),
    # log tables only; its jar has 200 MB
    "lance": (f"org.apache.fluss:fluss-lake-lance:{SERVER_VERSION}",),
}
_TIERING_MAIN = Path(__file__).with_name("FlinkTiering.java")
_TIERING_JVM = (
    "-Xmx768m",
    "-XX:MaxDirectMemorySize=768m",
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


def lake_jars(datalake: str) -> list[Path]:
    """Return the jars of a lake's plugin, fetched with Maven the first time.

    Raises ClusterUnavailableError where Maven is missing, or cannot fetch them.
    """
    purpose = f"fetch the {datalake} plugin of the Fluss server {SERVER_VERSION}"

    def fill(folder: Path) -> None:
        for artifact in _ARTIFACTS[datalake]:
            copy_artifact(artifact, purpose, folder)

    return sorted(made_once(f"lake-{datalake}-{SERVER_VERSION}", fill).glob("*.jar"))


def lake_options(folder: Folder, datalake: str | None) -> dict[str, str]:
    """Return the lines of ``server.yaml`` for the lake in the cluster's folder."""
    if datalake is None:
        return {}
    catalog = {
        "iceberg": {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder.lake / 'catalog.db'}",
            "warehouse": str(folder.lake / "warehouse"),
            "jdbc.schema-version": "V1",
            # Otherwise Iceberg looks whether the catalog's tables exist, and leaves that query
            # open: with it the coordinator keeps reading the catalog as it was then, and cannot
            # write it any more ("Unknown failure" when a table is created).
            "jdbc.init-catalog-tables": "false",
            # milliseconds that SQLite's driver waits for another process; three seconds by default
            "jdbc.busy_timeout": "60000",
            # with it, readers and a writer do not wait for each other, nor each commit for the disk
            "jdbc.journal_mode": "WAL",
            "jdbc.synchronous": "NORMAL",
        },
        "paimon": {"metastore": "filesystem", "warehouse": str(folder.lake / "warehouse")},
        "lance": {"warehouse": str(folder.lake / "warehouse")},
    }[datalake]
    return {
        "datalake.format": datalake,
        **{f"datalake.{datalake}.{key}": value for key, value in catalog.items()},
    }


def _make_catalog(file: Path) -> None:
    """Make the tables of an Iceberg catalog, in the form of version 1, where they are missing."""
    name = "VARCHAR(255) NOT NULL"
    path = "VARCHAR(1000)"
    with contextlib.closing(sqlite3.connect(file, timeout=60)) as catalog, catalog:
        catalog.execute(
            f"CREATE TABLE IF NOT EXISTS iceberg_tables (catalog_name {name},"
            f" table_namespace {name}, table_name {name}, metadata_location {path},"
            f" previous_metadata_location {path}, iceberg_type VARCHAR(5),"
            " PRIMARY KEY (catalog_name, table_namespace, table_name))"
        )
        catalog.execute(
            f"CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (catalog_name {name},"
            f" namespace {name}, property_key {name}, property_value {path},"
            " PRIMARY KEY (catalog_name, namespace, property_key))"
        )


def link_plugins(folder: Folder, datalake: str) -> dict[str, str]:
    """Make the folder of plugins; return the environment variable that names it to servers.

    The user's own plugins, of the same variable, are among them.
    """
    (folder.lake / "warehouse").mkdir(parents=True, exist_ok=True)
    if datalake == "iceberg":
        _make_catalog(folder.lake / "catalog.db")
    plugins = folder.plugins
    plugins.mkdir(exist_ok=True)
    own = os.environ.get(_PLUGINS_VARIABLE)
    sources = {path.name: sorted(path.glob("*.jar")) for path in Path(own).iterdir()} if own else {}
    sources[datalake] = lake_jars(datalake)
    for name, jars in sources.items():
        (plugins / name).mkdir(exist_ok=True)
        for jar in jars:
            link = plugins / name / jar.name
            link.unlink(missing_ok=True)
            link.symlink_to(jar)
    return {_PLUGINS_VARIABLE: str(plugins)}


def tiering_command(folder: Folder, state: State, java: Path, options: dict[str, str]) -> list[str]:
    """Return the command line of Flink's tiering service in one JVM.

    Raises ClusterError when the cluster has no lake, or asks for passwords, which would stand in
    the command line.
    """
    datalake = state.settings.datalake
    if datalake is None:
        raise ClusterError(
            f"the cluster in {folder.path} has no data lake to tier into;"
            " start it with datalake='iceberg', 'paimon' or 'lance'"
        )
    if state.settings.sasl:
        raise ClusterError("Flink's tiering service is for clusters without SASL users only")
    if not java.with_name("javac").exists():
        raise ClusterError(
            f"Flink's tiering service needs a JDK, and {java} is a runtime only. Install one"
            " (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless) or point JAVA_HOME at it"
        )
    arguments = {
        "fluss.bootstrap.servers": f"{HOST}:{state.ports[COORDINATOR].client}",
        "fluss.tiering.poll.table.interval": "1s",
        **lake_options(folder, datalake),
        **{
            key: value
            for key, value in state.settings.server_options.items()
            if key.startswith("datalake.")
        },
        **options,
    }
    for key in arguments:
        if is_secret(key):
            raise ClusterError(
                f"{key!r} would stand in the command line of Flink's tiering service, where every"
                " user of the machine reads it: 'fluss-df tier' takes it from the cluster"
            )
    classpath = os.pathsep.join(str(jar) for jar in [*_flink_jars(), *lake_jars(datalake)])
    return [
        str(java),
        *_TIERING_JVM,
        *java_options(),
        "-cp",
        classpath,
        str(_TIERING_MAIN),
        *(text for key, value in arguments.items() for text in (f"--{key}", value)),
    ]


def _flink_jars() -> list[Path]:
    purpose = f"fetch Flink {_FLINK} and its tiering service"

    def fill(folder: Path) -> None:
        copy_dependencies(_flink_pom(), purpose, folder)

    return sorted(made_once(f"flink-tiering-{_FLINK}-{SERVER_VERSION}", fill).glob("*.jar"))


def _flink_pom() -> str:
    """Return the pom of a Flink in one JVM; the connector's jar holds its own dependencies."""
    one = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    alone = f"<exclusions>{one}</exclusions>"

    def dependency(group: str, name: str, version: str, more: str = "") -> str:
        return (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{more}</dependency>"
        )

    flink = "flink-clients flink-connector-base flink-table-common flink-table-api-java-bridge"
    dependencies = [
        dependency("org.apache.fluss", "fluss-flink-tiering", SERVER_VERSION),
        dependency("org.apache.fluss", "fluss-flink-1.20", SERVER_VERSION, alone),
        *(
            dependency("org.apache.flink", name, _FLINK)
            for name in [*flink.split(), "flink-table-runtime"]
        ),
        dependency("org.apache.hadoop", "hadoop-client-api", _HADOOP),
        dependency("org.apache.hadoop", "hadoop-client-runtime", _HADOOP),
        dependency("org.slf4j", "slf4j-simple", "1.7.36"),
    ]
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>fluss-df</groupId><artifactId>flink-tiering</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{''.join(dependencies)}</dependencies></project>"
    )

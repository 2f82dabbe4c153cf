"""The server's jars: the released server through Maven, or one that the user names."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fluss_df.cluster.errors import ClusterError, ClusterUnavailableError
from fluss_df.cluster.processes.places import cache_dir
from fluss_df.cluster.servers.java import find_maven

SERVER_VERSION = "0.9.1-incubating"
SERVER_JAR_VARIABLE = "FLUSS_SERVER_JAR"

_SLF4J_VERSION = "1.7.36"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# This version of the Maven plugin takes a jar without looking at its parents: those of the lakes
# and of the file systems were not published with 0.9.1.
_COPY_ONE = "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy"
_TABLET_SERVER_CLASS = "org/apache/fluss/server/tablet/TabletServer.class"
_FETCH_SECONDS = 900


@dataclass(frozen=True, slots=True)
class ServerJars:
    """The files that a server runs from.

    ``classpath`` has all jars, the server's first. ``version`` is what the server's jar states,
    "unknown" where it states none. ``named`` is the server's jar where the user named it.
    """

    classpath: tuple[Path, ...]
    version: str
    named: str | None


def resolve_jars(
    jar: str | os.PathLike[str] | None = None, remembered: str | None = None
) -> ServerJars:
    """Return the jars of a server, fetching them with Maven the first time.

    The server's jar is ``jar``, else that of the environment variable FLUSS_SERVER_JAR, else
    ``remembered``, which the user named when the cluster was started last, else Apache Fluss
    0.9.1-incubating, kept in the user's cache folder.

    Raises ClusterUnavailableError where Maven is missing, or cannot fetch the server. Raises
    ClusterError when the jar does not exist or is no Fluss server.
    """
    source = "the server jar"
    if jar is None and os.environ.get(SERVER_JAR_VARIABLE):
        jar = os.environ[SERVER_JAR_VARIABLE]
        source = f"the server jar of the environment variable {SERVER_JAR_VARIABLE}"
    if jar is None and remembered is not None:
        jar = remembered
        source = "the server jar that the cluster was started with last"
    named = None
    if jar is None:
        folder = _fetched(
            f"server-{SERVER_VERSION}",
            f"fetch the Fluss server {SERVER_VERSION}",
            {"org.apache.fluss:fluss-server": SERVER_VERSION, **_LOGGING},
        )
        server = folder / f"fluss-server-{SERVER_VERSION}.jar"
        logging = tuple(sorted(set(folder.glob("*.jar")) - {server}))
    else:
        server = Path(jar).expanduser().absolute()
        if not server.is_file():
            raise ClusterError(f"{source}, {server}, does not exist")
        logging = _logging_jars(server)
        named = str(server)
    version = _version(server, source)
    classpath = (server, *logging)
    for path in classpath:
        if os.pathsep in str(path):
            raise ClusterError(
                f"Java cannot load a jar whose path has a {os.pathsep!r} in it: {path}"
            )
    return ServerJars(classpath, version, named)


_LOGGING = {"org.slf4j:slf4j-api": _SLF4J_VERSION, "org.slf4j:slf4j-simple": _SLF4J_VERSION}


def _logging_jars(server: Path) -> tuple[Path, ...]:
    """Return a logging backend for a jar that has none: without it, a server says nothing.

    It is taken from beside the jar, or fetched. A server runs without it too, so that a missing
    Maven is no reason to refuse a jar that the user has named.
    """
    beside = tuple(sorted(server.parent.glob("slf4j-*.jar")))
    if beside:
        return beside
    with contextlib.suppress(ClusterUnavailableError):
        folder = _fetched(f"slf4j-{_SLF4J_VERSION}", "fetch the logging library", _LOGGING)
        return tuple(sorted(folder.glob("*.jar")))
    return ()


def _version(server: Path, source: str) -> str:
    try:
        with zipfile.ZipFile(server) as content:
            if _TABLET_SERVER_CLASS not in content.namelist():
                raise ClusterError(
                    f"{source}, {server}, is not a Fluss server: it has no TabletServer"
                )
            manifest = content.read("META-INF/MANIFEST.MF").decode("utf-8", "replace")
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise ClusterError(f"{source}, {server}, cannot be read: {error}") from error
    for line in manifest.splitlines():
        name, _, value = line.partition(":")
        if name == "Implementation-Version":
            return value.strip()
    return "unknown"


def _fetched(name: str, purpose: str, artifacts: dict[str, str]) -> Path:
    """Return the cache folder with the jars of these artifacts, made the first time."""

    def fill(folder: Path) -> None:
        copy_dependencies(_pom(artifacts), purpose, folder)

    return made_once(name, fill)


def made_once(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, which ``fill`` puts files into the first time."""
    folder = cache_dir() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and renamed: other processes never see, or make, half a folder.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
        made = Path(work, "made")
        made.mkdir()
        fill(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def copy_dependencies(pom: str, purpose: str, folder: Path) -> None:
    """Copy the jars that a pom names, and those they need, into a folder."""
    maven = find_maven(purpose)
    with tempfile.TemporaryDirectory() as work:
        file = Path(work, "pom.xml")
        file.write_text(pom, encoding="utf-8")
        output = f"-DoutputDirectory={folder}"
        run_maven([str(maven), "-B", "-q", "-f", str(file), _COPY, output], purpose)


def copy_artifact(artifact: str, purpose: str, folder: Path) -> None:
    """Copy one jar, ``group:name:version``, into a folder, without what its pom names."""
    maven = find_maven(purpose)
    command = [str(maven), "-B", "-q", _COPY_ONE, f"-Dartifact={artifact}"]
    run_maven([*command, f"-DoutputDirectory={folder}"], purpose)


def run_maven(command: list[str], purpose: str) -> None:
    """Run Maven; raise ClusterUnavailableError, with what it said, where it cannot do it."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ClusterUnavailableError(
            f"Maven could not {purpose} within {_FETCH_SECONDS} seconds"
        ) from None
    if result.returncode != 0:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line]
        raise ClusterUnavailableError(
            f"Maven could not {purpose}:\n"
            + "\n".join(lines[:5] or result.stdout.splitlines()[-5:])
        )


def _pom(artifacts: dict[str, str]) -> str:
    """Return a pom of exactly these artifacts: the server's jar holds its own dependencies."""
    dependencies = "".join(
        f"""
    <dependency>
      <groupId>{artifact.partition(":")[0]}</groupId>
      <artifactId>{artifact.partition(":")[2]}</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
        for artifact, version in artifacts.items()
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fluss-df</groupId>
  <artifactId>server-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""

"""Finds Java and Maven, and says what to do where they are missing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from fluss_df.cluster.errors import ClusterError, ClusterUnavailableError

MINIMUM_JAVA = 11
JAVA_OPTIONS_VARIABLE = "FLUSS_CLUSTER_JAVA_OPTIONS"
_INSTALL_JAVA = (
    "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at it."
)
_INSTALL_MAVEN = (
    "Install it (Debian, Ubuntu: apt-get install maven; macOS: brew install maven), "
    "or name a server jar that you have: --jar PATH, LocalCluster(jar=PATH) or the environment "
    "variable FLUSS_SERVER_JAR."
)


def find_java() -> Path:
    """Return a ``java`` of version 11 or newer: that of JAVA_HOME, else the one in PATH.

    Raises ClusterUnavailableError with what was found instead, and how to install one.
    """
    found = []
    for candidate in _candidates():
        version = _java_version(candidate)
        if version is not None and version >= MINIMUM_JAVA:
            return candidate
        found.append(f"{candidate} is " + ("not usable" if version is None else f"Java {version}"))
    reason = "; ".join(found) or "there is no java in JAVA_HOME or PATH"
    raise ClusterUnavailableError(
        f"a Fluss server needs Java {MINIMUM_JAVA} or newer: {reason}. {_INSTALL_JAVA}"
    )


def java_options() -> list[str]:
    """Return the options of Java that the environment has for every server: they come last.

    Raises ClusterError where they cannot be told apart.
    """
    try:
        return shlex.split(os.environ.get(JAVA_OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise ClusterError(
            f"the environment variable {JAVA_OPTIONS_VARIABLE} cannot be read as options of Java"
            f" ({error}): write it as a shell would, as in '-Xms1g \"-Da=b c\"'"
        ) from None


def java_versions() -> list[tuple[Path, int | None]]:
    """Return the ``java`` of JAVA_HOME and of PATH, with their versions; None where one fails."""
    return [(candidate, _java_version(candidate)) for candidate in _candidates()]


def _candidates() -> list[Path]:
    candidates = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append(Path(home, "bin", "java"))
    in_path = shutil.which("java")
    if in_path:
        candidates.append(Path(in_path))
    return candidates


def _java_version(java: Path) -> int | None:
    try:
        result = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 'version "17.0.15"', and before Java 9 'version "1.8.0_402"'
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match[1]) if result.returncode == 0 and match else None


def find_maven(purpose: str) -> Path:
    """Return ``mvn``.

    Raises ClusterUnavailableError when there is none; ``purpose`` completes "Maven is needed once,
    to ...".
    """
    home = os.environ.get("MAVEN_HOME")
    mvn = shutil.which("mvn", path=str(Path(home, "bin"))) if home else None
    mvn = mvn or shutil.which("mvn")
    if mvn is None:
        raise ClusterUnavailableError(
            f"Maven is needed once, to {purpose}, and there is no mvn in PATH. {_INSTALL_MAVEN}"
        )
    return Path(mvn)

"""Java, limits, folders for temporary files, the Python of Spark's workers."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fluss_df.cli.health.finding import Finding, ok, problem, warning
from fluss_df.cli.health.packages import installed

_SPARK_JAVA = 17
_FEW_FILES = 1024
_TOO_FEW_FILES = 128
_LITTLE_BYTES = 1 << 30
_TOO_LITTLE_BYTES = 64 << 20


def machine() -> Iterator[Finding]:
    """Give what this machine has."""
    yield _java()
    if installed("pyspark") is not None:
        yield _workers()
    yield _descriptors()
    yield space("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to another folder")
    from fluss_df.cluster.processes.places import data_dir

    yield space("user data", data_dir(), "set XDG_DATA_HOME to another folder")


def _java() -> Finding:
    from fluss_df.cluster.servers.java import MINIMUM_JAVA, java_versions

    found = java_versions()
    needs = f"Spark needs Java {_SPARK_JAVA}, a local cluster Java {MINIMUM_JAVA}"
    advice = f"install Java {_SPARK_JAVA} or newer, or point JAVA_HOME at it"
    spark = installed("pyspark") is not None
    if not found:
        if spark:
            return warning("java", f"not found in JAVA_HOME or PATH: {needs}", advice)
        return ok("java", f"not found in JAVA_HOME or PATH; {needs}, nothing else needs it")
    where, version = found[0]
    if version is None:
        return warning("java", f"{where} does not run", advice)
    if version < MINIMUM_JAVA or (spark and version < _SPARK_JAVA):
        return warning("java", f"{version} ({where}): {needs}", advice)
    enough = "Spark and local clusters" if version >= _SPARK_JAVA else "local clusters"
    return ok("java", f"{version} ({where}), enough for {enough}")


def _workers() -> Finding:
    from fluss_df.spark.workers import cannot_import

    check = "PYSPARK_PYTHON"
    named = os.environ.get(check)
    worker = named or "python3"
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    shown = f"{worker}" if named else "not set: Spark's workers run the python3 of PATH"
    found = shutil.which(worker)
    if found is None:
        return problem(check, f"{shown}, and there is no such program", advice)
    reason = cannot_import(found)
    if reason is not None:
        said = (
            f"{shown}; {found} cannot import fluss_df ({reason}), and Spark will say"
            " DATA_SOURCE_NOT_FOUND"
        )
        # where no Python was named, a program may still name one before its session starts
        return problem(check, said, advice) if named else warning(check, said, advice)
    return ok(check, f"{shown}; {found} has fluss_df")


def _descriptors() -> Finding:
    check = "open files"
    try:
        import resource
    except ImportError:
        return ok(check, "this system has no limit of its own")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok(check, "no limit")
    said = f"{soft:,} (ulimit -n), at most {'any' if hard == resource.RLIM_INFINITY else hard}"
    advice = f"ulimit -n {4096 if hard == resource.RLIM_INFINITY else min(4096, hard)}"
    if soft < _TOO_FEW_FILES:
        return problem(check, said, advice)
    if soft < _FEW_FILES:
        return warning(check, f"{said}: an embedded folder with many buckets needs more", advice)
    return ok(check, said)


def space(check: str, folder: Path, advice: str) -> Finding:
    """Return whether files can be written in a folder, or where it can be made."""
    there = folder
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            return problem(check, f"{folder}: {there} is no folder", advice)
        # by a file: rights alone do not tell of a disk that is read-only or full
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        return problem(check, f"{folder} cannot be written: {error.strerror or error}", advice)
    said = f"{folder}: {free / (1 << 30):,.1f} GiB free"
    if free < _TOO_LITTLE_BYTES:
        return problem(check, said, f"make room, or {advice}")
    if free < _LITTLE_BYTES:
        return warning(check, said, f"make room, or {advice}")
    return ok(check, said)

"""Archives of Java's classes, by which servers start in a third less processor time.

A Java that reads thousands of classes from a jar spends most of a server's start on it. An archive
(class data sharing) has them as Java needs them in memory. The first start of a cluster notes which
classes its servers load; when they serve, a process in the background makes an archive of them in
the user's cache folder. Later starts use it.

Whatever goes wrong here, servers start without an archive: Java of another build refuses it by
itself, and where no archive can be made, none is tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from fluss_df.cluster.errors import ClusterError
from fluss_df.cluster.processes.places import cache_dir
from fluss_df.cluster.servers.java import java_options

_FORMAT: Final = 1
_MAKER: Final = Path(__file__).with_name("class_data_maker.py")
_FILE_OPTION: Final = "-XX:SharedArchiveFile="
_LIST_OPTION: Final = "-XX:DumpLoadedClassList="
# an archive fits only a Java with the same garbage collector
_COLLECTOR: Final = "-XX:+UseSerialGC"
# With other options of the user an archive may not fit; Java would then do without its own too.
_NEUTRAL: Final = ("-D", "-Xms", "-Xmx", "-Xss", "-XX:TieredStopAtLevel=")
_SECONDS: Final = 30


class ClassData:
    """The archive of classes for one Java and one set of jars: used, or made for later starts."""

    def __init__(self, java: Path, classpath: Sequence[Path], *, record: bool = False) -> None:
        self._java = java
        self._classpath = os.pathsep.join(str(path) for path in classpath)
        self._folder = cache_dir() / "class-data"
        self._archive: Path | None = None
        self._record = False
        self._lists: set[Path] = set()
        try:
            self._key = _key(java, classpath)
            if all(option.startswith(_NEUTRAL) for option in java_options()):
                self._archive = self._find()
                self._record = record and self._archive is None and self._can_be_made()
        except (OSError, ClusterError, subprocess.TimeoutExpired):
            pass  # the start itself says what is wrong with Java, its options or the jars

    def options(self, home: Path) -> list[str]:
        """Return the options of Java for the server with this folder."""
        if self._archive is not None:
            return [f"{_FILE_OPTION}{self._archive}"]
        if not self._record:
            return []
        noted = home / "classes.list"
        self._lists.add(noted)
        return [f"{_LIST_OPTION}{noted}"]

    def make(self) -> None:
        """Have an archive made of what the servers have loaded, if they were to note it."""
        lists, self._lists = self._lists, set()
        if not lists:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            merged = self._folder / f"{self._key}-{os.getpid()}.list"
            merged.write_text(merge(_lines(path) for path in sorted(lists)), encoding="utf-8")
            command = [str(self._java), "-Xshare:dump", f"-XX:SharedClassListFile={merged}"]
            orders = {
                "folder": str(self._folder),
                "key": self._key,
                "command": [*command, _COLLECTOR, "-Xmx256m", "-cp", self._classpath],
                "option": _FILE_OPTION,
                "list": str(merged),
            }
            # the program goes to the background at once, so this process has no child to wait for
            subprocess.run(
                [sys.executable, "-I", str(_MAKER), json.dumps(orders)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                check=False,
                timeout=_SECONDS,
            )
            for path in lists:
                path.unlink(missing_ok=True)

    def _find(self) -> Path | None:
        for archive in self._folder.glob(f"{self._key}.*.jsa"):
            if archive.name == f"{self._key}.{archive.stat().st_size}.jsa":
                with contextlib.suppress(OSError):  # the cache may be read-only
                    os.utime(archive)
                return archive
            archive.unlink()  # it was cut off, which Java does not survive
        return None

    def _can_be_made(self) -> bool:
        """Return whether the cache can be written, and this Java knows how to note classes."""
        if not sys.executable or (self._folder / f"{self._key}.failed").exists():
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        trial = self._folder / f"{self._key}-{os.getpid()}.trial"
        try:
            trial.touch()
            asked = subprocess.run(
                [str(self._java), f"{_LIST_OPTION}{trial}", _COLLECTOR, "-version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_SECONDS,
            )
            return asked.returncode == 0 and trial.stat().st_size > 0
        finally:
            trial.unlink(missing_ok=True)


def _key(java: Path, classpath: Iterable[Path]) -> str:
    """Return the name of what an archive fits; files that changed have another."""
    files = [java.resolve(), *classpath]
    found = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    text = json.dumps([_FORMAT, platform.machine(), *found])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _lines(path: Path) -> list[str]:
    # Java still writes it: the last line may be half of one
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def merge(lists: Iterable[Iterable[str]]) -> str:
    """Return one list of classes for all servers, from those that Java wrote of each.

    Numbers, by which a list refers to its own classes, are left out, and with them the classes that
    are not loaded from the classpath.
    """
    merged: dict[str, None] = {}
    for lines in lists:
        for line in lines:
            if line.startswith("@"):
                merged[line] = None
            elif line and not line.startswith("#") and " source:" not in line:
                merged[line.split(" ", 1)[0]] = None
    return "".join(f"{line}\n" for line in merged)

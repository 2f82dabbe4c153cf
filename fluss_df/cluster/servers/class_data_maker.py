"""Makes an archive of Java's classes, in a process that nobody waits for.

A program of its own: it imports nothing of this package. ``class_data.py`` starts it, with one line
of JSON as its argument. It goes to the background, so that whoever started it may end.

One process at a time makes the archive of a key. The archive gets its name when all of it is on the
disk. The name has its size, because Java dies on one that was cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

#: How many archives stay, of 40 MB each: those used last.
KEPT = 4
_SECONDS = 600


def make(folder: Path, key: str, command: list[str], option: str) -> Path | None:
    """Make the archive of a key, unless another process does; return it."""
    with open(folder / f"{key}.lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        if found := sorted(folder.glob(f"{key}.*.jsa")):
            return found[0]
        new = folder / f"{key}.new"
        new.unlink(missing_ok=True)
        try:
            output = _run([*command, f"{option}{new}"])
            if output is not None:
                (folder / f"{key}.failed").write_text(output, encoding="utf-8")
                return None
            with open(new, "rb") as file:
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            archive = folder / f"{key}.{size}.jsa"
            new.rename(archive)
        finally:
            new.unlink(missing_ok=True)
        _remove_old(folder)
        return archive


def _run(command: list[str]) -> str | None:
    """Run what makes the archive; return what it said where it failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    text = done.stdout.decode("utf-8", "replace")[-10_000:]
    return f"exit status {done.returncode}\n{text}" if done.returncode else None


def _remove_old(folder: Path) -> None:
    """Remove all archives but those used last: their time is that of their last use."""
    used: list[tuple[float, Path]] = []
    for archive in folder.glob("*.jsa"):
        with contextlib.suppress(OSError):
            used.append((archive.stat().st_mtime, archive))
    for _, archive in sorted(used, reverse=True)[KEPT:]:
        archive.unlink(missing_ok=True)
        for other in ("lock", "failed"):
            (folder / f"{archive.name.split('.')[0]}.{other}").unlink(missing_ok=True)


def main() -> None:
    """Go to the background, make the archive, and remove the list that it was made from."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.nice(10)  # servers that serve come first
    orders = json.loads(sys.argv[1])
    try:
        make(Path(orders["folder"]), orders["key"], orders["command"], orders["option"])
    finally:
        Path(orders["list"]).unlink(missing_ok=True)


if __name__ == "__main__":
    main()

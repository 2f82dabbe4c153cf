"""Texts and programs of others that tests read, and that this repository does not hold.

The pages of documentation lie in a folder beside the project, or where ``FLUSS_SEEDS`` says. The
official client's programs are in its source release, which pip fetches once into the user's cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fluss_df.cluster.processes.places import cache_dir

ROOT = Path(__file__).parents[1]
OFFICIAL = "pyfluss==1.0.0"
_SEEDS_VARIABLE = "FLUSS_SEEDS"

# what begins the line by which a page is known
PAGES = {
    "api-reference": "# API Reference",
    "guide": "# Python Client Guide",
    "log-tables": "# Log Tables",
    "log-table-semantics": "Log Table",
}


def pages() -> dict[str, str]:
    """Return the text of each page of documentation that is here; none where there is no folder.

    Raises
    ------
    FileNotFoundError
        Where there is a folder, and a page is not in it.
    """
    folder = Path(os.environ.get(_SEEDS_VARIABLE) or ROOT.parent / "shared" / "seeds")
    if not folder.is_dir():
        if os.environ.get(_SEEDS_VARIABLE):
            raise FileNotFoundError(f"{_SEEDS_VARIABLE} names {folder}, which is no folder")
        return {}
    texts = [file.read_text() for file in sorted(folder.glob("*.txt"))]
    found = {}
    for name, heading in PAGES.items():
        same = [text for text in texts if heading in text.splitlines()]
        if not same:
            raise FileNotFoundError(f"{folder} has no page with the line {heading!r}")
        found[name] = same[0]
    return found


def official_source() -> Path:
    """Return the folder of the official Python client in its source release."""
    name = OFFICIAL.replace("==", "-")
    folder = cache_dir() / "official-client"
    folder.mkdir(parents=True, exist_ok=True)
    # tests of several processes wait for the one that fetches
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            _fetch(folder, name)
    return folder / name / "bindings" / "python"


def _fetch(folder: Path, name: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", OFFICIAL, "--no-deps"]
        command += ["--no-binary", OFFICIAL.partition("==")[0], "--dest", place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        with tarfile.open(next(Path(place).glob("*.tar.gz"))) as archive:
            archive.extractall(place, filter="data")
        shutil.move(Path(place) / name, folder / name)

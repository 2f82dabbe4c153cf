"""The folders for this user's files on this operating system."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for what can be fetched again: ``$XDG_CACHE_HOME/fluss-df`` or its like."""
    return _base("XDG_CACHE_HOME", "Library/Caches", ".cache") / "fluss-df"


def data_dir() -> Path:
    """Return the folder for what is to last: ``$XDG_DATA_HOME/fluss-df`` or its like."""
    return _base("XDG_DATA_HOME", "Library/Application Support", ".local/share") / "fluss-df"


def default_cluster_dir() -> Path:
    """Return the folder of the cluster that ``fluss-df cluster`` manages by default."""
    return data_dir() / "cluster"


def _base(variable: str, on_macos: str, elsewhere: str) -> Path:
    value = os.environ.get(variable)
    if value and Path(value).is_absolute():  # the XDG specification ignores relative paths
        return Path(value)
    return Path.home() / (on_macos if sys.platform == "darwin" else elsewhere)

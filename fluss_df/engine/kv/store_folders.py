"""The folders of a bucket's RocksDB: where one was made again, another one takes its place."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import names_in

_FOLDER: Final = "kv"
_FOLDER_NAME: Final = re.compile(rf"{_FOLDER}(-\d+)?")


def store_folder(bucket: Path) -> Path:
    """Return the folder of a bucket's RocksDB: ``kv``, or ``kv-<n>`` after it was made again."""
    return max(_store_folders(bucket), key=_number, default=bucket / _FOLDER)


def next_store_folder(damaged: Path) -> Path:
    """Return the folder for a RocksDB that takes the place of another one.

    It has a name of its own: iterators may still read the other one, and RocksDB opens no folder
    of a name that this process has open.
    """
    return damaged.with_name(f"{_FOLDER}-{_number(damaged) + 1}")


def remove_older_stores(folder: Path) -> None:
    """Remove those in whose place a RocksDB was made."""
    for other in _store_folders(folder.parent):
        if _number(other) < _number(folder):
            shutil.rmtree(other, ignore_errors=True)


def _store_folders(bucket: Path) -> list[Path]:
    return [bucket / name for name in names_in(bucket) if _FOLDER_NAME.fullmatch(name)]


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[2] or 0)

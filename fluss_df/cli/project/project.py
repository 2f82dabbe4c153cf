"""The files of a new project, made all together or not at all."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import tempfile
from pathlib import Path

import polars as pl

from fluss_df.cli.project.texts import GITIGNORE, PIPELINE, README, notebook
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.io.sinks.sink import write_fluss

_DATA = "data"


def make_project(folder: Path) -> list[str]:
    """Make a project in a folder that is new or empty; return the names of its files.

    Raises FlussError when the folder is not empty, or cannot be written. Nothing is changed then.
    """
    files = {
        "README.md": README,
        "pipeline.py": PIPELINE,
        "explore.ipynb": json.dumps(notebook(), indent=1) + "\n",
        ".gitignore": GITIGNORE,
    }
    try:
        existed = folder.exists()
        _require_empty(folder)
        parent = folder.resolve().parent
        if not parent.is_dir():
            raise FlussError(f"cannot make {folder}: there is no folder {parent}")
        folder.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=".init-"))
        try:
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8")
            _make_table(made / _DATA)
            # another program may have put files here meanwhile: renaming would overwrite them
            _require_empty(folder, besides=made.name)
            for name in (*files, _DATA):
                os.rename(made / name, folder / name)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            if not existed:
                # fails, as it should, when the project is in it
                with contextlib.suppress(OSError):
                    folder.rmdir()
    except OSError as error:
        raise FlussError(f"cannot make a project in {folder}: {error.strerror or error}") from error
    return [*files, f"{_DATA}/"]


def _require_empty(folder: Path, besides: str = "") -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise FlussError(f"{folder} is not a folder: name one that is new or empty")
    held = sorted(name for name in os.listdir(folder) if name != besides)
    if held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        raise FlussError(
            f"{folder} holds {', '.join(held[:3])}{more}: name a folder that is new or empty;"
            " nothing was written"
        )


def _make_table(folder: Path) -> None:
    rows = pl.DataFrame(
        {
            "at": [dt.datetime(2026, 1, 1, 12, minute) for minute in range(3)],
            "page": ["home", "shop", "home"],
            "seconds": [2.0, 30.5, 4.0],
        }
    )
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        write_fluss(rows, "visits", connection=connection, create_if_not_exists=True)

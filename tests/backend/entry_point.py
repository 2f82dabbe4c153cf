"""The entry point of the backend, where fluss_df was installed before it had one."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import ibis.util

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_GROUP = "ibis.backends"


def install(folder: Path) -> None:
    """Make Ibis find the backend in this process, by what pyproject.toml says.

    An environment that was installed as pyproject.toml is now is left alone.
    """
    # what Ibis found may be older than the path of this process
    ibis.util.backend_entry_points.cache_clear()
    if any(point.name == "fluss" for point in importlib.metadata.entry_points(group=_GROUP)):
        return
    describe(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def describe(folder: Path) -> None:
    """Make a folder that, on the path of a process, has the entry points of pyproject.toml."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    points = project["entry-points"][_GROUP]
    lines = [f"[{_GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    # a name of its own: of two distributions with one name, Python takes the first of the path
    made = folder / "fluss_df_entry_point-0.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fluss-df-entry-point\nVersion: 0\n"
    )
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")

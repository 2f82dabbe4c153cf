"""The notebooks run, and what is stored of them has what they show."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.backend import entry_point

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
PICTURES = {"ibis": 4, "quickstart": 1, "live": 1}


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def executed(name: str, folder: Path) -> Any:
    """Run a notebook in a kernel of its own."""
    entry_point.describe(folder)
    notebook = read(name)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    NotebookClient(notebook, timeout=120).execute(env=variables, cwd=str(folder))
    return notebook


def pictures(cell: Any) -> int:
    return sum("image/png" in item.get("data", {}) for item in cell.outputs)


def test_all_are_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PICTURES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's client
@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_runs(tmp_path: Path, name: str) -> None:
    notebook = executed(name, tmp_path)
    images = 0
    for run, shown in zip(notebook.cells, read(name).cells, strict=True):
        if run.cell_type == "code":
            assert bool(run.outputs) == bool(shown.outputs), run.source
            assert pictures(run) == pictures(shown), run.source
            images += pictures(shown)
    assert images == PICTURES[name]

"""The notebook runs."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.backend import entry_point

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "ibis.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def executed(folder: Path) -> Any:
    """Run the notebook in a kernel of its own."""
    entry_point.describe(folder)
    notebook = read()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    NotebookClient(notebook, timeout=120).execute(env=variables, cwd=str(folder))
    return notebook


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's client
def test_notebook_runs(tmp_path: Path) -> None:
    notebook = executed(tmp_path)
    kept = read()
    images = 0
    for run, shown in zip(notebook.cells, kept.cells, strict=True):
        if run.cell_type == "code":
            assert bool(run.outputs) == bool(shown.outputs), run.source
            images += any("image/png" in item.get("data", {}) for item in run.outputs)
    assert images == 4

"""The extras of the package: all are tried by ``make extras``, and bring what is imported."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.extras import TRIALS

ROOT = Path(__file__).parents[1]


def test_each_extra_is_tried() -> None:
    """In clean environments; that takes minutes, and has a target of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(TRIALS) - {""} == set(project["optional-dependencies"]) - {"dev"}
    assert '$(BIN)/python" -m tests.extras' in (ROOT / "Makefile").read_text()

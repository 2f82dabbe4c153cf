"""A folder of a log table and one with keys, and what is in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.embedded.damage import Contents, make_filled


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A folder of a log table and one with keys, two buckets each; and what is in it."""
    root = tmp_path_factory.mktemp("known")
    made = make_filled(root / "made", 1, tables={"log": None, "rows": ["n"]})
    return made.folder, made.expected


@pytest.fixture
def folder(tmp_path: Path, template: tuple[Path, Contents]) -> Path:
    shutil.copytree(template[0], tmp_path / "d")
    return tmp_path / "d"


@pytest.fixture
def expected(template: tuple[Path, Contents]) -> Contents:
    return template[1]

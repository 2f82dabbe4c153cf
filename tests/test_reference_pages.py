"""docs/reference/ is what the docstrings give."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_reference_is_up_to_date() -> None:
    pages: dict[str, str] = runpy.run_path(str(DOCS / "make_reference.py"))["pages"]()
    assert pages
    for name, text in pages.items():
        assert (DOCS / "reference" / name).read_text() == text, f"run: make docs ({name})"


def test_every_difference_from_the_official_client_is_documented() -> None:
    differences: dict[str, str] = runpy.run_path(
        str(Path(__file__).parent / "aio" / "test_official.py")
    )["DIFFERENCES"]
    text = (DOCS / "migration.md").read_text()
    for name in differences:
        assert f"`{name.split('.')[-1]}`" in text, name

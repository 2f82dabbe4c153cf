"""What ``import fluss_df`` gives, and what it imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fluss_df
import fluss_df.io

ROOT = Path(fluss_df.__file__).parent


def names_for_type_checkers(file: Path) -> dict[str, str]:
    """Return name -> module of the imports that type checkers see."""
    found = {}
    for block in ast.parse(file.read_text()).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name):
            for line in block.body:
                assert isinstance(line, ast.ImportFrom)
                assert line.module is not None
                found.update(dict.fromkeys((alias.name for alias in line.names), line.module))
    return found


@pytest.mark.parametrize("module", [fluss_df, fluss_df.io], ids=["fluss_df", "io"])
def test_the_names_are_those_that_type_checkers_see(module: Any) -> None:
    seen = names_for_type_checkers(Path(module.__file__))
    assert {"register", "__version__", *seen} >= set(module.__all__) >= set(seen)
    for name, place in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(place), name), name
    assert set(module.__all__) <= set(dir(module))


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_nothing_is_imported_before_it_is_used() -> None:
    program = """
import sys, polars
before = set(sys.modules)
import fluss_df
print(sorted(m for m in set(sys.modules) - before if not m.startswith("_")))
"""
    assert eval(run(program)) == [
        "fluss_df",
        "fluss_df.hooks",
        "fluss_df.lazy",
        "fluss_df.register",
        "fluss_df.version",
    ]


def test_modules_are_attributes_without_an_import_of_their_own() -> None:
    assert run("import fluss_df; print(fluss_df.errors.ErrorCode.TABLE_NOT_EXIST)") == "7\n"
    assert run("import fluss_df; print(fluss_df.io.scans.__name__)") == ("fluss_df.io.scans\n")


def test_everything_by_a_star() -> None:
    assert run("from fluss_df import *; print(connect.__name__, scan_fluss.__name__)") == (
        "connect scan_fluss\n"
    )


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fluss_df' has no attribute 'scan_flus'"):
        _ = fluss_df.scan_flus  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from fluss_df import nothing")
    assert not hasattr(fluss_df, "__wrapped__")


def test_what_polars_has_says_what_it_takes() -> None:
    scan, read = pl.scan_fluss, pl.read_fluss  # type: ignore[attr-defined]
    assert inspect.signature(scan) == inspect.signature(fluss_df.scan_fluss)
    assert inspect.getdoc(scan) == inspect.getdoc(fluss_df.scan_fluss)
    assert inspect.getdoc(read) == inspect.getdoc(fluss_df.read_fluss)
    frame = pl.DataFrame({"a": [1]})
    parameters = list(inspect.signature(fluss_df.write_fluss).parameters)
    assert list(inspect.signature(frame.write_fluss).parameters) == parameters[1:]  # type: ignore[attr-defined]
    assert inspect.getdoc(frame.lazy().sink_fluss) == inspect.getdoc(fluss_df.sink_fluss)  # type: ignore[attr-defined]
    assert repr(scan) == "<function scan_fluss of fluss_df.io.scan>"


def test_a_module_that_fails_to_import_says_why() -> None:
    program = """
import sys
sys.modules["google_crc32c"] = None
import fluss_df
try:
    fluss_df.connect
except ImportError as error:
    print(error.name)
"""
    assert run(program) == "google_crc32c\n"

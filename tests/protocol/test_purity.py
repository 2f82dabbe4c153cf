"""What speaks the protocol, the record format or predicates does no I/O."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df

PACKAGE = Path(fluss_df.__file__).parent
PURE = ("protocol", "record", "pushdown")
FORBIDDEN = frozenset(
    [
        "asyncio",
        "socket",
        "selectors",
        "select",
        "ssl",
        "http",
        "urllib.request",
        "subprocess",
        "threading",
        "concurrent",
        "multiprocessing",
        "os",
        "io",
        "pathlib",
        "shutil",
        "tempfile",
        "glob",
        "fcntl",
        "mmap",
        "requests",
    ]
)
# reads what is in memory, never a file
ALLOWED = {"chain.py": "pyarrow.parquet"}
FORBIDDEN_CALLS = frozenset({"open", "input", "print"})


def modules() -> Iterator[Path]:
    for name in PURE:
        yield from sorted((PACKAGE / name).glob("**/*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_io(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    for name in imported(tree):
        beginnings = {name.split(".")[0], name}
        assert not beginnings & FORBIDDEN, f"{path.name} imports {name}"
        assert not name.startswith(("fluss_df.client", "fluss_df.cluster", "fluss_df.io"))
        if name != ALLOWED.get(path.name):
            assert name not in ("pyarrow.fs", "pyarrow.csv", "pyarrow.dataset", "pyarrow.parquet")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{path.name} calls {node.func.id}"


def test_there_are_such_modules() -> None:
    assert {path.relative_to(PACKAGE).parts[0] for path in modules()} == set(PURE)
    assert len(list(modules())) > 10


def test_the_check_finds_what_it_looks_for() -> None:
    tree = ast.parse("import socket\nfrom os import path\nopen('x')")
    assert set(imported(tree)) & FORBIDDEN == {"socket", "os"}


def test_parts_import_without_the_client() -> None:
    code = (
        "import sys; sys.modules['fluss_df.client'] = None\n"
        "import types; package = types.ModuleType('fluss_df'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['fluss_df'] = package\n"
        "import importlib\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
    )
    names = [
        ".".join(("fluss_df", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in modules()
        if path.name != "__init__.py"
    ]
    subprocess.run([sys.executable, "-c", code, str(PACKAGE), *names], check=True, timeout=60)

"""What is private or unstable in Polars: the adapter alone touches it, and overwrites nothing."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import polars
import pytest

import fluss_df as fluss

ROOT = Path(fluss.__file__).parent
ADAPTER = ROOT / "polars_adapter"
SPARK = ROOT.parent / "pyspark_fluss"
# the modules of Polars that its reference names; all else of it is unstable or its own affair
PUBLIC = {"polars", "polars.exceptions", "polars.selectors", "polars.testing"}
# attributes of frames and expressions by which their insides are had
INSIDE = {"_ldf", "_pyexpr", "_s", "_df", "meta", "serialize", "deserialize"}
# unstable methods of Polars whose names stable things have, too, of Polars, Arrow or Python
ALSO_STABLE = {
    "array", "enum", "execute", "gather", "get_extension_type", "is_empty", "is_scalar",
    "is_sorted", "item", "list", "map", "nested", "physical", "plot", "remote", "storage",
    "struct", "style", "to", "to_arrow", "update",
}  # fmt: skip
# Arrow and sqlglot have attributes of these names, too
OTHERS = {
    ("flight/wire.py", "serialize"): "Arrow's schemas and batches",
    ("engine/merge/row_changes.py", "serialize"): "Arrow's batches",
    ("record/log/log_decode.py", "serialize"): "Arrow's schemas",
    ("lake/paimon/deletion_vectors.py", "deserialize"): "bitmaps",
    ("embedded/lake_paths.py", "meta"): "a file's own",
    ("backend/sql/dialect.py", "meta"): "sqlglot's notes on a part of a statement",
    ("spark/queries/queries.py", "meta"): "sqlglot's places in a text",
    ("pushdown/plan.py", "explain"): "the plan of a scan",
    ("arrow/datasets.py", "explain"): "that of a scanner",
    ("ui/worker.py", "explain"): "that of a statement",
    ("cli/tour.py", "explain"): "the function of fluss_df",
}


@functools.cache
def unstable() -> frozenset[str]:
    """Return the functions and methods that Polars marks as unstable, and nothing else has."""
    found = {"SQLContext", "explain"}  # the second is stable, but not the text that it gives
    for file in Path(polars.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                marks = {ast.unparse(mark) for mark in node.decorator_list}
                found |= {node.name} if "unstable()" in marks else set()
    return frozenset(found - ALSO_STABLE)


def contacts(code: str, name: str = "") -> set[str]:
    """Return what a module touches of Polars that is not public."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if node.module in PUBLIC
                and (alias.name.startswith("_") or f"{node.module}.{alias.name}" in sys.modules)
                and f"{node.module}.{alias.name}" not in PUBLIC
            }
        else:
            names = []
        found |= {name for name in names if name.split(".")[0] == "polars" and name not in PUBLIC}
        if isinstance(node, ast.Attribute):
            of_polars = isinstance(node.value, ast.Name) and node.value.id in ("pl", "polars", "cs")
            if of_polars and (re.match("_(?!_)", node.attr) or node.attr in ("io", "lazyframe")):
                found.add(f"pl.{node.attr}")
            elif (
                node.attr in INSIDE | unstable()
                and (name, node.attr) not in OTHERS
                and not _of_self(node)
            ):
                found.add(f".{node.attr}")
        if isinstance(node, ast.Call) and re.match(r"(pl|polars)\.", ast.unparse(node.func)):
            found |= {f"{k.arg}=" for k in node.keywords if k.arg and k.arg.startswith("_")}
    return found


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def modules() -> list[Path]:
    return [*ROOT.rglob("*.py"), *SPARK.rglob("*.py")]


def test_no_module_but_the_adapter_touches_what_is_private_or_unstable_in_polars() -> None:
    outside = [file for file in modules() if ADAPTER not in file.parents]
    assert len(outside) > 400
    found = {}
    for file in outside:
        name = file.relative_to(ROOT if ROOT in file.parents else ROOT.parent).as_posix()
        touched = contacts(file.read_text(), name)
        if touched:
            found[name] = touched
    assert found == {}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("from polars._typing import SchemaDict", "polars._typing"),
        ("from polars.io.plugins import register_io_source", "polars.io.plugins"),
        ("import polars.lazyframe.resolver", "polars.lazyframe.resolver"),
        ("def f():\n    from polars import _reexport", "polars._reexport"),
        ("from polars import io", "polars.io"),
        ("import polars as pl\npl.io.plugins", "pl.io"),
        ("import polars as pl\npl._plr", "pl._plr"),
        ("frame._ldf", "._ldf"),
        ("pl.col('a').meta.serialize()", ".meta"),
        ("frame.lazy().serialize()", ".serialize"),
        ("pl.scan_parquet(paths, _row_count=(1, 0))", "_row_count="),
        ("pl.scan_csv(path).collect_batches()", ".collect_batches"),
        ("frame.lazy().sink_batches(print)", ".sink_batches"),
        ("one.join_where(other, condition)", ".join_where"),
        ("pl.SQLContext(frames)", ".SQLContext"),
        ("re.findall('SCAN', frame.explain())", ".explain"),
    ],
)
def test_a_contact_is_noticed(code: str, what: str) -> None:
    assert what in contacts(code)
    assert contacts("import polars as pl\nimport polars.selectors as cs\npl.col('a')") == set()


def test_the_adapter_is_what_touches_them() -> None:
    found = set().union(*(contacts(file.read_text()) for file in ADAPTER.glob("*.py")))
    assert {"polars.io.external_reader", "polars.lazyframe.engine", ".meta"} <= found


# Prints what modules and classes of Polars have other values after every module was imported.
OVERWRITTEN = """
import importlib, pkgutil, sys, types
import polars, polars.io.external_reader, polars.io.plugins, polars.lazyframe.engine
import polars.lazyframe.resolver, polars.selectors, polars.testing

def values():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "polars":
            continue
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{k}": v for k, v in vars(value).items()}
    return found

before = values()
import fluss_df
for part in ("io.scan", "io.follow", "io.lookup_join", "io.snapshot", "io.sinks.sink",
             "io.runs.runner", "backend", "cli.main", "lake.iceberg.frames"):
    importlib.import_module(f"fluss_df.{part}")
after = values()
# Polars' own caches of what was imported late are modules, and what a decorator counted
print(sorted(
    key for key, value in before.items()
    if key in after and after[key] is not value and not isinstance(value, types.ModuleType)
    and not key.rpartition(".")[2].startswith(("__", "_abc_"))
))
new = {key for key in after if key not in before and key.rpartition(".")[0] in before}
print(sorted(key.rpartition(".")[2] for key in new))
"""


def test_nothing_of_polars_is_overwritten() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OVERWRITTEN], capture_output=True, text=True, timeout=60, check=True
    )
    changed, added = done.stdout.splitlines()
    assert changed == "[]"
    # what "import fluss_df" is for
    assert {"sink_fluss", "write_fluss", "fluss"} <= set(ast.literal_eval(added))


def test_the_adapter_sets_attributes_of_its_own_objects_only() -> None:
    for file in ADAPTER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                assert not isinstance(target, ast.Attribute) or _of_self(target), file.name
            assert "setattr(" not in ast.unparse(node)

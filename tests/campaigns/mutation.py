"""Changes ``record`` and ``pushdown`` one thing at a time, and asks the tests: ``make mutation``.

A mutant is the product with one comparison, operator, number or truth value changed. Each is judged
by the quickest tests that reach the changed line. Where all of them pass, no test notices the
change: either it means nothing, or a test is missing. The sample is random with a fixed seed. The
changes are made in a copy of the tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).parent.parent.parent
_DATA: Final = ROOT / "build" / "mutation"
_TESTS: Final = {"record": ("tests/record",), "pushdown": ("tests/pushdown",)}
# what tests of a mutant may take together, in seconds that they took when all was well
_MOST_SECONDS: Final = 6.0
# of what runs when a module is imported, such as tables: any of its tests may be the one
_MOST_SECONDS_AT_IMPORT: Final = 30.0
_MOST_TESTS: Final = 60
# loaded once: each mutant runs in a fork
_QUIET: Final = ("-p", "no:cacheprovider", "-W", "ignore:Module already imported")
_PRELOADED: Final = ("polars", "pyarrow.compute", "hypothesis", "google_crc32c", "pandas")

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module: the number of the node, and of the change of it."""

    module: str
    node: int
    change: int

    def made(self) -> Made:
        """Return the change as text, and the module with it."""
        tree = ast.parse((ROOT / self.module).read_text())
        parent, field, index, node = list(_places(tree))[self.node]
        other = list(_changed(node))[self.change]
        old = ast.unparse(node)
        _put(parent, field, index, other)
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        # what is constant is part of its statement, and has no line that runs
        around = min(
            (each for each in ast.walk(tree) if isinstance(each, ast.stmt) and _holds(each, lines)),
            key=lambda each: (each.end_lineno or each.lineno) - each.lineno,
        )
        statement = range(around.lineno, (around.end_lineno or around.lineno) + 1)
        source = ast.unparse(ast.fix_missing_locations(tree))
        text = f"{self.module}:{node.lineno}: {old}  ->  {ast.unparse(other)}"
        return Made(self.module, lines, statement, text, source)


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A mutant, ready to be judged."""

    module: str
    lines: range
    statement: range
    text: str
    source: str


def _holds(node: ast.stmt, lines: range) -> bool:
    return node.lineno <= lines.start and lines.stop - 1 <= (node.end_lineno or node.lineno)


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield each change of a node by itself."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            made = copy.deepcopy(node)
            made.ops[i] = _COMPARED[type(op)]()
            yield made
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Yield each node that runs, and where it hangs; texts of errors and types do not count."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for i, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.Raise | ast.JoinedStr):
                yield tree, field, i, node
                yield from _places(node)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def mutants(module: Path) -> list[Mutant]:
    """Return every mutant of a module."""
    places = _places(ast.parse(module.read_text()))
    name = module.relative_to(ROOT).as_posix()
    return [
        Mutant(name, number, change)
        for number, (_, _, _, node) in enumerate(places)
        for change, _ in enumerate(_changed(node))
    ]


class Reached:
    """Which tests reach which lines, and the time that they take."""

    def __init__(self) -> None:
        self._data = coverage.CoverageData(str(_DATA / "data"))
        self._data.read()
        self._times: dict[str, float] = defaultdict(float)
        for case in ET.parse(_DATA / "times.xml").getroot().iter("testcase"):
            test = f"{case.get('classname')}.{str(case.get('name')).split('[')[0]}"
            self._times[test] += float(case.get("time") or 0)

    def tests(self, mutant: Made) -> list[str]:
        """Return the quickest tests that reach a mutant, as arguments of pytest."""
        by_line = self._data.contexts_by_lineno(str(ROOT / mutant.module))
        lines = mutant.lines
        most = _MOST_SECONDS
        if not any(by_line.get(line) for line in lines):
            lines = mutant.statement
        found = {test for line in lines for test in by_line.get(line, ()) if test in self._times}
        if not found and any("" in by_line.get(line, ()) for line in lines):
            # it runs when the module is imported: whatever uses the module may notice
            most = _MOST_SECONDS_AT_IMPORT
            found = {test for tests in by_line.values() for test in tests if test in self._times}
        chosen: list[str] = []
        seconds = 0.0
        for test in sorted(found, key=lambda test: (self._times[test], test))[:_MOST_TESTS]:
            seconds += self._times[test]
            if chosen and seconds > most:
                break
            module, _, function = test.rpartition(".")
            chosen.append(f"{module.replace('.', '/')}.py::{function}")
        return chosen


def _measure(rooms: Sequence[str]) -> None:
    """Run the tests once, and keep which of them reach which lines."""
    shutil.rmtree(_DATA, ignore_errors=True)
    _DATA.mkdir(parents=True)
    settings = _DATA / "coveragerc"
    settings.write_text(
        "[run]\nbranch = true\nsource_pkgs = fluss_df\ndynamic_context = test_function\n"
        f"data_file = {_DATA / 'data'}\n"
    )
    measured = ["-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
    tests = [test for room in rooms for test in _TESTS[room]]
    subprocess.run(
        [sys.executable, *measured, f"--junitxml={_DATA / 'times.xml'}", *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )


def _judge(
    mutant: Made, tree: Path, tests: Sequence[str], seconds: float, *, changed: bool = True
) -> str:
    """Return what the tests say of a mutant: killed, survived, or too slow."""
    module = tree / mutant.module
    original = module.read_text()
    module.write_text(mutant.source if changed else original)
    child = os.fork()
    if not child:
        _run(tree, tests)
    deadline = time.monotonic() + seconds
    try:
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "too slow"
            time.sleep(0.01)
    finally:
        module.write_text(original)


def _run(tree: Path, tests: Sequence[str]) -> None:
    """Run tests of a tree in this process, and end it."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        for name in [n for n in sys.modules if n.split(".")[0] in ("fluss_df", "tests")]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        sys.dont_write_bytecode = True
        status = int(pytest.main(["-x", "-q", *_QUIET, *tests]))
    finally:
        os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    parser.add_argument("--rooms", nargs="+", choices=list(_TESTS), default=list(_TESTS))
    parser.add_argument("--mutants", type=int, default=200, help="of how many a sample is made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="of the sample, so many were judged")
    parser.add_argument("--seconds", type=float, default=3600, help="no mutant begins after that")
    parser.add_argument("--measured", action="store_true", help="the last measurement holds")
    options = parser.parse_args(arguments)
    if not options.measured:
        _measure(options.rooms)
    reached = Reached()
    modules = [
        path for room in options.rooms for path in sorted((ROOT / "fluss_df" / room).rglob("*.py"))
    ]
    every = [mutant for path in modules for mutant in mutants(path)]
    sample = random.Random(options.seed).sample(every, min(options.mutants, len(every)))
    print(f"{len(sample)} of {len(every)} mutants, seed {options.seed}", flush=True)
    sample = sample[options.skip :]
    for name in _PRELOADED:
        importlib.import_module(name)
    found: Counter[str] = Counter()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("fluss_df", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        made = [mutant.made() for mutant in sample]
        reaching = [(mutant, reached.tests(mutant)) for mutant in made]
        used = sorted({test for _, tests in reaching for test in tests})
        # a test that is not found would kill every mutant
        if _judge(made[0], tree, [*used, "--collect-only"], 600, changed=False) != "survived":
            print("error: the tests do not run in a copy of the tree", file=sys.stderr)
            return 1
        for mutant, tests in reaching:
            if time.monotonic() - begun > options.seconds:
                break
            verdict = "not reached"
            if tests:
                verdict = _judge(mutant, tree, tests, seconds=60)
            found[verdict] += 1
            if verdict != "killed":
                print(f"{verdict}: {mutant.text}", flush=True)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.items()))
    print(f"{found.total()} mutants in {time.monotonic() - begun:.0f} s: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

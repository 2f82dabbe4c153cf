"""Runs tests and shows which lines and branches of each room they reach: ``make coverage``.

The tests are those of the rooms, on the embedded engine: no Java. What a user's process, a worker
of the tests or a process that a test starts runs is counted alike. The settings of the measurement
stand in ``pyproject.toml``, those of the rooms here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
#: The share of lines and branches that tests reach, in percent: at least, for each room.
LEAST: Final[Mapping[str, float]] = {
    "record": 95,
    "protocol": 95,
    "pushdown": 95,
    "engine": 95,
    "embedded": 95,
}
TESTS: Final = (
    "tests/record",
    "tests/protocol",
    "tests/pushdown",
    "tests/embedded",
    # the lake of a folder; other tests of that room need Java
    "tests/lake/test_check_lake.py",
    "tests/lake/test_folder_lake.py",
    "tests/lake/test_folder_lake_errors.py",
    "tests/lake/test_folder_lake_tables.py",
    "tests/lake/test_folder_lake_faults.py",
    "tests/lake/test_lake_backups.py",
    "tests/lake/test_moved_folders.py",
    # what the engine answers the client
    *(
        f"tests/client/test_{name}.py"
        for name in (
            "acls",
            "admin",
            "admin_mistakes",
            "admin_of_servers",
            "alter",
            "change_tables",
            "every_request",
            "kv_engines",
            "kv_scan",
            "lookups",
            "offsets",
            "partitions",
            "sasl",
            "server_filter",
            "snapshot_files",
            "tls",
            "tls_faults",
            "upserts",
        )
    ),
)
_DATA: Final = ROOT / "build" / "coverage"


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a room was reached."""

    name: str
    lines: int
    of_lines: int
    branches: int
    of_branches: int

    @property
    def percent(self) -> float:
        """Lines and branches that were reached, of all."""
        every = self.of_lines + self.of_branches
        return 100 * (self.lines + self.branches) / every if every else 100.0

    def row(self, least: float) -> str:
        """Return the line of the table."""
        lines = 100 * self.lines / max(1, self.of_lines)
        branches = 100 * self.branches / max(1, self.of_branches)
        return (
            f"{self.name:<10}{lines:>8.1f} %{self.of_lines:>8}{branches:>10.1f} %"
            f"{self.of_branches:>8}{self.percent:>8.1f} %{least:>8.0f} %"
        )


def rooms(files: Mapping[str, Any]) -> list[Room]:
    """Return the rooms, of the files in a report of coverage in JSON."""
    found = []
    for name in LEAST:
        inside = f"fluss_df/{name}/"
        summaries = [
            file["summary"] for path, file in files.items() if inside in Path(path).as_posix()
        ]
        counted = (
            sum(summary[key] for summary in summaries)
            for key in ("covered_lines", "num_statements", "covered_branches", "num_branches")
        )
        found.append(Room(name, *counted))
    return found


def shown(found: Iterable[Room]) -> tuple[str, list[str]]:
    """Return a table, and what falls short."""
    rows = [f"{'room':<10}{'lines':>10}{'of':>8}{'branches':>12}{'of':>8}{'both':>10}{'least':>10}"]
    short = []
    for room in found:
        least = LEAST[room.name]
        rows.append(room.row(least))
        if not room.of_lines:
            short.append(f"{room.name}: no line of it was looked at")
        elif room.percent < least:
            short.append(f"{room.name}: {room.percent:.2f} %, and {least:g} % are the least")
    return "\n".join(rows), short


def _coverage(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=True)


def _measure(tests: Sequence[str], workers: int, more: Sequence[str]) -> int:
    """Run tests, and put together what their processes have measured; return pytest's status."""
    _DATA.mkdir(parents=True, exist_ok=True)
    _coverage("erase")
    # processes in other folders are to import this tree, and no other that is installed
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "-n", str(workers)]
    status = subprocess.run(
        [*run, "-m", "not real_cluster", *tests, *more],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
    ).returncode
    _coverage("combine", "--quiet")
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="make coverage", description=__doc__)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--report-only", action="store_true", help="of the last measurement")
    parser.add_argument("--html", action="store_true", help="write pages of all lines, too")
    parser.add_argument("more", nargs="*", help="arguments of pytest")
    options = parser.parse_args(arguments)
    status = 0 if options.report_only else _measure(TESTS, options.workers, options.more)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        _coverage("json", "--quiet", "-o", str(report))
        files = json.loads(report.read_text())["files"]
    table, short = shown(rooms(files))
    print(table)
    if options.html:
        _coverage("html", "--quiet", "--directory", str(_DATA / "html"))
        print("line by line: build/coverage/html/index.html")
    for problem in short:
        print(f"error: {problem}", file=sys.stderr)
    if status:
        print("error: a test failed", file=sys.stderr)
    return status or bool(short)


if __name__ == "__main__":
    sys.exit(main())

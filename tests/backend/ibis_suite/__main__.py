"""Ibis's own tests of backends: on its Polars backend, on Fluss embedded, and on a real cluster.

``python -m tests.backend.ibis_suite [embedded] [cluster]``; needs ``FLUSS_IBIS_TESTING_DATA``, a
folder with ``parquet/*.parquet`` of https://github.com/ibis-project/testing-data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from fluss_df.cluster import LocalCluster

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_DATA_VARIABLE = "FLUSS_IBIS_TESTING_DATA"
_TARGET_VARIABLE = "FLUSS_IBIS_TARGET"
# ways of Ibis's tests to say that a backend is expected to fail
_EXPECTED = "pytest.xfail"


def outcomes(backend: str, target: str | None = None) -> dict[str, tuple[str, str]]:
    """Run the tests; return outcome and reason by test, without the backend's name."""
    variables = {**os.environ, "PYTHONPATH": str(_ROOT)}
    if target is not None:
        variables[_TARGET_VARIABLE] = target
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-c", str(_HERE / "pytest.ini")]
        command += [
            "--pyargs",
            "ibis.backends.tests",
            "-m",
            backend,
            "-n",
            "2",
            "-q",
            "--no-header",
        ]
        command += ["--tb=short", "-W", "ignore", "-rfE", f"--junitxml={report}"]
        subprocess.run(command, cwd=_ROOT, env=variables, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}".replace(f"[{backend}", "["): _outcome(
                case
            )
            for case in cases
        }


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for child in case:
        if child.tag in ("failure", "error"):
            return "failed", (child.get("message") or "")[:200]
        if child.tag == "skipped":
            kind = "xfailed" if child.get("type") == _EXPECTED else "skipped"
            return kind, (child.get("message") or "")[:200]
    return "passed", ""


def main(where: list[str]) -> int:
    """Run the tests where it is asked for; return 1 when Fluss does less than Polars."""
    if not os.environ.get(_DATA_VARIABLE):
        print(f"error: set {_DATA_VARIABLE}; {(__doc__ or '').splitlines()[3]}", file=sys.stderr)
        return 2
    polars = outcomes("polars")
    good = True
    for place in where or ["embedded", "cluster"]:
        if place == "cluster":
            with LocalCluster() as cluster:
                fluss = outcomes("fluss", cluster.bootstrap_servers)
        else:
            fluss = outcomes("fluss")
        good &= _compare(place, polars, fluss)
    return 0 if good else 1


def _compare(
    place: str, polars: dict[str, tuple[str, str]], fluss: dict[str, tuple[str, str]]
) -> bool:
    print(f"\nIbis's tests on Fluss, {place}")
    for name, (kind, reason) in sorted(fluss.items()):
        if kind == "xfailed":
            print(f"  expected to fail: {name}: {reason}")
    counts = {"polars": Counter(k for k, _ in polars.values())}
    counts["fluss"] = Counter(k for k, _ in fluss.values())
    more = [
        n for n, (k, _) in fluss.items() if k == "passed" and polars.get(n, "?")[0] == "xfailed"
    ]
    skipped = [
        n
        for n, (k, _) in fluss.items()
        if k == "skipped" and polars.get(n, "skipped")[0] == "passed"
    ]
    for backend, count in counts.items():
        print(f"  {backend}: {', '.join(f'{n} {kind}' for kind, n in sorted(count.items()))}")
    print(
        f"  {len(more)} tests pass that Polars is expected to fail; skipped and run by Polars:",
        skipped,
    )
    failed = [n for n, (k, _) in fluss.items() if k == "failed"]
    print(f"  failed: {failed}")
    return not skipped and not failed and counts["fluss"]["passed"] >= counts["polars"]["passed"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

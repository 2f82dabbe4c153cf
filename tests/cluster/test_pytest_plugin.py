"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fluss_df.cluster import LocalCluster

TESTS = """
import pytest

def test_on_a_server(fluss_cluster):
    assert fluss_cluster.status().health == "healthy"

@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)])
def anywhere(request):
    if request.param == "real":
        return request.getfixturevalue("fluss_cluster")

def test_anywhere(anywhere):
    pass

def test_skipped(fluss_cluster):
    pytest.skip("for its own reason")

def test_nowhere():
    pass
"""

FAILING = """
import fluss_df as fluss
import pyarrow as pa

def test_of_its_own_making(fluss_cluster):
    path = fluss.TablePath("fluss", "t")
    schema = fluss.Schema(pa.schema({"id": pa.int64()}))
    with fluss.connect(fluss_cluster.bootstrap_servers) as connection:
        admin = connection.get_admin()
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        admin.list_offsets(path, [0], fluss.OffsetSpec.timestamp(2**62))

def test_behind_it(fluss_cluster):
    fluss_cluster.kill_coordinator()
    assert False, "the coordinator is gone"

def test_never(fluss_cluster):
    pass
"""


def run_tests(
    folder: Path, *arguments: str, tests: str = TESTS, ci: bool = False, java: bool = True
) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(tests)
    not_theirs = ("CI", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in not_theirs}
    if ci:
        environment["CI"] = "true"
    if not java:
        environment |= {"PATH": str(folder), "JAVA_HOME": ""}
    plugin = ["-p", "fluss_df.cluster.pytest_plugin", "-p", "no:cacheprovider"]
    report = f"--fluss-cluster-report={folder}/report"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, report, "test_it.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_tests_on_a_real_server_are_counted(
    fluss_cluster: LocalCluster, tmp_path: Path, workers: list[str]
) -> None:
    result = run_tests(tmp_path, *workers)
    assert result.returncode == 0, result.stdout
    *_, summary, last = result.stdout.splitlines()
    assert summary == f"real-cluster tests: 2 ran on fluss-server {fluss_cluster.server_version}"
    assert "4 passed, 1 skipped" in last
    assert (tmp_path / "report").read_text() == "2\n"


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_without_java_the_summary_warns(tmp_path: Path, workers: list[str]) -> None:
    result = run_tests(tmp_path, *workers, java=False)
    assert result.returncode == 0, result.stdout
    assert "WARNING: not tested on a real Fluss cluster" in result.stdout
    assert "a Fluss server needs Java 11 or newer" in result.stdout
    assert "3 tests were not run on a real server." in result.stdout
    assert "real-cluster tests: 0 ran\n" in result.stdout
    assert "2 passed, 3 skipped" in result.stdout
    assert (tmp_path / "report").read_text() == "0\n"


def test_without_java_ci_fails(tmp_path: Path) -> None:
    result = run_tests(tmp_path, ci=True, java=False)
    assert result.returncode == 1
    assert "2 passed, 3 errors" in result.stdout
    assert "no real Fluss cluster: a Fluss server needs Java" in result.stdout


@pytest.mark.parametrize(("expression", "count"), [("real_cluster", 3), ("not real_cluster", 2)])
def test_the_marker_selects(tmp_path: Path, expression: str, count: int) -> None:
    result = run_tests(tmp_path, "-m", expression, "--collect-only", "-q")
    assert result.returncode == 0
    assert result.stdout.count("test_it.py::") == count


def test_runs_without_such_tests_are_left_alone(tmp_path: Path) -> None:
    result = run_tests(tmp_path, "-k", "nowhere")
    assert result.returncode == 0
    assert "real-cluster" not in result.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_failures_show_what_servers_logged_and_end_where_none_serves(
    tmp_path: Path, workers: int
) -> None:
    result = run_tests(tmp_path, *(["-n", str(workers)] if workers else []), tests=FAILING)
    assert result.returncode == (2 if workers else 1), result.stdout
    assert "2 failed in" in result.stdout, result.stdout
    _, first, second = re.split("^_+ test_.*$", result.stdout, flags=re.MULTILINE)
    heading = r"^-+ fluss-cluster-\w+ tablet-server-0 -+\n"
    assert re.search(heading + r"(.* WARN .*\n)*.* ERROR .* list offsets ", first, re.MULTILINE)
    ended = re.search(r"^(.*)\nIts logs, with .* are in (.*)$", second, re.MULTILINE)
    assert ended is not None
    assert "127.0.0.1" in ended[1]
    kept = Path(ended[2])
    assert "Full thread dump" in (kept / "tablet-server-0.log").read_text()
    shutil.rmtree(kept)

"""What the README and the guides show runs as it stands there, page by page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.cluster import LocalCluster

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("primary-keys.md", "pushdown.md", "streaming.md")),
]


def examples_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_first_example_needs_no_java(tmp_path: Path) -> None:
    """In a process that could not find a Java, nor a server, if it wanted one."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME")
    }
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        # again on the same folder: rows are added to those of the first time
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", examples_of(ROOT / "README.md")[0]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2" in done.stdout
    assert "16.0" in done.stdout
    assert (tmp_path / "data" / "FORMAT").exists()


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_block_of_the_readme_runs_alone(
    number: int, fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    """In a process and a folder of its own, on a cluster that may have the tables of the others."""
    source = BLOCKS[number].replace("127.0.0.1:9123", fluss_cluster.bootstrap_servers)
    source = source.replace("tablet_servers=3", "tablet_servers=1")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", source],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(
    page: Path,
    fluss_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # the table that the README begins with, for what goes on with it on a cluster
    visits = pl.DataFrame({"day": ["mon"] * 3, "user": [1, 2, 1], "seconds": [3.5, 8.0, 2.25]})
    visits.pipe(
        fluss_df.write_fluss,
        "visits",
        connection=fluss_cluster.bootstrap_servers,
        create_if_not_exists=True,
        partition_keys=["day"],
        create_partitions=True,
    )
    names: dict[str, object] = {}
    examples = examples_of(page)
    assert examples
    for number, example in enumerate(examples):
        source = example.replace("127.0.0.1:9123", fluss_cluster.bootstrap_servers)
        source = source.replace("tablet_servers=3", "tablet_servers=1")
        try:
            exec(compile(source, f"{page.name} example {number}", "exec"), names)
        finally:
            fluss_df.set_default_connection(None)
        assert capsys.readouterr().out.strip(), example

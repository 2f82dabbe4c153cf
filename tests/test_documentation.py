"""What the README and the guides show runs as it stands there, page by page."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

import fluss_df
from fluss_df.cli import app
from fluss_df.cluster import LocalCluster
from fluss_df.engine.tables import options
from tests.programs import command
from tests.run_page import PYTHON_VARIABLE, blocks_of
from tests.stderr import unexpected

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
            [*command("-W", "error"), "-c", source],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, unexpected(done.stderr)) == (0, "")
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
    # what a page handles by itself is not for the tests that come after it
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, example in enumerate(examples):
        source = example.replace("127.0.0.1:9123", fluss_cluster.bootstrap_servers)
        source = source.replace("tablet_servers=3", "tablet_servers=1")
        try:
            exec(compile(source, f"{page.name} example {number}", "exec"), names)
        finally:
            fluss_df.set_default_connection(None)
            for each, handler in handlers.items():
                signal.signal(each, handler)
        assert capsys.readouterr().out.strip(), example


# run on the embedded engine, page by page; the others have tests of their own
DOCS = ROOT / "docs"
ELSEWHERE = {
    "cluster.md": "tests/test_documentation.py",
    "ibis.md": "tests/backend/test_guide.py",
    "spark.md": "tests/spark/test_guide.py",
    "lake.md": "tests/lake/tiering/test_guide.py",
    "tiering.md": "tests/lake/tiering/test_guide.py",
}
LANGUAGES = {"python", "sh", "text", ""}
EMBEDDED_PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page not in PAGES
    and page.name not in ELSEWHERE
    and any(block.language in ("python", "sh") for block in blocks_of(page))
]


def run_page(page: Path, folder: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME")
    }
    warnings = ["-W", "error", "-W", "ignore:The 'future.infer_string' option is deprecated"]
    done = subprocess.run(
        [*command(*warnings), "-m", "tests.run_page", str(page)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), PYTHON_VARIABLE: shlex.join(command())},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_other_page_is_run_by_a_test_that_names_it() -> None:
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (ROOT / test).read_text(), page


@pytest.mark.parametrize("page", EMBEDDED_PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_pages_run_on_the_embedded_engine(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_the_page_of_clusters_runs(fluss_cluster: LocalCluster, tmp_path: Path) -> None:
    """The cluster of the session is not used: it says whether clusters can be had."""
    run_page(DOCS / "cluster.md", tmp_path)


ALL_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_are_shown_hold_to_the_rule(page: Path) -> None:
    """No Python hides in a block that is not run, and what it calls exists."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language}"
        if block.language in ("python", "sh"):
            continue
        for line in block.text.splitlines():
            assert not re.match(r"(import|from) \w", line), f"{where}: {line}"
            words = line.split("#")[0].split()
            if words[:1] == ["make"]:
                assert words[1] in targets, f"{where}: {line}"
            elif words[:1] == ["fluss-df"] and words[1:]:
                assert not problem_of(words[1:]), f"{where}: {line}"


def problem_of(words: list[str]) -> str | None:
    """Return what of a command of fluss-df does not exist: its name, or an option."""
    program: Any = typer.main.get_command(app)
    while words and hasattr(program, "list_commands"):
        name, *words = words
        if name not in program.list_commands(None):
            return name
        program = program.get_command(None, name)
    options = {name for parameter in program.params for name in parameter.opts}
    options |= {name for parameter in program.params for name in parameter.secondary_opts}
    wrong = (word.split("=")[0] for word in words if word.startswith("-"))
    return next((word for word in wrong if word not in options), None)


def test_a_command_that_does_not_exist_is_found() -> None:
    assert problem_of(["cluster", "start", "--tablet-servers", "3"]) is None
    assert problem_of(["cluster", "begin"]) == "begin"
    assert problem_of(["count", "t", "--fast"]) == "--fast"


def test_every_property_of_a_table_is_in_the_guide() -> None:
    text = (DOCS / "operating.md").read_text()
    section = text.split("### Properties of tables")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(table\.[a-z.-]+)`", row)]
    assert sorted(named) == sorted(options.NAMES)

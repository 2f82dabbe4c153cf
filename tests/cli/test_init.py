"""A new project: every file of it runs, and nothing is written over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import polars as pl
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

from fluss_df.cli import app


def init(folder: Path) -> str:
    done = CliRunner().invoke(app, ["init", str(folder)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    folder = tmp_path / "my project"
    init(folder)
    return folder


def test_the_pipeline_runs_and_goes_on(project: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "pipeline.py"], cwd=project, check=True)
    # 3 rows were there, and each run added 5: of 3, 5 and 5 rows 1, 3 and 3 are long
    assert pl.read_parquet(project / "long-visits").height == 1 + 3 + 3


def test_the_pipeline_runs_from_elsewhere(project: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(project / "pipeline.py")], cwd=tmp_path, check=True)
    assert not (tmp_path / "data").exists()


def test_the_notebook_runs(project: Path) -> None:
    notebook = nbformat.read(project / "explore.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(project)}}).execute()
    assert "shop" in str(notebook.cells[-1].outputs)


def test_the_readme_runs(project: Path) -> None:
    readme = (project / "README.md").read_text()
    lines = readme.split("```\n")[1]
    done = subprocess.run(
        ["bash", "-ec", lines],
        cwd=project,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n8\n" in done.stdout
    for row in readme.split("| file |")[1].split("```")[0].splitlines():
        if row.startswith("| `"):
            assert (project / row.split("`")[1]).exists()


def test_nothing_is_written_over(project: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in project.rglob("*") if p.is_file()}
    done = CliRunner().invoke(app, ["init", str(project)])
    assert done.exit_code == 1
    assert "nothing was written" in done.stderr
    assert {p: p.read_bytes() for p in project.rglob("*") if p.is_file()} == before
    file = tmp_path / "file"
    file.write_text("mine")
    done = CliRunner().invoke(app, ["init", str(file)])
    assert done.exit_code == 1
    assert "is not a folder" in done.stderr
    assert file.read_text() == "mine"


def test_an_empty_folder_and_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "pipeline.py").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "a" / "b")])
    assert done.exit_code == 1
    assert "there is no folder" in done.stderr
    assert not list(tmp_path.iterdir())

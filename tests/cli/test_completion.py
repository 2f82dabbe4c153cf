"""What the shell completes."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from tests.cli.conftest import Run
from tests.programs import command


def complete(*words: str) -> list[str]:
    """Return what bash is given for the last word; what was typed of it is part of the words."""
    done = subprocess.run(
        [*command(), "-c", "from fluss_df.cli import app; app(prog_name='fluss-df')"],
        env=os.environ
        | {
            "_FLUSS_DF_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["fluss-df", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_tables(place: str, at: Run) -> None:
    with fluss_df.connect(place) as connection:
        for name in ("completed_a", "completed_b"):
            fluss_df.write_fluss(
                pl.DataFrame({"a": [1]}), name, connection=connection, create_if_not_exists=True
            )
    found = ["completed_a", "completed_b"]
    assert complete("head", "--connection", place, "completed_") == found
    assert complete("load", "x.csv", "-c", place, "--into", "completed_b") == found[1:]
    assert complete("count", "-c", place, "fluss.completed_") == [f"fluss.{n}" for n in found]


def test_nothing_is_made_and_nothing_said(tmp_path: Path) -> None:
    assert complete("head", "-c", str(tmp_path / "no"), "t") == []
    assert not (tmp_path / "no").exists()
    (tmp_path / "FORMAT").write_text("nonsense")
    assert complete("head", "-c", str(tmp_path), "t") == []
    assert complete("head", "-c", "no address", "t") == []
    assert complete("head", "t") == []


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert complete("head", "-c", f"127.0.0.1:{server.getsockname()[1]}", "t") == []


def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", "example.org:9123")
    monkeypatch.setenv("FLUSS_HOME", "/srv/fluss")
    (tmp_path / "data").mkdir()
    assert complete("tables", "-c", "exam") == ["example.org:9123"]
    assert complete("tables", "-c", f"{tmp_path}/da") == [f"{tmp_path}/data"]
    assert complete("doctor", "/srv") == ["/srv/fluss"] or Path("/srv").exists()
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", "fluss://ann:secret@example.org:9123")
    assert complete("tables", "-c", "fluss") == []


def test_commands() -> None:
    assert complete("do") == ["doctor"]


def test_behind_a_misspelt_command_there_is_no_error() -> None:
    complete("tabls", "")

"""``fluss-df ui``, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluss_df.cli import app


@pytest.mark.parametrize("chosen", [False, True])
def test_it_prints_a_link_and_ends_by_a_signal(tmp_path: Path, chosen: bool) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-mine-0123456789\n")
    options = ["--token-file", str(token)] if chosen else []
    console = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.cli.main", "ui", "--port", "0"),
            *("--connection", str(tmp_path / "data"), *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert console.stdout is not None
    link = console.stdout.readline().split()[-1]
    try:
        # a token that somebody chose is not printed
        assert ("#token=" in link) is not chosen
        with urllib.request.urlopen(link.partition("#")[0], timeout=20) as answer:
            assert "Log in" in answer.read().decode()
    finally:
        console.send_signal(signal.SIGINT)
        said = console.communicate(timeout=30)[1]
    assert console.returncode == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "that takes a certificate"),
        (["--tls-cert", "none.pem"], "go together"),
        (["--token-file", "/nowhere/token"], "cannot read the token"),
    ],
)
def test_what_is_not_safe_is_an_error(tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["ui", "--connection", str(tmp_path / "data"), *options])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())

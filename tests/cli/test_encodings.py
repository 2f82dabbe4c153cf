"""Terminals and files that are not UTF-8, arguments that are no text, and numbers without end."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.cli import app

NAMES = pl.DataFrame({"id": [1, 2, 3], "é": ["日本", "😀", "a"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("encodings") / "data"
    with fluss.connect(place) as connection:
        fluss.write_fluss(NAMES, "names", connection=connection, create_if_not_exists=True)
    return str(place)


def run(folder: str, *arguments: str | bytes, encoding: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "FLUSS_BOOTSTRAP_SERVERS": folder}
    return subprocess.run(
        [sys.executable, "-m", "tests.cli.main", *arguments],
        env=environment,
        capture_output=True,
        timeout=60,
    )


def test_json_has_all_characters_in_any_encoding(folder: str) -> None:
    done = run(folder, "head", "names", "--json", encoding="latin-1")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.decode("ascii").splitlines()]
    assert rows == NAMES.to_dicts()


def test_a_table_is_drawn_with_what_the_encoding_has(folder: str) -> None:
    done = run(folder, "head", "names", encoding="latin-1")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode("latin-1")
    assert "+--" in shown
    assert "é" in shown
    assert r"\u65e5\u672c" in shown
    wrong = run(folder, "sql", "SELECT 日本 FROM names", encoding="latin-1")
    assert wrong.returncode == 1
    assert rb"\u65e5" in wrong.stderr
    assert b"Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", b"SELECT '\xff' AS x"),
        ("acl", "create", "--principal", b"\xff", "--operation", "read", "--resource", "cluster"),
        ("create", "table", "t", "--schema", b"\xff INT"),
    ],
)
def test_an_argument_that_is_no_text_is_named(
    folder: str, arguments: tuple[str | bytes, ...]
) -> None:
    done = run(folder, *arguments, encoding="utf-8")
    assert done.returncode == 1
    assert b"an argument is no UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


def test_more_rows_than_a_frame_holds_are_all(folder: str) -> None:
    for number in (2**32, 2**63, 10**30):
        for command in ("head", "tail"):
            arguments = [command, "names", "-n", str(number), "--json", "-c", folder]
            shown = CliRunner().invoke(app, arguments)
            assert shown.exit_code == 0, shown.output
            assert len(shown.stdout.splitlines()) == 3


def test_a_number_that_is_too_large_is_an_error(folder: str) -> None:
    arguments = ["tail", "names", "-f", "--max-rows", str(10**30), "-c", folder]
    failed = CliRunner().invoke(app, arguments)
    assert failed.exit_code == 1
    assert "a number is too large" in failed.stderr

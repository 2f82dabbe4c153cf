"""What somebody typed is told with what there is instead."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.cli import app
from fluss_df.cli.base.console import errors_as_messages
from fluss_df.errors import ErrorCode, FlussError
from tests.cli.conftest import Run


def told(at: Run, *words: str) -> str:
    result = at(*words)
    assert result.exit_code == 1, result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def table(at: Run) -> str:
    name = f"slips_{uuid.uuid4().hex[:12]}"
    result = at("create", "table", name, "--schema", "day STRING, n INT", "--partition-by", "day")
    assert result.exit_code == 0, result.output
    return name


@pytest.mark.parametrize(("typed", "meant"), [("hed", "head"), ("taables", "tables")])
def test_a_misspelt_command(typed: str, meant: str) -> None:
    result = CliRunner().invoke(app, [typed, "t"])
    assert result.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in " ".join(
        result.stderr.replace("│", " ").split()
    )


def test_a_partition_column_that_the_table_lacks(at: Run, table: str) -> None:
    # a server without partitions compares none with what is asked for
    assert at("create", "partition", table, "day=a").exit_code == 0
    for words in (
        ("partitions", table, "--where", "dy=1"),
        ("create", "partition", table, "dy=1"),
        ("drop", "partition", table, "dy=1", "--yes"),
    ):
        found = told(at, *words)
        assert (
            f"{table} has no partition column 'dy' (there are: day); did you mean 'day'?" in found
        )


def test_partitions_of_a_table_without(at: Run) -> None:
    name = f"slips_{uuid.uuid4().hex[:12]}"
    at("create", "table", name, "--schema", "day STRING")
    assert f"{name} has no partitions" in told(at, "create", "partition", name, "day=1")


def test_a_table_that_is_not_there(at: Run, table: str, place: str) -> None:
    found = told(at, "alter", "table", f"{table}x", "--set", "owner=me")
    assert f"{table}x does not exist (tables of 'fluss': " in found
    with fluss.connect(place) as connection, pytest.raises(FlussError) as caught:
        connection.get_admin().drop_table(fluss.TablePath("fluss", f"{table}x"))
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
    assert "does not exist (tables of 'fluss': " in caught.value.message


def test_the_options_of_alter_table(at: Run, table: str) -> None:
    found = told(at, "alter", "table", table, "--add-columns", "note STRNG")
    assert "--add-columns: column 'note': there is no type STRNG; there are BIGINT" in found
    for text in ("l ARRAY<INT>", "l ARRAY"):
        found = told(at, "create", "table", f"{table}x", "--schema", text)
        assert "ARRAY, MAP and ROW are for CREATE TABLE and ALTER TABLE of fluss-df sql" in found
    assert "give --add-columns, --set or --reset" in told(at, "alter", "table", table)


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "trips.csv"
    file.write_text("a\n1\n")
    result = CliRunner().invoke(app, ["tables", "-c", str(file)])
    assert result.exit_code == 1
    assert "trips.csv is a file: -c names a folder" in " ".join(result.stderr.split())


def test_a_path_in_place_of_a_table() -> None:
    with pytest.raises(FlussError, match=r"'\./data/trips'.* a folder of data is where a conn"):
        fluss.TablePath.parse("./data/trips")


@pytest.mark.parametrize(
    "text",
    [
        "was it renamed? lake=False reads what Fluss itself has",
        "get it, or pass lake=False for what Fluss itself has",
        "it is damaged; lake=False reads what Fluss itself has",
    ],
)
def test_ways_out_in_python_are_those_of_the_command_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), errors_as_messages():
        raise FlussError(text)
    told = " ".join(capsys.readouterr().err.split())
    assert "lake=" not in told
    assert "; 'fluss-df sql' reads what Fluss itself has, with the hint" in told

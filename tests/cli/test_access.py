"""``fluss-df passwd``, and what ``fluss-df serve`` does with users and their rights."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.cli import app
from fluss_df.cli.commands.acl import _filter


def passwd(file: Path, user: str, password: str = "", *more: str) -> Result:
    arguments = ["passwd", user, "--file", str(file), *more]
    return CliRunner().invoke(app, arguments, input=f"{password}\n{password}\n")


@contextmanager
def served(folder: Path, *arguments: str, said: str = "") -> Iterator[str]:
    """Yield the address of ``fluss-df serve``, which says something to its user meanwhile."""
    command = [sys.executable, "-c", "from fluss_df.cli.main import app; app()", "serve"]
    process = subprocess.Popen(
        [*command, "--dir", str(folder), "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "FLUSS_SASL_USERS"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), process.communicate(timeout=20)[1]
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[1] == said
    finally:
        process.kill()
        process.communicate()


def test_a_file_of_hashes(tmp_path: Path) -> None:
    file = tmp_path / "users"
    for user, password in [("root", "first"), ("alice", "wonder"), ("root", "r:o$ot")]:
        result = passwd(file, user, password)
        assert result.exit_code == 0, result.output
        assert password not in result.output
    lines = file.read_text().splitlines()
    assert [line.split(":$scrypt$")[0] for line in lines] == ["alice", "root"]
    assert not any(each in file.read_text() for each in ("first", "wonder", "r:o$ot"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["users"]

    arguments = ["--sasl-file", str(file), "--authorizer-enabled", "--super-users", "User:root"]
    said = "a wrong password for a user at 127.0.0.1\n"
    with served(tmp_path / "d", *arguments, said=said) as address:
        with fluss.connect(f"fluss://root:r%3Ao%24ot@{address}") as connection:
            connection.get_admin().create_database("sales")
        with fluss.connect(f"fluss://alice:wonder@{address}") as connection:
            assert list(connection.get_admin().list_databases()) == []
        with pytest.raises(FlussError, match="password") as raised:
            fluss.connect(f"fluss://root:first@{address}")
        assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
        # by the folder its own user gives rights, whoever is a superuser
        given = ["--principal", "alice", "--operation", "read", "--resource", "database:sales"]
        create = ["acl", "create", *given, "--connection", str(tmp_path / "d")]
        assert CliRunner().invoke(app, create).exit_code == 0
        with fluss.connect(f"fluss://alice:wonder@{address}") as connection:
            assert list(connection.get_admin().list_databases()) == ["sales"]


def test_users_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("bob:in the clear\n\nalice:x\n")
    assert passwd(file, "alice", "", "--drop").exit_code == 0
    assert file.read_text() == "bob:in the clear\n\n"
    result = passwd(file, "alice", "", "--drop")
    assert result.exit_code == 1
    assert "no user alice" in result.stderr


@pytest.mark.parametrize("user", ["a:b", "", " a", "a\nb"])
def test_names_that_cannot_be(tmp_path: Path, user: str) -> None:
    result = passwd(tmp_path / "users", user, "p")
    assert result.exit_code == 1
    assert "cannot be a user's name" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = passwd(tmp_path / "none" / "users", "alice", "p")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_a_superuser_without_a_type(tmp_path: Path) -> None:
    arguments = ["serve", "--dir", str(tmp_path / "d"), "--port", "0", "--super-users", "admin"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "User:admin" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resource", ["database:", "table:"])
def test_rights_of_a_name_that_a_script_left_empty_are_not_those_of_all(resource: str) -> None:
    assert _filter(None, "database", None, None).resource_filter.name is None
    assert _filter(None, "database:sales", None, None).resource_filter.name == "sales"
    with pytest.raises(FlussError):
        _filter(None, resource, None, None)


def test_options_that_name_no_column_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,v\n1,2\n")
    for option in ("--primary-key", "--partition-by"):
        arguments = ["load", str(file), "--into", "t", "--create", option, ""]
        done = CliRunner().invoke(app, [*arguments, "--connection", str(tmp_path / "d")])
        assert done.exit_code == 1, done.output
        assert "without any" in done.stderr


def test_users_that_are_set_at_once_are_all_there(tmp_path: Path) -> None:
    file = tmp_path / "users"
    command = [sys.executable, "-m", "fluss_df", "passwd", "--file", str(file)]
    running = [
        subprocess.Popen([*command, f"user{n}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for n in range(6)
    ]
    for process in running:
        process.communicate(b"secret\n", timeout=60)
    assert [process.returncode for process in running] == [0] * 6
    lines = file.read_text().splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == [f"user{n}" for n in range(6)]
    assert [path.name for path in tmp_path.iterdir()] == ["users"]

"""What somebody meets on the first day: a forgotten connection, a wrong port, one right alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df
from fluss_df import AclBinding, FlussError, OperationType, Resource
from fluss_df.cli import app
from fluss_df.cli.base.listing import list_tables
from fluss_df.embedded import EmbeddedFluss, Security


def test_a_user_with_a_right_on_one_table_sees_it_in_the_list(tmp_path: Path) -> None:
    security = Security(authorizer_enabled=True, super_users="User:admin")
    users = {"admin": "s3cret", "alice": "wonder", "eve": "other"}
    with EmbeddedFluss(tmp_path / "d", port=0, sasl=users, security=security) as engine:
        with fluss_df.connect(f"fluss://admin:s3cret@{engine.address}") as connection:
            for name in ("orders", "secrets"):
                fluss_df.write_fluss(
                    pl.DataFrame({"id": [1]}),
                    name,
                    connection=connection,
                    create_if_not_exists=True,
                )
            read = AclBinding.allow("alice", OperationType.READ, Resource.table("fluss", "orders"))
            connection.get_admin().create_acls([read])
            assert len(list_tables(connection)) == 2
        for user, seen, database in [
            ("alice:wonder", ["fluss.orders"], ""),
            ("alice:wonder", ["fluss.orders"], "/fluss"),
            ("alice:wonder", [], "/other"),
            ("eve:other", [], ""),
        ]:
            address = f"fluss://{user}@{engine.address}{database}"
            result = CliRunner().invoke(app, ["tables", "--json", "--connection", address])
            assert result.exit_code == 0, result.output
            assert [name for name in ("orders", "secrets") if name in result.output] == [
                name.removeprefix("fluss.") for name in seen
            ]


def test_without_a_connection_the_command_names_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["tables"])
    assert result.exit_code == 1
    words = " ".join(result.stderr.split())
    assert "--connection" in words
    assert "'./data'" in words


def test_a_folder_without_a_slash_is_told_how_to_be_one() -> None:
    with pytest.raises(FlussError, match=r"invalid address 'data': .* './data'"):
        fluss_df.connect("data")


def test_another_server_on_the_port_is_suspected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                peer.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(FlussError, match="something else than Fluss may listen"):
                fluss_df.connect(f"127.0.0.1:{port}")
        finally:
            thread.join(10)


def test_the_package_is_a_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fluss_df", "--help"], capture_output=True, text=True, check=True
    )
    assert "fluss-df" in ran.stdout


@pytest.mark.parametrize(
    ("said", "problem"), [("", "no password"), ("\n", "no password"), ("a\nb\n", "two passwords")]
)
def test_a_password_from_a_script(tmp_path: Path, said: str, problem: str) -> None:
    file = tmp_path / "users"
    command = [sys.executable, "-m", "fluss_df", "passwd", "alice", "--file", str(file)]
    ran = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert problem in ran.stderr
    assert not file.exists()
    ran = subprocess.run(command, input="wonder\n", capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert file.read_text().startswith("alice:$scrypt$")


def test_a_folder_that_the_environment_names_is_not_made_by_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("FLUSS_HOME", str(tmp_path / "misspelt"))
    for command in (["tables"], ["head", "t"], ["count", "t"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert "there is no data of Fluss" in " ".join(result.stderr.split())
    assert not (tmp_path / "misspelt").exists()

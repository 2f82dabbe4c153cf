"""Every option of the commands that serve gets to where it is heeded.

What a setting does there has tests of its own. Here the servers are recorders: some of what the
options ask for, such as addresses that others reach, is not to be opened by a test.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import polars as pl
import pytest
import typer
from typer.testing import CliRunner, Result

import fluss_df
from fluss_df.cli import app
from fluss_df.embedded import EmbeddedFluss, EngineOptions, Security
from fluss_df.ui.settings import Limits, Settings
from tests.certificates import Authority

TOKEN = "a-token-of-mine-0123456789"


class Recorder:
    """Stands for a server: notes how it was made, and ends the command when it is entered."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.settings: dict[str, Any] = {}
        self.called: list[str] = []
        self.url, self.link, self.address = "the url", "the link", "the address"

    def __call__(self, *arguments: Any, **settings: Any) -> Self:
        self.arguments, self.settings = arguments, settings
        return self

    def __enter__(self) -> Self:
        # as Ctrl-C would: the command waits for it
        signal.raise_signal(signal.SIGTERM)
        return self

    def __exit__(self, *error: object) -> None:
        self.called.append("closed")


class Tiering(Recorder):
    """The same of a service that runs rounds, and is not waited for."""

    def __enter__(self) -> Self:
        return self

    def run_due(self) -> list[Any]:
        self.called.append("run_due")
        return []


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """`serve` makes all files of its process private."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    return {
        "--tls-cert": str(issued.cert),
        "--tls-key": str(issued.key),
        "--tls-client-ca": str(authority.file),
    }


def ran(command: str, options: dict[str, Any]) -> Result:
    """Run a command with options, and see that none that it has is missing."""
    group = typer.main.get_command(app)
    known = group.get_command(None, command).params  # type: ignore[attr-defined]
    assert [param.opts for param in known if not set(param.opts) & options.keys()] == []
    arguments = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [name] if one is True else [name, str(one)]
    result = CliRunner().invoke(app, [command, *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_each_option_of_ui(
    tmp_path: Path, certificate: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr("fluss_df.ui.server.ConsoleServer", recorder)
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    place = str(tmp_path / "data")
    tls = {name: certificate[name] for name in ("--tls-cert", "--tls-key")}
    result = ran(
        "ui",
        {
            "--connection": place,
            "--port": 8125,
            "--host": "192.0.2.1",
            "--name": ["fluss.example.org", "other.example.org"],
            **tls,
            "--token-file": str(token),
            "--read-only": True,
            "--runs": [str(tmp_path / "a"), str(tmp_path / "b")],
            "--query-rows": 123,
            "--query-seconds": 4.5,
        },
    )
    connection, settings, shown = recorder.arguments
    assert settings == Settings(
        host="192.0.2.1",
        port=8125,
        token=TOKEN,
        read_only=True,
        names=("fluss.example.org", "other.example.org"),
        tls_cert=Path(tls["--tls-cert"]),
        tls_key=Path(tls["--tls-key"]),
        runs=(tmp_path / "a", tmp_path / "b"),
        limits=Limits(result_rows=123, query_seconds=4.5),
    )
    assert place in shown
    assert fluss_df.connect(place).config == connection.config
    assert "console on the url" in result.output
    assert recorder.called == ["closed"]


def test_the_token_of_ui_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr("fluss_df.ui.server.ConsoleServer", recorder)
    monkeypatch.setenv("FLUSS_UI_TOKEN", TOKEN)
    arguments = ["ui", "--connection", str(tmp_path / "data"), "--port", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert recorder.arguments[1].token == TOKEN
    # nor is it shown, or left to the processes that run statements
    assert "console on the url" in result.output
    assert "FLUSS_UI_TOKEN" not in os.environ
    result = CliRunner().invoke(app, arguments)
    assert "console on the link" in result.output
    assert recorder.arguments[1].token != TOKEN


def test_each_option_of_serve(
    tmp_path: Path, certificate: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sql, metrics = Recorder(), Recorder(), Recorder()
    monkeypatch.setattr("fluss_df.embedded.EmbeddedFluss", engine)
    monkeypatch.setattr("fluss_df.flight.FlightSqlServer", sql)
    monkeypatch.setattr("fluss_df.flight.FolderAccess", lambda of: ("the access of", of))
    monkeypatch.setattr("fluss_df.metrics.start_http_server", metrics)
    users = tmp_path / "users"
    users.write_text("bob:other\n")
    result = ran(
        "serve",
        {
            "--dir": str(tmp_path / "data"),
            "--port": 9124,
            "--host": "192.0.2.1",
            "--sasl": ["alice:secret", "eve:third"],
            "--sasl-file": str(users),
            "--authorizer-enabled": True,
            "--super-users": "User:alice;User:bob",
            "--acl-principal-ignore-case": True,
            **certificate,
            "--durability": "interval",
            "--metrics-port": 9125,
            "--metrics-host": "192.0.2.2",
            "--flight-sql": 9126,
            "--flight-sql-host": "192.0.2.3",
            "--flight-sql-insecure": True,
        },
    )
    tls = {
        "tls_cert": Path(certificate["--tls-cert"]),
        "tls_key": Path(certificate["--tls-key"]),
        "tls_client_ca": Path(certificate["--tls-client-ca"]),
    }
    assert engine.arguments == (tmp_path / "data",)
    assert engine.settings == {
        "port": 9124,
        "host": "192.0.2.1",
        "sasl": {"alice": "secret", "eve": "third", "bob": "other"},
        "options": EngineOptions(durability="interval"),
        "security": Security(
            authorizer_enabled=True,
            super_users="User:alice;User:bob",
            acl_principal_ignore_case=True,
            **tls,
        ),
    }
    assert metrics.arguments == (9125, "192.0.2.2")
    assert sql.arguments == (("the access of", engine), 9126, "192.0.2.3")
    assert sql.settings == {**tls, "allow_insecure": True}
    for line in ("metrics on the url", "Flight SQL on the url", "listening on the address"):
        assert line in result.output


def test_each_option_of_flight_sql(
    tmp_path: Path, certificate: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = Recorder()
    monkeypatch.setattr("fluss_df.flight.FlightSqlServer", sql)
    monkeypatch.setattr(
        "fluss_df.flight.ClusterAccess",
        lambda connection, *, needs_password: (connection, needs_password),
    )
    ran(
        "flight-sql",
        {
            "--connection": "192.0.2.1:9123",
            "--port": 32011,
            "--host": "192.0.2.2",
            "--sign-in": True,
            **certificate,
            "--flight-sql-insecure": True,
        },
    )
    assert sql.arguments == (("192.0.2.1:9123", True), 32011, "192.0.2.2")
    assert sql.settings == {
        "tls_cert": Path(certificate["--tls-cert"]),
        "tls_key": Path(certificate["--tls-key"]),
        "tls_client_ca": Path(certificate["--tls-client-ca"]),
        "allow_insecure": True,
    }


def test_each_option_of_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Tiering()
    monkeypatch.setattr("fluss_df.lake.TieringService", service)
    # a folder's own tiering would make a service, too
    options = EngineOptions(lake_tiering=False)
    with EmbeddedFluss(tmp_path / "data", port=0, options=options) as engine:
        for name in ("a", "b"):
            fluss_df.write_fluss(
                pl.DataFrame({"a": [1]}),
                name,
                connection=engine.address,
                create_if_not_exists=True,
                properties={"table.datalake.enabled": "true"},
            )
        ran(
            "tier",
            {
                "--connection": engine.address,
                "--table": ["a", "fluss.b"],
                "--once": True,
                "--workers": 3,
                "--keep-snapshots": "12h",
                "--lease-file": str(tmp_path / "lease"),
            },
        )
    connection, tables = service.arguments
    assert connection.config.bootstrap_servers == engine.address
    assert list(map(str, tables)) == ["fluss.a", "fluss.b"]
    assert service.settings == {
        "workers": 3,
        "keep_snapshots_s": 12 * 3600,
        "lease_file": tmp_path / "lease",
    }
    assert service.called == ["run_due", "closed"]


# ---- two of them, as users start them


@contextlib.contextmanager
def started(*arguments: str, **variables: str) -> Iterator[str]:
    """Run a command in a process of its own; give the last word of its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0


def test_serve_lets_in_by_tls_who_has_a_certificate(
    tmp_path: Path, certificate: dict[str, str]
) -> None:
    peers = Authority(tmp_path, "peers")
    options = certificate | {"--tls-client-ca": str(peers.file)}
    words = [word for pair in options.items() for word in pair]
    with started("serve", "--dir", str(tmp_path / "data"), "--port", "0", *words) as address:
        plain = {"bootstrap.servers": address}
        # the server's own authority: not that of those whom it lets in
        trusting = plain | {
            "security.ssl.enabled": "true",
            "security.ssl.truststore.path": certificate["--tls-client-ca"],
        }
        own = {"security.ssl.keystore.path": str(peers.issue("peer").both)}
        with fluss_df.connect(trusting | own) as connection:
            assert connection.get_admin().list_databases() == ["fluss"]
        for config, told in ((plain, "speaks TLS"), (trusting, "asks for a certificate")):
            with pytest.raises(fluss_df.FlussError, match=told):
                fluss_df.connect(config)


def test_a_console_that_is_read_only_changes_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    fluss_df.write_fluss(
        pl.DataFrame({"a": [1]}), "kept", connection=place, create_if_not_exists=True
    )
    arguments = ["ui", "--port", "0", "--connection", place, "--read-only"]
    with started(*arguments, FLUSS_UI_TOKEN=TOKEN) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        cookie = ""

        def ask(method: str, target: str, **form: str) -> tuple[int, str]:
            nonlocal cookie
            asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = {"Origin": url.rstrip("/"), "Cookie": cookie}
            if form:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            with contextlib.closing(asking):
                asking.request(method, target, urlencode(form) if form else None, headers)
                found = asking.getresponse()
                cookie = found.headers.get("Set-Cookie", cookie).partition(";")[0]
                return found.status, found.read().decode()

        assert ask("POST", "/login", token=TOKEN)[0] == 303
        session = re.search(r'name="csrf" value="([0-9a-f]+)"', ask("GET", "/runs")[1])
        assert session is not None
        status, text = ask("POST", "/statement", csrf=session[1], statement="DROP TABLE kept")
        assert (status, "read-only" in text) == (403, True)
    assert fluss_df.read_fluss("kept", connection=place).height == 1

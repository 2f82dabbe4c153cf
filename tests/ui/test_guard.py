"""Whom the console lets in, and what it refuses: other sites, other names, too much, changes."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlencode

import polars as pl
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.ui.guard import POLICY, Sessions
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Limits, Settings
from tests.certificates import Authority
from tests.ui.hostile import MARK, Enemy, check, digest, hostile_tables, survive
from tests.ui.visiting import Visitor
from tests.waiting import wait_until


def test_nothing_is_shown_without_the_token(folder: FlussConnection) -> None:
    with ConsoleServer(folder, Settings(), "folder") as server:
        visitor = Visitor(server)
        for target in ("/", "/sql", "/table/fluss/people", "/sql/names?prefix=p", "/runs"):
            answer = visitor.get(target)
            assert (answer.status, answer.headers["location"]) == (303, "/sign-in"), target
        sign_in = visitor.page("/sign-in")
        assert "people" not in sign_in.text
        assert "folder" not in sign_in.text
        wrong = visitor.sign_in("x" * 43)
        assert wrong.headers["location"] == "/sign-in?wrong=1"
        assert "That is not the token" in visitor.page("/sign-in?wrong=1").words
        assert visitor.get("/").status == 303
        let_in = visitor.sign_in()
        assert re.fullmatch(
            r"fluss-\d+=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", let_in.headers["set-cookie"]
        )
        assert "fluss.people" in visitor.page("/").words
        visitor.send("/logout")
        assert visitor.get("/").status == 303


def test_every_answer_has_the_headers(alone: Visitor) -> None:
    for target in (
        "/",
        "/static/app.js",
        "/static/none",
        "/none",
        "/table/fluss/people/growth.svg",
    ):
        headers = alone.get(target).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "server" not in headers
        kept = "private, max-age=3600" if target == "/static/app.js" else "no-store"
        assert headers["cache-control"] == kept
    refused = alone.ask("GET", "/", headers={"Host": "evil.example"})
    assert refused.status == 421
    assert refused.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("kind", ["host", "origin", "site", "session", "csrf"])
def test_what_other_sites_send_is_refused(
    alone: Visitor, folder: FlussConnection, kind: str
) -> None:
    enemy = Enemy(alone, 1)
    before = digest(folder)
    send = next(send for name, _, send in enemy._kinds if name == kind)
    for _ in range(60):
        answer = send()
        assert answer is not None
        check(answer, alone.settings.token)
    assert digest(folder) == before


def test_hostile_names_values_and_properties_are_shown_as_text(
    alone: Visitor, folder: FlussConnection
) -> None:
    hostile_tables(folder)
    for part in ("", "/rows", "/rows?which=last", "/changes", "/live", "/change"):
        page = alone.page(f"/table/fluss/hostile{part}")
        check(page, alone.settings.token)
        assert MARK not in page.text
        assert "m4rk-secret" not in page.text
        assert "\u202e" not in page.words
    assert MARK in alone.page("/table/fluss/hostile/rows").words
    about = alone.page("/table/fluss/hostile").words
    assert "my.password of your own *** (secret)" in about
    shown = alone.sql("SHOW CREATE TABLE hostile")
    assert "m4rk-secret" not in shown.text
    assert "'my.password' = '***'" in shown.words
    run = alone.server.state.queries.all()[0]
    assert b"m4rk-secret" not in alone.page(f"/sql/run/{run.id}/result.csv").body
    result = alone.sql("SELECT * FROM hostile")
    check(result, alone.settings.token)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_few_hundred_attacks(folder: FlussConnection, read_only: bool) -> None:
    hostile_tables(folder)
    settings = Settings(read_only=read_only, limits=Limits(query_seconds=10))
    with ConsoleServer(folder, settings, "folder") as server:
        counts = survive(server, folder, 250, seed=7)
    assert len(counts) == 11


def test_read_only_refuses_changes_and_runs_queries(
    reader: Visitor, folder: FlussConnection
) -> None:
    before = digest(folder)
    for target, fields in (
        ("/preview", {"what": "drop-table", "database": "fluss", "table": "people"}),
        ("/statement", {"statement": "DROP TABLE people"}),
    ):
        answer = reader.post(target, **fields)
        assert answer.status == 403
        assert "read-only" in answer.text
    assert (
        "it runs queries, SHOW, DESCRIBE and EXPLAIN only" in reader.sql("DROP TABLE people").words
    )
    assert "Ann" in reader.sql("SELECT * FROM people").words
    assert "people" in reader.sql("SHOW TABLES").words
    assert "born" in reader.sql("DESCRIBE people").words
    assert "read-only" in reader.page("/create").words
    assert digest(folder) == before


def test_bodies_and_heads_have_limits(alone: Visitor) -> None:
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": alone.origin,
        "Cookie": alone.cookie,
    }
    whole = alone.ask("POST", "/sql", "a" * ((1 << 20) + 1), headers)
    assert whole.status == 413
    json = alone.ask("POST", "/sql", "{}", {**headers, "Content-Type": "application/json"})
    assert json.status == 415
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    slow = f"POST /sql HTTP/1.1\r\nHost: 127.0.0.1:{alone.server.port}\r\n{lines}"
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", alone.server.port), timeout=20) as connection:
        connection.sendall(f"{slow}Content-Length: 100\r\n\r\ncsrf=".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    # a head without an end, and a connection that says nothing
    for begin in (b"GET / HTTP/1.1\r\nHost: ", b""):
        with socket.create_connection(("127.0.0.1", alone.server.port), timeout=20) as connection:
            connection.sendall(begin)
            assert connection.recv(100) == b""
    assert time.monotonic() - began < 15


def status(visitor: Visitor) -> int:
    """Return what a page answers; 0 for a connection that is closed."""
    try:
        return visitor.get("/").status
    except OSError:
        return 0


def test_connections_have_a_limit(folder: FlussConnection) -> None:
    settings = Settings(limits=Limits(connections=8, receive_seconds=5))
    with ConsoleServer(folder, settings, "folder") as server:
        visitor = Visitor(server)
        visitor.sign_in()
        taken = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
        deadline = time.monotonic() + 20
        try:
            while status(visitor) != 503 and time.monotonic() < deadline:
                pass
            assert status(visitor) == 503
            # those far beyond the limit are closed at once
            taken += [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
            taken[-1].settimeout(3)
            with contextlib.suppress(ConnectionResetError):
                assert taken[-1].recv(1) == b""
        finally:
            for connection in taken:
                connection.close()
        while status(visitor) != 200 and time.monotonic() < deadline:
            pass
        assert status(visitor) == 200


def test_live_tails_have_a_limit(folder: FlussConnection) -> None:
    with ConsoleServer(folder, Settings(limits=Limits(streams=2)), "folder") as server:
        visitor = Visitor(server)
        visitor.sign_in()
        opened = []
        head = (
            f"GET /table/fluss/people/stream HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Cookie: {visitor.cookie}\r\n\r\n"
        )
        for _ in range(2):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            opened.append(connection)
        assert visitor.get("/table/fluss/people/stream").status == 503
        for connection in opened:
            connection.close()
        wait_until(lambda: not server.state.streams, 10)
        assert server.state.streams == 0


def test_tls_and_names(folder: FlussConnection, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("console", hosts=("127.0.0.1", "console.example"))
    settings = Settings(
        host="0.0.0.0", names=("console.example",), tls_cert=issued.cert, tls_key=issued.key
    )
    context = ssl.create_default_context(cafile=str(authority.file))
    with ConsoleServer(folder, settings, "folder") as server:
        visitor = Visitor(server, context)
        host = f"console.example:{server.port}"
        assert visitor.ask("GET", "/", headers={}).status == 421  # by address
        assert server.url == f"https://{host}/"
        answer = visitor.ask(
            "POST",
            "/login",
            urlencode({"token": settings.token}),
            {
                "Host": host,
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": f"https://{host}",
            },
        )
        assert answer.headers["set-cookie"].startswith("__Host-fluss-")
        assert answer.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")


def test_what_is_not_safe_is_refused_before_it_listens(tmp_path: Path) -> None:
    with pytest.raises(FlussError, match="that takes a certificate"):
        Settings(host="0.0.0.0")
    with pytest.raises(FlussError, match="that takes a certificate"):
        Settings(host="192.0.2.1", names=("x",))
    with pytest.raises(FlussError, match="go together"):
        Settings(tls_cert=tmp_path)
    with pytest.raises(FlussError, match="16 or more"):
        Settings(token="short")
    some = tmp_path / "x.pem"
    some.write_text("x")
    with pytest.raises(FlussError, match="say by which names"):
        Settings(host="::", tls_cert=some, tls_key=some)
    assert "secret-token" not in repr(Settings(token="secret-token-of-mine"))


def test_a_certificate_that_cannot_be_used(folder: FlussConnection, tmp_path: Path) -> None:
    some = tmp_path / "x.pem"
    some.write_text("x")
    with pytest.raises(FlussError, match="cannot be used"):
        ConsoleServer(folder, Settings(tls_cert=some, tls_key=some), "folder")


def test_a_port_that_is_taken(alone: Visitor, folder: FlussConnection) -> None:
    with pytest.raises(FlussError, match="--port 0 takes a free port"):
        ConsoleServer(folder, Settings(port=alone.server.port), "folder")


def test_sessions_are_few_and_end() -> None:
    sessions = Sessions(2)
    first, second = sessions.open(), sessions.open()
    assert sessions.find(first) == first
    sessions.open()
    assert sessions.find(first) is None
    assert sessions.find(second) == second
    sessions.close(second)
    assert sessions.find(second) is None
    assert sessions.find("") is None


def test_wide_and_long_values_do_not_make_large_pages(
    alone: Visitor, folder: FlussConnection
) -> None:
    wide = pl.DataFrame({f"c{n}": ["x" * 20_000] * 50 for n in range(100)})
    fluss_df.write_fluss(wide, "wide", connection=folder, create_if_not_exists=True)
    page = alone.page("/table/fluss/wide/rows?rows=500")
    assert len(page.body) < 4 << 20
    assert "There is more of this value" in page.text
    assert fluss_df.read_fluss("wide", connection=folder).height == 50
    assert TablePath("fluss", "wide") in alone.server.state.watch.tables("fluss")


@pytest.mark.parametrize("foreign", ['foo={"a":"b"}', "k[0]=1", "debug", "a b=c", "x=\xe9"])
def test_cookies_of_other_ports_keep_nobody_out(alone: Visitor, foreign: str) -> None:
    own = alone.cookie
    alone.cookie = f"{foreign}; {own}; last=1"
    assert "fluss.people" in alone.page("/").words
    alone.cookie = f"{foreign}; x{own}"
    assert alone.get("/").status == 303

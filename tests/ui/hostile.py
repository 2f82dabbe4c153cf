"""What enemies of a console send, and how to tell that it did them no good."""

from __future__ import annotations

import hashlib
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import polars as pl

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.metadata import TablePath
from fluss_df.ui.server import ConsoleServer
from tests.ui.visiting import Answer, Visitor

MARK = "<script>alert('m4rk')</script>"
PAYLOADS = (
    MARK,
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "javascript:alert(1)",
    "</textarea><svg onload=alert(1)>",
    "</title><base href=//evil.example/>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u202c",
    "`; DROP TABLE people; --",
    "'; DROP TABLE people; --",
    "../../../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "\r\nSet-Cookie: a=b\r\n\r\n<h1>",
    "\x00",
    "&lt;b&gt;",
    "-->",
    "]]>",
    "${7*7}",
    "a" * 300,
    "😀" * 50,
    "\ufeff\u200b",
)
SQL = (
    "DROP TABLE people",
    "DROP TABLE IF EXISTS `people`",
    "/* x */ DROP DATABASE fluss CASCADE",
    "-- c\nDELETE FROM people WHERE id = 1",
    "INSERT INTO people VALUES (9, 'x', 1)",
    "UPDATE people SET name = 'x' WHERE id = 1",
    "CREATE TABLE evil (a INT)",
    "CREATE TABLE evil AS SELECT * FROM people",
    "CREATE DATABASE evil",
    "CREATE VIEW evil AS SELECT 1",
    "ALTER TABLE people ADD COLUMN evil INT",
    "ALTER TABLE people SET ('owner' = 'x')",
    "ALTER TABLE people RESET ('owner')",
    "TRUNCATE TABLE people",
    "SHOW TABLES; DROP TABLE people",
    "EXPLAIN DROP TABLE people",
    "EXPLAIN INSERT INTO people VALUES (9, 'x', 1)",
    "SHOW DROP TABLE people",
    "DESCRIBE people; DROP TABLE people",
    "WITH x AS (DELETE FROM people WHERE id = 1) SELECT * FROM x",
    "SELECT * FROM people; DROP TABLE people",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_ipc('/etc/passwd')",
    "SELECT * FROM scan_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM `/etc/passwd`",
    "SELECT * FROM read_text('/etc/passwd')",
    "COPY people TO '/tmp/evil.csv'",
    "LOAD DATA INFILE '/etc/passwd' INTO TABLE people",
    "SET x = 1",
    "USE evil",
    "GRANT ALL ON people TO evil",
    "CALL evil()",
    "PRAGMA x",
    "ATTACH DATABASE 'x' AS y",
    "EXECUTE IMMEDIATE 'DROP TABLE people'",
    "BEGIN; DROP TABLE people; COMMIT",
    "MERGE INTO people USING people AS p ON TRUE WHEN MATCHED THEN DELETE",
    "SELECT " + "(" * 300 + "1" + ")" * 300,
    "SELECT " + "+".join(["1"] * 2000),
    "SELECT 'unclosed",
    "SELECT /*+ OPTIONS('x'='y') */ * FROM people",
    "\x00",
    "SELECT * FROM people WHERE name = '" + MARK + "'",
    f"SELECT '{MARK}' AS x",
    "SELECT * FROM information_schema.tables",
    "SELECT getenv('HOME')",
    "SELECT current_setting('x')",
    "RESET x",
    "REFRESH people",
)
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_STATUS = frozenset(
    {200, 303, 400, 403, 404, 405, 408, 411, 413, 414, 415, 421, 429, 501, 502, 503}
)


class UnsafeError(AssertionError):
    """A console did what an enemy wanted."""


class _Reader(HTMLParser):
    """Reads a page as a browser does, and refuses what could run, or lead elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("iframe", "object", "embed", "base", "style", "img", "frame"):
            raise UnsafeError(f"<{tag}> in a page")
        self._in_script = tag == "script"
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                raise UnsafeError(f"{name}={value!r} in a page")
            if name in ("href", "src", "action", "formaction") and value is not None:
                ours = value == "" or value[0] in "/?#"
                if not ours or value.startswith("//") or value.startswith("/\\"):
                    raise UnsafeError(f"{name}={value!r} leads elsewhere")
        if tag == "script" and not dict(attrs).get("src", ""):
            raise UnsafeError("a script in a page")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            raise UnsafeError(f"a script in a page: {data[:80]}")


def check(answer: Answer, token: str) -> None:
    """Raise where an answer has what it must not."""
    if answer.status not in _STATUS:
        raise UnsafeError(f"status {answer.status}: {answer.text[:300]}")
    text = answer.body.decode("utf-8", "replace")
    if token in text or any(token in value for value in answer.headers.values()):
        raise UnsafeError("the token is in an answer")
    if "root:x:0:0" in text or "Traceback" in text:
        raise UnsafeError("a file, or the inside of the program, is in an answer")
    if answer.headers.get("server") or "a" in answer.headers.get("set-cookie", "")[:2]:
        raise UnsafeError(f"headers {answer.headers}")
    if answer.status == 501 or "content-security-policy" not in answer.headers:
        # the web server refuses what is no HTTP before any page is asked
        if answer.headers.get("content-type", "").startswith("text/html"):
            raise UnsafeError("a page without a policy")
        return
    policy = answer.headers["content-security-policy"]
    if "unsafe" in policy or "frame-ancestors 'none'" not in policy:
        raise UnsafeError(policy)
    if answer.headers.get("content-type", "").startswith(("text/html", "image/svg")):
        _Reader().feed(text)


def digest(connection: FlussConnection) -> str:
    """Return what tells whether something was changed: all tables, and their rows."""
    admin = connection.get_admin()
    found = hashlib.sha256()
    for name in admin.list_databases():
        found.update(repr(admin.get_database_info(name)).encode())
        for table in admin.list_tables(name):
            info = admin.get_table_info(TablePath(name, table))
            rows = fluss_df.read_fluss(info.table_path, connection=connection)
            described = (str(info.table_path), info.table_id, info.schema_id)
            found.update(repr((described, info.get_properties())).encode())
            found.update(repr(info.get_custom_properties()).encode())
            found.update(repr(sorted(map(repr, rows.rows()))).encode())
    return found.hexdigest()


def hostile_tables(connection: FlussConnection) -> None:
    """Create tables whose columns, values, comments and properties are hostile."""
    names = [
        f"{number}{payload}" for number, payload in enumerate(PAYLOADS) if "\x00" not in payload
    ]
    values = [f"{payload}" for payload in PAYLOADS]
    frame = pl.DataFrame({name[:120]: values for name in names})
    descriptor = fluss_df.TableDescriptor(
        fluss_df.Schema(frame.to_arrow().schema),
        comment=MARK,
        custom_properties={
            MARK: MARK,
            "my.password": "m4rk-secret",
            "s3.access-key": "m4rk-secret",
        },
    )
    path = TablePath("fluss", "hostile")
    connection.get_admin().create_table(path, descriptor)
    fluss_df.write_fluss(frame, path, connection=connection)
    keyed = pl.DataFrame({MARK: ["a"], "v": [MARK]})
    fluss_df.write_fluss(
        keyed, "hostile_keys", connection=connection, create_if_not_exists=True, primary_keys=[MARK]
    )


class Enemy:
    """Sends hostile requests, one kind after another.

    Parameters
    ----------
    visitor
        Logged in: an enemy may have the cookie of the browser ride on a request, not read it.
    seed
        Of what is chosen.
    """

    def __init__(self, visitor: Visitor, seed: int) -> None:
        self.visitor = visitor
        self.random = random.Random(seed)
        self.csrf = visitor.csrf
        self.counts: Counter[str] = Counter()
        self._kinds: tuple[tuple[str, int, Callable[[], Answer | None]], ...] = (
            ("host", 10, self._host),
            ("origin", 14, self._origin),
            ("site", 8, self._site),
            ("session", 8, self._session),
            ("csrf", 8, self._csrf),
            ("name", 20, self._name),
            ("form", 12, self._form),
            ("sql", 12, self._sql),
            ("size", 3, self._size),
            ("wire", 5, self._wire),
            ("token", 0, self._token),
        )

    def attack(self, number: int) -> Iterator[str]:
        """Send some, and give the kind of each."""
        kinds = [k for k in self._kinds if k[1]]
        for index in range(number):
            if index % 400 == 7:
                name, send = "token", self._token_or_none
            else:
                name, _, send = self.random.choices(kinds, [k[1] for k in kinds])[0]
            answer = send()
            if answer is not None:
                check(answer, self.visitor.settings.token)
            self.counts[name] += 1
            yield name

    # ---- kinds

    def _any(self) -> str:
        return self.random.choice(PAYLOADS)

    def _target(self) -> str:
        one = "/table/fluss/" + self.random.choice(("people", "hostile", "hostile_keys"))
        return self.random.choice(
            ("/", "/sql", "/runs", "/create", one, f"{one}/rows", f"{one}/changes", f"{one}/live",
             f"{one}/change", f"{one}/growth.svg", "/sql/names?prefix=p")
        )  # fmt: skip

    def _post(self, target: str, fields: dict[str, str], **headers: str) -> Answer:
        sent = {**_FORM, "Origin": self.visitor.origin, "Cookie": self.visitor.cookie, **headers}
        sent = {name.replace("_", "-"): value for name, value in sent.items() if value != "-"}
        return self.visitor.ask("POST", target, urlencode(fields, errors="replace"), sent)

    def _refused(self, answer: Answer, *statuses: int) -> Answer:
        if answer.status not in statuses:
            raise UnsafeError(f"answered {answer.status}, not {statuses}: {answer.text[:200]}")
        return answer

    def _changing(self) -> tuple[str, dict[str, str]]:
        return self.random.choice(
            (
                ("/sql", {"statement": self.random.choice(SQL)}),
                ("/statement", {"statement": "DROP TABLE people"}),
                ("/preview", {"what": "drop-table", "database": "fluss", "table": "people"}),
                ("/logout", {}),
                ("/sql/cancel", {"run": "x"}),
            )
        )

    def _host(self) -> Answer:
        port = self.visitor.server.port
        host = self.random.choice(
            (f"evil.example:{port}", "evil.example", "127.0.0.1", f"127.0.0.1:{port + 1}", "",
             f"127.0.0.1.evil.example:{port}", f"evil@127.0.0.1:{port}", f"[::]:{port}",
             f"0.0.0.0:{port}", f"127.1:{port}", f"2130706433:{port}", f"localhost.:{port}",
             f"127.0.0.1:{port}.", f"127.0.0.1:{port}/evil", "\u00e9vil", "a" * 500)
        )  # fmt: skip
        headers = {"Host": host, "Cookie": self.visitor.cookie}
        if self.random.random() < 0.5:
            sent = self.visitor.ask("GET", self._target(), headers=_latin(headers))
        else:
            target, fields = self._changing()
            sent = self.visitor.ask(
                "POST", target, urlencode({"csrf": self.csrf, **fields}, errors="replace"),
                _latin({**headers, **_FORM, "Origin": f"http://{host}"}),
            )  # fmt: skip
        return self._refused(sent, 421, 400)

    def _origin(self) -> Answer:
        port = self.visitor.server.port
        origin = self.random.choice(
            ("-", "null", "http://evil.example", f"http://evil.example:{port}",
             f"https://127.0.0.1:{port}", "http://127.0.0.1", f"http://127.0.0.1:{port + 1}",
             f"http://127.0.0.1:{port}.evil.example", f"http://127.0.0.1:{port}/", "file://", "",
             f"http://user@127.0.0.1:{port}", f"HTTP://127.0.0.1:{port}", "*", MARK)
        )  # fmt: skip
        target, fields = self._changing()
        return self._refused(self._post(target, {"csrf": self.csrf, **fields}, Origin=origin), 403)

    def _site(self) -> Answer:
        site = self.random.choice(("cross-site", "same-site", "x", "", "none, same-origin"))
        target, fields = self._changing()
        headers = {"Cookie": self.visitor.cookie, "Sec-Fetch-Site": site}
        if self.random.random() < 0.5:
            target = self._target()
            if target == "/":
                target = "/sql/names"
            return self._refused(self.visitor.ask("GET", target, headers=headers), 403)
        headers |= {**_FORM, "Origin": self.visitor.origin}
        body = urlencode({"csrf": self.csrf, **fields}, errors="replace")
        return self._refused(self.visitor.ask("POST", target, body, headers), 403)

    def _session(self) -> Answer:
        name = self.visitor.cookie.partition("=")[0]
        value = self.random.choice(
            ("", "x", self.visitor.cookie.partition("=")[2][:-1], "a" * 2000, '"', "\\", ";;",
             self.visitor.cookie.partition("=")[2].swapcase(), self.visitor.settings.token)
        )  # fmt: skip
        cookie = f"{name}={value}"
        if self.random.random() < 0.5:
            target = self._target()
            sent = self.visitor.ask("GET", target, headers={"Cookie": cookie})
            return self._refused(sent, 303)
        target, fields = self._changing()
        return self._refused(self._post(target, {"csrf": self.csrf, **fields}, Cookie=cookie), 403)

    def _csrf(self) -> Answer:
        target, fields = self._changing()
        wrong = self.random.choice(
            ("", self.csrf[:-1], self.csrf.upper() + "0", "0" * 64, MARK, "é", self.csrf + " ")
        )
        given = fields if self.random.random() < 0.2 else {"csrf": wrong, **fields}
        return self._refused(self._post(target, given), 403)

    def _name(self) -> Answer:
        one, two = (quote(self._any(), safe="", errors="replace") for _ in range(2))
        value = quote(self._any(), safe="", errors="replace")
        target = self.random.choice(
            (f"/table/{one}/{two}", f"/table/fluss/{one}", f"/table/fluss/people/{one}",
             f"/static/{one}", f"/{one}", f"/?like={value}&database={one}&page={two}",
             f"/table/fluss/people/rows?which=key&key.id={value}",
             f"/table/fluss/hostile_keys/rows?which=key&key.{quote(MARK)}={value}",
             f"/table/fluss/people/rows?which={one}&rows={two}",
             f"/table/fluss/hostile/live?column={one}&condition={two}&value={value}",
             f"/table/fluss/hostile?partition={value}&page={one}",
             f"/create?database={value}&columns={one}", f"/sql?table={value}",
             f"/sql/names?prefix={value}&tables={one},{two}&database={value}",
             f"/sql/run/{one}", f"/sql/run/{one}/{two}", f"/sign-in?wrong={value}",
             "/table/fluss/hostile/rows", "/table/fluss/hostile", "/table/fluss/hostile/change",
             "/table/fluss/hostile_keys/rows", "/table/fluss/hostile/changes")
        )  # fmt: skip
        method = self.random.choice(
            ("GET", "GET", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE")
        )
        answer = self.visitor.ask(method, target, headers={"Cookie": self.visitor.cookie})
        if "m4rk-secret" in answer.text:
            raise UnsafeError("a secret property is shown")
        return answer

    def _form(self) -> Answer:
        what = self.random.choice(
            ("create-table", "create-database", "add-column", "set-property", "reset-property",
             "add-partition", "drop-partition", "drop-table", "drop-database", self._any())
        )  # fmt: skip
        names = (
            "database", "table", "name", "column", "type", "key", "value", "comment", "confirm",
            "partition", "column.0", "type.0", "buckets", "bucket_keys", "properties",
        )  # fmt: skip
        fields = {
            name: self.random.choice(("fluss", "people", "INT", self._any(), self._any()))
            for name in names
        }
        # it shows a statement at the most
        return self._post("/preview", {"csrf": self.csrf, "what": what, **fields})

    def _sql(self) -> Answer:
        statement = self.random.choice(SQL)
        if self.random.random() < 0.3:
            place = self.random.randrange(len(statement) + 1)
            statement = statement[:place] + self._any() + statement[place:]
        fields = {"csrf": self.csrf, "statement": statement, "database": self._database()}
        if not self.visitor.settings.read_only:
            # here only what reads may come through
            fields["explain"] = "1"
        answer = self._post("/sql", fields)
        if answer.status != 303:
            return answer
        run = answer.headers["location"].rpartition("/")[2]
        query = self.visitor.server.state.queries.find(run)
        if not query.wait(70):
            raise UnsafeError(f"it runs for more than a minute: {statement[:200]}")
        return self.visitor.get(f"/sql/run/{run}")

    def _database(self) -> str:
        return "fluss" if self.random.random() < 0.8 else self._any()

    def _size(self) -> Answer | None:
        limit = self.visitor.settings.limits.body_bytes
        kind = self.random.randrange(5)
        if kind == 0:
            body = b"csrf=" + b"a" * (limit + self.random.randrange(1, 1 << 16))
            return self._large(body, {})
        if kind == 1:
            target = "/?like=" + "a" * self.random.choice((8200, 20_000))
            return self._refused(
                self.visitor.ask("GET", target, headers={"Cookie": self.visitor.cookie}), 414, 400
            )
        if kind == 2:
            fields = "&".join(f"f{n}=1" for n in range(3000))
            return self._refused(self._raw_form(fields), 400)
        if kind == 3:
            return self._refused(self._raw_form(f"csrf={self.csrf}&csrf={self.csrf}"), 400)
        headers = {f"X-{n}": "a" * 100 for n in range(self.random.choice((500, 2000)))}
        try:
            return self.visitor.ask("GET", "/", headers=headers)
        except OSError:
            return None

    def _raw_form(self, body: str) -> Answer:
        headers = {**_FORM, "Origin": self.visitor.origin, "Cookie": self.visitor.cookie}
        return self.visitor.ask("POST", "/sql", body, headers)

    def _large(self, body: bytes, headers: dict[str, str]) -> Answer | None:
        sent = {**_FORM, "Origin": self.visitor.origin, "Cookie": self.visitor.cookie, **headers}
        try:
            return self._refused(self.visitor.ask("POST", "/sql", body, sent), 413)
        except (ConnectionResetError, BrokenPipeError):
            return None  # it was refused before it was whole

    def _wire(self) -> None:
        """Send what is no request, or two in one, and look that nothing comes of it."""
        port = self.visitor.server.port
        host = f"Host: 127.0.0.1:{port}\r\n"
        body = urlencode({"csrf": self.csrf, "statement": "DROP TABLE people"})
        form = (
            f"Content-Type: application/x-www-form-urlencoded\r\nCookie: {self.visitor.cookie}\r\n"
        )
        hidden = (
            f"POST /statement HTTP/1.1\r\n{host}{form}Origin: http://evil.example\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        text = self.random.choice(
            (
                "GET / HTTP/1.1\r\n\r\n",
                f"GET / HTTP/1.1\r\n{host}{host}\r\n",
                "GET /\r\n\r\n",
                "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                "\x00" * 200,
                f"GET http://evil.example/ HTTP/1.1\r\n{host}\r\n",
                f"POST /sql HTTP/1.1\r\n{host}{form}Content-Length: -1\r\n\r\n",
                f"POST /sql HTTP/1.1\r\n{host}{form}Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                f"POST /sql HTTP/1.1\r\n{host}{form}Content-Length: 0\r\n"
                f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
                f"POST /sql HTTP/1.1\r\n{host}{form}Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
                f"GET / HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n",
                f"GET / HTTP/1.1\r\n{host}Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
                hidden,
            )
        )
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(text.encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            found = b""
            try:
                while more := connection.recv(1 << 16):
                    found += more
            except ConnectionResetError:
                pass
        if self.visitor.settings.token.encode() in found or b"root:x:0" in found:
            raise UnsafeError("the token, or a file, is in an answer")
        if found and not found.startswith(b"HTTP/1.1 "):
            raise UnsafeError(f"no answer of HTTP: {found[:80]!r}")

    def _token_or_none(self) -> Answer | None:
        return self._token()

    def _token(self) -> Answer:
        real = self.visitor.settings.token
        wrong = self.random.choice(
            ("", real[:-1], real.lower(), real + "a", MARK, "é" * 40, "\x00")
        )
        fields = {"token": wrong}
        answer = self._refused(self._post("/login", fields, Cookie="-"), 303, 429)
        if "set-cookie" in answer.headers:
            raise UnsafeError("a wrong token lets in")
        return answer


def _latin(headers: dict[str, str]) -> dict[str, str]:
    return {name: value.encode("utf-8").decode("latin-1") for name, value in headers.items()}


def survive(
    server: ConsoleServer, connection: FlussConnection, number: int, seed: int
) -> Counter[str]:
    """Attack a console, and raise where anything changed, leaked or ran.

    Returns
    -------
    Counter
        How many attacks there were of each kind.
    """
    visitor = Visitor(server)
    visitor.sign_in()
    before = digest(connection)
    enemy = Enemy(visitor, seed)
    for index, kind in enumerate(enemy.attack(number)):
        if index % 1000 == 999 and digest(connection) != before:
            raise UnsafeError(f"something was changed before attack {index}, the last one {kind}")
    if digest(connection) != before:
        raise UnsafeError("something was changed")
    # and who is let in is served as before
    assert "people" in visitor.page("/").words
    return enemy.counts

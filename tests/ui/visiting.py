"""A browser without a screen, for tests: it keeps its cookie, and sends what it is told to."""

from __future__ import annotations

import http.client
import re
import ssl
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode

from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """What a reader sees."""
        return " ".join(unescape(_TAGS.sub(" ", self.text)).split())


class Visitor:
    """Asks a console for pages, as a browser does that is logged in."""

    def __init__(self, server: ConsoleServer, context: ssl.SSLContext | None = None) -> None:
        self.server = server
        self.cookie = ""
        self._context = context
        self.settings: Settings = server.state.settings

    @property
    def origin(self) -> str:
        return self.server.url.rstrip("/")

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30,
    ) -> Answer:
        """Send a request with exactly these headers, besides Host where it is not among them."""
        if self._context is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", self.server.port, timeout=timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=timeout)
        try:
            connection.request(method, target, body, headers or {})
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()

    def sign_in(self, token: str | None = None) -> Answer:
        """Show the token."""
        answer = self.ask(
            "POST",
            "/login",
            urlencode({"token": token or self.settings.token}),
            {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.origin},
        )
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def get(self, target: str) -> Answer:
        """Open a page."""
        return self.ask("GET", target, headers={"Cookie": self.cookie})

    def page(self, target: str) -> Answer:
        """Open a page that has to be there."""
        answer = self.get(target)
        assert answer.status == 200, f"{target}: {answer.status} {answer.words[:500]}"
        return answer

    @property
    def csrf(self) -> str:
        """What the forms of this session carry."""
        found = _CSRF.search(self.page("/runs").text)
        assert found is not None
        return found[1]

    def post(self, target: str, /, **fields: str) -> Answer:
        """Send a form of the console, and go where it leads."""
        answer = self.send(target, **fields)
        return self.get(answer.headers["location"]) if answer.status == 303 else answer

    def send(self, target: str, /, **fields: str) -> Answer:
        """Send a form of the console."""
        return self.ask(
            "POST",
            target,
            urlencode({"csrf": self.csrf, **fields}),
            {
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": self.origin,
                "Cookie": self.cookie,
            },
        )

    def sql(self, statement: str, **fields: str) -> Answer:
        """Run a statement, and return the page of its result."""
        answer = self.send("/sql", statement=statement, **fields)
        if answer.status != 303:
            return answer
        target = answer.headers["location"]
        self.server.state.queries.find(target.rpartition("/")[2]).wait(60)
        return self.get(target)

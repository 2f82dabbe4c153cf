"""What stands before every page: who asks, from where, how much, and whether it may change things.

Pages are reached through :class:`Guard` alone. It answers what it refuses itself, so that a page
cannot forget to ask. What a browser sends is hostile until it was looked at here: another site may
have it send requests (CSRF), have our name lead elsewhere (DNS rebinding), or show us in a frame.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from fluss_df.ui.settings import Settings

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Where the guard puts the fields of a form, and the secret that forms carry, for pages.
FORM: Final = "fluss.form"
CSRF: Final = "fluss.csrf"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    # not no-referrer, with which browsers send "Origin: null" with our own forms
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
_LONGEST_TARGET: Final = 8192
_MOST_FIELDS: Final = 2000
_SESSION_S: Final = 12 * 3600.0
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_LINKED: Final = (("GET", "/"), ("GET", "/sign-in"))
# what may be posted to a read-only console: what only reads, or concerns the session
_READING: Final = ("/login", "/logout", "/sql", "/sql/cancel")
# seconds that the answer to a wrong token waits, and how many may wait
_WRONG_S: Final = 0.5
_MOST_WRONG: Final = 8


class Sessions:
    """Browsers that showed the token."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._key = secrets.token_bytes(32)
        self._ends: OrderedDict[str, float] = OrderedDict()

    def open(self) -> str:
        """Begin one, and return its secret."""
        made = secrets.token_urlsafe(32)
        self._ends[made] = time.monotonic() + _SESSION_S
        while len(self._ends) > self._most:
            self._ends.popitem(last=False)
        return made

    def find(self, shown: str) -> str | None:
        """Return the session with this secret, where there is one."""
        now = time.monotonic()
        found = None
        for known, end in list(self._ends.items()):
            if end < now:
                del self._ends[known]
            elif hmac.compare_digest(known.encode(), shown.encode("utf-8", "replace")):
                found = known
        if found is not None:
            self._ends[found] = now + _SESSION_S
        return found

    def close(self, session: str) -> None:
        """End one."""
        self._ends.pop(session, None)

    def csrf(self, session: str) -> str:
        """Return the secret that the forms of a session carry."""
        return hmac.new(self._key, session.encode(), "sha256").hexdigest()


class Guard:
    """Lets through to the pages what the console's own pages asked for."""

    def __init__(self, pages: App, settings: Settings, port: int) -> None:
        self._pages = pages
        self._settings = settings
        self._hosts = settings.hosts(port)
        self._origins = frozenset(f"{settings.scheme}://{host}" for host in self._hosts)
        secure = settings.scheme == "https"
        # the port is part of the name, because a host's cookies are shared by all its ports
        self._cookie = f"__Host-fluss-{port}" if secure else f"fluss-{port}"
        self._attributes = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
        self.sessions = Sessions(settings.limits.sessions)
        self._wrong = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have a page do it."""
        if scope["type"] != "http":
            return  # the console has no web sockets
        answer = _Answer(send, head=scope["method"] == "HEAD")
        refused = await self._refused(scope, receive, answer)
        if refused is not None:
            await answer.text(*refused)
        elif not answer.begun:
            await self._pages(scope, _nothing_more(receive), answer)

    async def _refused(
        self, scope: Scope, receive: Receive, answer: _Answer
    ) -> tuple[int, str] | None:
        """Return why a request is not answered, with the status."""
        headers = _headers(scope["headers"])
        method, path = scope["method"], scope["path"]
        if headers.get("host", "").lower() not in self._hosts:
            return 421, "This console answers to its own address only."
        if method not in ("GET", "HEAD", "POST"):
            return 405, "There is no such method here."
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > _LONGEST_TARGET:
            return 414, "The address is too long."
        site = headers.get("sec-fetch-site", "none")
        # other sites may link to some pages: the console shows nothing to visitors from elsewhere
        if site not in ("same-origin", "none") and (method, path) not in _LINKED:
            return 403, "Another site sent this request. Open the console's own address."
        open_to_all = path in ("/login", "/sign-in") or path.startswith("/static/")
        session = self._session(headers.get("cookie", ""))
        if session is None and not open_to_all:
            if method == "POST":
                return 403, "You are not logged in here. Open the console's link again."
            if headers.get("sec-fetch-dest", "document") not in ("document", "empty", ""):
                return 403, "You are not logged in here."
            await answer.redirect("/sign-in")
            return None
        scope[CSRF] = "" if session is None else self.sessions.csrf(session)
        if method != "POST":
            return None
        if headers.get("origin") not in self._origins:
            return 403, "Another site sent this form. Open the console's own address."
        form = await self._form(headers, receive)
        if not isinstance(form, dict):
            return form
        if path == "/login":
            return await self._login(form, answer)
        if session is None or not hmac.compare_digest(
            form.pop("csrf", "").encode("utf-8", "replace"), scope[CSRF].encode()
        ):
            return (
                403,
                "This form is not of your session any more. Go back, and load the page again.",
            )
        if path == "/logout":
            self.sessions.close(session)
            await answer.redirect("/sign-in", f"{self._cookie}=; Max-Age=0{self._attributes}")
            return None
        if self._settings.read_only and path not in _READING:
            return 403, "This console is read-only: it changes nothing."
        scope[FORM] = form
        return None

    def _session(self, cookie: str) -> str | None:
        # Browsers send the cookies of all ports of a host. Python's parser stops at the first one
        # that is not of its grammar, such as one with JSON in it.
        for part in cookie.split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return self.sessions.find(value)
        return None

    async def _form(
        self, headers: dict[str, str], receive: Receive
    ) -> dict[str, str] | tuple[int, str]:
        """Return the fields of a form, which are read to their end, or why not."""
        limits = self._settings.limits
        if headers.get("content-type", "").split(";")[0].strip().lower() != _FORM_TYPE:
            return 415, "A form was expected."
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.receive_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return 400, "The form is not whole."
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limits.body_bytes:
                        return 413, f"The form has more than {limits.body_bytes:,} bytes."
                    more = message.get("more_body", False)
        except TimeoutError:
            return 408, "The form took too long."
        try:
            fields = parse_qs(
                b"".join(parts).decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(size),
                errors="strict",
                max_num_fields=_MOST_FIELDS,
            )
        except ValueError:
            return 400, "The form cannot be read."
        # a name that is there twice could be read in two ways
        if any(len(values) > 1 for values in fields.values()):
            return 400, "The form has a field twice."
        return {name: values[0] for name, values in fields.items()}

    async def _login(self, form: dict[str, str], answer: _Answer) -> tuple[int, str] | None:
        shown = form.get("token", "").strip().encode("utf-8", "replace")
        if hmac.compare_digest(shown, self._settings.token.encode()):
            cookie = f"{self._cookie}={self.sessions.open()}{self._attributes}"
            await answer.redirect("/", cookie)
            return None
        if self._wrong >= _MOST_WRONG:
            return 429, "Too many wrong tokens. Wait a little."
        self._wrong += 1
        try:
            # one at a time, so that more connections do not make guessing faster
            async with self._turn:
                await asyncio.sleep(_WRONG_S)
        finally:
            self._wrong -= 1
        await answer.redirect("/sign-in?wrong=1")
        return None


class _Answer:
    """An answer, to which the headers are added that all have."""

    def __init__(self, send: Send, head: bool) -> None:
        self._send = send
        self._head = head
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = {name.lower() for name, _ in message["headers"]}
            added = [(n.encode(), v.encode()) for n, v in _HEADERS]
            if b"cache-control" not in own:
                added.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)

    async def text(self, status: int, text: str) -> None:
        """Answer with a line of text."""
        body = f"{text}\n".encode()
        await self._whole(status, body, [("content-type", "text/plain; charset=utf-8")])

    async def redirect(self, where: str, cookie: str | None = None) -> None:
        """Lead to another page of the console."""
        headers = [("location", where)] + ([] if cookie is None else [("set-cookie", cookie)])
        await self._whole(303, b"", headers)

    async def _whole(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        headers.append(("content-length", str(len(body))))
        if status >= 400:
            # the rest of the request is not read, so the connection cannot be used again
            headers.append(("connection", "close"))
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await self({"type": "http.response.start", "status": status, "headers": encoded})
        await self({"type": "http.response.body", "body": b"" if self._head else body})


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; one that stands twice where it must not is empty."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key not in found:
            found[key] = text
        elif key == "cookie":
            found[key] += f"; {text}"
        else:
            found[key] = "\0"
    return found


def _nothing_more(receive: Receive) -> Receive:
    """Return the ``receive`` of a page whose form was read: it tells only of the browser's end."""

    async def next_message() -> Message:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message

    return next_message

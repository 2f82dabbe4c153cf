"""What all pages share: the connection, what is watched, and how a page is made."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec
from urllib.parse import quote

import jinja2
from jinja2.bccache import Bucket
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fluss_df.client.admin import FlussAdmin
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.ui.guard import CSRF, FORM
from fluss_df.ui.kept import Kept
from fluss_df.ui.settings import Settings
from fluss_df.ui.shown import texts
from fluss_df.ui.watch import Watch
from fluss_df.version import __version__

P = ParamSpec("P")

FOLDER: Final = Path(__file__).parent
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: The files that browsers get beside pages, with their kinds.
ASSETS: Final = {
    file.name: (file.read_bytes(), _KINDS[file.suffix])
    for file in sorted((FOLDER / "static").iterdir())
    if file.suffix in _KINDS
}
# part of the files' addresses, so that browsers keep them until one of them changes
_EDITION: Final = hashlib.sha256(b"".join(content for content, _ in ASSETS.values())).hexdigest()
_NOT_FOUND: Final = (
    ErrorCode.TABLE_NOT_EXIST,
    ErrorCode.DATABASE_NOT_EXIST,
    ErrorCode.PARTITION_NOT_EXISTS,
    ErrorCode.INVALID_DATABASE_EXCEPTION,
)
_WAIT_S: Final = 10.0
# how long requests to servers that do not answer are repeated
_PATIENCE_MS: Final = 4_000


class _Compiled(jinja2.BytecodeCache):
    """Templates that were compiled, for all consoles of the process."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        code = self._code.get(f"{bucket.key} {bucket.checksum}")
        if code is not None:
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[f"{bucket.key} {bucket.checksum}"] = bucket.bytecode_to_string()


_compiled: Final = _Compiled()


class BusyError(FlussError):
    """The console does as much as it may at the same time."""


class State:
    """What pages are made with.

    ``place`` is the name of the cluster: an address or a folder, without credentials.
    """

    def __init__(self, connection: FlussConnection, settings: Settings, place: str) -> None:
        self.connection = _impatient(connection)
        self.settings = settings
        self.place = place
        self.watch = Watch(self.connection)
        self.queries = Kept(connection, settings)
        # for completion: when all tables were last listed, and the tables
        self.names: tuple[float, list[TablePath]] = (float("-inf"), [])
        # only the event loop counts these
        self.streams = 0
        self.tails = ThreadPoolExecutor(settings.limits.streams + 1, "fluss-ui-tail")
        self._reads = threading.BoundedSemaphore(settings.limits.reads)
        self._env = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            bytecode_cache=_compiled,
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= {
            "count": texts.count,
            "size": texts.size,
            "duration": texts.duration,
            "moment": texts.moment,
            "visible": texts.visible,
            "things": texts.things,
            "address": texts.address,
        }
        self._env.globals |= {
            "table_url": table_url,
            "quote": functools.partial(quote, safe=""),
            "place": place,
            "read_only": settings.read_only,
            "version": __version__,
            "edition": _EDITION[:12],
        }

    def prepare(self) -> None:
        """Have ready what the first pages need: compiled and imported, they come 0.4 s sooner."""

        def compiled() -> None:
            for name in ("base.html", "parts.html", "sign-in.html", "overview.html"):
                self._env.get_template(name)

        # in a thread with a loop of its own, because the caller may have a loop
        ready = threading.Thread(target=lambda: asyncio.run(run_in_threadpool(compiled)))
        ready.start()
        ready.join()

    @property
    def admin(self) -> FlussAdmin:
        """The admin of the cluster."""
        return self.connection.get_admin()

    def page(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        text = self._env.get_template(name).render(csrf=request.scope.get(CSRF, ""), **values)
        return HTMLResponse(text, status)

    def failed(self, request: Request, error: FlussError) -> Response:
        """Return the page about an error that a visitor can do something about."""
        code = error.error_code
        status = 404 if code in _NOT_FOUND else 503 if isinstance(error, BusyError) else 400
        if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIME_OUT):
            status = 502
        return self.page(
            request,
            "error.html",
            status,
            title="Not found" if status == 404 else "This did not work",
            message=error.message,
            advice=_advice(status, code),
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Ask the cluster: a few pages do at the same time, the others wait.

        Raises BusyError when there was no turn for a while.
        """
        if not self._reads.acquire(timeout=_WAIT_S):
            raise BusyError("the console is busy with other pages: try again in a moment")
        try:
            with self.watch.waiting():
                yield
        finally:
            self._reads.release()

    def close(self) -> None:
        """Ask nothing any more."""
        self.queries.close()
        self.watch.close()
        self.tails.shutdown(wait=False, cancel_futures=True)
        self.connection.close()


def _impatient(connection: FlussConnection) -> FlussConnection:
    """Return a connection to the same place whose requests fail while a visitor still waits."""
    config = connection.config
    patience = min(config.retry_timeout_ms, _PATIENCE_MS)
    made = FlussConnection.create(config.copy(retry_timeout_ms=patience))
    made.default_database = connection.default_database
    return made


def state_of(request: Request) -> State:
    """Return the state of the console that got a request."""
    found = request.app.state.console
    assert isinstance(found, State)
    return found


def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, as the guard read them."""
    form: dict[str, str] = request.scope.get(FORM, {})
    return form


def path_of(request: Request) -> TablePath:
    """Return the table that the address of a page names."""
    names = request.path_params
    path = TablePath(names["database"], names["table"])
    return TablePath.parse(path)


def table_url(path: TablePath, *parts: str) -> str:
    """Return the address of a page about a table, whatever its names are."""
    names = (path.database_name, path.table_name, *parts)
    return "/table/" + "/".join(quote(name, safe="") for name in names)


def asks(page: Callable[[State, Request], Response]) -> Callable[[Request], Response]:
    """Make a page of a function that asks the cluster; it runs on a thread of its own."""

    @functools.wraps(page)
    def shown(request: Request) -> Response:
        state = state_of(request)
        try:
            with state.reading():
                return page(state, request)
        except FlussError as error:
            return state.failed(request, error)

    return shown


def number(text: str | None, default: int, most: int) -> int:
    """Return a number of an address; the default where it is none."""
    try:
        return min(max(int(text or default), 0), most)
    except ValueError:
        return default


def _advice(status: int, code: int) -> str:
    if status == 404:
        return "It may have been dropped, or never was. The overview lists what there is."
    if status == 502:
        return (
            "Are the servers running, and is the address right? 'fluss-df doctor' looks at a"
            " connection and says what is wrong with it."
        )
    if code == ErrorCode.AUTHORIZATION_EXCEPTION:
        return "The user of this connection may not do that. 'fluss-df acl' shows and gives rights."
    return "Go back, change what the message names, and try again."

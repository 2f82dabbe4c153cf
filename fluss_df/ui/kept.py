"""Statements that run for visitors, and what is kept of their results: bounded in every way."""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from typing import Any, Final

import polars as pl

from fluss_df.client.connection import FlussConnection
from fluss_df.client.transport.folders import folder_behind
from fluss_df.config.options import SECRETS
from fluss_df.errors import FlussError
from fluss_df.ui.settings import Settings
from fluss_df.ui.worker import CANCEL, END, HEAD, PROGRESS, ROWS

# seconds that a process gets to end a statement by itself
_GRACE_S: Final = 1.0
# seconds that a process may take to start, which imports everything, on a busy machine
_START_S: Final = 20.0


class Query:
    """A statement, while it runs and afterwards.

    Attributes
    ----------
    id
        What its page is called: nobody guesses it.
    text, database
        The statement, and the database of names without one.
    status
        ``"running"``, ``"done"``, ``"failed"`` or ``"cancelled"``.
    is_query
        Whether it reads rows and changes nothing.
    changes
        Whether it began, and may have changed something.
    frame
        The rows that are kept; empty until it has ended.
    cut
        Why there are more rows than are kept; empty where all are.
    error
        Why it failed.
    plan
        What it was to read.
    scans
        What each of its scans fetched.
    rows, fetched
        Rows that it has given, and bytes that it has fetched, so far.
    rows_written
        How many rows it wrote, where it writes.
    """

    def __init__(self, text: str, database: str | None) -> None:
        self.id = secrets.token_urlsafe(16)
        self.text = text
        self.database = database
        self.status = "running"
        self.is_query = False
        self.changes = False
        self.frame = pl.DataFrame()
        self.cut = self.error = self.plan = ""
        self.scans: list[str] = []
        self.rows = self.fetched = 0
        self.rows_written: int | None = None
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._process: Process | None = None
        self.cancelled = False

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def wait(self, seconds: float) -> bool:
        """Wait for its end for a while; return whether it has ended."""
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        """End it: what it has written stays written."""
        with self._lock:
            self.cancelled = True
            process = self._process
            if process is not None:
                # under the lock, because later the process may run another statement
                process.cancel()
        if process is not None and not self._ended.wait(_GRACE_S):
            process.kill()

    def run(self, process: Process, order: dict[str, Any], seconds: float) -> None:
        """Have a process run it, on the thread of the caller."""
        with self._lock:
            self._process = process
            cancelled = self.cancelled
        late = threading.Timer(seconds + _GRACE_S, process.kill)
        late.daemon = True
        late.start()
        told: dict[str, Any] | None = None
        try:
            if not cancelled:
                told = process.ask(order, self._progressed)
        finally:
            late.cancel()
            self._took(told, seconds)

    def failed(self, error: str) -> None:
        """Take note that it could not be run."""
        self._took({"status": "failed", "error": error}, 0.0)

    def _progressed(self, kind: bytes, body: bytes) -> None:
        if kind == ROWS:
            self.frame = pl.read_ipc_stream(io.BytesIO(body))
        else:
            found = json.loads(body)
            self.rows, self.fetched = found["rows"], found["fetched"]
            self.changes = found["changes"]

    def _took(self, told: dict[str, Any] | None, seconds: float) -> None:
        """Take note of its end; None where its process ended before it told of one."""
        with self._lock:
            self._process = None
        if told is None and self.cancelled:
            told = {"status": "cancelled"}
        elif told is None and self.seconds >= seconds:
            told = {
                "error": f"it took longer than {seconds:g} seconds, which is the most that it may"
            }
        elif told is None:
            told = {"error": "its process ended: was there not enough memory for it?"}
        self.error = told.get("error", "")
        self.cut = told.get("cut", "")
        self.plan = told.get("plan", "")
        self.scans = told.get("scans", [])
        self.is_query = told.get("is_query", False)
        self.changes = told.get("changes", self.changes)
        self.rows_written = told.get("rows_written")
        self._seconds = self.seconds
        self.status = told.get("status", "failed")
        self._ended.set()


class Process:
    """A process that runs statements, one at a time."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            # -P: modules are not looked for in the caller's folder, where anybody's may be
            [sys.executable, "-P", "-m", "fluss_df.ui.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.alive = True

    def ask(self, order: dict[str, Any], progressed: Any) -> dict[str, Any] | None:
        """Run a statement, and return how it ended; None where the process ended."""
        if not self._write(json.dumps(order)):
            return None
        out = self._popen.stdout
        assert out is not None
        while True:
            head = out.read(HEAD.size)
            if len(head) < HEAD.size:
                break
            kind, length = HEAD.unpack(head)
            body = out.read(length)
            if len(body) < length:
                break
            if kind == END:
                told: dict[str, Any] = json.loads(body)
                if not told["idle"]:
                    self.kill()
                return told
            if kind in (ROWS, PROGRESS):
                progressed(kind, body)
        self.kill()
        return None

    def _write(self, line: str) -> bool:
        stdin = self._popen.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except (OSError, ValueError):
            self.kill()
            return False
        return True

    def cancel(self) -> None:
        """Have the statement that runs end."""
        self._write(CANCEL)

    def kill(self) -> None:
        """End the process."""
        self.alive = False
        self._popen.kill()

    def close(self) -> None:
        """End the process, and forget it."""
        self.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Kept:
    """The statements of a console: a few that run, and a few that have ended."""

    def __init__(self, connection: FlussConnection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._spare: list[Process] = []
        self._closed = False

    def prepare(self) -> None:
        """Have a process ready: somebody looks at the page on which statements are written."""
        with self._lock:
            if not self._spare and not self._closed:
                self._spare.append(Process())

    def start(self, text: str, database: str | None = None) -> Query:
        """Begin to run a statement.

        Raises FlussError where as many statements run as may, or where the text is empty.
        """
        if not text.strip(" \t\r\n;"):
            raise FlussError("there is no statement: write one, such as SHOW TABLES")
        limits = self._settings.limits
        query = Query(text, database)
        with self._lock:
            running = sum(q.status == "running" for q in self._queries.values())
            if running >= limits.queries:
                raise FlussError(
                    f"{running} statements are running, which is as many as may: wait for one of"
                    " them, or cancel it"
                )
            self._queries[query.id] = query
            for old in [k for k, q in self._queries.items() if q.status != "running"]:
                if len(self._queries) <= limits.kept_results:
                    break
                del self._queries[old]
        threading.Thread(
            target=self._run, args=(query,), name="fluss-ui-query", daemon=True
        ).start()
        return query

    def _run(self, query: Query) -> None:
        limits = self._settings.limits
        order = {
            "text": query.text,
            "database": query.database,
            "read_only": self._settings.read_only,
            "rows": limits.result_rows,
            "bytes": limits.result_bytes,
            "seconds": limits.query_seconds,
            "memory": limits.query_memory,
            **_where(self._connection),
        }
        try:
            with self._lock:
                spare = self._spare.pop() if self._spare else None
            process = Process() if spare is None else spare
        except OSError as error:
            query.failed(f"no process could be started for it: {error}")
            return
        query.run(process, order, limits.query_seconds + (_START_S if spare is None else 0.0))
        with self._lock:
            if process.alive and not self._spare and not self._closed:
                self._spare.append(process)
                return
        process.close()

    def find(self, name: str) -> Query:
        """Return a statement by its id.

        Raises FlussError when it is not kept any more.
        """
        with self._lock:
            found = self._queries.get(name)
        if found is None:
            raise FlussError(
                "this result is not kept any more, as newer ones took its place: run the statement"
                " again"
            )
        return found

    def all(self) -> list[Query]:
        """Return those that are kept, the newest first."""
        with self._lock:
            return list(reversed(self._queries.values()))

    def close(self) -> None:
        """End all."""
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, []
        for process in spare:
            process.close()
        for query in self.all():
            if query.status == "running":
                query.cancel()


def _where(connection: FlussConnection) -> dict[str, Any]:
    """Return how another process connects as this one does."""
    config = connection.config
    folder = folder_behind(config.addresses()[0][0])
    if folder is not None:
        return {"folder": str(folder), "config": None}
    secret = {key: value for key, value in config._values.items() if key in SECRETS}
    return {"folder": None, "config": {**config.to_dict(), **secret}}

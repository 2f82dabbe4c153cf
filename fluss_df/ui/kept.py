"""Statements that run for visitors, and what is kept of their results: bounded in every way."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.ui.settings import Settings

if TYPE_CHECKING:
    from fluss_df.backend.query_run import QueryRun

#: How much the memory of the process may grow while a statement runs.
MEMORY_BYTES: Final = 1 << 30
_LOOK_S: Final = 0.1
_PAGE_BYTES: Final = 4096
_LONGEST: Final = 100_000
# what else begins so is refused by who reads it
_SHOWS: Final = ("SHOW", "DESC", "DESCRIBE", "EXPLAIN")


class Query:
    """A statement, while it runs and afterwards.

    Attributes
    ----------
    id
        What its page is called: nobody guesses it.
    text
        The statement.
    status
        ``"running"``, ``"done"``, ``"failed"`` or ``"cancelled"``.
    is_query
        Whether it reads rows and changes nothing.
    frame
        The rows that are kept; empty until it has ended.
    cut
        Why there are more rows than are kept; empty where all are.
    error
        Why it failed.
    plan
        What it was to read.
    """

    def __init__(self, text: str, database: str | None) -> None:
        self.id = secrets.token_urlsafe(16)
        self.text = text
        self.database = database
        self.status = "running"
        self.is_query = False
        self.frame = pl.DataFrame()
        self.cut = ""
        self.error = ""
        self.plan = ""
        self.began = time.time()
        self._started = time.monotonic()
        self._seconds: float | None = None
        self._ended = threading.Event()
        self._cancelled = False
        self._run: QueryRun | None = None
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._started if self._seconds is None else self._seconds

    @property
    def rows(self) -> int:
        """How many rows it has given so far."""
        run = self._run
        return 0 if run is None else run.rows

    @property
    def rows_written(self) -> int | None:
        """How many rows it wrote, where it writes."""
        run = self._run
        return None if run is None else run.rows_written

    @property
    def scans(self) -> list[Any]:
        """What it fetched so far."""
        run = self._run
        return [] if run is None else run.scans

    def wait(self, seconds: float) -> bool:
        """Wait for its end for a while; return whether it has ended."""
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        """End it."""
        with self._lock:
            self._cancelled = True
            run = self._run
        if run is not None:
            run.cancel()

    def work(self, connection: FlussConnection, settings: Settings) -> None:
        """Run it, on the thread of the caller."""
        from fluss_df.backend.query_run import QueryCancelledError

        try:
            self._work(connection, settings)
            self.status = "done"
        except QueryCancelledError as error:
            self.status = "cancelled" if self._cancelled else "failed"
            self.error = "" if self._cancelled else error.message
        except FlussError as error:
            self.status, self.error = "failed", error.message
        except MemoryError:
            self.status, self.error = "failed", "there was not enough memory for it"
        except Exception as error:
            # libraries beneath have errors of their own
            self.status, self.error = "failed", f"{type(error).__name__}: {error}"[:2000]
        finally:
            self._seconds = time.monotonic() - self._started
            self._ended.set()

    def _work(self, connection: FlussConnection, settings: Settings) -> None:
        from fluss_df.backend import Backend
        from fluss_df.backend.query_run import QueryLimitError, QueryRun

        limits = settings.limits
        refuse_long(self.text)
        backend = Backend().connect(connection, database=self.database)
        run = QueryRun(
            backend,
            self.text,
            max_rows=limits.result_rows,
            max_seconds=limits.query_seconds,
        )
        self.is_query = run.is_query
        if settings.read_only and not (run.is_query or only_shows(self.text)):
            raise FlussError(
                "this console is read-only: it runs queries, SHOW, DESCRIBE and EXPLAIN only"
            )
        with self._lock:
            self._run = run
            cancelled = self._cancelled
        if cancelled:
            run.cancel()
        ended = threading.Event()
        guard = threading.Thread(
            target=_within_memory, args=(run, ended), name="fluss-ui-memory", daemon=True
        )
        guard.start()
        batches: list[pa.RecordBatch] = []
        size = 0
        try:
            with run:
                if run.is_query:
                    self.plan = run.explain()
                for batch in run:
                    batches.append(batch)
                    size += batch.nbytes
                    if size > limits.result_bytes:
                        self.cut = f"the result is larger than {limits.result_bytes >> 20} MB"
                        break
        except QueryLimitError:
            if run.rows < limits.result_rows:
                raise
            self.cut = f"there are more than {limits.result_rows:,} rows"
        finally:
            ended.set()
            if batches or run.is_query:
                found = pl.from_arrow(pa.Table.from_batches(batches, run.schema))
                assert isinstance(found, pl.DataFrame)
                self.frame = found


class Kept:
    """The statements of a console: a few that run, and a few that have ended.

    Parameters
    ----------
    connection, settings
        Where they run, and within which limits.
    """

    def __init__(self, connection: FlussConnection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, Query] = OrderedDict()

    def start(self, text: str, database: str | None = None) -> Query:
        """Begin to run a statement.

        Raises
        ------
        FlussError
            When as many run as may, or there is no statement.
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
            target=query.work,
            args=(self._connection, self._settings),
            name="fluss-ui-query",
            daemon=True,
        ).start()
        return query

    def find(self, name: str) -> Query:
        """Return a statement by its id.

        Raises
        ------
        FlussError
            When it is not kept any more.
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
        """Cancel all."""
        for query in self.all():
            query.cancel()


def refuse_long(text: str) -> None:
    """Raise for a statement that nobody writes: reading one takes long before it is run."""
    if len(text) > _LONGEST:
        raise FlussError(f"the statement has more than {_LONGEST:,} characters")


def only_shows(text: str) -> bool:
    """Whether a statement that is no query tells something, and changes nothing."""
    import sqlglot

    from fluss_df.backend.sql.dialect import Fluss

    try:
        tokens = sqlglot.tokenize(text, dialect=Fluss)
    except sqlglot.errors.SqlglotError:
        return False
    return bool(tokens) and tokens[0].text.upper() in _SHOWS


def _within_memory(run: QueryRun, ended: threading.Event) -> None:
    """Cancel a statement when the memory of the process grows too much meanwhile."""
    before = resident()
    while not ended.wait(_LOOK_S):
        if resident() - before > MEMORY_BYTES:
            run.cancel(
                f"the memory of the console grew by more than {MEMORY_BYTES >> 20} MB meanwhile: ask"
                " for fewer rows or columns"
            )
            return


def resident() -> int:
    """Return the bytes of memory that this process has."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError):
        return 0  # systems without /proc have no such bound

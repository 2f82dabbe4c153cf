"""A process that runs statements for the console: ``python -m fluss_df.ui.worker``.

What Polars computes cannot be ended from within its process, and may take any memory. So statements
run here: one that is cancelled, takes too long or grows too large ends with its process, and pages
stay quick. Orders come by standard input, a line of JSON each, credentials among them: the list of
processes shows nothing of them. Answers go to standard output, as frames.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from fluss_df.errors import FlussError

if TYPE_CHECKING:
    from fluss_df.backend.query_run import QueryRun
    from fluss_df.client.connection import FlussConnection

#: The head of a frame: its kind, and the length of its body.
HEAD: Final = struct.Struct(">cQ")
PROGRESS: Final = b"P"
ROWS: Final = b"R"
END: Final = b"E"
#: The line that ends the statement that runs.
CANCEL: Final = "cancel"
#: The longest statement, in characters: reading one takes long before it is run.
LONGEST: Final = 100_000

_PAGE_BYTES: Final = 4096
_LOOK_S: Final = 0.1
# other statements that begin with these words are refused by the parser
_SHOWS: Final = ("SHOW", "DESC", "DESCRIBE", "EXPLAIN")


class Worker:
    """Runs the statements that it is told to, one after the other."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._run: QueryRun | None = None
        self._cancelled = False
        self._connection: FlussConnection | None = None
        self._where: object = None

    # ---- frames

    def _send(self, kind: bytes, body: bytes) -> None:
        with self._lock:
            self._out.write(HEAD.pack(kind, len(body)))
            self._out.write(body)
            self._out.flush()

    def _tell(self, kind: bytes, **values: Any) -> None:
        self._send(kind, json.dumps(values).encode())

    # ---- orders

    def cancel(self) -> None:
        """End the statement that runs; from another thread."""
        self._cancelled = True
        run = self._run
        if run is not None:
            run.cancel()

    def do(self, order: dict[str, Any]) -> None:
        """Run a statement, and tell how it ended."""
        self._cancelled = False
        self._run = None
        ended = threading.Event()
        watching = threading.Thread(target=self._look, args=(ended, order["memory"]), daemon=True)
        watching.start()
        told: dict[str, Any] = {"status": "done", "error": "", "cut": ""}
        try:
            self._do(order, told)
        except Exception as error:
            told["status"] = "cancelled" if self._cancelled else "failed"
            # libraries raise errors of their own types
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, FlussError):
                text = error.message
            told["error"] = "" if self._cancelled else text[:4000]
        ended.set()
        watching.join()
        run = self._run
        # Polars may go on computing when nobody takes the rows any more
        idle = run is None or not run.is_running
        self._tell(END, **told, idle=idle, **(_about(run) if run is not None else {}))
        self._run = None

    def _do(self, order: dict[str, Any], told: dict[str, Any]) -> None:
        import pyarrow as pa

        from fluss_df.backend import Backend
        from fluss_df.backend.query_run import QueryLimitError, QueryRun

        text = order["text"]
        if len(text) > LONGEST:
            raise FlussError(f"the statement has more than {LONGEST:,} characters")
        backend = Backend().connect(self._connected(order), database=order["database"])
        run = QueryRun(backend, text, max_rows=order["rows"], max_seconds=order["seconds"])
        if order["read_only"] and not (run.is_query or only_shows(text)):
            raise FlussError(
                "this console is read-only: it runs queries, SHOW, DESCRIBE and EXPLAIN only"
            )
        told["is_query"], told["changes"] = run.is_query, _changes(run)
        # at once: whoever ends this process has to know whether it may have written
        self._tell(PROGRESS, rows=0, fetched=0, changes=told["changes"])
        self._run = run
        if self._cancelled:
            run.cancel()
        batches: list[pa.RecordBatch] = []
        size = 0
        with run:
            if run.is_query:
                told["plan"] = run.explain()
            try:
                for batch in run:
                    batches.append(batch)
                    size += batch.nbytes
                    if size > order["bytes"]:
                        told["cut"] = f"the result is larger than {order['bytes'] >> 20} MB"
                        break
            except QueryLimitError:
                if run.rows < order["rows"]:
                    raise
                told["cut"] = f"there are more than {order['rows']:,} rows"
            body = io.BytesIO()
            with pa.ipc.new_stream(body, run.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        self._send(ROWS, body.getvalue())

    def _connected(self, order: dict[str, Any]) -> FlussConnection:
        """Return the connection of the console, made once more here."""
        from fluss_df.client.connection import connect

        where = (order["folder"], order["config"])
        if self._connection is None or self._where != where:
            place = Path(order["folder"]) if order["folder"] else order["config"]
            self._connection = connect(place)
            self._where = where
        return self._connection

    def _look(self, ended: threading.Event, memory: int) -> None:
        """Tell how far the statement is; end the process when it takes too much memory."""
        while not ended.wait(_LOOK_S):
            run = self._run
            if resident() > memory:
                self._tell(
                    END,
                    status="failed",
                    error=f"it took more than {memory >> 20:,} MB of memory: ask for fewer rows or"
                    " columns, or narrow the join",
                    cut="",
                    idle=False,
                    changes=run is not None and _changes(run),
                )
                os._exit(1)
            if run is not None:
                fetched = sum(scan.bytes for scan in run.scans)
                self._tell(PROGRESS, rows=run.rows, fetched=fetched, changes=_changes(run))


def _changes(run: QueryRun) -> bool:
    return not (run.is_query or run.only_shows)


def _about(run: QueryRun) -> dict[str, Any]:
    return {"scans": [str(scan) for scan in run.scans], "rows_written": run.rows_written}


def only_shows(text: str) -> bool:
    """Whether a statement that is no query tells something, and changes nothing."""
    import sqlglot

    from fluss_df.backend.sql.dialect import Fluss

    try:
        tokens = sqlglot.tokenize(text, dialect=Fluss)
    except sqlglot.errors.SqlglotError:
        return False
    return bool(tokens) and tokens[0].text.upper() in _SHOWS


def resident() -> int:
    """Return the bytes of memory that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError):
        return 0


def _orders(worker: Worker, orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Take orders to the end of the input, which is the end of the console."""
    for line in sys.stdin:
        if line.strip() == CANCEL:
            worker.cancel()
        else:
            orders.put(json.loads(line))
    os._exit(0)


@contextlib.contextmanager
def _output() -> Iterator[BinaryIO]:
    """Give the standard output, to which nothing else is printed from here on."""
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "wb") as out:
        yield out


def main() -> None:
    """Run statements until the console ends."""
    # Ctrl-C is for the console
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _output() as out:
        worker = Worker(out)
        orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=_orders, args=(worker, orders), daemon=True).start()
        # imported now, so that the first statement does not wait for it
        import fluss_df.backend.query_run  # noqa: F401

        while True:
            worker.do(orders.get())


if __name__ == "__main__":
    main()

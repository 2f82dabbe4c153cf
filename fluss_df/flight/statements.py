"""Statements of clients: planned when they ask for a result, run when they fetch it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.parameters import numbered, parameter_types, without_catalog
from fluss_df.backend.query_run import QueryRun
from fluss_df.backend.sql.statements import parsed_statement
from fluss_df.errors import FlussError
from fluss_df.flight.calls import Call
from fluss_df.flight.options import FlightLimits
from fluss_df.flight.refusals import exhausted, invalid, partly, unsupported
from fluss_df.flight.sessions import Prepared, Session
from fluss_df.flight.values import together
from fluss_df.hooks import undoing

#: What tools write in front of databases: Fluss itself has no catalogs.
CATALOG: Final = "fluss"
_NOTHING: Final = pa.schema([])
# Bytes of a batch in a stream. With 1 MB, server and client together took a tenth more processor
# time; clients of gRPC may refuse messages of 4 MB.
_MESSAGE_BYTES: Final = 2 << 20


def _require_allowed(session: Session, statement: str) -> None:
    """Raise for a transaction, and what changes what others have who share the connection."""
    _refuse_transactions(statement)
    if not session.shared:
        return
    tree = parsed_statement(numbered(statement))
    if isinstance(tree, exp.Use):
        raise unsupported(
            "USE needs a client of its own: sign in for a token, or write DATABASE.TABLE"
        )
    if isinstance(tree, exp.Create) and tree.find(exp.TemporaryProperty) is not None:
        raise unsupported(
            "a temporary view needs a client of its own: sign in for a token, or leave out"
            " TEMPORARY"
        )


class Turns:
    """How many statements run at once.

    One that was cancelled holds its turn until it is over: what it computes is still computed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._running: set[QueryRun] = set()
        # cancelled statements that still run, whose clients are gone
        self._late: set[QueryRun] = set()

    def take(self, run: QueryRun) -> None:
        """Count a statement in.

        Raises RefusalError when too many run.
        """
        with self._lock:
            self._late = {run for run in self._late if run.is_running}
            if len(self._running) + len(self._late) >= self._most:
                raise exhausted(f"{self._most} statements run at once here: try again later")
            self._running.add(run)

    def give_back(self, run: QueryRun) -> None:
        """Count a statement out, once nothing of it runs."""
        with self._lock:
            self._running.discard(run)
            if run.is_running:
                self._late.add(run)


class Statements:
    """Runs the statements of clients."""

    def __init__(self, limits: FlightLimits) -> None:
        self._limits = limits
        self._turns = Turns(limits.statements)

    def plan(
        self, session: Session, call: Call, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[bytes, pa.Schema]:
        """Plan a statement whose result is to be fetched; return its handle and its columns.

        One that is no query runs now: clients go on as soon as they have the columns, and are to
        know by then whether it went well.
        """
        _require_allowed(session, statement)
        run = self._made(session, statement, values)
        schema = self._schema(call, run)
        return session.keep(run, schema), schema

    def schema(
        self, session: Session, call: Call, statement: str, values: tuple[Any, ...] = ()
    ) -> pa.Schema:
        """Return the columns of a query, which is not run."""
        _require_allowed(session, statement)
        run = self._made(session, statement, values)
        try:
            if not run.is_query and not run.only_shows:
                raise invalid("the columns of a statement that is no query show when it runs")
            return self._schema(call, run)
        finally:
            run.close()

    def _made(self, session: Session, statement: str, values: tuple[Any, ...]) -> QueryRun:
        return QueryRun(
            session.backend,
            statement,
            max_seconds=self._limits.statement_s,
            parameters=values,
            catalog=CATALOG,
            batch_bytes=_MESSAGE_BYTES,
        )

    def _schema(self, call: Call, run: QueryRun) -> pa.Schema:
        if run.is_query:
            return run.schema
        self._turns.take(run)
        try:
            with call.running(run):
                return run.schema
        finally:
            self._turns.give_back(run)

    def fetch(self, session: Session, handle: bytes) -> tuple[pa.Schema, QueryRun]:
        """Take a planned statement; its rows come when it is iterated."""
        result = session.fetch(handle)
        # a statement that is not a query ran when it was planned, and needs no second turn
        if result.run.is_query:
            # who is told to try again later finds it
            with undoing(lambda: session.put_back(handle)):
                self._turns.take(result.run)
        return result.schema, result.run

    def done(self, session: Session, handle: bytes, run: QueryRun) -> None:
        """End a statement that was fetched, whether all of it was or not."""
        session.forget(handle)
        run.close()
        self._turns.give_back(run)

    def update(
        self, session: Session, call: Call, statement: str, batches: Sequence[pa.RecordBatch] | None
    ) -> int:
        """Run a statement for each row of values; return how many rows were written.

        Without values, it runs once.
        """
        _require_allowed(session, statement)
        written = 0
        try:
            for text, values in together(statement, batches):
                written += self._updated(session, call, text, values)
        except FlussError as error:
            if not written:
                raise
            raise partly(error, written) from error
        return written

    def _updated(
        self, session: Session, call: Call, statement: str, values: tuple[Any, ...]
    ) -> int:
        run = self._made(session, statement, values)
        self._turns.take(run)
        try:
            with call.running(run):
                for _ in run:
                    pass
            return run.rows_written or 0
        finally:
            run.close()
            self._turns.give_back(run)

    def prepare(
        self, session: Session, call: Call, statement: str
    ) -> tuple[bytes, pa.Schema, pa.Schema]:
        """Prepare a statement; return its handle, the columns of its result, and its parameters.

        The columns of one with parameters are those of the statement with nulls for them.
        """
        _refuse_transactions(statement)
        tree = parsed_statement(numbered(statement))
        kinds: list[pa.DataType] = []
        if tree is not None:
            without_catalog(tree, CATALOG)
            kinds = parameter_types(tree, _column_types(session))
        schema = _NOTHING
        if isinstance(tree, exp.Query):
            schema = self._schema_of_query(session, statement, kinds)
        elif tree is None:
            with contextlib.suppress(FlussError):
                schema = self.schema(session, call, statement)
        parameters = pa.schema([(f"parameter_{n}", kind) for n, kind in enumerate(kinds, 1)])
        handle = session.prepare(Prepared(statement, tree, parameters))
        return handle, schema, parameters

    def _schema_of_query(
        self, session: Session, statement: str, kinds: list[pa.DataType]
    ) -> pa.Schema:
        for values in ([_example(kind) for kind in kinds], [None] * len(kinds)):
            try:
                run = self._made(session, statement, tuple(values))
            except FlussError:
                if not kinds:
                    raise
            else:
                return run.schema
        # the error shows when there are values
        return _NOTHING


def _example(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return ""
    try:
        return pa.scalar(0 if not pa.types.is_binary(kind) else b"", kind)
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _refuse_transactions(statement: str) -> None:
    word = statement.lstrip().split(None, 1)[:1]
    if word and word[0].upper().rstrip(";") in (
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "START",
    ):
        raise no_transactions(word[0].upper().rstrip(";"))


def no_transactions(name: str) -> Exception:
    """Return the refusal of a transaction or savepoint."""
    return unsupported(
        f"{name}: Fluss has no transactions and no savepoints: each statement counts by itself"
        " (turn on autocommit)"
    )


def _column_types(session: Session) -> Any:
    """Return a function that says which type a column of a table has."""

    def kind_of(table: exp.Table, name: str) -> pa.DataType | None:
        try:
            info = session.backend.table_info(table.name, table.db or None)
        except FlussError:
            return None
        columns = info.schema.arrow_schema
        if name.startswith("\0"):
            place = int(name[1:])
            return columns.field(place).type if place < len(columns) else None
        return columns.field(name).type if name in columns.names else None

    return kind_of

"""Which lake table is due, and which service has it: the states of Fluss's own coordinator.

A table is scheduled until its freshness is over, then pending, then tiering. A service that is not
heard of for two minutes loses its table. What is kept here is lost with the process, as it is with
a real coordinator: the epoch of the coordinator, which is another one then, fences older services.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fluss_df.engine.tables import options
from fluss_df.engine.tables.tables import Table, now_ms
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath

# after which a service that is not heard of has a table no more, as in Fluss
_SERVICE_TIMEOUT_S: Final = 120.0
_FRESHNESS: Final = "table.datalake.freshness"
_DEFAULT_FRESHNESS: Final = "3min"


@dataclass(slots=True)
class _State:
    """One table.

    Attributes
    ----------
    tiered
        When it was last tiered (ms since 1970).
    epoch
        Grows whenever the table becomes pending.
    pending
        Its turn among the pending tables; None where it is not pending.
    heard
        When its service was last heard of, by the monotonic clock; None where none has it.
    """

    tiered: int
    epoch: int = 0
    pending: int | None = None
    heard: float | None = None


class TieringStates:
    """Gives tables to services; thread safe."""

    def __init__(self, tables: Callable[[], Iterable[Table]]) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._states: dict[int, _State] = {}
        self._turn = 0

    def request(self, may: Callable[[TablePath], bool]) -> tuple[Table, int] | None:
        """Return a table that is due, and its epoch; None where none is.

        ``may`` says whether a table may be tiered now.
        """
        with self._lock:
            tables = self._look()
            due = [
                (state.pending, table_id)
                for table_id, state in self._states.items()
                if state.pending is not None and may(tables[table_id].path)
            ]
            if not due:
                return None
            _, table_id = min(due)
            state = self._states[table_id]
            state.pending, state.heard = None, time.monotonic()
            return tables[table_id], state.epoch

    def renew(self, table_id: int, epoch: int) -> None:
        """Keep a table for its service."""
        with self._lock:
            state = self._state(table_id, epoch)
            state.heard = time.monotonic()

    def finish(self, table_id: int, epoch: int, *, again: bool) -> None:
        """Take a table back that was tiered; ``again`` makes it due at once."""
        with self._lock:
            state = self._state(table_id, epoch)
            state.tiered, state.heard = now_ms(), None
            if again:
                self._make_pending(state)

    def fail(self, table_id: int, epoch: int) -> None:
        """Take a table back that could not be tiered; it is due at once."""
        with self._lock:
            state = self._state(table_id, epoch)
            state.heard = None
            self._make_pending(state)

    def _state(self, table_id: int, epoch: int) -> _State:
        """Return the state of a table that a service has.

        Raises ``TABLE_NOT_EXIST``, ``FENCED_TIERING_EPOCH_EXCEPTION``; ``UNKNOWN_SERVER_ERROR``
        where no service has it.
        """
        self._look()
        state = self._states.get(table_id)
        if state is None:
            raise FlussError(f"The table {table_id} doesn't exist.", ErrorCode.TABLE_NOT_EXIST)
        if state.epoch != epoch:
            raise FlussError(
                f"The tiering epoch {epoch} is not match current epoch {state.epoch} in coordinator"
                f" for table {table_id}.",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            )
        if state.heard is None:
            raise FlussError(
                f"The table {table_id} must be in Tiering state, and no service has it.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        return state

    def _look(self) -> dict[int, Table]:
        """Learn of tables that came and went, and of time that went by; return lake tables."""
        tables = {
            table.id: table
            for table in self._tables()
            if options.boolean(table.descriptor.properties, options.DATALAKE_ENABLED)
        }
        for gone in self._states.keys() - tables.keys():
            del self._states[gone]
        now, clock = now_ms(), time.monotonic()
        for table in tables.values():
            state = self._states.get(table.id)
            if state is None:
                last = int(table.lake.get("snapshot", {}).get("time", table.created))
                state = self._states[table.id] = _State(last)
            if state.heard is not None:
                if clock - state.heard >= _SERVICE_TIMEOUT_S:
                    state.heard = None
                    self._make_pending(state)
            elif state.pending is None:
                # a clock that was ahead, and was set right: it would be due when that time comes
                state.tiered = min(state.tiered, now)
                freshness = table.descriptor.properties.get(_FRESHNESS, _DEFAULT_FRESHNESS)
                if now - state.tiered >= options.duration_ms(freshness):
                    self._make_pending(state)
        return tables

    def _make_pending(self, state: _State) -> None:
        self._turn += 1
        state.epoch += 1
        state.pending = self._turn

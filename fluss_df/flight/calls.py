"""Calls that are open: each has a moment at which it is ended, however silent its peer is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

import grpc

from fluss_df.backend.query_run import QueryRun
from fluss_df.flight.refusals import RefusalError

_LOOK_S: Final = 0.5


class Call:
    """One call that is open."""

    def __init__(self, context: grpc.ServicerContext, seconds: float) -> None:
        self._context = context
        self._ends = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._run: QueryRun | None = None
        self._over = False
        self._ended = threading.Event()

    def over(self) -> None:
        """Take note of its end: what still runs for it has nobody who waits."""
        with self._lock:
            self._over = True
            run = self._run
        self._ended.set()
        if run is not None:
            run.cancel("its client is gone")

    @contextlib.contextmanager
    def running(self, run: QueryRun) -> Iterator[None]:
        """Have a statement that runs in the block end with the call."""
        with self._lock:
            self._run = run
            over = self._over
        try:
            if over:
                run.cancel("its client is gone")
            yield
        finally:
            with self._lock:
                self._run = None

    def may_take(self, seconds: float) -> None:
        """Have the call ended when it takes longer than ``seconds`` from now."""
        self._ends = time.monotonic() + seconds

    def end_if_late(self, now: float) -> None:
        """End it, where its moment has come: its thread is free then, whatever it waits for."""
        if now > self._ends:
            self._context.cancel()

    def messages(
        self, requests: Iterator[bytes], silent_s: float, busy_s: float, settle_s: float
    ) -> Iterator[bytes]:
        """Iterate over the client's messages, to the end that it said.

        For gRPC the messages also end where the client was cut off. Then this raises RefusalError,
        because nobody knows what else the client wanted to send.

        Parameters
        ----------
        requests
            The messages.
        silent_s
            How long each may take to come.
        busy_s
            How long the server may take to process one, and to finish after the last.
        settle_s
            How long to wait at the end for word that the client was cut off.
        """
        self.may_take(silent_s)
        for message in requests:
            # while the server processes a message, the client is not the one that is silent
            self.may_take(busy_s)
            yield message
            self.may_take(silent_s)
        self.may_take(busy_s)
        if self._ended.wait(settle_s) or not self._context.is_active():
            raise RefusalError(
                grpc.StatusCode.CANCELLED, "the client is gone before it had sent everything"
            )


class Calls:
    """All calls that are open; a thread looks after them."""

    def __init__(self) -> None:
        self._open: set[Call] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="fluss-df-flight", daemon=True).start()

    @contextlib.contextmanager
    def entered(self, context: grpc.ServicerContext, seconds: float) -> Iterator[Call]:
        """Look after a call in the block."""
        call = Call(context, seconds)
        with self._lock:
            self._open.add(call)
        try:
            if not context.add_callback(call.over):
                call.over()
            yield call
        finally:
            with self._lock:
                self._open.discard(call)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                calls = list(self._open)
            for call in calls:
                call.end_if_late(now)

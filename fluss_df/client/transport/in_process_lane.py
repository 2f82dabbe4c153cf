"""A lane to an embedded engine in this process: its requests pass through no socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.errors import NetworkError
from fluss_df.memory import joined
from fluss_df.protocol.address import local_path
from fluss_df.protocol.api import FETCH_LOG, LOOKUP, Api, ServerApis
from fluss_df.protocol.fetch import FetchReply
from fluss_df.protocol.frames import Request, Response
from fluss_df.protocol.wire import Buffer

if TYPE_CHECKING:
    from fluss_df.engine.serve.server import LocalEngine


class _Bell:
    """A pipe whose one end is readable once an answer is there, for select.

    It is closed with its last user, and not with the lane: the engine's thread may be about to
    announce an answer when the lane is closed, and would write to a file of somebody else that
    has the number of the pipe by then.
    """

    def __init__(self) -> None:
        self.ready, self._answered = os.pipe()

    def ring(self, _: object = None) -> None:
        """Make it readable."""
        with contextlib.suppress(OSError):
            os.write(self._answered, b"\0")

    def __del__(self) -> None:
        if hasattr(self, "ready"):
            os.close(self.ready)
            os.close(self._answered)


class DirectLane(Lane):
    """Asks the engine's dispatcher, as a connection does; what it answers are slices of files."""

    def __init__(self, endpoint: Endpoint, engine: LocalEngine, request_timeout_ms: int) -> None:
        self._begin(endpoint, request_timeout_ms)
        self._engine = engine
        self._answer: concurrent.futures.Future[tuple[int, list[Buffer]]] | None = None
        self._bell: _Bell | None = _Bell()
        # whether the bell rings for the answer
        self._woken = False
        self.apis = ServerApis(self.address, engine.api_versions(), None)

    def fileno(self) -> int:
        """Return the number of what becomes readable with a response, for select."""
        if self._bell is None:
            return -1
        if self._answer is not None and not self._woken:
            self._woken = True
            self._bell.ring()
        return self._bell.ready

    def readable(self, timeout_s: float) -> bool:
        """Wait until the response is there; return whether it is. An engine that ended counts."""
        if self._answer is None:
            return bool(self._engine.closed)
        with contextlib.suppress(TimeoutError):
            self._answer.exception(max(0.0, timeout_s))
        return self._answer.done()

    def _send(self, api: Api[Any, Any], version: int, body: Sequence[Buffer]) -> int:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        data = pa.py_buffer(b"".join(body))
        request = Request(api.key, version, self._next_id, data)
        # before it is asked, as in the other lane
        self._in_flight = self._next_id
        try:
            at_once = api is FETCH_LOG or api is LOOKUP
            reply = self._engine.reply_at_once(request) if at_once else None
            if reply is None:
                self._answer = self._engine.submit(request)
        except RuntimeError:
            self.failed = True
            raise NetworkError(f"the engine {self.address} is closed") from None
        if reply is not None:
            # nobody waits: neither for the engine's thread nor by select
            self._answer = concurrent.futures.Future()
            self._answer.set_result(reply)
        else:
            assert self._answer is not None
            assert self._bell is not None
            self._answer.add_done_callback(self._bell.ring)
        self._woken = reply is None
        self._silent_after = time.monotonic() + self._request_timeout_ms / 1000
        return len(data)

    def _receive(self) -> Response:
        answer, request_id = self._answer, self._in_flight
        assert answer is not None
        assert request_id is not None
        try:
            kind, parts = answer.result(max(0.0, self._silent_after - time.monotonic()))
        except TimeoutError:
            self.failed = True
            raise self.silence() from None
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            self.failed = True
            raise NetworkError(f"the engine {self.address} was closed") from None
        except BaseException:
            self.failed = True
            raise
        if self._woken and self._bell is not None:
            os.read(self._bell.ready, 1)
        self._answer = self._in_flight = None
        if isinstance(parts, FetchReply):
            return Response(request_id, kind, pa.py_buffer(b""), parts)
        return Response(request_id, kind, joined(parts))

    def abort(self) -> None:
        """Wake whoever waits for a response, with a NetworkError; for use from another thread."""
        self.failed = True
        # once, because the thread that waits for the answer takes it away
        answer = self._answer
        # the parent's thread may have held the lock of its answer at the fork
        if answer is not None and not self._inherited:
            answer.cancel()

    def close(self) -> None:
        """Give up what was asked."""
        self.abort()
        self._bell = None


def direct_lane(endpoint: Endpoint, request_timeout_ms: int) -> Lane | None:
    """Return a lane to an engine in this process; None where the endpoint is another."""
    path = local_path(endpoint.host)
    if path is None:
        return None
    # not imported for a cluster: an address of this kind is an engine's
    from fluss_df.engine.serve.server import engine_at

    engine = engine_at(path)
    return None if engine is None else DirectLane(endpoint, engine, request_timeout_ms)

"""Clients that are signed in: their connections, prepared statements and results not fetched."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.backend import Backend
from fluss_df.backend.query_run import QueryRun
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.flight.access import Access, Way
from fluss_df.flight.options import FlightLimits
from fluss_df.flight.refusals import exhausted, invalid, unauthenticated

_HANDLE_BYTES: Final = 24
# seconds for which a password that was right is not checked again
_CHECKED_S: Final = 60.0


@dataclass
class Prepared:
    """A statement that is run with values."""

    statement: str
    tree: exp.Expr | None
    parameter_schema: pa.Schema
    #: bound rows of values that no update has used yet; None without values
    bound: list[pa.RecordBatch] | None = None
    #: when it was asked for last, by the monotonic clock
    used: float = field(default_factory=time.monotonic)


@dataclass
class Result:
    """A statement that waits to be fetched, or is."""

    run: QueryRun
    schema: pa.Schema
    #: when it is given up, by the monotonic clock
    until: float
    fetched: bool = False


class Session:
    """The state of one client that is signed in.

    A ``shared`` session may be that of several clients. Nobody can end it, or change what all have.
    """

    def __init__(self, way: Way, limits: FlightLimits, *, shared: bool) -> None:
        self.connection = way.connection
        self.shared = shared
        #: when its password was compared last, by the monotonic clock
        self.checked = self._used = time.monotonic()
        self._calls = 0
        self.backend: Backend = Backend().connect(way.connection)
        self._way = way
        self._limits = limits
        self._lock = threading.Lock()
        self._prepared: dict[bytes, Prepared] = {}
        self._results: dict[bytes, Result] = {}

    def recheck(self) -> None:
        """Have the password compared again, unless it just was: it may have been changed.

        Raises ``AUTHENTICATE_EXCEPTION`` where it is not valid any more.
        """
        if self.checked + _CHECKED_S < time.monotonic():
            self._way.recheck()
            self.checked = time.monotonic()

    # ---- calls

    def enter(self) -> None:
        """Take note of a call that begins: until it ends, the client is not idle."""
        with self._lock:
            self._calls += 1

    def leave(self) -> None:
        """Take note that a call is over."""
        with self._lock:
            self._calls -= 1
            self._used = time.monotonic()

    def idle_s(self) -> float:
        """Return for how long there was no call; 0 while there is one."""
        with self._lock:
            return 0.0 if self._calls else time.monotonic() - self._used

    # ---- prepared statements

    def prepare(self, prepared: Prepared) -> bytes:
        """Keep a prepared statement; return its handle.

        Raises RefusalError when a client has too many. Of those that clients share, the one that
        was idle longest is given up instead: whoever made it may be gone.
        """
        with self._lock:
            if len(self._prepared) >= self._limits.prepared:
                if not self.shared:
                    raise exhausted(
                        f"{self._limits.prepared} prepared statements are open: close some"
                    )
                del self._prepared[min(self._prepared, key=lambda old: self._prepared[old].used)]
            handle = secrets.token_bytes(_HANDLE_BYTES)
            self._prepared[handle] = prepared
        return handle

    def prepared(self, handle: bytes) -> Prepared:
        """Return a prepared statement.

        Raises RefusalError where this client has none with that handle.
        """
        with self._lock:
            found = self._prepared.get(handle)
            if found is not None:
                found.used = time.monotonic()
        if found is None:
            raise invalid(
                "there is no such prepared statement: it was closed, is another's, or was given up"
            )
        return found

    def unprepare(self, handle: bytes) -> None:
        """Forget a prepared statement, if it is there."""
        with self._lock:
            self._prepared.pop(handle, None)

    # ---- results

    def keep(self, run: QueryRun, schema: pa.Schema) -> bytes:
        """Keep a statement until it is fetched; return the handle."""
        handle = secrets.token_bytes(_HANDLE_BYTES)
        result = Result(run, schema, time.monotonic() + self._limits.ticket_s)
        with self._lock:
            dropped = self._dropped()
            self._results[handle] = result
        for old in dropped:
            old.run.close()
        return handle

    def _dropped(self) -> list[Result]:
        """Take out results that nobody fetched in time, and the oldest of too many."""
        now = time.monotonic()
        waiting = [(h, r) for h, r in self._results.items() if not r.fetched]
        late = [h for h, r in waiting if r.until < now]
        more = len(waiting) - len(late) - self._limits.tickets + 1
        if more > 0:
            late += [h for h, r in waiting if r.until >= now][:more]
        return [self._results.pop(handle) for handle in late]

    def fetch(self, handle: bytes) -> Result:
        """Take a result, once.

        Raises RefusalError where there is none, or it was taken.
        """
        with self._lock:
            found = self._results.get(handle)
            if found is None or found.fetched or found.until < time.monotonic():
                raise invalid(
                    "there is no such result to fetch: it was fetched, waited for too long, or is"
                    " another's; run the statement again"
                )
            found.fetched = True
        return found

    def put_back(self, handle: bytes) -> None:
        """Have a result wait again that could not be given now."""
        with self._lock:
            found = self._results.get(handle)
            if found is not None:
                found.fetched = False

    def forget(self, handle: bytes) -> None:
        """Forget a result that was fetched."""
        with self._lock:
            self._results.pop(handle, None)

    def cancel(self, handle: bytes) -> bool:
        """Cancel a statement, fetched or not; return whether there is one."""
        with self._lock:
            found = self._results.pop(handle, None)
        if found is None:
            return False
        found.run.cancel("by its client")
        return True

    def sweep(self) -> None:
        """Give up what waited for too long."""
        with self._lock:
            dropped = self._dropped()
            if self.shared:
                # sessions of other clients keep their statements until they are idle themselves
                latest = time.monotonic() - self._limits.session_idle_s
                late = [handle for handle, old in self._prepared.items() if old.used < latest]
                for handle in late:
                    del self._prepared[handle]
        for old in dropped:
            old.run.close()

    def close(self) -> None:
        """End all that it has."""
        with self._lock:
            results = list(self._results.values())
            self._results.clear()
            self._prepared.clear()
        for result in results:
            result.run.cancel("its client is gone")
        self.backend.disconnect()
        self._way.close()


class Sessions:
    """All clients that are signed in."""

    def __init__(self, access: Access, limits: FlightLimits) -> None:
        self._access = access
        self._limits = limits
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._by_token: dict[bytes, Session] = {}
        # sessions of clients that send their password with every call, by its keyed hash
        self._by_password: dict[bytes, Session] = {}
        self._key = secrets.token_bytes(32)
        self._anonymous: dict[str, Session] = {}

    @property
    def needs_password(self) -> bool:
        """Whether everybody has to sign in."""
        return self._access.needs_password

    def knows(self, token: str) -> bool:
        """Whether a token is that of a client."""
        with self._lock:
            return self._digest(token) in self._by_token

    def _digest(self, text: str) -> bytes:
        # hashes are compared, so that the time taken does not tell how much of a text was right
        return hmac.digest(self._key, text.encode("utf-8", "surrogateescape"), "sha256")

    def sign_in(self, user: str, password: str, address: str) -> str:
        """Let a client in; return its token.

        Raises FlussError for a wrong password, and when too many are signed in.
        """
        token = secrets.token_urlsafe(32)
        session = self._opened(user, password, address, shared=False)
        self._entered(self._by_token, self._digest(token), session)
        return token

    def _opened(
        self, user: str | None, password: str | None, address: str, *, shared: bool
    ) -> Session:
        # a token belongs to one client; a password that comes with each call may be that of several
        way = self._access.open(user, password, address)
        return Session(way, self._limits, shared=shared)

    def _entered(self, among: dict[bytes, Session], key: bytes, session: Session) -> Session:
        """Let a client in; return what it has, which another call of its may just have opened."""
        with self._lock:
            idle = self._idle()
            found = among.get(key)
            signed_in = len(self._by_token) + len(self._by_password)
            if found is None and signed_in < self._limits.sessions:
                found = among[key] = session
        for old in idle:
            old.close()
        if found is not session:
            session.close()
        if found is None:
            raise exhausted(f"{self._limits.sessions} clients are signed in: try again later")
        return found

    def _idle(self) -> list[Session]:
        """Take out the clients that did nothing for long."""
        most = self._limits.session_idle_s
        gone = []
        for among in (self._by_token, self._by_password):
            late = [key for key, session in among.items() if session.idle_s() > most]
            gone += [among.pop(key) for key in late]
        return gone

    def of_token(self, token: str) -> Session:
        """Return the client with a token; its call begins.

        Raises FlussError where there is none, or its password is none any more since a minute.
        """
        with self._lock:
            found = self._by_token.get(self._digest(token))
            if found is not None:
                found.enter()
        if found is None:
            raise unauthenticated("the token is not known here, or has expired: sign in again")
        self._recheck(found)
        return found

    def of_password(self, user: str, password: str, address: str) -> Session:
        """Return the clients that send this password with each call; a call begins.

        Raises FlussError for a wrong password, also for one that was right a minute ago.
        """
        key = self._digest(f"{address}\0{user}\0{password}")
        with self._lock:
            found = self._by_password.get(key)
            if found is not None:
                found.enter()
        if found is None:
            opened = self._opened(user, password, address, shared=True)
            found = self._entered(self._by_password, key, opened)
            found.enter()
        else:
            self._recheck(found)
        return found

    def _recheck(self, session: Session) -> None:
        """Sign out a client whose password is none any more; its call is over."""
        try:
            session.recheck()
        except BaseException as error:
            session.leave()
            refused = error.error_code if isinstance(error, FlussError) else None
            if refused == ErrorCode.AUTHENTICATE_EXCEPTION:
                self._sign_out(session)
            raise

    def anonymous(self, address: str) -> Session:
        """Return the session of all clients without a name from one address; a call begins.

        Raises RefusalError when everybody has to sign in, and when there are calls from too many
        addresses.
        """
        if self._access.needs_password:
            raise unauthenticated("user and password are needed here")
        with self._opening:
            found = self._anonymous.get(address)
            if found is None:
                # rights may depend on the address
                most = self._limits.sessions
                if len(self._anonymous) >= most:
                    longest = max(self._anonymous, key=lambda old: self._anonymous[old].idle_s())
                    if not self._anonymous[longest].idle_s():
                        raise exhausted(f"there are calls from {most} addresses: try again later")
                    self._anonymous.pop(longest).close()
                found = self._anonymous[address] = self._opened(None, None, address, shared=True)
            found.enter()
        return found

    def close_one(self, session: Session) -> bool:
        """Sign a client out; False for what others share."""
        if session.shared:
            return False
        self._sign_out(session)
        return True

    def _sign_out(self, session: Session) -> None:
        with self._lock:
            for among in (self._by_token, self._by_password):
                for key in [key for key, known in among.items() if known is session]:
                    del among[key]
        session.close()

    def all(self) -> Iterator[Session]:
        """Return every one."""
        with self._lock:
            found = [*self._by_token.values(), *self._by_password.values()]
        found += list(self._anonymous.values())
        yield from found

    def sweep(self) -> None:
        """Give up clients, and results, that were idle for long."""
        with self._lock:
            idle = self._idle()
        for old in idle:
            old.close()
        for session in self.all():
            session.sweep()

    def close(self) -> None:
        """Sign everybody out."""
        found = list(self.all())
        with self._lock:
            self._by_token.clear()
            self._by_password.clear()
        self._anonymous.clear()
        for session in found:
            session.close()

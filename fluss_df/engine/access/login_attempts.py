"""Wrong passwords: how fast they may be tried."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from fluss_df.errors import ErrorCode, FlussError

# wrong passwords in a row after which each further one waits for its turn, a turn a second
_FREE: Final = 3
_TURN_S: Final = 1.0
_WAITING: Final = 5
# seconds without a wrong password, after which a user's wrong passwords are forgotten
_FORGOTTEN_S: Final = 60.0
_KNOWN: Final = 4096
# the characters of a user's name that are kept: an unknown peer decides how long it is
_NAME: Final = 256


@dataclass(slots=True)
class _Failures:
    count: int
    last: float
    # when the next password may be tried
    next: float


class Attempts:
    """The wrong passwords of late, for each user and address of a peer. For the event loop alone.

    A guesser who opens connections at will still tries one password a second. Others, of the same
    address too, are not held up: unless they are the same user.
    """

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], _Failures] = {}

    async def turn(self, address: str, user: str) -> None:
        """Wait until a password may be tried.

        Raises ``RETRIABLE_AUTHENTICATE_EXCEPTION`` where too many wait already: the password may be
        right.
        """
        known = self._failures.get((address, user[:_NAME]))
        now = asyncio.get_running_loop().time()
        if known is None or known.count < _FREE or now - known.last > _FORGOTTEN_S:
            return
        begins = max(now, known.next)
        if begins - now > _WAITING * _TURN_S:
            raise FlussError(
                f"too many wrong passwords for this user from {address}: try again in a minute",
                ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
            )
        known.next = begins + _TURN_S
        await asyncio.sleep(begins - now)

    def failed(self, address: str, user: str) -> None:
        """Take note of a wrong password."""
        now = asyncio.get_running_loop().time()
        known = self._failures.pop((address, user[:_NAME]), None)
        if known is None or now - known.last > _FORGOTTEN_S:
            known = _Failures(0, now, now)
        known.count += 1
        known.last = now
        # put at the end: the entries are in the order of their last failures
        self._failures[address, user[:_NAME]] = known
        while True:
            oldest = next(iter(self._failures))
            if len(self._failures) <= _KNOWN and now - self._failures[oldest].last <= _FORGOTTEN_S:
                break
            del self._failures[oldest]

    def succeeded(self, address: str, user: str) -> None:
        """Forget the wrong passwords of a user who gave the right one."""
        self._failures.pop((address, user[:_NAME]), None)

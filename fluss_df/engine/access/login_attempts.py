"""Wrong passwords: how fast they may be tried."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
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
class Attempt:
    """One try of a password; who looks at it says whether it is ``right``."""

    right: bool = False


@dataclass(slots=True)
class _Tries:
    # when a password was looked at last
    last: float
    # when the next one may be tried
    next: float
    # wrong ones in a row
    wrong: int = 0
    # how many are looked at now
    under_way: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Attempts:
    """The wrong passwords of late, for each user and address of a peer. For the event loop alone.

    A guesser who opens connections at will still tries one password a second. Others, of the same
    address too, are not held up: unless they are the same user.
    """

    def __init__(self) -> None:
        self._tries: dict[tuple[str, str], _Tries] = {}

    @contextlib.asynccontextmanager
    async def turn(self, address: str, user: str) -> AsyncIterator[Attempt]:
        """Wait until a password may be tried; note at the end whether it was right.

        Raises ``RETRIABLE_AUTHENTICATE_EXCEPTION`` where too many wait already: the password may be
        right.
        """
        key = address, user[:_NAME]
        tries = await self._begun(key)
        tries.under_way += 1
        attempt = Attempt()
        try:
            yield attempt
        finally:
            # A try whose peer goes away counts as wrong. A right password may be answered sooner,
            # so a peer that goes away before it has an answer may know that its guess was wrong.
            tries.wrong = 0 if attempt.right else tries.wrong + 1
            tries.last = asyncio.get_running_loop().time()
            tries.under_way -= 1
            self._tries.pop(key, None)
            if tries.wrong or tries.under_way:
                # put at the end: the entries are in the order of their last tries
                self._tries[key] = tries
            # all who wait for it look again
            tries.ended.set()
            tries.ended.clear()
            self._forget_old()

    async def _begun(self, key: tuple[str, str]) -> _Tries:
        while True:
            tries, now = self._of(key), asyncio.get_running_loop().time()
            if tries.wrong >= _FREE:
                break
            # those under way may all be wrong: what is free is not free once for each connection
            if tries.wrong + tries.under_way < _FREE:
                return tries
            await tries.ended.wait()
        begins = max(now, tries.next)
        if begins - now > _WAITING * _TURN_S:
            raise FlussError(
                f"too many wrong passwords for this user from {key[0]}: try again in a minute",
                ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
            )
        tries.next = begins + _TURN_S
        await asyncio.sleep(begins - now)
        return tries

    def _of(self, key: tuple[str, str]) -> _Tries:
        now = asyncio.get_running_loop().time()
        known = self._tries.get(key)
        if known is None or (now - known.last > _FORGOTTEN_S and not known.under_way):
            self._tries.pop(key, None)
            known = self._tries[key] = _Tries(now, now)
        return known

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._tries:
            oldest = next(iter(self._tries))
            if len(self._tries) <= _KNOWN and now - self._tries[oldest].last <= _FORGOTTEN_S:
                break
            del self._tries[oldest]

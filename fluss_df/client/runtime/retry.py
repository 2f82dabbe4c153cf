"""When and how long to try again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fluss_df.errors import ErrorCode, FlussError, NetworkError

T = TypeVar("T")

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0

# codes that say: the metadata of this client is old
STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.STALE_METADATA,
        ErrorCode.TABLET_METADATA_NOT_READY,
    }
)


def is_transient(error: FlussError) -> bool:
    """Whether what failed may succeed soon.

    Broken responses count as final although their code is retriable: the bytes are at fault, not
    the moment. A coordinator that has just started answers -1 "not initialized" (0.9.1).
    """
    if error.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_RECORD_EXCEPTION):
        return False
    if error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return "not initialized" in error.message
    return error.is_retriable or error.error_code == ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION


class Backoff:
    """Pauses that double from 10 ms to 1 s, with jitter, until a deadline."""

    def __init__(self, timeout_ms: float) -> None:
        self._end = time.monotonic() + timeout_ms / 1000
        self._pause = _FIRST_PAUSE_S

    @property
    def used(self) -> bool:
        """Whether there was a pause."""
        return self._pause > _FIRST_PAUSE_S

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._end

    def next_pause(self) -> float:
        """Return the next pause in seconds, none of which reaches beyond the deadline."""
        pause = self._pause * random.uniform(0.8, 1.2)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)
        return max(0.0, min(pause, self._end - time.monotonic()))

    def reset(self, timeout_ms: float) -> None:
        """Start again after a success."""
        self._end = time.monotonic() + timeout_ms / 1000
        self._pause = _FIRST_PAUSE_S


async def retrying(
    attempt: Callable[[int], Awaitable[T]],
    timeout_ms: float,
    *,
    on_retry: Callable[[FlussError], None] | None = None,
) -> T:
    """Await ``attempt(n)`` for n = 0, 1, ... until it succeeds or fails for good.

    Raises FlussError: the error of the last attempt.
    """
    backoff = Backoff(timeout_ms)
    tries = 0
    while True:
        try:
            return await attempt(tries)
        except FlussError as error:
            if not is_transient(error) or backoff.expired:
                raise
            if on_retry is not None:
                on_retry(error)
            # the first retry after a broken connection is at once: a new one is made anyhow
            if not (tries == 0 and isinstance(error, NetworkError)):
                await asyncio.sleep(backoff.next_pause())
            tries += 1

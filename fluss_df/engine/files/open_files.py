"""Limits how many files an engine has open: the buckets that were used least recently close theirs.

The log of a bucket needs two or three descriptors, and a RocksDB about ten. Many systems allow a
process 1,024.
"""

from __future__ import annotations

import contextlib
import threading
from types import ModuleType
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K")

# descriptors that the process asks the system to allow it
_WANTED: Final = 16_384
# macOS refuses more, also where it says that there is no limit
_FALLBACK: Final = 10_240
# busy entries that one use passes over at the most; the next use goes on behind them
_BUSY_AT_ONCE: Final = 64


class Resting(Protocol):
    """Something with files that it can close, and opens again by itself."""

    @property
    def files(self) -> int:
        """About how many it has open while it is used; always the same."""

    def release_files(self) -> bool:
        """Give them back, unless it is in use; return whether it did."""


def _limits() -> ModuleType | None:
    try:
        import resource
    except ImportError:
        return None
    return resource


def allowed_files() -> int:
    """Return how many files this process may have open."""
    resource = _limits()
    if resource is None:
        return _FALLBACK
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _WANTED if soft == resource.RLIM_INFINITY else int(soft)


def allow_files() -> int:
    """Have the operating system allow this process as many open files as the user may have.

    Returns how many it may have open now. Only the soft limit is raised. It is low for programs
    that use ``select()``, which knows no descriptors above 1,024; servers raise it.
    """
    resource = _limits()
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (_WANTED, _FALLBACK):
            if hard != resource.RLIM_INFINITY:
                wanted = min(wanted, hard)
            if soft == resource.RLIM_INFINITY or soft >= wanted:
                break
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                break
    return allowed_files()


class OpenFiles(Generic[K]):
    """The users of open files, in the order of their last use; thread safe.

    About ``most`` files may be open together. More are open while those that were used least
    recently are busy.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        # in the order of their last use, the latest at the end
        self._used: dict[K, Resting] = {}
        # users that are closing their files now, which count until they are closed
        self._resting: dict[K, Resting] = {}
        self._files = 0

    def use(self, key: K, user: Resting) -> None:
        """Note that one is about to use its files; where there are too many, others close theirs.

        It takes the same time however many users there are, but for those that close.
        """
        with self._lock:
            if self._used.pop(key, None) is None and self._resting.pop(key, None) is None:
                self._files += user.files
            self._used[key] = user
            crowded = self._files > self._most
        if crowded:
            self._rest(self._most, _BUSY_AT_ONCE, key)

    def forget(self, key: K) -> None:
        """Do not count one any more: it was closed."""
        with self._lock:
            user = self._used.pop(key, None) or self._resting.pop(key, None)
            if user is not None:
                self._files -= user.files

    def rest_all(self) -> None:
        """Have everyone rest who is not in use."""
        self._rest(0, len(self._used))

    def _rest(self, most: int, tries: int, but: K | None = None) -> None:
        """Have the oldest rest until few enough files are open, or ``tries`` of them were in use.

        Nobody waits for those that rest: it is done without the lock.
        """
        while tries:
            with self._lock:
                if not self._used or self._files <= most:
                    return
                key = next(iter(self._used))
                user = self._used.pop(key)
                if key == but:
                    self._used[key] = user
                    tries -= 1
                    continue
                self._resting[key] = user
            released = False
            try:
                released = user.release_files()
            finally:
                with self._lock:
                    # it may have been used meanwhile, or closed
                    if self._resting.get(key) is user and key not in self._used:
                        del self._resting[key]
                        if released:
                            self._files -= user.files
                        else:
                            # it is used now: it is one of the newest
                            self._used[key] = user
            tries -= not released

"""The counters of a process: sums over all connections and engines, open or closed.

Nothing here is exported by itself. Clients and engines count in plain integers of their own, and
:mod:`fluss_df.metrics` adds them up when it is asked. What a connection counted stays in the sums
after it was closed, so that no counter ever goes down.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from fluss_df.hooks import ForkStep, after_fork

#: The upper bounds of histograms, in seconds: those that OpenTelemetry advises for databases.
BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
#: The label of all tables or runs without a label of their own, because there are too many.
OTHER: Final = "(other)"
#: Separates two labels of a histogram that has both in one name.
BETWEEN: Final = "\0"
# names in a process, dropped tables included: counters of a name are never forgotten
_MOST_NAMES: Final = 1000

#: The name of a counter, with its labels.
Key: TypeAlias = tuple[str, ...]
Counts: TypeAlias = dict[Key, float]


def add_counts(total: Counts, more: Mapping[Key, float]) -> None:
    """Add counts to others."""
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


class Names:
    """Which names have a label of their own: the first ones, up to the number ``most``."""

    def __init__(self, most: int = _MOST_NAMES) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def label(self, name: str) -> str:
        """Return the label of a name: itself, or :data:`OTHER`."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= self._most:
                return OTHER
            # two threads at the limit may add one each: the limit is about memory
            found = self._known[name] = name
        return found


table_names: Final = Names()
run_names: Final = Names()


class Durations:
    """Histograms of how long things took, one for each kind; thread safe.

    There are few kinds, such as the names of requests, so that their number needs no limit.
    ``lock`` is the lock of other counters that are changed together with these; by default they
    have their own.
    """

    def __init__(self, name: str, lock: threading.Lock | None = None) -> None:
        self._name = name
        self._lock = lock or threading.Lock()
        # counts between each two bounds, then the sum of seconds, then the number of errors
        self._kinds: dict[str, list[float]] = {}

    def add(self, kind: str, seconds: float, failed: bool = False) -> None:
        """Count one."""
        with self._lock:
            self.add_locked(kind, seconds, failed)

    def add_locked(self, kind: str, seconds: float, failed: bool) -> None:
        """Count one; the lock is held."""
        of_kind = self._kinds.get(kind)
        if of_kind is None:
            of_kind = self._kinds[kind] = [0] * (len(BOUNDS) + 3)
        of_kind[bisect_left(BOUNDS, seconds)] += 1
        of_kind[-2] += seconds
        if failed:
            of_kind[-1] += 1

    def after_fork(self, lock: threading.Lock) -> None:
        """Go on in a forked child: a thread of the parent may have held the lock."""
        self._lock = lock

    def counts(self) -> Counts:
        """Return the counters: ``name`` by kind and bound, ``name.sum`` and ``name.errors``."""
        with self._lock:
            kinds = {kind: tuple(values) for kind, values in self._kinds.items()}
        found: Counts = {}
        for kind, values in kinds.items():
            for at, count in enumerate(values[:-2]):
                found[self._name, kind, str(at)] = count
            found[f"{self._name}.sum", kind] = values[-2]
            found[f"{self._name}.errors", kind] = values[-1]
        return found


class OfTable:
    """Counters of one table; thread safe."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, **amounts: int) -> None:
        """Add to counters, by name."""
        counts = self._counts
        with self._lock:
            for name, amount in amounts.items():
                counts[name] += amount

    def add_to(self, name: str, amount: int) -> None:
        """Add to one counter; for single rows, half the price of :meth:`add`."""
        with self._lock:
            self._counts[name] += amount

    def as_dict(self) -> dict[str, int]:
        """Return all counters as they are now."""
        with self._lock:
            return dict(self._counts)


class Tables:
    """The counters of tables, of a bounded number; those of the others are one."""

    def __init__(self) -> None:
        self._tables: dict[str, OfTable] = {}

    def of(self, table: object) -> OfTable:
        """Return the counters of a table, by its path."""
        name = str(table)
        found = self._tables.get(name)
        if found is None:
            found = self._tables.setdefault(table_names.label(name), OfTable())
        return found

    def after_fork(self) -> None:
        """Go on in a forked child, as :meth:`Durations.after_fork`."""
        for of_table in self._tables.values():
            of_table._lock = threading.Lock()

    def counts(self) -> Counts:
        """Return the counters, by name and table."""
        return {
            (counter, table): value
            for table, of_table in list(self._tables.items())
            for counter, value in of_table.as_dict().items()
        }


class Counting(Protocol):
    """Something with counters."""

    def counts(self) -> Counts:
        """Return the counters as they are now."""


class Group:
    """All of one kind in this process, such as its connections; thread safe."""

    def __init__(self) -> None:
        self._reset()
        self._closed: Counts = {}

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Counting, weakref.ref[Any]] = {}
        # a deque: the garbage collector may add to it in any thread, whatever locks that holds
        self._collected: deque[Counting] = deque()

    def enter(self, owner: object, counting: Counting) -> None:
        """Take note of an owner, which is not kept alive, and of its counters, which are."""
        with self._lock:
            self._fold_collected()
            if counting not in self._open:
                self._open[counting] = weakref.ref(owner)
                weakref.finalize(owner, self._collected.append, counting).atexit = False

    def leave(self, counting: Counting) -> None:
        """Take note that an owner was closed: what it counted stays in the sums."""
        with self._lock:
            self._fold_collected()
            self._fold(counting)

    def _fold_collected(self) -> None:
        while self._collected:
            self._fold(self._collected.popleft())

    def _fold(self, counting: Counting) -> None:
        if self._open.pop(counting, None) is not None:
            add_counts(self._closed, counting.counts())

    def counts(self) -> Counts:
        """Return the sums over all, open and closed."""
        with self._lock:
            self._fold_collected()
            total = dict(self._closed)
            for counting in self._open:
                add_counts(total, counting.counts())
        return total

    def owners(self) -> Iterator[Any]:
        """Iterate over those that are open."""
        with self._lock:
            self._fold_collected()
            found = [owner() for owner in self._open.values()]
        return (owner for owner in found if owner is not None)

    def after_fork(self) -> None:
        """Begin again in a forked child: what was counted is the parent's to tell."""
        self._reset()
        self._closed = {}


#: Connections to clusters and folders.
clients: Final = Group()
#: Embedded engines.
engines: Final = Group()
#: Queries that run batch by batch.
runs: Final = Group()


def _after_fork_in_child() -> None:
    for group in (clients, engines, runs):
        group.after_fork()


after_fork(ForkStep.COUNTERS, _after_fork_in_child)

"""The collector for Prometheus's client library: the counters at the moment of a scrape."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fluss_df.client.runtime.io_thread import reset_after_fork
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.memory import data_pool
from fluss_df.metrics import families
from fluss_df.metrics.engine_sizes import LogSizes, kv_work
from fluss_df.metrics.families import Family
from fluss_df.observe.counters import (
    BETWEEN,
    BOUNDS,
    OTHER,
    Counts,
    Key,
    Names,
    clients,
    engines,
    runs,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_Values: TypeAlias = dict[tuple[str, ...], float]
_BOUND_NAMES = [*(repr(bound) for bound in BOUNDS), "+Inf"]


class FlussCollector:
    """Everything that this process counts of Fluss, for a registry of ``prometheus_client``.

    Clients and embedded engines count whether or not there is a collector. It reads their counters
    when it is asked, and adds up those of all connections and of all engines of the process; what
    closed ones counted stays in the sums, so that counters never go down.

    Parameters
    ----------
    max_tables
        How many tables get a label ``table`` of their own, those that are met first; the others
        are summed under ``(other)``. The same holds for runs. At most 1000.

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for another ``max_tables``.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> registry.register(FlussCollector())
    >>> b"fluss_client_connections" in generate_latest(registry)
    True
    """

    def __init__(self, max_tables: int = 100) -> None:
        if (
            isinstance(max_tables, bool)
            or not isinstance(max_tables, int)
            or not 0 <= max_tables <= 1000
        ):
            raise FlussError(
                f"max_tables={max_tables!r}: expected a number from 0 to 1000",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        self._lock = threading.Lock()
        self._tables = Names(max_tables)
        self._runs = Names(max_tables)
        self._sizes = LogSizes()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Go on in a forked child: the parent may have been asked meanwhile."""
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return [_metric(family) for family in families.FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        # a lock, because two scrapes at once would both measure the sizes of all files
        with self._lock:
            found = [*self._counted(), *self._measured()]
        return iter(found)

    def _counted(self) -> Iterator[Metric]:
        for group, listed in (
            (clients, families.CLIENT),
            (engines, families.SERVER),
            (runs, families.RUNS),
        ):
            counts = group.counts()
            for family in listed:
                if family.kind == "histogram":
                    yield self._histogram(family, counts)
                else:
                    length = len(family.labels) + 1
                    yield self._plain(
                        family,
                        {
                            key[1:]: value
                            for key, value in counts.items()
                            if key[0] == family.source and len(key) == length
                        },
                    )

    def _labels(self, family: Family, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return labels; those of a table or run that is one too many become ``(other)``."""
        if family.labels == ("table",):
            return (self._tables.label(labels[0]),)
        if family.labels == ("run", "table"):
            run = self._runs.label(_text(labels[0]))
            return (run, OTHER if run == OTHER else labels[1])
        return labels

    def _plain(self, family: Family, values: Mapping[tuple[str, ...], float]) -> Any:
        metric = _metric(family)
        shown: _Values = {} if family.labels else {(): 0}
        for labels, value in values.items():
            at = self._labels(family, labels)
            shown[at] = shown.get(at, 0) + value
        for at, value in shown.items():
            metric.add_metric(list(at), value)
        return metric

    def _histogram(self, family: Family, counts: Counts) -> Any:
        metric = _metric(family)
        shown: dict[tuple[str, ...], list[float]] = {}
        for key, value in counts.items():
            place = _place(family, key)
            if place is not None:
                kind, at = place
                labels = self._labels(family, tuple(kind.split(BETWEEN)))
                values = shown.setdefault(labels, [0.0] * (len(BOUNDS) + 2))
                values[at] += value
        for labels, values in shown.items():
            total = 0.0
            buckets = []
            for bound, count in zip(_BOUND_NAMES, values[:-1], strict=True):
                total += count
                buckets.append((bound, total))
            metric.add_metric(list(labels), buckets, values[-1])
        return metric

    # ---- gauges, which are measured when asked for

    def _measured(self) -> Iterator[Metric]:
        connections = list(clients.owners())
        yield self._plain(families.CLIENT_CONNECTIONS, {(): len(connections)})
        buffered = sum(connection.buffered_bytes() for connection in connections)
        yield self._plain(families.CLIENT_BUFFER, {(): buffered})
        yield self._plain(families.CLIENT_MEMORY, {(): data_pool().bytes_allocated()})
        yield from self._of_engines()
        lags: _Values = {}
        for run in runs.owners():
            progress = run.progress
            at = (progress.name, progress.table)
            lags[at] = lags.get(at, 0) + progress.lag
        yield self._plain(families.RUN_LAG, lags)

    def _of_engines(self) -> Iterator[Metric]:
        servers = [server for server in engines.owners() if not server.closed]
        transports: Counter[str] = Counter(tcp=0, unix=0)
        sizes: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        compactions: Counter[str] = Counter(running=0, pending=0)
        memory = tables = buckets = refusing = 0
        for server in servers:
            open_now = server.open_connections
            # the event loop may change the set, but copy() is a single step
            for connection in open_now.open.copy():
                transports["tcp" if connection.address else "unix"] += 1
            memory += open_now.memory.held + open_now.answers.held
            tables += len(server.engine.catalog.all_tables())
            buckets += len(server.engine.open_buckets())
            refusing += server.engine.refusing_writes()
            sizes.update(self._sizes.of(server.engine, self._tables.label))
            for path, work in kv_work(server.engine):
                rows[self._tables.label(path)] += work.bytes
                compactions["running"] += work.running_compactions
                compactions["pending"] += work.pending_compactions
        yield self._plain(families.SERVER_ENGINES, {(): len(servers)})
        yield self._plain(families.SERVER_CONNECTIONS, _by_label(transports))
        yield self._plain(families.SERVER_MEMORY, {(): memory})
        yield self._plain(families.SERVER_TABLES, {(): tables})
        yield self._plain(families.SERVER_BUCKETS, {(): buckets})
        yield self._plain(families.SERVER_REFUSING, {(): refusing})
        yield self._plain(families.SERVER_LOG_SIZE, _by_label(sizes))
        yield self._plain(families.SERVER_KV_SIZE, _by_label(rows))
        yield self._plain(families.SERVER_COMPACTIONS, _by_label(compactions))


def _text(name: str) -> str:
    """Return a name as UTF-8 can have it: those of folders may have bytes that are no text."""
    return name.encode("utf-8", "backslashreplace").decode()


def _by_label(values: Mapping[str, float]) -> _Values:
    return {(label,): value for label, value in values.items()}


def _place(family: Family, key: Key) -> tuple[str, int] | None:
    """Return labels, as one text, and bucket of a histogram's counter; -1 for that of the sum."""
    if key[0] == family.source and len(key) == 3:
        return key[1], int(key[2])
    return (key[1], -1) if key[0] == f"{family.source}.sum" else None


def _metric(family: Family) -> Any:
    """Return a metric without values."""
    core = metrics_core()
    kinds: dict[str, Callable[..., Metric]] = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    return kinds[family.kind](family.name, family.text, labels=list(family.labels))


def metrics_core() -> Any:
    """Return the module of ``prometheus_client`` that has its kinds of metrics.

    Raises FlussError where it is not installed.
    """
    try:
        from prometheus_client import metrics_core as core
    except ImportError as error:
        raise FlussError(
            f"metrics for Prometheus need prometheus-client: pip install 'fluss-df[metrics]'"
            f" ({error})"
        ) from error
    return core

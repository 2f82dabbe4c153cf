"""How tables grow: asked of the cluster while somebody looks, and remembered for a while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, PartitionInfo, TableBucket, TablePath
from fluss_df.observe.counters import OTHER, engines
from fluss_df.pushdown.plan import Bucket
from fluss_df.pushdown.prune import all_buckets
from fluss_df.schema import TableInfo

_PAUSE_S: Final = 2.0
# a round takes at most one part in this number of the time
_SHARE: Final = 8
# seconds without a page that asks, after which nothing is asked any more
_IDLE_S: Final = 30.0
_INFO_S: Final = 5.0
# how long a sample waits for pages at the most: some never end
_PAGE_S: Final = 1.0
_AT_ONCE: Final = 16
_MOST_PLOTTED: Final = 32
_MOST_POINTS: Final = 900
_MOST_FAILED: Final = 3
_MOST_INFOS: Final = 5000
_GONE: Final = (
    ErrorCode.TABLE_NOT_EXIST,
    ErrorCode.DATABASE_NOT_EXIST,
    ErrorCode.PARTITION_NOT_EXISTS,
    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The size of a table at a moment.

    Attributes
    ----------
    at
        When, in seconds since 1970.
    rows
        How many rows of its log, or changes, can be read.
    end
        How many ever came: the sum of the offsets at the ends of its buckets.
    bytes_in
        Bytes that came since the engine was opened; None where servers do not tell, or count them
        with those of other tables.
    """

    at: float
    rows: int
    end: int
    bytes_in: float | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """How a table grew between its last two samples, each second; None before there are two."""

    rows: int
    rows_per_second: float | None
    bytes_per_second: float | None


class Watch:
    """Looks at all tables every few seconds, for as long as pages ask."""

    def __init__(self, connection: FlussConnection) -> None:
        self._connection = connection
        self._admin = connection.get_admin()
        self._lock = threading.Lock()
        self._infos: OrderedDict[TablePath, tuple[float, TableInfo]] = OrderedDict()
        self._samples: dict[TablePath, tuple[Sample | None, Sample]] = {}
        self._plotted: OrderedDict[TablePath, deque[Sample]] = OrderedDict()
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        # the number of pages that are being made
        self._pages = 0
        self._no_page = threading.Condition()

    # ---- what pages ask

    def tables(self, database: str | None = None) -> list[TablePath]:
        """Return all tables, or those of a database, as they are now."""
        names = [database] if database is not None else self._admin.list_databases()
        found = []
        for name in names:
            try:
                found += [TablePath(name, table) for table in self._admin.list_tables(name)]
            except FlussError as error:
                # dropped meanwhile
                if database is not None or error.error_code != ErrorCode.DATABASE_NOT_EXIST:
                    raise
        return found

    def info(self, path: TablePath) -> TableInfo:
        """Return what a table is, as it is now."""
        found = self._admin.get_table_info(path)
        self._remember(path, found)
        return found

    def infos(self, paths: Sequence[TablePath]) -> dict[TablePath, TableInfo]:
        """Return what tables are, as they were some seconds ago; without those that are gone."""
        now = time.monotonic()
        with self._lock:
            known = {p: self._infos[p] for p in paths if p in self._infos}
        found = {path: info for path, (at, info) in known.items() if now - at < _INFO_S}
        missing = [path for path in paths if path not in found]
        for path, info in zip(missing, self._ask(missing), strict=True):
            if info is not None:
                found[path] = info
                self._remember(path, info)
        return found

    def growth(self, path: TablePath) -> Growth | None:
        """Return how a table grows, where that is known."""
        self.look()
        with self._lock:
            found = self._samples.get(path)
        if found is None:
            return None
        before, now = found
        if before is None or now.at <= before.at:
            return Growth(now.rows, None, None)
        seconds = now.at - before.at
        grown = None
        if before.bytes_in is not None and now.bytes_in is not None:
            grown = max(0.0, now.bytes_in - before.bytes_in) / seconds
        return Growth(now.rows, max(0, now.end - before.end) / seconds, grown)

    def all_growth(self, paths: Iterable[TablePath]) -> Growth | None:
        """Return how tables grow together; None where nothing is known yet.

        Bytes that are not known of each of them are not known of all.
        """
        found = [growth for growth in map(self.growth, paths) if growth is not None]
        if not found:
            return None
        measured = [g for g in found if g.rows_per_second is not None]
        rates = [g.rows_per_second or 0.0 for g in measured]
        sizes = [g.bytes_per_second for g in measured if g.bytes_per_second is not None]
        whole = bool(sizes) and len(sizes) == len(measured)
        return Growth(
            sum(g.rows for g in found), sum(rates) if rates else None, sum(sizes) if whole else None
        )

    def history(self, path: TablePath) -> list[Sample]:
        """Return the samples of a table, from when somebody first looked at it on."""
        self.look()
        with self._lock:
            kept = self._plotted.get(path)
            if kept is None:
                kept = self._plotted[path] = deque(maxlen=_MOST_POINTS)
                while len(self._plotted) > _MOST_PLOTTED:
                    self._plotted.popitem(last=False)
            self._plotted.move_to_end(path)
            return list(kept)

    def buckets(self, info: TableInfo, partitions: Sequence[PartitionInfo]) -> list[Bucket]:
        """Return the buckets of a table, or of some partitions of it."""
        return list(all_buckets(info, list(partitions)))

    def offsets(self, info: TableInfo, buckets: Sequence[Bucket]) -> dict[Bucket, tuple[int, int]]:
        """Return where buckets begin and end."""
        keys = [TableBucket(info.table_id, b.bucket_id, b.partition_id) for b in buckets]
        if not keys:
            return {}
        first, last = (
            self._admin.get_bucket_offsets(info, keys, spec)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return {b: (first[k], last[k]) for b, k in zip(buckets, keys, strict=True)}

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the samples wait for the page that is made in the block: somebody waits for it."""
        with self._no_page:
            self._pages += 1
        try:
            yield
        finally:
            with self._no_page:
                self._pages -= 1
                self._no_page.notify_all()

    def look(self) -> None:
        """Take note that somebody looks: samples are taken for a while."""
        self._asked = time.monotonic()
        if self._thread is None and not self._ended.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="fluss-ui-watch", daemon=True
                    )
                    self._thread.start()

    def close(self) -> None:
        """Ask nothing any more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10)

    # ---- what is asked for them

    def _remember(self, path: TablePath, info: TableInfo) -> None:
        with self._lock:
            self._infos[path] = time.monotonic(), info
            self._infos.move_to_end(path)
            while len(self._infos) > _MOST_INFOS:
                self._infos.popitem(last=False)

    def _ask(self, paths: Sequence[TablePath]) -> list[TableInfo | None]:
        """Ask what tables are, several at the same time."""
        cluster = self._connection.cluster
        if cluster.engine is not None:
            return [self._here(path) for path in paths]

        async def all_of() -> list[TableInfo | None]:
            turns = asyncio.Semaphore(_AT_ONCE)

            async def one(path: TablePath) -> TableInfo | None:
                async with turns:
                    try:
                        return await self._admin.table_info(path)
                    except FlussError as error:
                        if error.error_code in _GONE:
                            return None
                        raise

            return await asyncio.gather(*map(one, paths))

        return self._connection.io.run(all_of()) if paths else []

    def _here(self, path: TablePath) -> TableInfo | None:
        try:
            return self._admin.get_table_info(path)
        except FlussError as error:
            if error.error_code in _GONE:
                return None
            raise

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            if began - self._asked < _IDLE_S:
                # pages report errors when they ask; the next round may succeed
                with contextlib.suppress(FlussError):
                    self._let_pages_go_first()
                    paths = self.tables()
                    self._take(paths)
                    self._forget(set(paths))
            took = time.monotonic() - began
            self._ended.wait(max(_PAUSE_S, _SHARE * took))

    def _forget(self, there: set[TablePath]) -> None:
        with self._lock:
            for known in (self._infos, self._samples, self._plotted):
                for path in [p for p in known if p not in there]:
                    del known[path]

    def _let_pages_go_first(self) -> None:
        with self._no_page:
            self._no_page.wait_for(lambda: not self._pages, _PAGE_S)

    def _take(self, paths: Sequence[TablePath]) -> None:
        """Take a sample of each table."""
        came = _bytes_in(self._connection)
        failed = 0
        for start in range(0, len(paths), _AT_ONCE):
            if self._ended.is_set():
                return
            self._let_pages_go_first()
            part = paths[start : start + _AT_ONCE]
            infos = self.infos(part)
            for path, info in infos.items():
                self._let_pages_go_first()
                try:
                    sample = self._sample(info, _of_table(came, path))
                except FlussError:
                    # The table was dropped meanwhile, or a bucket has no leader. Where servers are
                    # gone each table would take seconds, so failures are counted.
                    failed += 1
                    if failed > _MOST_FAILED:
                        return
                    continue
                self._keep(path, sample)

    def _sample(self, info: TableInfo, bytes_in: float | None) -> Sample:
        partitions = (
            self._admin.list_partition_infos(info.table_path) if info.is_partitioned() else []
        )
        offsets = self.offsets(info, self.buckets(info, partitions))
        first = sum(begin for begin, _ in offsets.values())
        last = sum(end for _, end in offsets.values())
        return Sample(time.time(), last - first, last, bytes_in)

    def _keep(self, path: TablePath, sample: Sample) -> None:
        with self._lock:
            known = self._samples.get(path)
            self._samples[path] = (None if known is None else known[1]), sample
            plotted = self._plotted.get(path)
            if plotted is not None and (not plotted or plotted[-1].at < sample.at):
                plotted.append(sample)


def _of_table(came: Mapping[str, float] | None, path: TablePath) -> float | None:
    """Return how many bytes came into a table; None where they are counted with those of others."""
    if came is None:
        return None
    return came.get(str(path), None if OTHER in came else 0.0)


def _bytes_in(connection: FlussConnection) -> dict[str, float] | None:
    """Return how many bytes came into each table, where the engine is in this process."""
    engine = connection.cluster.engine
    if engine is None:
        return None
    counts = engines.counts()
    return {
        key[1]: value for key, value in counts.items() if key[0] == "bytes_in" and len(key) == 2
    }

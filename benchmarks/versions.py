"""Another version of fluss_df beside this one: ``python -m benchmarks.versions --other FOLDER``.

The folder is a checkout of the other version. Each has a process of its own, and they do each work
in turns of a few hundred milliseconds: programs that run one after the other differ by a fifth on
a shared machine although they are equal. The median of the ratios of neighbouring turns still
differs by up to 7 % from one start of equal processes to the next, by where their memory comes to
lie. So all is done in several starts; what counts is the mean of their medians, with the bounds
between which the true one lies with a probability of 95 %.

Works are done on one real server, and in process, each version on a folder of its own. The child
uses nothing but the public names, which both versions have.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

# a turn is repeated until it takes as long as this
_TURN_S = 0.12
_DATABASE = "versions"
_BUCKETS = 4
_KEYS = 100_000
# snapshots soon, for scans of key tables; servers from 1.0 on refuse writes on a full disk
_OPTIONS = {"kv.snapshot.interval": "5s", "server.data-disk.write-limit-ratio": "1.0"}

Work = Callable[[], object]
# what is asked for, the work, how often it is done
Ask = Callable[..., Any]


def rows_of(count: int) -> pa.Table:
    """Return rows of about 45 bytes: in random order, repeated, random and rising values."""
    rng = np.random.default_rng(7)
    names = pa.array([f"user-{i}" for i in range(min(count, 100_000))])
    return pa.table(
        {
            "id": rng.permutation(count),
            "name": names.take(pa.array(rng.integers(0, len(names), count))),
            "score": rng.random(count),
            "quantity": pa.array(rng.integers(0, 1000, count), pa.int32()),
            "at": pa.array(np.cumsum(rng.integers(0, 1000, count))).cast(pa.timestamp("us")),
        }
    )


class Tables:
    """The tables of one version at one place, and what is done with them."""

    def __init__(self, connection: fluss.FlussConnection, name: str, rows: int) -> None:
        self.connection = connection
        self.data = rows_of(rows)
        self.keyed_data = self.data.slice(0, rows // 8)
        self._prefix = name
        connection.get_admin().create_database(_DATABASE, ignore_if_exists=True)

    def table(self, name: str, *keys: str, codec: str = "ZSTD") -> fluss.FlussTable:
        """Create a table."""
        path = fluss.TablePath(_DATABASE, f"{self._prefix}_{name}")
        kind = "table.log.arrow.compression.type"
        descriptor = fluss.TableDescriptor(
            fluss.Schema(self.data.schema, list(keys)),
            bucket_count=_BUCKETS,
            properties={kind: codec},
        )
        self.connection.get_admin().create_table(path, descriptor)
        return self.connection.get_table(path)

    def fill(self, table: fluss.FlussTable) -> None:
        """Write the rows of a primary-key table; old versions take frames of Polars alone."""
        frame = pl.DataFrame(self.keyed_data)
        fluss.write_fluss(frame, table.get_table_path(), connection=self.connection)

    def append(self, table: fluss.FlussTable, data: pa.Table, batch_rows: int = 1 << 16) -> None:
        """Append log batches of the same sizes in both versions."""
        with table.new_append().create_writer() as writer:
            handles = []
            for batch in data.to_batches(max_chunksize=batch_rows):
                handles.append(writer.write_arrow_batch(batch))
                if batch_rows < 1 << 16:
                    handles[-1].send_now()
            for handle in handles:
                handle.wait()

    def collect(
        self,
        table: fluss.FlussTable,
        query: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda frame: frame,
    ) -> pl.DataFrame:
        """Collect a query of a table."""
        frame = fluss.scan_fluss(table.get_table_path(), connection=self.connection)
        return query(frame).collect()

    def read(self, table: fluss.FlussTable, columns: list[str] | None = None) -> pa.Table:
        """Read all rows of all buckets."""
        builder = table.new_scan()
        if columns is not None:
            builder = builder.project_by_name(columns)
        scanner = builder.create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(_BUCKETS), fluss.EARLIEST_OFFSET))
        return scanner.to_arrow()

    def reads(self) -> dict[str, Work]:
        """Return scans of log tables."""
        found: dict[str, Work] = {}
        for codec in ("ZSTD", "NONE"):
            table = self.table(f"log_{codec.lower()}", codec=codec)
            self.append(table, self.data)
            found |= {
                f"scan to Arrow, {codec}": partial(self.read, table),
                f"scan to Arrow, two columns, {codec}": partial(self.read, table, ["id", "score"]),
                f"scan to Arrow, one column, {codec}": partial(self.read, table, ["quantity"]),
                f"collect, {codec}": partial(self.collect, table),
                f"collect a filter, {codec}": partial(
                    self.collect, table, lambda frame: frame.filter(pl.col("quantity") < 100)
                ),
                f"sum of one column by another, {codec}": partial(
                    self.collect,
                    table,
                    lambda frame: frame.group_by("quantity").agg(pl.col("score").sum()),
                ),
            }
        small = self.table("small")
        self.append(small, self.data.slice(0, len(self.data) // 2), 1000)
        tiny = self.table("tiny")
        self.append(tiny, self.data.slice(0, 10))
        return found | {
            "scan to Arrow, 1,000-row batches": lambda: self.read(small),
            "scan to Arrow, one column of these": lambda: self.read(small, ["quantity"]),
            "collect 10 rows": partial(self.collect, tiny),
        }

    def writes(self) -> dict[str, Work]:
        """Return appends and upserts."""
        appended, none = self.table("appended"), self.table("appended_none", codec="NONE")
        by_row, each = self.table("by_row"), self.table("each")
        keyed, keyed_by_row = self.table("upserted", "id"), self.table("upserted_by_row", "id")
        data = self.data.slice(0, len(self.data) // 2)
        dicts = self.data.slice(0, 50_000).to_pylist()
        # inserts take half the time of updates
        self.fill(keyed)

        def append_rows() -> None:
            with by_row.new_append().create_writer() as writer:
                for row in dicts:
                    writer.append(row)

        def upsert_rows() -> None:
            with keyed_by_row.new_upsert().create_writer() as writer:
                for row in dicts:
                    writer.upsert(row)

        def awaited() -> None:
            with each.new_append().create_writer() as writer:
                for row in dicts[:100]:
                    writer.append(row).wait()

        def upsert() -> None:
            with keyed.new_upsert().create_writer() as writer:
                writer.write_arrow(self.keyed_data)

        return {
            "append Arrow, ZSTD": lambda: self.append(appended, data),
            "append Arrow, NONE": lambda: self.append(none, data),
            "append 50,000 dicts": append_rows,
            "append 100 rows, each awaited": awaited,
            "upsert Arrow, updates": upsert,
            "upsert 50,000 dicts": upsert_rows,
        }

    def keyed(self) -> dict[str, Work]:
        """Return lookups, and reads of a key table."""
        table = self.table("keyed", "id")
        self.fill(table)
        lookuper = table.new_lookup().create_lookuper()
        found = self.keyed_data.column("id")
        keys = pa.table({"id": found.slice(0, _KEYS)})
        some = found.slice(0, 100).to_pylist()
        scan = table.new_scan()
        # until there is a snapshot of what was written
        time.sleep(8)
        return {
            "lookup of 100,000 keys": lambda: lookuper.lookup_arrow(keys),
            "100 lookups": lambda: [lookuper.lookup([key]) for key in some],
            "changelog to Arrow": lambda: self.read(table),
            "whole key table": lambda: scan.create_snapshot_scanner().to_arrow(),
            "filter on a key": partial(
                self.collect, table, lambda frame: frame.filter(pl.col("id") == some[0])
            ),
        }


def memory_of(name: str) -> int:
    """Return what the kernel says of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def peak(work: Work) -> int:
    """Return the bytes that a work takes beyond what there was before it, its result included."""
    gc.collect()
    # allocators keep what is freed for the next work; that of Polars returns it in half a second
    pa.default_memory_pool().release_unused()
    time.sleep(0.7)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of("VmRSS")
    kept = work()
    del kept
    return memory_of("VmHWM") - before


def child(address: str, name: str, rows: int, parts: str) -> None:
    """Do what the parent asks for, a line each, and answer with what it cost."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        works: dict[str, Work] = {}
        for place, target in (("TCP", address), ("in process", folder)):
            tables = Tables(stack.enter_context(fluss.connect(target)), name, rows)
            for part in (tables.reads, tables.writes, tables.keyed):
                if part.__name__ in parts.split(","):
                    works |= {f"{place}: {what}": work for what, work in part().items()}
        print(json.dumps(list(works)), flush=True)
        gc.freeze()
        for line in sys.stdin:
            asked = json.loads(line)
            work = works[asked["work"]]
            if asked["what"] == "memory":
                print(peak(work), flush=True)
                continue
            gc.collect()
            usage = resource.getrusage(resource.RUSAGE_SELF)
            began = time.perf_counter()
            for _ in range(asked["times"]):
                kept = work()
                # is not part of it where there is one turn alone
                if asked["times"] > 1:
                    del kept
            took = time.perf_counter() - began
            after = resource.getrusage(resource.RUSAGE_SELF)
            kept = None
            used = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
            print(json.dumps([took, used]), flush=True)


@contextlib.contextmanager
def version(tree: Path, address: str, name: str, rows: int, parts: str) -> Iterator[Any]:
    """Start a version; yield what asks it."""
    line = [sys.executable, str(Path(__file__).resolve()), f"--rows={rows}", f"--parts={parts}"]
    line += [f"--address={address}", f"--name={name}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, answers = process.stdin, process.stdout

        def ask(what: str = "", work: str = "", times: int = 1) -> Any:
            if what:
                to.write(json.dumps({"what": what, "work": work, "times": times}) + "\n")
                to.flush()
            answer = answers.readline()
            if not answer:
                raise SystemExit(f"the version {name} ended")
            return json.loads(answer)

        try:
            yield ask
        finally:
            to.close()


# by degrees of freedom, from 1 on: Student's t for bounds of 95 %
_STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def bounds(ratios: list[float]) -> tuple[float, float, float]:
    """Return the mean of ratios, and what it lies between with a probability of 95 %."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    away = math.inf
    if len(logs) > 1:
        t = _STUDENT_T[min(len(logs) - 1, len(_STUDENT_T)) - 1]
        away = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - away), math.exp(middle + away)


@dataclass(slots=True)
class Costs:
    """What a work cost in each start: ratios of time and of processor time, own seconds, bytes."""

    clock: list[float] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the costs as columns."""
        middle, low, high = bounds(self.clock)
        that, this = (min(memory) / 1e6 for memory in zip(*self.memory, strict=True))
        return (
            f"{middle:6.3f} ({low:.3f} to {high:.3f}) {bounds(self.processors)[0]:10.3f} "
            f"{statistics.median(self.seconds) * 1000:9,.1f}  {that:,.0f} {this:,.0f}"
        )


def measure(this: Ask, that: Ask, work: str, rounds: int, costs: Costs) -> None:
    """Do a work in turns; add what it cost."""
    # the server compiles what it does often
    warm = [min(ask("time", work)[0] for _ in range(3)) for ask in (this, that)]
    times = max(1, round(_TURN_S / max(warm)))
    clock, processors = [], []
    for turn in range(rounds):
        order = (this, that) if turn % 2 else (that, this)
        cost = {ask: ask("time", work, times) for ask in order}
        clock.append(cost[that][0] / cost[this][0])
        processors.append(cost[that][1] / max(cost[this][1], 1e-6))
        costs.seconds.append(cost[this][0] / times)
    costs.clock.append(statistics.median(clock))
    costs.processors.append(statistics.median(processors))
    costs.memory.append((that("memory", work), this("memory", work)))


def main(
    other: Annotated[Path | None, typer.Option(help="Checkout of the other version.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the log tables, of 45 bytes.")] = 2_000_000,
    starts: Annotated[int, typer.Option(help="Starts of both versions.")] = 4,
    rounds: Annotated[int, typer.Option(help="Turns of each version in a start.")] = 7,
    only: Annotated[str, typer.Option(help="Only works whose name contains this.")] = "",
    parts: Annotated[str, typer.Option(help="Which works.")] = "reads,writes,keyed",
    address: Annotated[str, typer.Option(hidden=True)] = "",
    name: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Compare another version with this one."""
    if address:
        child(address, name, rows, parts)
        return
    if other is None or not (other / "fluss_df").is_dir():
        raise typer.BadParameter("needs the checkout of another version", param_hint="--other")
    here = Path(__file__).resolve().parent.parent
    found: dict[str, Costs] = {}
    for start in range(starts):
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(folder, heap="2g", server_options=_OPTIONS) as cluster,
            version(here, cluster.bootstrap_servers, "this", rows, parts) as this,
            version(other.resolve(), cluster.bootstrap_servers, "other", rows, parts) as that,
        ):
            names = [name for name in this() if only in name]
            that()
            for work in names:
                measure(this, that, work, rounds, found.setdefault(work, Costs()))
        print(f"start {start + 1} of {starts} is done", file=sys.stderr, flush=True)
    print("costs of the other version by those of this one: above 1, this one costs less")
    print(
        f"{'work':50} {'time':>6} {'(95 %)':>16} {'processors':>10} {'ms, this':>9}"
        "  MB, other and this"
    )
    for work, costs in found.items():
        print(f"{work:50} {costs}")


if __name__ == "__main__":
    typer.run(main)

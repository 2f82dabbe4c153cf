"""Kills of Spark's JVM at any moment, and tasks that run twice: equal at the end.

The Python processes of a killed JVM are not killed with it: what they still send, they send beside
the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.io import read_fluss, scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from tests.campaigns.spark_standalone import spark_cluster
from tests.io.conftest import MakeTable

# more of them for a campaign; each takes 10 to 40 s, and on a loaded machine twice that
KILLS = int(os.environ.get("FLUSS_TEST_JVM_KILLS", "1"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "3"))
# without a new batch in a checkpoint for as long, a run hangs
STALLED_S = 240
# one kill with the runs before it, and the comparison of all copies
STEP_S = 600
LOG = pa.schema({"id": pa.int64(), "text": pa.string()})
KEYED = pa.schema({"id": pa.int64(), "value": pa.int64()})
CHANGES = pa.schema(
    {"id": pa.int64(), "value": pa.int64(), "change": pa.string(), "at": pa.int64()}
)
# Spark gives a worker ten seconds to start, which a busy machine may not: the run ends by itself
LATE = "Python worker failed to connect back"
# as Polars has them: names of partitions have no signs
NAMES = {"+I": "insert", "-U": "update_before", "+U": "update_after", "-D": "delete"}
# Java 17 starts processes through a helper, which waits for ever when its JVM is killed at that
# moment, and holds the JVM's sockets open: the driver's Python waited too (JDK-8307990).
_NO_HELPER = "-Djdk.lang.Process.launchMechanism=VFORK"
CONF = {
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_NO_HELPER}",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "fluss_df.spark.daemon",
    "spark.log.level": "ERROR",
}


class Streams:
    """Three streams of one program: rows, changes into partitions, changes into keys."""

    def __init__(
        self,
        connection: FlussConnection,
        make_table: MakeTable,
        folder: Path,
        master: str = "local[2]",
        **conf: str,
    ) -> None:
        self.connection, self.folder = connection, folder
        self.log = make_table(LOG, bucket_count=2)
        self.keyed = make_table(KEYED, primary_keys=["id"], bucket_count=2)
        self.log_copy = make_table(LOG, bucket_count=3, bucket_keys=["id"])
        self.changes = make_table(CHANGES, partition_keys=["change"], bucket_count=2)
        self.keyed_copy = make_table(KEYED, primary_keys=["id"], bucket_count=3)
        self.rng = random.Random(SEED)
        self.written = 0
        self._pid = folder / "pid"
        #: how many runs ended by themselves, because a worker did not start in time
        self.late = 0
        self._began = 0
        #: where tasks that ran again are noted; None: no task is slow
        self.slow: Path | None = None
        self._orders: dict[str, Any] = {
            "master": master,
            "conf": CONF | conf,
            "servers": connection.config.bootstrap_servers,
            "pid": str(self._pid),
        }

    def _streams(self) -> list[dict[str, Any]]:
        limit = {"max.offsets.per.trigger": "2000"}
        change = {**limit, "changelog.mode": "changelog"}
        once = {"delivery.guarantee": "exactly-once"}
        names = ", ".join(f"'{kind}', '{name}'" for kind, name in NAMES.items())
        selected = ["id", "value", f"decode(_change_type, {names}) AS change", "_log_offset AS at"]
        return [
            self._stream("log", self.log, self.log_copy, limit, once, shuffle=True),
            self._stream(
                "changes", self.keyed, self.changes, change, {**once, "create.partitions": "true"},
                columns=selected, shuffle=True,
            ),
            self._stream(
                "keys", self.keyed, self.keyed_copy, change, {"operation.column": "op"},
                columns=["id", "value", "_change_type AS op"],
            ),
        ]  # fmt: skip

    def _stream(
        self, name: str, source: TablePath, target: TablePath, read: dict[str, str],
        write: dict[str, str], columns: list[str] | None = None, shuffle: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        return {
            "source": str(source), "target": str(target), "read": read, "write": write,
            "columns": columns, "shuffle": shuffle, "slow": str(self.slow or ""),
            "checkpoint": str(self.folder / name),
        }  # fmt: skip

    def write(self) -> None:
        """Append rows to the log, and update and delete keys."""
        ids = pl.int_range(self.written, self.written + 200, eager=True)
        frame = pl.DataFrame({"id": ids, "text": ids.cast(pl.String)})
        write_fluss(frame, self.log, connection=self.connection)
        self.written += 200
        keys = self.rng.sample(range(400), 100)
        rows = pl.DataFrame({"id": keys, "value": [self.rng.randrange(100) for _ in keys]})
        with self.connection.get_table(self.keyed).new_upsert().create_writer() as writer:
            writer.write_arrow(rows)
            writer.delete_arrow(rows.head(20).select("id"))

    def start(self, end: bool = False) -> subprocess.Popen[bytes]:
        """Start the program in a process of its own."""
        self._pid.unlink(missing_ok=True)
        orders = json.dumps({**self._orders, "streams": self._streams(), "end": end})
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable}
        # set while this process has a session of Spark Connect
        environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
        with (self.folder / "output").open("ab") as output:
            self._began = output.tell()
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.jvm_program", orders],
                cwd=root, env=environment, stdout=output, stderr=output,
            )  # fmt: skip

    def commits(self) -> int:
        """Return how many batches the checkpoints have."""
        found = [_newest(folder / "commits") for folder in self.folder.iterdir() if folder.is_dir()]
        return sum(number + 1 for number in found)

    def kill(self) -> str:
        """Run until batches are committed, kill the JVM at any moment, say what was under way."""
        before, process = self.commits(), self.start()
        watch = Watch(self)
        while self.commits() < before + 2:
            if process.poll() is not None:
                self._require_late(process)
                process, watch = self.start(), Watch(self)
            watch.require_progress()
            self.write()
            time.sleep(0.4)
        for _ in range(self.rng.randrange(4)):
            self.write()
        time.sleep(self.rng.random() * 1.5)
        os.kill(int(self._pid.read_text()), signal.SIGKILL)
        # the driver's Python finds its JVM gone
        process.wait(60)
        assert process.returncode != 0
        open_now = [
            folder.name
            for folder in sorted(self.folder.iterdir())
            if _newest(folder / "offsets") > _newest(folder / "commits")
        ]
        return f"open: {', '.join(open_now) or 'none'}"

    def finish(self) -> None:
        while True:
            process = self.start(end=True)
            watch = Watch(self)
            try:
                while process.poll() is None:
                    watch.require_progress()
                    time.sleep(0.4)
            finally:
                process.kill()
            if process.returncode == 0:
                return
            self._require_late(process)

    def _require_late(self, process: subprocess.Popen[bytes]) -> None:
        """Fail unless a run ended because a worker did not start in time, and not too often."""
        # this run's part of the output, which ends with why it ended
        ending = self.output()
        assert LATE in ending, ending
        assert process.returncode == 1, ending
        self.late += 1
        assert self.late <= 2 + KILLS // 5, ending

    def output(self) -> str:
        """Return what the last run wrote, its end."""
        with (self.folder / "output").open("rb") as output:
            output.seek(self._began)
            return output.read().decode(errors="replace")[-4000:]

    def check(self) -> None:
        """Compare the copies with what they are copies of."""
        found = read_fluss(self.log_copy, connection=self.connection)
        ids = found["id"].sort()
        wanted = pl.int_range(self.written, eager=True)
        assert_frame_equal(ids.to_frame("id"), wanted.to_frame("id"))
        assert found.filter(pl.col("text") != pl.col("id").cast(pl.String)).is_empty()
        order = ["id", "at", "change"]
        changes = scan_fluss(self.keyed, mode="changelog", connection=self.connection).select(
            "id",
            "value",
            pl.col("_change_type").cast(pl.String).alias("change"),
            pl.col("_log_offset").alias("at"),
        )
        there = read_fluss(self.changes, connection=self.connection)
        assert_frame_equal(there.sort(order), changes.collect().sort(order))
        kept = read_fluss(self.keyed_copy, connection=self.connection)
        rows = read_fluss(self.keyed, connection=self.connection)
        assert_frame_equal(kept.sort("id"), rows.sort("id"))


class Watch:
    """Tells a run that hangs from one that is slow: by its batches, not by how long it takes."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._commits, self._at = streams.commits(), time.monotonic()

    def require_progress(self) -> None:
        """Fail when there is no new batch for too long."""
        now = self._streams.commits()
        if now != self._commits:
            self._commits, self._at = now, time.monotonic()
        stalled = time.monotonic() - self._at
        assert stalled < STALLED_S, f"no batch for {stalled:.0f} s: {self._streams.output()}"


@contextlib.contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    """Raise in what is under way when it takes longer; for the main thread."""

    def late(*_: object) -> None:
        raise TimeoutError(f"a step took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _newest(folder: Path) -> int:
    """Return the last number of a file in a folder; -1 if there is none."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1)


def test_what_takes_longer_than_it_may_ends() -> None:
    with pytest.raises(TimeoutError, match="longer than 1 s"), ends_within(1):
        time.sleep(60)


class Idle(Streams):
    """A run with as many batches as it is told."""

    def __init__(self) -> None:
        self.found = 0

    def commits(self) -> int:
        return self.found

    def output(self) -> str:
        return "its last words"


def test_a_run_hangs_when_no_batch_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run = Idle()
    watch = Watch(run)
    for _ in range(100):
        clock[0] += STALLED_S - 1
        run.found += 1
        watch.require_progress()
    clock[0] += STALLED_S
    with pytest.raises(AssertionError, match="no batch for 240 s: its last words"):
        watch.require_progress()


# each step has a limit of its own, because a campaign takes as long as the machine is slow
@pytest.mark.timeout(0)
def test_the_jvm_is_killed_at_any_moment(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    streams = Streams(connection, make_table, tmp_path)
    streams.write()
    began = time.monotonic()
    for number in range(KILLS):
        with ends_within(STEP_S):
            under_way = streams.kill()
        print(f"kill {number + 1}: {under_way}, {time.monotonic() - began:.0f} s", flush=True)
    streams.finish()
    with ends_within(STEP_S):
        streams.check()
    counts = f"{streams.written} rows, {streams.commits()} batches, {streams.late} late starts"
    print(f"{KILLS} kills, {counts}, all equal")


def test_slow_tasks_run_twice_at_the_same_time(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    """Speculation, which Spark has where a second executor is on another host."""
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    }
    daemons, again = tmp_path / "spark", tmp_path / "again"
    for folder in (daemons, again):
        folder.mkdir()
    with spark_cluster(daemons, cores=2) as master:
        streams = Streams(connection, make_table, tmp_path, master, **speculation)
        streams.slow = again
        for _ in range(5):
            streams.write()
        streams.finish()
    streams.check()
    twice = len(list(again.iterdir()))
    print(f"{twice} attempts beside others, {streams.commits()} batches, all equal")
    assert twice

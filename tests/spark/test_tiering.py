"""Tiering by a Spark job: each row is in the lake once, whatever is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.lake import TieringService
from fluss_df.lake.iceberg_writing import commit, tasks, tiered_table
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.spark import tier
from tests.lake.folders import BY_HAND, assert_elsewhere, assert_reads, table
from tests.lake.tiering.support import KINDS, LakeTable

NOW = {"table.datalake.freshness": "1ms"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path_factory.mktemp("tiered"), port=0, options=BY_HAND) as made:
        yield made


def made(engine: EmbeddedFluss, kind: str, name: str) -> LakeTable:
    lake_table = table(engine, kind, NOW, name)
    lake_table.write(list(range(1000)), 0)
    return lake_table


def tiered(spark: SparkSession, engine: EmbeddedFluss, lake_table: LakeTable, **more: Any) -> int:
    """Tier a table once it is due; return the number of files that were added."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        done = tier(spark, engine.address, [lake_table.path], **more)
        if any(one.snapshot_id for one in done):
            return sum(one.files for one in done)
    raise AssertionError("nothing was due")


@pytest.mark.over_connect
def test_tables_of_each_kind(spark: SparkSession, engine: EmbeddedFluss) -> None:
    kind_of_session = type(spark).__module__.split(".")[2]
    for kind in KINDS if kind_of_session == "session" else ("log", "partitioned_keys"):
        lake_table = made(engine, kind, f"{kind}_{kind_of_session}")
        files = tiered(spark, engine, lake_table, rows_per_task=100)
        # the logs of two buckets in pieces of 100 rows
        assert files >= 10 or lake_table.keyed
        lake_table.write(list(range(500, 1500)), 1)
        if lake_table.keyed:
            lake_table.delete(list(range(0, 1500, 7)))
        assert_reads(engine, lake_table)
        tiered(spark, engine, lake_table)
        assert lake_table.tiered() == lake_table.ends()
        assert_reads(engine, lake_table)
        lake_table.check()
    assert_elsewhere(engine.folder, lake_table)


def test_a_job_that_ends_between_the_commits_is_resumed(
    spark: SparkSession, engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("log", "keys"):
        lake_table = made(engine, kind, f"resumed_{kind}")

        def lost(*arguments: Any) -> None:
            raise FlussError("the driver ends here")

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "commit", lost)
            with pytest.raises(FlussError, match="the driver ends here"):
                tiered(spark, engine, lake_table)
        assert lake_table.tiered() == {}
        lake_table.write([5, 6, 2000], 1)
        tiered(spark, engine, lake_table)
        lake_table.check()


def test_of_a_job_and_a_service_one_commits(
    spark: SparkSession, engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_table = made(engine, "log", "raced")
    real: Callable[..., int] = commit.commit_snapshot
    turns: list[int] = []

    def late(table: Any, *arguments: Any, **more: Any) -> int:
        if not turns:
            turns.append(1)
            # another one, which the coordinator would not allow now, commits the same rows
            other = table.catalog.load_table(table.name())
            real(other, *arguments, **more)
        return real(table, *arguments, **more)

    monkeypatch.setattr(tiered_table, "commit_snapshot", late)
    with pytest.raises(FlussError, match="another service or writer committed"):
        tiered(spark, engine, lake_table)


def test_a_task_that_fails_is_said_and_nothing_is_committed(
    spark: SparkSession, engine: EmbeddedFluss
) -> None:
    lake_table = made(engine, "log", "refused")
    data = Path(lake_table.iceberg().location().removeprefix("file://")) / "data"
    # a file where the folder of data is made
    data.write_bytes(b"")
    with pytest.raises(FlussError, match=r"fluss\.refused: the files of its lake table cannot"):
        tiered(spark, engine, lake_table)
    assert lake_table.iceberg().current_snapshot() is None
    data.unlink()
    tiered(spark, engine, lake_table)
    lake_table.check()


def test_a_table_that_is_made_again_meanwhile(
    spark: SparkSession, engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_table = made(engine, "log", "again")
    real = tasks.IcebergTaskWriter

    def replaced(*arguments: Any) -> Any:
        monkeypatch.undo()
        with engine.connection() as connection:
            connection.get_admin().drop_table(lake_table.path)
        lake_table.create()
        return real(*arguments)

    monkeypatch.setattr(tiered_table, "IcebergTaskWriter", replaced)
    with pytest.raises(FlussError, match="dropped and created again"):
        tiered(spark, engine, lake_table)
    lake_table.written.clear()
    lake_table.write([1, 2, 3], 1)
    tiered(spark, engine, lake_table)
    lake_table.check()


def test_options_that_are_none_are_refused(spark: SparkSession, engine: EmbeddedFluss) -> None:
    with pytest.raises(FlussError, match="rows_per_task must be at least 1"):
        tier(spark, engine.address, rows_per_task=0)


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from fluss_df.spark import tier
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "500m")
    .getOrCreate()
)
print("ready", flush=True)
while True:
    for done in tier(spark, sys.argv[1], sys.argv[3:], lease_file=sys.argv[2], rows_per_task=500):
        print(done.rows, flush=True)
"""


@pytest.mark.spark_full
def test_jobs_that_are_killed_lose_and_repeat_nothing(
    engine: EmbeddedFluss, tmp_path: Path
) -> None:
    tables = [made(engine, kind, f"killed_{kind}") for kind in KINDS]
    names = [f"fluss.{one.name}" for one in tables]
    leases = str(tmp_path / "leases")
    for kill in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, engine.address, leases, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for one in tables:
                one.write(list(range(kill * 300, kill * 300 + 1000)), kill + 1)
                if one.keyed:
                    one.delete(list(range(kill * 300, kill * 300 + 1000, 11)))
            # at another moment of its rounds each time
            timer = threading.Event()
            timer.wait(0.7 * kill)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    with (
        fluss.connect(engine.address) as connection,
        TieringService(connection, names, lease_file=leases) as service,
    ):
        until = time.monotonic() + 120
        while any(one.tiered() != one.ends() for one in tables):
            service.run_due()
            assert time.monotonic() < until
    for one in tables:
        one.check()

"""Rows that expire on a real server, while a stream of Spark is stopped or a write goes on.

The servers keep what is old for seconds: segments are small, are copied to remote storage at once,
and are gone three seconds later. The newest segment of a bucket stays.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.metadata import OffsetSpec, TableBucket, TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark.plan.options import ReadOptions, WriteOptions
from fluss_df.spark.plan.partition import FlussPartition
from fluss_df.spark.plan.planning import ReadTask, TableScan
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.read.reading import read_task
from fluss_df.spark.read.streaming import FlussStreamReader
from fluss_df.spark.write.all_or_nothing import AllOrNothingWriter
from fluss_df.spark.write.exactly_once import ExactlyOnceWriter, StagedMessage
from fluss_df.spark.write.ledger import Ledger
from fluss_df.spark.write.publish import Publisher
from tests.faults.halfway import EXPIRING, EXPIRING_SERVER
from tests.spark.support import save

SCHEMA = pa.schema({"id": pa.int64(), "pad": pa.binary()})
# of a changelog, what a server needs to recover the rows stays: what no snapshot has
_SERVER = {**EXPIRING_SERVER, "kv.snapshot.interval": "2s"}
# three such writes fill a segment
ROWS = 1_000
_PATIENCE_S = 60.0
# after the last segment that can expire is copied, and its time is over
_QUIET_S = 6.0


def rows(start: int, stop: int) -> pl.DataFrame:
    pads = [os.urandom(350) for _ in range(start, stop)]
    return pl.DataFrame({"id": range(start, stop), "pad": pads}, schema_overrides={"id": pl.Int64})


class Expiring:
    """A cluster that forgets, and tables in it."""

    def __init__(self, cluster: LocalCluster, connection: FlussConnection) -> None:
        self.cluster = cluster
        self.connection = connection
        self.admin = connection.get_admin()
        self.admin.create_database("expiring", ignore_if_exists=True)

    def table(self, keys: bool = False, **properties: str) -> TablePath:
        path = TablePath("expiring", f"t_{uuid.uuid4().hex[:8]}")
        made = TableDescriptor(
            Schema(SCHEMA, ["id"] if keys else None), bucket_count=1, properties=properties
        )
        self.admin.create_table(path, made)
        return path

    def write(self, path: TablePath, start: int, stop: int) -> None:
        for first in range(start, stop, ROWS):
            write_fluss(rows(first, min(first + ROWS, stop)), path, connection=self.connection)

    def first(self, path: TablePath, bucket: int = 0, partition: int | None = None) -> int:
        info = self.connection.get_table(path).get_table_info()
        key = TableBucket(info.table_id, bucket, partition)
        return self.admin.get_bucket_offsets(info, [key], OffsetSpec.earliest())[key]

    def ids(self, path: TablePath) -> list[int]:
        found: list[int] = scan_fluss(path, connection=self.connection).collect()["id"].to_list()
        return found


def settled(first: Callable[[], int], past: int) -> int:
    """Wait until a log begins behind an offset, and nothing of it expires any more."""
    deadline, found, since = time.monotonic() + _PATIENCE_S, -1, time.monotonic()
    while found <= past or time.monotonic() < since + _QUIET_S:
        assert time.monotonic() < deadline, f"the log still begins at {found}"
        now = first()
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.3)
    return found


@pytest.fixture(scope="module")
def expiring(fluss_cluster_factory: ClusterFactory) -> Iterator[Expiring]:
    with (
        fluss_cluster_factory(server_options=_SERVER) as cluster,
        FlussConnection.create(cluster.bootstrap_servers) as connection,
    ):
        yield Expiring(cluster, connection)


# ---- batches


def test_rows_expire_between_a_plan_and_its_tasks(expiring: Expiring) -> None:
    source = expiring.table(False, **EXPIRING)
    expiring.write(source, 0, 12 * ROWS)
    reads: dict[str, list[Callable[[], list[int]]]] = {}
    where = {"path": str(source), "bootstrap.servers": expiring.cluster.bootstrap_servers}
    for start in ("earliest", "0"):
        given = {"starting.offsets": start, "rows.per.task": "2500"}
        options = ReadOptions.parse(where | given)
        scan = TableScan(options)
        reads[start] = [functools.partial(ids_of, options, scan, task) for task in scan.tasks()]
        assert len(reads[start]) == 5
    for lossy in ("true", "false"):
        options = ReadOptions.parse(where | {"fail.on.data.loss": lossy})
        scan = TableScan(options, streaming=True)
        stream = FlussStreamReader(options, scan.schema)
        begin = stream.initialOffset()
        parts = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
        tasks = [part.task for part in parts if isinstance(part, FlussPartition)]
        reads[lossy] = [functools.partial(ids_of, options, scan, task) for task in tasks]
    first = settled(lambda: expiring.first(source), 0)
    assert first < 12 * ROWS
    for how in ("earliest", "false"):
        found = [row for read in reads[how] for row in read()]
        assert found == list(range(first, 12 * ROWS))
    for how in ("0", "true"):
        with pytest.raises(FlussError, match="older data has expired"):
            reads[how][0]()


def ids_of(options: ReadOptions, scan: TableScan, task: ReadTask) -> list[int]:
    """Return what a task of a batch reads."""
    batches = read_task(options, scan.schema, task)
    return [row for batch in batches for row in batch.column("id").to_pylist()]


# ---- the source of a stream


def run(
    spark: SparkSession,
    expiring: Expiring,
    source: TablePath,
    target: TablePath,
    checkpoint: Path,
    **options: str,
) -> None:
    """Have a stream write all there is, exactly once."""
    read = spark.readStream.format("fluss")
    read = read.option("bootstrap.servers", expiring.cluster.bootstrap_servers)
    for key, value in options.items():
        read = read.option(key.replace("_", "."), value)
    writer = read.load(str(source)).select("id", "pad").writeStream.format("fluss")
    writer = writer.option("bootstrap.servers", expiring.cluster.bootstrap_servers)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer.option("delivery.guarantee", "exactly-once")
    query = writer.trigger(availableNow=True).start(str(target))
    try:
        query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.spark_full  # minutes, of which most are waiting
@pytest.mark.parametrize("keys", [False, True], ids=["log", "changelog"])
def test_rows_expire_while_a_stream_is_stopped(
    spark: SparkSession, expiring: Expiring, tmp_path: Path, keys: bool
) -> None:
    source, target = expiring.table(keys, **EXPIRING), expiring.table()
    options = {"changelog_mode": "changelog"} if keys else {}
    expiring.write(source, 0, 100)
    run(spark, expiring, source, target, tmp_path / "c", **options)
    assert sorted(expiring.ids(target)) == list(range(100))
    end = 100 + 12 * ROWS
    expiring.write(source, 100, end)
    first = settled(lambda: expiring.first(source), 100)
    assert first < end
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as caught:
            run(spark, expiring, source, target, tmp_path / "c", **options)
        text = str(caught.value)
        there = f"table {source}, bucket 0: the batch reads the offsets 100 to {end}"
        for part in (
            there,
            f"there are {first} to {end}: rows have expired",
            "with 'false' goes on",
        ):
            assert part in text
        assert sorted(expiring.ids(target)) == list(range(100))
    run(spark, expiring, source, target, tmp_path / "c", **options, fail_on_data_loss="false")
    assert sorted(expiring.ids(target)) == [*range(100), *range(first, end)]
    # from there on nothing is missing
    expiring.write(source, end, end + 50)
    run(spark, expiring, source, target, tmp_path / "c", **options)
    assert sorted(expiring.ids(target)) == [*range(100), *range(first, end + 50)]


# ---- the ledger of a write


def forgetful_ledger(expiring: Expiring) -> str:
    """Return a database of a ledger whose rows expire, as those that earlier releases made."""
    made, database = (f"ledger_{uuid.uuid4().hex[:8]}" for _ in range(2))
    Ledger(expiring.connection, made, "none").create()
    expiring.admin.create_database(database)
    for name in ("staged", "decisions"):
        found = expiring.connection.get_table(TablePath(made, name)).get_table_info().descriptor
        forgetful = TableDescriptor(
            found.schema,
            partition_keys=found.partition_keys,
            bucket_keys=found.bucket_keys,
            bucket_count=found.bucket_count,
            properties={**found.properties, **EXPIRING},
        )
        expiring.admin.create_table(TablePath(database, name), forgetful)
    return database


def staged_begin(expiring: Expiring, ledger: str) -> int:
    """Return the sum of the first offsets of what is staged of the only write."""
    path = TablePath(ledger, "staged")
    partitions = expiring.admin.list_partition_infos(path)
    return sum(expiring.first(path, b, p.partition_id) for p in partitions for b in range(4))


def wide_target(expiring: Expiring) -> TablePath:
    """Make a log of several buckets: each task stages a piece of its rows for each of them."""
    path = TablePath("expiring", f"t_{uuid.uuid4().hex[:8]}")
    # pieces are as large as their rows
    plain = {"table.log.arrow.compression.type": "NONE"}
    made = TableDescriptor(Schema(SCHEMA), bucket_count=16, bucket_keys=["id"], properties=plain)
    expiring.admin.create_table(path, made)
    return path


def test_what_is_staged_expires_before_it_is_published(expiring: Expiring) -> None:
    """Nothing of the write is there, what its other tasks staged and is there neither."""
    target, ledger = wide_target(expiring), forgetful_ledger(expiring)
    given = {"path": str(target), "bootstrap.servers": expiring.cluster.bootstrap_servers}
    given |= {"all.or.nothing": "true", "ledger.database": ledger}
    writer = AllOrNothingWriter(WriteOptions.parse(given), spark_schema(SCHEMA), False)

    def staged(start: int, stop: int, fits: Callable[[int], bool]) -> tuple[StagedMessage, int]:
        """Run a task until what it stages is in a bucket that fits, as one that is repeated."""
        while True:
            batches = rows(start, stop).to_arrow().cast(SCHEMA).to_batches()
            message = writer.write(iter(batches))
            assert isinstance(message, StagedMessage)
            assert message.staged is not None
            if fits(message.staged.place[0]):
                return message, message.staged.place[0]

    old, bucket = staged(0, 16 * ROWS, lambda found: found > 0)
    settled(lambda: staged_begin(expiring, ledger), 0)
    new, _ = staged(16 * ROWS, 17 * ROWS, lambda found: found < bucket)
    with pytest.raises(FlussError, match=rf"table {ledger}.staged, bucket {bucket}.*have expired"):
        writer.commit([new, old])
    assert expiring.ids(target) == []


@pytest.mark.spark_full
def test_a_write_of_spark_whose_last_task_is_late(
    spark: SparkSession, expiring: Expiring, tmp_path: Path
) -> None:
    """What the first task staged has expired when the last one is done."""
    target, ledger = wide_target(expiring), forgetful_ledger(expiring)
    go_on = tmp_path / "go on"

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            deadline = time.monotonic() + 2 * _PATIENCE_S
            while batch.column(0)[0].as_py() >= 8 * ROWS and not go_on.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody said to go on")
                time.sleep(0.1)
            yield batch

    pad = "unhex(repeat(md5(cast(id as string)), 22)) pad"
    data = (
        spark.range(0, 16 * ROWS, 1, 2)
        .selectExpr("id", pad)
        .mapInArrow(late, "id long, pad binary")
    )

    def write(**options: str) -> None:
        save(data, expiring.cluster, target, all_or_nothing="true", **options)

    def wait() -> None:
        try:
            settled(lambda: staged_begin(expiring, ledger), 0)
        finally:
            go_on.touch()

    # Spark knows its session in this thread alone
    with ThreadPoolExecutor(1) as pool:
        expired = pool.submit(wait)
        with pytest.raises(PySparkException) as caught:
            write(ledger_database=ledger)
        expired.result()
    error = caught.value
    assert f"table {ledger}.staged, bucket" in str(error)
    assert "rows have expired" in str(error)
    assert expiring.ids(target) == []
    # the tables of a ledger that this release makes keep their rows
    write()
    assert sorted(expiring.ids(target)) == list(range(16 * ROWS))


class KilledError(Exception):
    """The driver is as good as dead."""


@pytest.mark.parametrize("lenient", [False, True])
def test_what_is_staged_of_an_open_batch_of_a_stream_expires(
    expiring: Expiring, monkeypatch: pytest.MonkeyPatch, lenient: bool
) -> None:
    """It is refused whatever the option says: the batch was decided, and is not there."""
    target, ledger = wide_target(expiring), forgetful_ledger(expiring)
    given = {"path": str(target), "bootstrap.servers": expiring.cluster.bootstrap_servers}
    given |= {"delivery.guarantee": "exactly-once", "ledger.database": ledger}
    given |= {"fail.on.data.loss": str(not lenient).lower()}
    query, batches = str(uuid.uuid4()), rows(0, 16 * ROWS).to_arrow().cast(SCHEMA).to_batches()

    def run_batch() -> None:
        writer = ExactlyOnceWriter(WriteOptions.parse(given), spark_schema(SCHEMA), False)
        writer.commit([writer.stage(query, 0, iter(batches))], 0)

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", killed)
        with pytest.raises(KilledError):
            run_batch()
    settled(lambda: staged_begin(expiring, ledger), 0)
    for _ in range(2):
        with pytest.raises(FlussError, match=rf"table {ledger}.staged, bucket.*have expired"):
            run_batch()
        assert expiring.ids(target) == []

"""Kills at every step of a streaming write of each kind, with others writing to the same table."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.functions import col, rand, when
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.client.write.append import AppendWriter
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.spark import FlussDataSource
from fluss_df.spark.plan.options import WriteOptions
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.write.exactly_once import ExactlyOnceWriter
from fluss_df.spark.write.ledger import Ledger, Manifest
from fluss_df.spark.write.publish import Publisher
from fluss_df.spark.write.writing import FlussStreamWriter
from tests.io.conftest import MakeTable

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
ROWS = 20_000
FOREIGN = 1_000_000


def rows(start: int, count: int) -> pl.DataFrame:
    numbers = pl.int_range(start, start + count, eager=True)
    return pl.DataFrame({"id": numbers, "text": numbers.cast(pl.String)})


def killing(name: str, step: str, folder: Path) -> type[FlussDataSource]:
    """Return the data source with writers that die once at a step, as if by ``kill -9``.

    Defined in here, it travels to the workers by value.
    """
    marker = str(folder / "killed")

    def die(here: str) -> None:
        if step == here and not os.path.exists(marker):
            open(marker, "w").close()
            os._exit(9)

    def dying(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            die("write")

    class DyingPublisher(Publisher):
        sent = 0

        async def _send_one(self, *args: Any) -> None:
            await super()._send_one(*args)
            self.sent += 1
            if self.sent == 2:
                die("publishing")

    class DyingOnce(ExactlyOnceWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            found = super().write(dying(iterator))
            die("acknowledged")
            return found

        def publisher(self, *args: Any) -> Publisher:
            made = super().publisher(*args)
            return DyingPublisher(made._connection, made._info, made._ledger, made._losses)

        def propose(self, *args: Any) -> Manifest:
            die("commit")
            return super().propose(*args)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            die("committed")

    class DyingWriter(FlussStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            found = super().write(dying(iterator))
            die("acknowledged")
            return found

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            die("commit")
            super().commit(messages, batchId)
            die("committed")

    class Dying(FlussDataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            options = WriteOptions.parse(self.options)
            kind = DyingOnce if options.guarantee == "exactly-once" else DyingWriter
            made: DataSourceStreamWriter = kind(options, schema, overwrite)
            return made

    return Dying


class Copies:
    """Copies a table by a stream, again and again until it comes to an end."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.folder = folder

    def run(self, source: TablePath, target: TablePath, name: str, **options: str) -> int:
        """Return how often it failed before, without the workers that Spark waited for too long."""
        failures = late = 0
        while True:
            stream = (
                self.spark.readStream.format("fluss")
                .option("bootstrap.servers", self.cluster.bootstrap_servers)
                .option("max.offsets.per.trigger", str(ROWS // 2))
                .load(str(source))
            )
            # every run of a batch deals its rows to the tasks in another way
            shuffled = stream.repartition(2, rand()).where(col("id") >= 0)
            if "operation_column" in options:
                change = when(col("id") % 5 == 0, "delete").otherwise("upsert")
                shuffled = shuffled.withColumn(options["operation_column"], change)
            query = self.start(shuffled, target, name, options)
            try:
                query.awaitTermination(120)
            except StreamingQueryException as error:
                # on a busy machine a worker of Python takes longer to begin than Spark waits
                if "failed to connect back" in str(error):
                    late += 1
                else:
                    failures += 1
                assert failures + late < 8
                continue
            finally:
                query.stop()
            return failures

    def start(self, stream: DataFrame, target: TablePath, name: str, options: Any) -> Any:
        writer = stream.writeStream.format(name).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.option("bootstrap.servers", self.cluster.bootstrap_servers)
        for key, value in options.items():
            writer = writer.option(key.replace("_", "."), value)
        return writer.start(str(target))


@pytest.fixture
def copies(spark: SparkSession, fluss_cluster: LocalCluster, tmp_path: Path) -> Copies:
    return Copies(spark, fluss_cluster, tmp_path)


class Foreigner:
    """Somebody else who writes to the table all the time."""

    def __init__(self, connection: FlussConnection, table: TablePath) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(connection, table))
        self.rows = 0

    def _run(self, connection: FlussConnection, table: TablePath) -> None:
        while not self._stop.wait(0.02):
            write_fluss(rows(FOREIGN + self.rows, 10), table, connection=connection)
            self.rows += 10

    def __enter__(self) -> Foreigner:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def source(make_table: MakeTable) -> TablePath:
    return make_table(SCHEMA, rows(0, ROWS), bucket_count=2)


STEPS = ["write", "acknowledged", "commit", "committed"]
KILLS = [
    *(("exactly-once", step) for step in [*STEPS, "publishing"]),
    *(("at-least-once", step) for step in STEPS),
    *(("operations", step) for step in STEPS),
]
# all of them in the campaign; each takes some seconds
FEW = [("exactly-once", "publishing"), ("at-least-once", "acknowledged")]


@pytest.mark.parametrize(
    ("mode", "step"), KILLS if os.environ.get("FLUSS_TEST_SPARK_FULL") else FEW
)
def test_killed_and_repeated(
    spark: SparkSession,
    copies: Copies,
    connection: FlussConnection,
    make_table: MakeTable,
    source: TablePath,
    mode: str,
    step: str,
    tmp_path: Path,
) -> None:
    name = f"fluss_killed_{mode.replace('-', '_')}_{step}"
    spark.dataSource.register(killing(name, step, tmp_path))
    if mode == "operations":
        # of the rows that are there, some are deleted
        target = make_table(SCHEMA, primary_keys=["id"], bucket_count=3)
        write_fluss(rows(0, 1000), target, connection=connection)
        options = {"operation_column": "op"}
    else:
        target = make_table(SCHEMA, bucket_count=3, bucket_keys=["id"])
        options = {"delivery_guarantee": mode}
    with Foreigner(connection, target) as foreigner:
        failures = copies.run(source, target, name, **options)
    assert failures == 1
    found = scan_fluss(target, connection=connection).collect()
    ours = found.filter(pl.col("id") < FOREIGN)
    wanted = pl.int_range(ROWS, eager=True)
    if mode == "operations":
        wanted = wanted.filter(wanted % 5 > 0)
    assert ours["id"].unique().sort().equals(wanted, check_names=False)
    if mode != "at-least-once":
        assert ours.height == wanted.len()
    elif step != "write":
        # all rows of the task, or of the batch, are there again
        assert ours.height >= ROWS + ROWS // 8
    theirs = found.filter(pl.col("id") >= FOREIGN)
    assert theirs.height == theirs["id"].n_unique() == foreigner.rows > 0


@pytest.mark.spark_full
def test_a_partitioned_table(
    copies: Copies, connection: FlussConnection, make_table: MakeTable, source: TablePath
) -> None:
    target = make_table(SCHEMA, partition_keys=["text"], bucket_count=1)
    few = make_table(
        SCHEMA, rows(0, 4).with_columns(text=pl.col("id") % 2).cast({"text": pl.String})
    )
    once = {"delivery_guarantee": "exactly-once"}
    with pytest.raises(AssertionError):
        copies.run(few, target, "fluss", **once)
    copies.run(few, target, "fluss", create_partitions="true", **once)
    assert scan_fluss(target, connection=connection).collect()["id"].sort().to_list() == [
        0,
        1,
        2,
        3,
    ]


@pytest.fixture
def writer(
    fluss_cluster: LocalCluster, make_table: MakeTable
) -> tuple[ExactlyOnceWriter, TablePath]:
    target = make_table(SCHEMA, bucket_count=3)
    options = WriteOptions.parse(
        {
            "path": str(target),
            "bootstrap.servers": fluss_cluster.bootstrap_servers,
            "delivery.guarantee": "exactly-once",
        }
    )
    return ExactlyOnceWriter(options, spark_schema(SCHEMA), False), target


def stage(writer: ExactlyOnceWriter, query: str, frame: pl.DataFrame) -> WriterCommitMessage:
    table = frame.to_arrow().cast(SCHEMA)
    return writer.stage(query, 0, iter(table.to_batches(max_chunksize=500)))


def test_a_speculative_attempt_does_no_harm(
    writer: tuple[ExactlyOnceWriter, TablePath], connection: FlussConnection
) -> None:
    once, target = writer
    query = str(uuid.uuid4())
    first = stage(once, query, rows(0, 2000))
    # another attempt of the same task, whose message Spark passes over, and one that comes late
    stage(once, query, rows(0, 2000))
    second = stage(once, query, rows(2000, 1000))
    once.commit([first, second], 0)
    late = stage(once, query, rows(0, 2000))
    once.commit([late, second], 0)
    found = scan_fluss(target, connection=connection).collect()
    assert (found.height, found["id"].n_unique()) == (3000, 3000)


def test_staged_rows_whose_place_is_not_known_are_staged_again(
    writer: tuple[ExactlyOnceWriter, TablePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a repeated request may be answered as a duplicate, without an offset
    monkeypatch.setattr(AppendWriter, "offsets", lambda _: [])
    with pytest.raises(FlussError, match="did not say where all of them are"):
        stage(writer[0], str(uuid.uuid4()), rows(0, 10))


def test_nothing_is_sent_behind_an_error(
    writer: tuple[ExactlyOnceWriter, TablePath],
    connection: FlussConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = connection.get_table(writer[1]).get_table_info()
    publisher = Publisher(connection, info, Ledger(connection, "none", "none"))
    ended: list[int] = []

    async def send(_: Publisher, bucket: TableBucket, __: object) -> None:
        if bucket.bucket_id == 0:
            raise FlussError("the first bucket refused")
        await asyncio.sleep(0.2)
        ended.append(bucket.bucket_id)

    monkeypatch.setattr(Publisher, "_send_all", send)
    with pytest.raises(FlussError, match="the first bucket refused"):
        connection.io.run(publisher._send({TableBucket(info.table_id, n): [] for n in range(3)}))
    assert ended == [1, 2]


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_a_speculative_attempt_without_a_ledger(
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
    keys: list[str] | None,
) -> None:
    target = make_table(SCHEMA, primary_keys=keys, bucket_count=2)
    options = {"path": str(target), "bootstrap.servers": fluss_cluster.bootstrap_servers}
    writer = FlussStreamWriter(WriteOptions.parse(options), spark_schema(SCHEMA), False)
    task = rows(0, 3000).to_arrow().cast(SCHEMA).to_batches(max_chunksize=100)
    with Foreigner(connection, target), ThreadPoolExecutor() as pool:
        # two attempts of one task at the same time
        first, _ = pool.map(writer.write, [iter(task), iter(task)])
    writer.commit([first], 0)
    found = scan_fluss(target, connection=connection).filter(pl.col("id") < FOREIGN).collect()
    assert found["id"].n_unique() == 3000
    assert found.height == (3000 if keys else 6000)


def test_many_drivers_publish_the_same_batch_once(
    writer: tuple[ExactlyOnceWriter, TablePath], connection: FlussConnection
) -> None:
    once, target = writer
    query = str(uuid.uuid4())
    runs = [[stage(once, query, rows(0, 3000))] for _ in range(4)]
    errors: list[Exception] = []

    def commit(messages: list[Any]) -> None:
        try:
            once.commit(messages, 0)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=(messages,)) for messages in runs]
    with Foreigner(connection, target):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    found = scan_fluss(target, connection=connection).filter(pl.col("id") < FOREIGN).collect()
    assert (found.height, found["id"].n_unique()) == (3000, 3000)


def test_what_is_no_longer_needed_is_dropped(
    writer: tuple[ExactlyOnceWriter, TablePath], connection: FlussConnection
) -> None:
    once, _ = writer
    # Spark does not leave out numbers, which is refused as an entry that is gone
    once = ExactlyOnceWriter(
        replace(once._options, fail_on_data_loss=False), spark_schema(SCHEMA), False
    )
    query = str(uuid.uuid4())
    for batch in (0, 100, 200):
        table = rows(0, 10).to_arrow().cast(SCHEMA)
        once.commit([once.stage(query, batch, iter(table.to_batches()))], batch)
    infos = connection.get_admin().list_partition_infos(TablePath("fluss_df_ledger", "staged"))
    names = [info.partition_name for info in infos if info.partition_name.startswith(query)]
    assert sorted(names) == [f"{query}-1", f"{query}-2"]


def test_primary_key_tables_need_no_ledger(
    fluss_cluster: LocalCluster, make_table: MakeTable
) -> None:
    target = make_table(SCHEMA, primary_keys=["id"])
    options = {
        "path": str(target),
        "bootstrap.servers": fluss_cluster.bootstrap_servers,
        "delivery.guarantee": "exactly-once",
    }
    make: Callable[[], Any] = lambda: FlussDataSource(options).streamWriter(  # noqa: E731
        spark_schema(SCHEMA), False
    )
    with pytest.raises(Exception, match="leaves the same rows"):
        make()

"""Lake tables on Spark: files of the lake are tasks, beside those of the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.io.scans import union
from fluss_df.lake.tiering import TieringService
from fluss_df.spark.plan import planning
from fluss_df.spark.plan.lake_tasks import lake_and_rows
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import ReadTask, TableScan
from fluss_df.spark.read.reading import read_task
from tests.lake.tables_by_hand import Folder as ByHand
from tests.lake_tables import create_lake_table, dropped_after

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())])
KINDS: dict[str, tuple[list[str] | None, list[str] | None]] = {
    "log": (None, None),
    "parted": (None, ["day"]),
    "keyed": (["id"], None),
    "keyed_parted": (["day", "id"], ["day"]),
}


def rows(start: int, stop: int, mark: str) -> pl.DataFrame:
    days = ["mon", "tue"]
    return pl.DataFrame(
        {
            "id": range(start, stop),
            "name": [f"{mark}{number}" for number in range(start, stop)],
            "day": [days[number % 2] for number in range(start, stop)],
        }
    )


class Folder:
    """A folder with a lake, reached as a cluster is."""

    def __init__(self, engine: EmbeddedFluss) -> None:
        self.bootstrap_servers = engine.address


@pytest.fixture(scope="module", params=["iceberg", "paimon", "folder"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | Folder]:
    """Return a cluster with a lake, or a folder; into Paimon Flink's service tiers."""
    if request.param == "folder":
        options = EngineOptions(lake_tiering=False)
        with EmbeddedFluss(tmp_path_factory.mktemp("lake"), port=0, options=options) as engine:
            yield Folder(engine)
        return
    fluss_cluster_factory: ClusterFactory = request.getfixturevalue("fluss_cluster_factory")
    with fluss_cluster_factory(datalake=request.param) as made:
        if request.param == "paimon":
            made.start_flink_tiering({"fluss.tiering.poll.table.interval": "100ms"})
        yield made


@pytest.fixture(autouse=True)
def no_tables_are_left() -> Iterator[None]:
    """Have nothing of a test tiered while others run."""
    with dropped_after():
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_lake_and_log_are_one_table(
    spark: SparkSession, cluster: LocalCluster | Folder, kind: str
) -> None:
    keys, partition_keys = KINDS[kind]
    name = f"spark_{kind}"
    path = fluss.TablePath("fluss", name)
    with fluss.connect(cluster.bootstrap_servers) as connection:
        admin = connection.get_admin()
        create_lake_table(
            cluster,
            connection,
            path,
            fluss.TableDescriptor(
                fluss.Schema(COLUMNS, keys),
                bucket_count=2,
                partition_keys=partition_keys,
                properties=LAKE,
            ),
        )
        options: Any = {"create_partitions": True} if partition_keys else {}

        def read(**more: str) -> DataFrame:
            reader = spark.read.format("fluss").option("table", name)
            reader = reader.option("bootstrap.servers", cluster.bootstrap_servers)
            for key, value in more.items():
                reader = reader.option(key.replace("_", "."), value)
            return reader.load()

        def check(found: DataFrame, expected: pl.DataFrame) -> None:
            got = sorted(tuple(row) for row in found.collect())
            assert got == sorted(expected.rows())

        check(read(), rows(0, 0, ""))
        first, later = rows(0, 100, "a"), rows(50, 150, "b")
        fluss.write_fluss(first, name, connection=connection, **options)
        check(read(), first)
        self_tiered(connection, path, first.height)
        check(read(), first)
        fluss.write_fluss(later, name, connection=connection, **options)
        whole = pl.concat([first, later])
        if keys:
            whole = whole.unique(keys, keep="last")
        check(read(), whole)
        assert read().count() == whole.height
        check(
            read(filter="id >= 90 AND name LIKE 'b%'"),
            whole.filter((pl.col("id") >= 90) & pl.col("name").str.starts_with("b")),
        )
        check(read().where("day = 'mon'").select("id"), whole.filter(day="mon").select("id"))
        check(read(lake="false"), whole)
        if not partition_keys:
            return
        self_tiered(connection, path, first.height + later.height)
        admin.drop_partition(path, {"day": "mon"})
        check(read(), whole)
        check(read(partitions="mon"), whole.filter(day="mon"))
        check(read(partitions="mon,tue"), whole)
        check(read(lake="false"), whole.filter(day="tue"))
        one = whole.filter(day="mon").row(0, named=True)
        check(
            read(filter=f"day = 'mon' AND id = {one['id']}"),
            whole.filter((pl.col("day") == "mon") & (pl.col("id") == one["id"])),
        )


def self_tiered(connection: fluss.FlussConnection, path: fluss.TablePath, changes: int) -> None:
    """Tier a table, where Flink's service does not, until its lake has as many changes."""
    ours = connection.get_admin().get_table_info(path).lake_format == "iceberg"
    service = TieringService(connection, [path]) if ours else None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if service is not None:
            service.run_due()
        with contextlib.suppress(fluss.FlussError):  # there is no snapshot yet
            snapshot = connection.get_admin().get_latest_lake_snapshot(path)
            if sum(snapshot.table_buckets_offset.values()) >= changes:
                return
        time.sleep(0.3)
    pytest.fail(f"{path} was not tiered in two minutes")


def read_all(
    options: ReadOptions, scan: TableScan, tasks: list[ReadTask] | None = None
) -> list[int]:
    """Return the ids that tasks read."""
    there = scan.tasks() if tasks is None else tasks
    batches = [batch for task in there for batch in read_task(options, scan.schema, task)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist())


def test_rows_that_are_tiered_and_expire_while_spark_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = EngineOptions(lake_tiering=False, segment_bytes=2000)
    with (
        EmbeddedFluss(tmp_path, port=0, options=given) as engine,
        engine.connection() as connection,
    ):
        folder = ByHand(connection)
        folder.create("t", {"id": pa.int64()}, properties={"table.log.ttl": "1ms"})
        for first in range(0, 1500, 300):
            folder.write("t", pl.DataFrame({"id": range(first, first + 300)}))
        pin = union.pin_lake
        asked = 0

        def and_meanwhile(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            found = pin(*arguments)
            if asked == 1:
                assert found is None
                folder.tier("t")
                assert engine.engine.expire()
            return found

        monkeypatch.setattr(union, "pin_lake", and_meanwhile)
        options = ReadOptions.parse({"path": "t", "bootstrap.servers": engine.address})
        scan = TableScan(options)
        tasks = scan.tasks()
        assert any(task.lake is not None for task in tasks)
        assert read_all(options, scan, tasks) == list(range(1500))


def test_a_partition_that_is_dropped_while_spark_plans_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = EngineOptions(lake_tiering=False)
    with (
        EmbeddedFluss(tmp_path, port=0, options=given) as engine,
        engine.connection() as connection,
    ):
        folder = ByHand(connection)
        columns = {"id": pa.int64(), "day": pa.string()}
        folder.create("t", columns, ["id", "day"], parts=["day"])
        two = pl.DataFrame({"id": [1, 2], "day": ["mon", "tue"]})
        folder.write("t", two, create_partitions=True)
        folder.tier("t")
        rows_of = lake_and_rows

        def and_dropped(*arguments: Any) -> Any:
            found = rows_of(*arguments)
            connection.get_admin().drop_partition(fluss.TablePath("fluss", "t"), {"day": "mon"})
            return found

        monkeypatch.setattr(planning, "lake_and_rows", and_dropped)
        options = ReadOptions.parse({"path": "t", "bootstrap.servers": engine.address})
        scan = TableScan(options)
        with pytest.raises(fluss.FlussError, match=r"partition of table fluss\.t .* was dropped"):
            read_all(options, scan)

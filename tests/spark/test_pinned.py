"""Tasks of one read agree: current rows are those of the moment when the query was planned."""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.cluster import LocalCluster
from fluss_df.metadata import TableBucket
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import ReadTask, TableScan
from fluss_df.spark.read.pinned import Moved
from fluss_df.spark.read.reading import read_task
from tests.engines import ENGINES
from tests.spark.support import upsert

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "v": pa.int64()})
ROWS = pl.DataFrame({"id": range(60), "part": [f"p{i % 2}" for i in range(60)], "v": range(60)})


@pytest.fixture(scope="module", params=ENGINES)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fluss.FlussConnection]:
    place: str | Path = tmp_path_factory.mktemp("embedded")
    if request.param == "cluster":
        cluster: LocalCluster = request.getfixturevalue("fluss_cluster")
        place = cluster.bootstrap_servers
    with fluss.connect(place) as made:
        made.get_admin().create_database("pinned", ignore_if_exists=True)
        yield made


@contextlib.contextmanager
def _default(connection: fluss.FlussConnection) -> Iterator[None]:
    """Have options without an address mean a connection."""
    fluss.set_default_connection(connection)
    try:
        yield
    finally:
        fluss.set_default_connection(None)


class Table:
    """A partitioned primary-key table, and the way that Spark reads it, in this process."""

    def __init__(self, connection: fluss.FlussConnection, image: str | None) -> None:
        self.connection = connection
        name = f"t_{image or 'full'}_{uuid.uuid4().hex[:12]}".lower()
        self.path = fluss.TablePath("pinned", name)
        admin = connection.get_admin()
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA, ["id", "part"]),
            partition_keys=["part"],
            bucket_count=2,
            properties={} if image is None else {"table.changelog.image": image},
        )
        admin.create_table(self.path, descriptor)
        for part in ("p0", "p1"):
            admin.create_partition(self.path, {"part": part})
        self.upsert(ROWS)

    def upsert(self, rows: pl.DataFrame, delete: pl.DataFrame | None = None) -> None:
        upsert(self.connection, self.path, rows, delete)

    def plan(self, **options: str) -> tuple[ReadOptions, TableScan, list[ReadTask]]:
        parsed = ReadOptions.parse({"path": str(self.path), **options})
        scan = TableScan(parsed)
        return parsed, scan, scan.tasks()

    def change(self) -> None:
        """Insert, update, update again, delete, and delete and insert again."""
        three = pl.col("id") % 3 == 0
        self.upsert(ROWS.filter(three).with_columns(v=pl.col("v") + 1000))
        self.upsert(ROWS.filter(three).with_columns(v=pl.col("v") + 2000))
        self.upsert(ROWS.head(0), ROWS.filter(pl.col("id") % 5 == 0).select("id", "part"))
        self.upsert(ROWS.filter(pl.col("id") % 10 == 0).with_columns(v=-pl.col("v")))
        self.upsert(ROWS.with_columns(id=pl.col("id") + 500))


def read(plan: tuple[ReadOptions, TableScan, Sequence[ReadTask]]) -> pl.DataFrame:
    options, scan, tasks = plan
    parts = [batch for task in tasks for batch in read_task(options, scan.schema, task)]
    frame = pl.from_arrow(pa.Table.from_batches(parts))
    assert isinstance(frame, pl.DataFrame)
    return frame


def test_what_comes_after_planning_is_not_read(opened: fluss.FlussConnection) -> None:
    table = Table(opened, None)
    with _default(opened):
        whole = table.plan()
        some = table.plan(filter="v >= 30", columns="v", **{"metadata.columns": "_bucket"})
        table.change()
        later = table.plan()
        for _ in range(2):  # as a task that Spark repeats
            assert read(whole).sort("id").equals(ROWS)
        values = read(some)
        assert sorted(values["v"]) == list(range(30, 60))
        assert values["_bucket"].n_unique() == 2
        now = fluss.scan_fluss(table.path, connection=opened).collect().sort("id")
        assert not now.head(60).equals(ROWS)
        assert read(later).sort("id").equals(now)
        table.change()
        assert read(later).sort("id").equals(now)


def test_a_scan_that_is_behind_is_led_on(opened: fluss.FlussConnection) -> None:
    table = Table(opened, None)
    with _default(opened):
        _, _, before = table.plan()
        table.change()
        _, _, after = table.plan()
    info = opened.get_table(table.path).get_table_info()
    found = []
    for old, new in zip(before, after, strict=True):
        (was,), (split,) = old.splits, new.splits
        bucket = TableBucket(info.table_id, split.bucket_id, split.partition_id)
        moved = Moved(opened, info, SCHEMA.names, bucket, split.partition_name)
        moved.read(was.stop, split.stop)
        mine = pa.Table.from_batches(
            list(
                SnapshotScanner(
                    opened, info, partitions=[str(split.partition_name)], buckets=[split.bucket_id]
                ).batches()
            )
        )
        back = Moved(opened, info, SCHEMA.names, bucket, split.partition_name)
        back.read(split.stop, was.stop)
        then = pa.concat_tables([back.kept(mine), back.rows])
        found += [moved.kept(then), moved.rows]
    frame = pl.from_arrow(pa.concat_tables(found))
    assert isinstance(frame, pl.DataFrame)
    now = fluss.scan_fluss(table.path, connection=opened).collect()
    assert frame.sort("id").equals(now.sort("id"))


def test_without_old_rows_in_the_changelog_tasks_read_what_is_there(
    opened: fluss.FlussConnection,
) -> None:
    table = Table(opened, "WAL")
    with _default(opened):
        plan = table.plan()
        table.upsert(ROWS.with_columns(v=pl.col("v") + 1))
        assert read(plan)["v"].sum() == ROWS["v"].sum() + 60

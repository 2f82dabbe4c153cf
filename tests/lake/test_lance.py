"""Lance tables on a real cluster that Flink's service tiers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import lance
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import FlussError
from fluss_df.spark.plan.lake_tasks import LakeFiles, lake_rows
from tests.lake.tiering.support import LakeTable
from tests.lake_tables import create_lake_table, dropped_after
from tests.waiting import wait_until

# types that Lance's Arrow and Fluss's differ in, or may
MANY = pa.schema(
    [
        ("id", pa.int64()),
        ("z", pa.timestamp("us", "UTC")),
        ("t", pa.timestamp("ns")),
        ("s", pa.timestamp("s")),
        ("clock", pa.time32("ms")),
        ("day", pa.date32()),
        ("b", pa.binary()),
        ("f", pa.binary(3)),
        ("d", pa.decimal128(30, 4)),
        ("l", pa.list_(pa.int32())),
    ]
)
SOON = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}


def many(first: int, count: int) -> pl.DataFrame:
    number = pl.int_range(first, first + count, eager=True)
    frame = pl.DataFrame({"id": number}).select(
        "id",
        z=pl.from_epoch("id", time_unit="ms").dt.replace_time_zone("UTC"),
        t=pl.from_epoch("id", time_unit="s") + pl.duration(nanoseconds=pl.col("id") * 7),
        s=pl.from_epoch("id", time_unit="s"),
        clock=pl.time(1, 2, 3),
        day=pl.date(2026, 1, 1),
        b=pl.when(pl.col("id") % 3 > 0).then(pl.lit(b"\x00\xff")),
        f=pl.lit(b"abc"),
        d=pl.col("id").cast(pl.Decimal(30, 4)),
        l=pl.concat_list(pl.col("id").cast(pl.Int32), pl.lit(None, pl.Int32)),
    )
    return frame


@pytest.fixture(scope="module")
def cluster(fluss_cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    with fluss_cluster_factory(datalake="lance") as made:
        made.start_flink_tiering()
        yield made
        made.stop_flink_tiering()


@pytest.fixture(scope="module")
def tables(cluster: LocalCluster) -> Iterator[dict[str, LakeTable]]:
    """Return tables with rows in the lake, and rows behind it."""
    with dropped_after(), fluss.connect(cluster.bootstrap_servers) as connection:
        kinds = ("log", "bucketed", "partitioned")
        made = {kind: LakeTable(cluster, kind, f"lance_{kind}").create() for kind in kinds}
        path = fluss.TablePath("fluss", "lance_many")
        descriptor = fluss.TableDescriptor(fluss.Schema(MANY), properties=SOON)
        create_lake_table(cluster, connection, path, descriptor)
        fluss.write_fluss(many(0, 100), "lance_many", connection=connection)
        made["many"] = LakeTable(cluster, "log", "lance_many")
        for version in range(2):
            for kind in kinds:
                made[kind].write(list(range(version * 50, version * 50 + 100)), version)
            wait_until(
                lambda: (
                    all(table.tiered() for table in made.values())
                    and all(made[kind].tiered() == made[kind].ends() for kind in kinds)
                ),
                120,
            )
        cluster.stop_flink_tiering()
        for kind in kinds:
            made[kind].write(list(range(500, 520)), 2)
        fluss.write_fluss(many(100, 10), "lance_many", connection=connection)
        yield made


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(cluster.bootstrap_servers) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["log", "bucketed", "partitioned"])
def test_lake_and_log_are_read_as_one(
    connection: fluss.FlussConnection, tables: dict[str, LakeTable], kind: str
) -> None:
    table = tables[kind]
    expected = table.expected()
    scan = fluss.scan_fluss(table.name, connection=connection).select(expected.columns)
    assert_frame_equal(scan.collect().sort(expected.columns), expected)
    for condition in (pl.col("id") >= 90, pl.col("day") == "d1", pl.col("id") > 10**6):
        assert_frame_equal(
            scan.filter(condition).collect().sort(expected.columns), expected.filter(condition)
        )
    assert scan.select(pl.len()).collect().item() == expected.height
    assert scan.head(7).collect().height == 7
    streamed = scan.filter(pl.col("id") < 50).group_by("day").len().collect(engine="streaming")
    assert dict(streamed.iter_rows()) == dict(
        expected.filter(pl.col("id") < 50).group_by("day").len().iter_rows()
    )
    lake = fluss.read_fluss(f"{table.name}$lake", connection=connection)
    assert lake.height == 200
    assert "lake       snapshot" in str(fluss.explain(scan))


def test_types_come_back_as_fluss_has_them(
    connection: fluss.FlussConnection, tables: dict[str, LakeTable]
) -> None:
    found = fluss.read_fluss("lance_many", connection=connection).sort("id")
    log = fluss.read_fluss("lance_many", connection=connection, lake=False).sort("id")
    assert found.height == 110
    assert found.schema == log.schema
    assert_frame_equal(found, log)


def test_partitions_are_chosen(
    connection: fluss.FlussConnection, tables: dict[str, LakeTable]
) -> None:
    table = tables["partitioned"]
    expected = table.expected().filter(pl.col("day") == "d1")
    found = fluss.read_fluss(table.name, connection=connection, partitions=["d1"])
    assert_frame_equal(found.select(expected.columns).sort(expected.columns), expected)
    with pytest.raises(FlussError, match="d9"):
        fluss.read_fluss(table.name, connection=connection, partitions=["d9"])


def test_what_the_lake_does_not_have_is_refused(
    connection: fluss.FlussConnection, tables: dict[str, LakeTable]
) -> None:
    name = tables["log"].name
    with pytest.raises(FlussError, match="has no buckets, offsets and times of its rows"):
        fluss.read_fluss(name, connection=connection, include_metadata=True)
    with pytest.raises(FlussError, match="buckets was asked for"):
        fluss.read_fluss(name, connection=connection, buckets=[0])
    assert fluss.read_fluss(name, connection=connection, lake=False, include_metadata=True).height


def test_our_service_does_not_write_it(
    connection: fluss.FlussConnection, tables: dict[str, LakeTable]
) -> None:
    from fluss_df.lake.formats import open_tiered

    info = connection.get_admin().get_table_info(tables["log"].path)
    with pytest.raises(FlussError, match=r"lance, which fluss_df does not write \(only iceberg"):
        open_tiered(info)


def test_a_fragment_of_several_partitions_and_a_lost_one(
    connection: fluss.FlussConnection, cluster: LocalCluster, tables: dict[str, LakeTable]
) -> None:
    from fluss_df.lake.lance.snapshot import open_lance
    from fluss_df.lake.options import lake_options

    table = tables["partitioned"]
    info = connection.get_admin().get_table_info(table.path)
    place = cluster.dir / "lake" / "warehouse" / "fluss" / f"{table.name}.lance"
    before = lance.dataset(str(place)).version
    lance.dataset(str(place)).optimize.compact_files()
    after = lance.dataset(str(place)).version
    assert after > before
    snapshot = open_lance(info, lake_options(info), after)
    assert len({file.path for file in snapshot.files}) == 1
    assert {file.partition["day"] for file in snapshot.files} == {"d0", "d1", "d2"}
    assert sum(file.rows for file in snapshot.files) == 200
    assert [len(group) for group in snapshot.groups(snapshot.files)] == [3]
    assert snapshot.frame(snapshot.files).collect().height == 200
    paths = tuple({file.path for file in snapshot.files})
    tasks = LakeFiles(after, paths, ("d1",)), LakeFiles(after, paths, None)
    chosen, every = (
        pa.concat_tables(lake_rows(connection, info, task, ["day"], (), None)) for task in tasks
    )
    assert set(chosen["day"].to_pylist()) == {"d1"}
    assert every.num_rows == 200
    # queries are pinned at what the cluster knows
    assert fluss.read_fluss(table.name, connection=connection).height == table.expected().height
    with pytest.raises(FlussError, match="the version 99, which the cluster says"):
        open_lance(info, lake_options(info), 99)
    shutil.rmtree(place)
    with pytest.raises(FlussError, match="is not in its Lance warehouse"):
        open_lance(info, lake_options(info), after)

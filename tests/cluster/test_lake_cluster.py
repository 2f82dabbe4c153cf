"""A local cluster with a data lake: what the servers make of it, and what Flink tiers into it."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import ClusterError, LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import FlussError
from tests.lake_tables import create_lake_table
from tests.waiting import wait_until

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}


def lake_table(cluster: LocalCluster, name: str) -> fluss.TablePath:
    path = fluss.TablePath("fluss", name)
    with fluss.connect(cluster.bootstrap_servers) as connection:
        create_lake_table(
            cluster,
            connection,
            path,
            fluss.TableDescriptor(SCHEMA, bucket_count=2, properties=LAKE),
        )
    return path


def test_a_lake_table_is_made_in_the_iceberg_catalog(fluss_lake_cluster: LocalCluster) -> None:
    lake_table(fluss_lake_cluster, "made_in_iceberg")
    catalog = fluss_lake_cluster.dir / "lake" / "catalog.db"
    with closing(sqlite3.connect(catalog)) as connection:
        rows = connection.execute(
            "SELECT catalog_name, table_namespace FROM iceberg_tables WHERE table_name = ?",
            ["made_in_iceberg"],
        ).fetchall()
    assert rows == [("fluss-iceberg-catalog", "fluss")]


def test_who_reads_the_iceberg_catalog_holds_nobody_up(fluss_lake_cluster: LocalCluster) -> None:
    catalog = fluss_lake_cluster.dir / "lake" / "catalog.db"
    lake_table(fluss_lake_cluster, "made_before")
    with closing(sqlite3.connect(catalog)) as reader:
        reader.execute("BEGIN")
        (before,) = reader.execute("SELECT count(*) FROM iceberg_tables").fetchone()
        lake_table(fluss_lake_cluster, "made_while_read")
        assert reader.execute("SELECT count(*) FROM iceberg_tables").fetchone() == (before,)
        reader.rollback()
        assert reader.execute("SELECT count(*) FROM iceberg_tables").fetchone() == (before + 1,)


def test_a_lake_table_is_made_although_another_writes_the_catalog(
    fluss_lake_cluster: LocalCluster,
) -> None:
    catalog = fluss_lake_cluster.dir / "lake" / "catalog.db"
    with closing(sqlite3.connect(catalog, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        # longer than SQLite's driver waits where nobody says otherwise
        end = threading.Timer(4.0, other.rollback)
        end.start()
        try:
            lake_table(fluss_lake_cluster, "made_while_locked")
        finally:
            end.join()
    with fluss.connect(fluss_lake_cluster.bootstrap_servers) as connection:
        assert connection.get_admin().table_exists(fluss.TablePath("fluss", "made_while_locked"))


def test_tables_are_made_in_a_catalog_that_a_coordinator_found(
    fluss_cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    """Others wrote the catalog since the coordinator, which starts a second time, looked at it."""
    with fluss_cluster_factory(dir=tmp_path / "cluster", datalake="iceberg"):
        pass
    with fluss_cluster_factory(dir=tmp_path / "cluster", datalake="iceberg") as cluster:
        for number in range(3):
            with closing(sqlite3.connect(cluster.dir / "lake" / "catalog.db")) as other, other:
                row = "other", f"of_{number}", "key", "value"
                other.execute("INSERT INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)", row)
            lake_table(cluster, f"made_{number}")


def test_paimon_keeps_its_tables_in_files(fluss_cluster_factory: ClusterFactory) -> None:
    with fluss_cluster_factory(datalake="paimon") as cluster:
        lake_table(cluster, "in_paimon")
        warehouse = cluster.dir / "lake" / "warehouse"
        assert (warehouse / "fluss.db" / "in_paimon" / "schema" / "schema-0").is_file()


def wait_until_tiered(connection: fluss.FlussConnection, path: fluss.TablePath, rows: int) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            snapshot = connection.get_admin().get_latest_lake_snapshot(path)
            if sum(snapshot.table_buckets_offset.values()) == rows:
                return
        except FlussError:
            pass  # no snapshot yet
        assert time.monotonic() < deadline, "Flink's service tiered nothing in 90 seconds"
        time.sleep(0.2)


def test_flinks_tiering_service_moves_rows_into_the_lake(fluss_flink_tiering: LocalCluster) -> None:
    path = lake_table(fluss_flink_tiering, "tiered_by_flink")
    rows = pl.DataFrame({"id": range(100), "name": ["x"] * 100})
    fluss.write_fluss(rows, path.table_name, connection=fluss_flink_tiering.bootstrap_servers)
    with fluss.connect(fluss_flink_tiering.bootstrap_servers) as connection:
        wait_until_tiered(connection, path, 100)


def test_flinks_tiering_service_goes_on_after_a_table_that_fails(
    fluss_cluster_factory: ClusterFactory,
) -> None:
    rows = pl.DataFrame({"id": range(100), "name": ["x"] * 100})
    with fluss_cluster_factory(datalake="paimon") as cluster:
        broken, whole = (lake_table(cluster, name) for name in ("broken", "whole"))
        for path in (broken, whole):
            fluss.write_fluss(rows, path.table_name, connection=cluster.bootstrap_servers)
        shutil.rmtree(cluster.dir / "lake" / "warehouse" / "fluss.db" / "broken")
        cluster.start_flink_tiering()
        log = cluster.dir / "logs" / "flink-tiering.log"
        wait_until(
            lambda: " to FAILED" in log.read_text(errors="replace"),
            90,
            "the table without its lake did not fail",
        )
        with fluss.connect(cluster.bootstrap_servers) as connection:
            fluss.write_fluss(rows, whole.table_name, connection=connection)
            wait_until_tiered(connection, whole, 200)
        assert "Started BLOB server at 127.0.0.1" in log.read_text()


def test_what_there_is_no_lake_for_is_refused(fluss_cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match="datalake must be one of iceberg, paimon, lance, not 'delta'"
    ):
        LocalCluster(tmp_path, datalake="delta")
    with pytest.raises(ClusterError, match="has no data lake to tier into; start it with datalake"):
        fluss_cluster.start_flink_tiering()


def test_a_folder_keeps_its_lake(fluss_cluster_factory: ClusterFactory, tmp_path: Path) -> None:
    with fluss_cluster_factory(dir=tmp_path / "cluster", datalake="iceberg") as cluster:
        path = lake_table(cluster, "before")
    with fluss_cluster_factory(dir=tmp_path / "cluster") as cluster:
        with fluss.connect(cluster.bootstrap_servers) as connection:
            info = connection.get_admin().get_table_info(path)
            assert info.lake_format == "iceberg"
        lake_table(cluster, "after")

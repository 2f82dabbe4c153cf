"""One small Spark session for all tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fluss_df.cluster import ClusterUnavailableError
from fluss_df.cluster.java import find_java
from fluss_df.spark import FlussDataSource
from tests.io.conftest import cluster_connection, cluster_tables, connection, make_table

__all__ = ["cluster_connection", "cluster_tables", "connection", "make_table"]

_FULL = "FLUSS_TEST_SPARK_FULL"
_ROOT = str(Path(__file__).parents[2])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"spark_full: run in the campaign, with {_FULL}=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the campaign what takes seconds of Spark and repeats what other tests run."""
    if os.environ.get(_FULL):
        return
    left = [item for item in items if item.get_closest_marker("spark_full")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        find_java()
    except ClusterUnavailableError as error:
        # pyspark itself would say that its gateway exited
        pytest.fail(f"Spark needs Java 17 or newer: {error}", pytrace=False)
    with pytest.MonkeyPatch.context() as patch:
        # workers import the package from the same place as the tests
        patch.setenv("PYTHONPATH", os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "700m")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            # workers are forked from a process that has imported this library
            .config("spark.python.daemon.module", "fluss_df.spark.daemon")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        session.dataSource.register(FlussDataSource)
        yield session
        session.stop()

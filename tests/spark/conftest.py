"""One small Spark session for all tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fluss_df.spark import FlussDataSource
from tests.io.conftest import connection, make_table

__all__ = ["connection", "make_table"]

_ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
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
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        session.dataSource.register(FlussDataSource)
        yield session
        session.stop()

"""One small Spark for all tests, reached as a classic session or through Spark Connect.

Tests say ``spark`` and run on a classic session; those marked ``over_connect`` on both kinds.
With ``FLUSS_TEST_SPARK=connect`` all of them run through Spark Connect, and nothing else does.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fluss_df.cluster import ClusterUnavailableError
from fluss_df.cluster.servers.java import find_java
from fluss_df.spark import FlussDataSource
from tests.io.conftest import cluster_connection, cluster_tables, connection, make_table

__all__ = ["cluster_connection", "cluster_tables", "connection", "make_table"]

_FULL = "FLUSS_TEST_SPARK_FULL"
_KIND = "FLUSS_TEST_SPARK"
_KINDS = ("classic", "connect")
_ROOT = str(Path(__file__).parents[2])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"spark_full: run in the campaign, with {_FULL}=1")
    config.addinivalue_line("markers", "over_connect: run on both kinds of session")
    # said wherever pyspark imports the pandas that it finds, which is not used here
    warning = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    config.addinivalue_line("filterwarnings", warning)
    if _kind() not in _KINDS:
        raise pytest.UsageError(f"{_KIND}={_kind()}: expected one of {', '.join(_KINDS)}")


def _kind() -> str:
    return os.environ.get(_KIND, "classic")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spark" not in metafunc.fixturenames:
        return
    marked = any(mark.name == "over_connect" for mark in metafunc.definition.iter_markers())
    kinds = _KINDS if marked and _kind() == "classic" and not os.environ.get(_FULL) else (_kind(),)
    metafunc.parametrize("spark", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the campaign what takes seconds of Spark and repeats what other tests run."""

    def left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("spark_full") and not os.environ.get(_FULL):
            return True
        # what needs no session is the same whatever the session
        here = item.path.is_relative_to(Path(__file__).parent)
        return here and _kind() == "connect" and "spark" not in getattr(item, "fixturenames", ())

    left = [item for item in items if left_out(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def classic_spark() -> Iterator[SparkSession]:
    """A classic session, whose JVM serves Spark Connect too, as ``remote("local")`` starts it."""
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
            # small data: what compiles least is quickest
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            # workers are forked from a process that has imported this library
            .config("spark.python.daemon.module", "fluss_df.spark.daemon")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.sql.session.timeZone", "UTC")
            # without it, a client of Spark Connect gets no TIME
            .config("spark.sql.timeType.enabled", "true")
            .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", "0")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, classic_spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the data source."""
    if request.param == "classic":
        classic_spark.dataSource.register(FlussDataSource)
        yield classic_spark
        return
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    scala = "org.apache.spark.sql.connect.service.SparkConnectService$"
    service: Any = getattr(getattr(classic_spark._jvm, scala), "MODULE$")
    session: Any = ConnectSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    with pytest.MonkeyPatch.context() as patch:
        # by which the functions of pyspark.sql know whose columns they make
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session.dataSource.register(FlussDataSource)
        yield session
        session.stop()

"""pytest fixtures for a real Apache Fluss cluster.

Use them by ``pytest -p fluss_df.cluster.pytest_plugin`` or, in the top ``conftest.py``,
``pytest_plugins = ["fluss_df.cluster.pytest_plugin"]``.

A failed test shows what servers logged while it ran (``pytest_failures.py``).

Workers of pytest-xdist have a cluster each; the process that they report to counts and reports.

Where no real cluster can be had (no Java, no server jar), tests that want one are skipped and the
terminal summary says so loudly; where the environment variable ``CI`` is true they fail. The
terminal summary also counts the tests that ran on a real server.

Tests with one of the fixtures get the marker ``real_cluster``. Give it to a parameter of a fixture
that obtains the cluster with ``request.getfixturevalue``, or its tests are not counted::

    @pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)])
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from fluss_df.cluster import ClusterUnavailableError, LocalCluster
from fluss_df.cluster.pytest_failures import Failures
from fluss_df.cluster.servers.jars import resolve_jars
from fluss_df.cluster.servers.java import find_java

_FIXTURES = frozenset(
    {"fluss_cluster", "fluss_cluster_factory", "fluss_lake_cluster", "fluss_flink_tiering"}
)
_MARKER = "real_cluster"
# keys of what a worker reports
_SERVERS = "fluss_cluster_servers"
_ENDED = "fluss_cluster_ended"


class ClusterFactory(Protocol):
    """Starts clusters for tests; what :func:`fluss_cluster_factory` gives."""

    def __call__(self, **options: Any) -> LocalCluster:
        """Return a started cluster; the options are those of :class:`LocalCluster`."""


class _Worker(Protocol):
    """A worker of pytest-xdist, as the process that started it has it."""

    config: pytest.Config


@dataclass
class _Count:
    """The outcome of the tests that want a real cluster."""

    wanted: int = 0
    ran: int = 0
    server_version: str | None = None
    unavailable: str | None = None


_COUNT = pytest.StashKey[_Count]()
_CLUSTERS = pytest.StashKey[list[LocalCluster]]()
_FAILURES = pytest.StashKey[Failures]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the report that scripts read."""
    parser.getgroup("fluss").addoption(
        "--fluss-cluster-report",
        metavar="PATH",
        help="write the number of tests that ran on a real Fluss cluster to this file",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{_MARKER}: runs on a real Fluss cluster")
    config.stash[_COUNT] = _Count()
    config.pluginmanager.register(_Counter(config.stash[_COUNT]), "fluss-cluster-counter")
    config.stash[_CLUSTERS] = []
    config.stash[_FAILURES] = Failures(_MARKER, config.stash[_CLUSTERS])
    config.pluginmanager.register(config.stash[_FAILURES], "fluss-cluster-failures")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fixtures, directly or through others."""
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(_MARKER)


class _Counter:
    def __init__(self, count: _Count) -> None:
        self._count = count

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if _MARKER not in report.keywords:
            return
        if report.when == "setup":
            self._count.wanted += 1
        elif report.when == "call" and not report.skipped:
            self._count.ran += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report that was asked for; a worker of pytest-xdist tells what it found."""
    count = session.config.stash[_COUNT]
    told: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told[_SERVERS] = (count.server_version, count.unavailable)
        told[_ENDED] = session.config.stash[_FAILURES].ended
        return
    path = session.config.getoption("--fluss-cluster-report")
    if path:
        Path(path).write_text(f"{count.ran}\n", encoding="ascii")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: _Worker) -> None:
    """Take over what a worker of pytest-xdist found; one that was killed tells nothing."""
    told = getattr(node, "workeroutput", {})
    count = node.config.stash[_COUNT]
    version, unavailable = told.get(_SERVERS, (None, None))
    count.server_version = count.server_version or version
    count.unavailable = count.unavailable or unavailable
    failures = node.config.stash[_FAILURES]
    failures.ended = failures.ended or told.get(_ENDED)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests saw a real server and, loudly, when they could not."""
    count = config.stash[_COUNT]
    if count.unavailable is not None:
        terminalreporter.section(
            "WARNING: not tested on a real Fluss cluster", yellow=True, bold=True
        )
        terminalreporter.write_line(count.unavailable, yellow=True)
        terminalreporter.write_line(
            f"{count.wanted - count.ran} tests were not run on a real server.", yellow=True
        )
    if count.wanted:
        version = f" on fluss-server {count.server_version}" if count.server_version else ""
        terminalreporter.write_line(f"real-cluster tests: {count.ran} ran{version}")


def _is_ci() -> bool:
    return os.environ.get("CI", "").strip().lower() in ("1", "true", "yes")


@pytest.fixture(scope="session")
def fluss_cluster_factory(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Start real clusters: ``fluss_cluster_factory(tablet_servers=3)``.

    What a test does not stop, by :meth:`LocalCluster.stop` or a ``with`` statement, is stopped at
    the end of the session.
    """
    count = request.config.stash[_COUNT]
    if count.unavailable is None:
        try:
            find_java()
            count.server_version = resolve_jars().version
        except ClusterUnavailableError as error:
            count.unavailable = error.message
    if count.unavailable is not None:
        if _is_ci():
            pytest.fail(f"no real Fluss cluster: {count.unavailable}", pytrace=False)
        pytest.skip(f"no real Fluss cluster: {count.unavailable}")
    clusters = request.config.stash[_CLUSTERS]

    def factory(**options: Any) -> LocalCluster:
        cluster = LocalCluster(**options)
        clusters.append(cluster)
        return cluster.start()

    yield factory
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="session")
def fluss_cluster(
    request: pytest.FixtureRequest, fluss_cluster_factory: ClusterFactory
) -> LocalCluster:
    """Return the cluster of the test session: one tablet server, no authentication.

    Tests share it: each works in tables or a database of its own.
    """
    cluster = fluss_cluster_factory()
    request.config.stash[_FAILURES].shared = cluster
    return cluster


@pytest.fixture(scope="session")
def fluss_lake_cluster(fluss_cluster_factory: ClusterFactory) -> LocalCluster:
    """Return a cluster of the test session that has an Iceberg lake: one tablet server.

    Nothing is tiered but by what a test starts: see :func:`fluss_flink_tiering`.
    """
    try:
        return fluss_cluster_factory(datalake="iceberg")
    except ClusterUnavailableError as error:
        if _is_ci():
            pytest.fail(f"no data lake: {error.message}", pytrace=False)
        pytest.skip(f"no data lake: {error.message}")


@pytest.fixture(scope="session")
def fluss_flink_tiering(fluss_lake_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Return the lake's cluster while Flink's tiering service runs, to the end of the session.

    It takes any table that is due: a test that wants to tier a table by itself uses another
    cluster.
    """
    fluss_lake_cluster.start_flink_tiering()
    yield fluss_lake_cluster
    fluss_lake_cluster.stop_flink_tiering()

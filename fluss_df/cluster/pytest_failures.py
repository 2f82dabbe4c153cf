"""Server logs of failed tests: a part of the pytest plugin.

A failed test shows what the servers logged as warnings and errors while it ran. When the cluster of
the session no longer serves new tables, the run ends: each later test would wait for its deadlines,
and hide the one in which it happened. The logs are kept then, with the stacks of all threads.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from fluss_df.cluster.errors import ClusterError
from fluss_df.cluster.local import LocalCluster
from fluss_df.errors import FlussError

_WARNING = re.compile(rb" (WARN|ERROR) ")
_LONGEST_LINE = 300
_LINES = 40  # the last ones, for each test and server
_TITLE = "the cluster of the session serves no new tables"
_SERVES_WITHIN_MS = 15_000
_DUMP_SECONDS = 2.0


class Failures:
    """A plugin that reports on servers where a test failed.

    ``marker`` marks the tests that run on servers. More ``clusters`` are added while the session
    runs.
    """

    def __init__(self, marker: str, clusters: list[LocalCluster]) -> None:
        self._marker = marker
        self._clusters = clusters
        self._sizes: dict[Path, int] = {}
        self._failed = False
        self.shared: LocalCluster | None = None
        # why the run ended, and the folder of the logs
        self.ended: tuple[str, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Note where the logs end."""
        self._failed = False
        self._sizes = {log: log.stat().st_size for log in self._logs()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what servers logged to the report of a failure."""
        report = yield
        if report.failed and item.get_closest_marker(self._marker):
            self._failed = True
            for log in self._logs():
                if lines := _warnings(log, self._sizes.get(log, 0)):
                    report.sections.append((f"{log.parent.parent.name} {log.stem}", lines))
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """End the run behind a failure after which no new table is served."""
        done = yield
        if self._failed and self.shared is not None and _is_running(self.shared):
            problem = not_served(self.shared)
            if problem is not None:
                self.ended = (problem, str(keep_logs(self.shared)))
                item.session.shouldfail = _TITLE
        return done

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why the run ended, and where the logs are."""
        if self.ended is not None:
            problem, kept = self.ended
            terminalreporter.section(_TITLE, red=True, bold=True)
            terminalreporter.write_line(problem)
            terminalreporter.write_line(
                f"Its logs, with the stacks of all threads at their end, are in {kept}"
            )

    def _logs(self) -> Iterator[Path]:
        for cluster in self._clusters:
            with contextlib.suppress(FlussError, OSError):
                yield from sorted((cluster.dir / "logs").glob("*.log"))


def _is_running(cluster: LocalCluster) -> bool:
    """Whether any server runs; behind the last test of a session the cluster is gone."""
    try:
        return cluster.status().health != "stopped"
    except ClusterError:
        return False


def _warnings(log: Path, start: int) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(start)
            lines = [line for line in file if _WARNING.search(line)]
    except OSError:
        return ""
    return "\n".join(
        line.rstrip().decode("utf-8", "replace")[:_LONGEST_LINE] for line in lines[-_LINES:]
    )


def not_served(cluster: LocalCluster) -> str | None:
    """Return why a cluster takes no row into a table that is new; None where it does."""
    # the plugin is loaded at the start of a run, which may want no client at all
    import pyarrow as pa

    from fluss_df.client.connection import connect
    from fluss_df.metadata import TablePath
    from fluss_df.schema import Schema, TableDescriptor

    path = TablePath("fluss_df_is_it_served", f"t_{uuid.uuid4().hex}")
    options = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "retry-timeout": _SERVES_WITHIN_MS,
        "writer.delivery-timeout": _SERVES_WITHIN_MS,
    }
    try:
        with connect(options) as connection:
            admin = connection.get_admin()
            admin.create_database(path.database_name, ignore_if_exists=True)
            schema = Schema(pa.schema({"id": pa.int64()}))
            admin.create_table(path, TableDescriptor(schema, bucket_count=1))
            with connection.get_table(path).new_append().create_writer() as writer:
                writer.append({"id": 1})
            admin.drop_table(path)
    except FlussError as error:
        return str(error)
    return None


def keep_logs(cluster: LocalCluster) -> Path:
    """Have all servers write the stacks of their threads, and copy the logs to a folder."""
    for process in cluster.status().processes:
        if process.pid is not None and hasattr(signal, "SIGQUIT"):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGQUIT)
    time.sleep(_DUMP_SECONDS)
    kept = Path(tempfile.mkdtemp(prefix="fluss-cluster-logs-"))
    return Path(shutil.copytree(cluster.dir / "logs", kept, dirs_exist_ok=True))

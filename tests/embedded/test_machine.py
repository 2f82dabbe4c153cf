"""The machine of tables on an embedded engine, which is restarted, and on a real server."""

from __future__ import annotations

import os
import tempfile
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.embedded.table_machine import TableMachine

# more of them for a campaign
EXAMPLES = int(os.environ.get("FLUSS_TEST_CASES", "12"))


def run(machine: type[TableMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class EmbeddedMachine(TableMachine):
    """A folder; its segments are small, so that there are several."""

    can_restart = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.openings = 0
        self.open()

    def open(self) -> None:
        # every second time, each bucket rests while another is used
        open_files = (None, 1)[self.openings % 2]
        options = EngineOptions(segment_bytes=3000, open_files=open_files)
        self.engine = EmbeddedFluss(self.folder.name, options=options)
        self.openings += 1

    def connect(self) -> fluss.FlussConnection:
        return self.engine.connection()

    def restart_server(self) -> None:
        self.engine.close()
        self.open()

    def teardown(self) -> None:
        super().teardown()
        self.engine.close()
        self.folder.cleanup()


def test_embedded() -> None:
    run(EmbeddedMachine, EXAMPLES)


class RealMachine(TableMachine):
    """A cluster, which other tests use as well."""

    address: ClassVar[str]

    def connect(self) -> fluss.FlussConnection:
        return fluss.connect(self.address)


def test_a_real_server(fluss_cluster: LocalCluster) -> None:
    RealMachine.address = fluss_cluster.bootstrap_servers
    run(RealMachine, 4)

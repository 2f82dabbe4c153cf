"""Moments at which the only tablet server of a cluster can be killed and forgets nothing.

A server without replicas that is killed cuts its log to the last checkpoint of its high watermark
when it starts again, acknowledged or not (seen on 0.9.1). So a test that wants every row back
lets its writers rest before the kill, until the checkpoint holds all that they wrote.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

_CHECKPOINT = "high-watermark-checkpoint"
_TIMEOUT_S = 60.0


def wait_for_checkpoint(cluster: LocalCluster, table: fluss.FlussTable) -> None:
    """Wait until the checkpoint of the only server holds all that is in the table."""
    info = table.get_table_info()
    with fluss.connect(cluster.bootstrap_servers) as connection:
        ends = connection.get_admin().list_offsets(
            table.get_table_path(), range(info.num_buckets), fluss.OffsetSpec.latest()
        )
    [server] = cluster.tablet_servers
    # behind two lines, a version and a count: the table, its bucket, its high watermark
    wanted = {f"{info.table_id} {bucket} {end}" for bucket, end in ends.items() if end}
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        text = (server.data_dir / _CHECKPOINT).read_text()
        missing = wanted - set(text.splitlines())
        if not missing:
            return
        assert time.monotonic() < deadline, f"no checkpoint of {sorted(missing)}: {text!r}"
        time.sleep(0.01)


def forget(cluster: LocalCluster, table: fluss.FlussTable) -> None:
    """Let the only server, which was killed, have no checkpoint of the table."""
    [server] = cluster.tablet_servers
    file = server.data_dir / _CHECKPOINT
    mine = f"{table.get_table_info().table_id} "
    lines = [
        line[: line.rindex(" ")] + " 0" if line.startswith(mine) else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join([*lines, ""]))


class Rest:
    """Lets one writer, on a thread of its own, rest for a kill."""

    def __init__(self, cluster: LocalCluster, table: fluss.FlussTable) -> None:
        self._cluster = cluster
        self._table = table
        self._asked = threading.Event()
        self._resting = threading.Event()

    def kill(self) -> None:
        """Kill the server while the writer rests, and let it go on against the killed server."""
        self._asked.set()
        assert self._resting.wait(_TIMEOUT_S), "the writer did not come to rest"
        wait_for_checkpoint(self._cluster, self._table)
        self._cluster.kill_tablet_server(0)
        self._resting.clear()
        self._asked.clear()

    def here(self, flush: Callable[[], object]) -> None:
        """Rest here if that is asked for: ``flush``, and wait for the kill."""
        if self._asked.is_set():
            flush()
            self._resting.set()
            while self._asked.is_set():
                time.sleep(0.001)

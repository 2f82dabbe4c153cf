"""Tables with a lake on a real cluster, whose coordinator now and then misses one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import fluss_df as fluss
from fluss_df import FlussConnection, FlussError, TableDescriptor, TablePath
from fluss_df.cluster import ClusterError, LocalCluster

# what is on a cluster, in the order in which it was made
_there: list[tuple[LocalCluster, TablePath]] = []


def create_lake_table(
    cluster: object, connection: FlussConnection, path: TablePath, descriptor: TableDescriptor
) -> None:
    """Create a table with a lake, so that it can be used.

    The coordinator of Fluss 0.9.1 takes no note of a table now and then, more often on a busy
    machine (``fluss_df/client/cluster/table_creation.py``). A table of the lake stays when its
    table is dropped, so that it cannot be created again: the coordinator is started again then,
    the way out that the error names. A folder of the embedded engine has no coordinator.
    """
    if isinstance(cluster, LocalCluster):
        _there.append((cluster, path))
    try:
        connection.get_admin().create_table(path, descriptor)
    except FlussError as error:
        if "took no note of table" not in error.message or not isinstance(cluster, LocalCluster):
            raise
        cluster.kill_coordinator()
        cluster.start_coordinator()


@contextlib.contextmanager
def dropped_after() -> Iterator[None]:
    """Drop the lake tables of clusters that are created within.

    A tiering service takes one table after the other, also those in which nothing is new: for what
    no test needs any more, the next one would wait, and the processor work to the end of the tests.
    """
    before = len(_there)
    try:
        yield
    finally:
        gone = _there[before:]
        del _there[before:]
        for cluster in {id(cluster): cluster for cluster, _ in gone}.values():
            try:
                address = cluster.bootstrap_servers
            except ClusterError:
                continue  # it was stopped, and is gone
            with fluss.connect(address) as connection:
                for path in [path for on, path in gone if on is cluster]:
                    connection.get_admin().drop_table(path, ignore_if_not_exists=True)

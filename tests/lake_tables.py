"""Tables with a lake on a real cluster, whose coordinator now and then misses one."""

from __future__ import annotations

from fluss_df import FlussConnection, FlussError, TableDescriptor, TablePath
from fluss_df.cluster import LocalCluster


def create_lake_table(
    cluster: object, connection: FlussConnection, path: TablePath, descriptor: TableDescriptor
) -> None:
    """Create a table with a lake, so that it can be used.

    The coordinator of Fluss 0.9.1 takes no note of a table now and then, more often on a busy
    machine (``fluss_df/client/cluster/table_creation.py``). A table of the lake stays when its
    table is dropped, so that it cannot be created again: the coordinator is started again then,
    the way out that the error names. A folder of the embedded engine has no coordinator.
    """
    try:
        connection.get_admin().create_table(path, descriptor)
    except FlussError as error:
        if "took no note of table" not in error.message or not isinstance(cluster, LocalCluster):
            raise
        cluster.kill_coordinator()
        cluster.start_coordinator()

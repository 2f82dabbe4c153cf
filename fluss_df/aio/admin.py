"""Administration, as coroutines."""

from __future__ import annotations

import fluss_df.client.admin as core
from fluss_df.aio.bridge import Facade, giving, on_io
from fluss_df.metadata import DatabaseDescriptor, DatabaseInfo

_Admin = core.FlussAdmin
_Lease = core.KvSnapshotLease


class KvSnapshotLease(Facade[_Lease]):
    """A lease of snapshots; obtained from :meth:`FlussAdmin.create_kv_snapshot_lease`.

    Servers delete a snapshot when newer ones took its place, unless there is a lease of it that has
    not ended.
    """

    @property
    def lease_id(self) -> str:
        """Its name."""
        return self._core.lease_id

    @property
    def lease_duration_ms(self) -> int:
        """How long it lasts after it was acquired or renewed last (ms)."""
        return self._core.lease_duration_ms

    acquire_snapshots = on_io(_Lease.acquire_snapshots)
    renew = on_io(_Lease.renew)
    release_snapshots = on_io(_Lease.release_snapshots)
    drop_lease = on_io(_Lease.drop_lease)


class FlussAdmin(Facade[_Admin]):
    """Administration of a cluster; obtained from :meth:`FlussConnection.get_admin`.

    Every method is a coroutine, and raises a FlussError with the server's code when the cluster
    refuses.
    """

    # the released client calls the parameter database_name, and its documentation calls it name
    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        await _create_database(self, database_name, database_descriptor, ignore_if_exists)

    async def drop_database(
        self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True
    ) -> None:
        """Drop a database; with ``cascade`` its tables too, else it must be empty."""
        await _drop_database(self, database_name, ignore_if_not_exists, cascade)

    async def database_exists(self, database_name: str) -> bool:
        """Return whether there is such a database."""
        return await _database_exists(self, database_name)

    async def get_database_info(self, database_name: str) -> DatabaseInfo:
        """Return what is known of a database."""
        return await _get_database_info(self, database_name)

    alter_database = on_io(_Admin.alter_database)
    list_databases = on_io(_Admin.list_databases)
    list_database_summaries = on_io(_Admin.list_database_summaries)
    create_table = on_io(_Admin.create_table)
    drop_table = on_io(_Admin.drop_table)
    alter_table = on_io(_Admin.alter_table)
    get_table_info = on_io(_Admin.get_table_info)
    get_table_schema = on_io(_Admin.get_table_schema)
    get_table_stats = on_io(_Admin.get_table_stats)
    list_tables = on_io(_Admin.list_tables)
    table_exists = on_io(_Admin.table_exists)
    list_offsets = on_io(_Admin.list_offsets)
    list_partition_offsets = on_io(_Admin.list_partition_offsets)
    create_partition = on_io(_Admin.create_partition)
    drop_partition = on_io(_Admin.drop_partition)
    list_partition_infos = on_io(_Admin.list_partition_infos)
    register_producer_offsets = on_io(_Admin.register_producer_offsets)
    get_producer_offsets = on_io(_Admin.get_producer_offsets)
    delete_producer_offsets = on_io(_Admin.delete_producer_offsets)
    get_latest_kv_snapshots = on_io(_Admin.get_latest_kv_snapshots)
    get_kv_snapshot_metadata = on_io(_Admin.get_kv_snapshot_metadata)
    list_kv_snapshots = on_io(_Admin.list_kv_snapshots)
    create_kv_snapshot_lease = giving(KvSnapshotLease, _Admin.create_kv_snapshot_lease)
    list_remote_log_manifests = on_io(_Admin.list_remote_log_manifests)
    get_latest_lake_snapshot = on_io(_Admin.get_latest_lake_snapshot)
    get_readable_lake_snapshot = on_io(_Admin.get_readable_lake_snapshot)
    get_lake_snapshot = on_io(_Admin.get_lake_snapshot)
    get_server_nodes = on_io(_Admin.get_server_nodes)
    get_cluster_health = on_io(_Admin.get_cluster_health)
    describe_cluster_configs = on_io(_Admin.describe_cluster_configs)
    alter_cluster_configs = on_io(_Admin.alter_cluster_configs)
    add_server_tag = on_io(_Admin.add_server_tag)
    remove_server_tag = on_io(_Admin.remove_server_tag)
    rebalance = on_io(_Admin.rebalance)
    list_rebalance_progress = on_io(_Admin.list_rebalance_progress)
    cancel_rebalance = on_io(_Admin.cancel_rebalance)
    create_acls = on_io(_Admin.create_acls)
    list_acls = on_io(_Admin.list_acls)
    drop_acls = on_io(_Admin.drop_acls)


_create_database = on_io(_Admin.create_database)
_drop_database = on_io(_Admin.drop_database)
_database_exists = on_io(_Admin.database_exists)
_get_database_info = on_io(_Admin.get_database_info)

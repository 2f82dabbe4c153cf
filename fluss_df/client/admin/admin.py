"""All that can be asked of a cluster and changed in it: :class:`FlussAdmin`."""

from __future__ import annotations

from fluss_df.client.acl import AclRequests
from fluss_df.client.admin.databases import DatabaseAdmin
from fluss_df.client.admin.offsets import OffsetAdmin
from fluss_df.client.admin.servers import ServerAdmin
from fluss_df.client.admin.snapshots import SnapshotAdmin
from fluss_df.client.table_questions import TableQuestions


class FlussAdmin(DatabaseAdmin, OffsetAdmin, SnapshotAdmin, ServerAdmin, AclRequests):
    """Administration of a cluster; obtained from :meth:`FlussConnection.get_admin`.

    Every method blocks until the cluster has answered, and what it returns can also be awaited,
    but for texts, enumerations and what may be None. Every method raises a :class:`FlussError` with
    the server's code when the cluster refuses.
    """

    # what scans ask, too
    get_table_info = TableQuestions.get_table_info
    list_partition_infos = TableQuestions.list_partition_infos
    get_bucket_offsets = TableQuestions.get_bucket_offsets
    get_offsets_by_clock = TableQuestions.get_offsets_by_clock

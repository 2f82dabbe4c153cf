"""A lease of snapshots: servers keep what somebody reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fluss_df.client.admin.checks import buckets_of, numbers_of_buckets, text, whole
from fluss_df.client.admin.results import AcquireKvSnapshotLeaseResult
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.snapshot_leases import acquire_request, release_request, unavailable
from fluss_df.client.context import ClientContext
from fluss_df.client.runtime.awaitable import Ready, blocking
from fluss_df.client.runtime.io_thread import IOThread
from fluss_df.client.runtime.retry import Backoff, is_transient
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket, lease_problem
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb

# a table that the coordinator does not know after this time is dropped, or never was
_TABLE_WAIT_MS: Final = 3_000


class KvSnapshotLease(Ready):
    """A lease of snapshots; obtained from :meth:`FlussAdmin.create_kv_snapshot_lease`.

    Servers delete a snapshot when newer ones took its place, unless there is a lease of it that has
    not ended. Nothing is asked of the cluster before :meth:`acquire_snapshots`.

    Parameters
    ----------
    context
        The connection to the cluster.
    lease_id
        Names the lease; who knows it may renew, release and drop it.
    lease_duration_ms
        How long it lasts after it was acquired or renewed last (ms).
    """

    def __init__(self, context: ClientContext, lease_id: str, lease_duration_ms: int) -> None:
        self._context = context
        self._lease_id = text(lease_id, "lease id")
        problem = lease_problem(lease_id)
        if problem is not None:
            raise FlussError(f"invalid lease id {lease_id!r}: {problem}")
        self._duration_ms = whole(lease_duration_ms, "lease_duration_ms", least=1)

    @property
    def io(self) -> IOThread:
        """The I/O thread of this process."""
        return self._cluster.io

    @property
    def _cluster(self) -> Cluster:
        return self._context.cluster

    @property
    def lease_id(self) -> str:
        """Its name."""
        return self._lease_id

    @property
    def lease_duration_ms(self) -> int:
        """How long it lasts after it was acquired or renewed last (ms)."""
        return self._duration_ms

    @blocking
    async def acquire_snapshots(
        self, snapshot_ids: Mapping[TableBucket, int]
    ) -> AcquireKvSnapshotLeaseResult:
        """Have snapshots kept, and the lease last from now on.

        Parameters
        ----------
        snapshot_ids
            Bucket -> id of its snapshot.

        Returns
        -------
        AcquireKvSnapshotLeaseResult
            Which of them are not there, or not any more; the others are kept.

        Raises
        ------
        FlussError
            ``UNKNOWN_TABLE_OR_BUCKET_EXCEPTION`` for a table that does not exist,
            ``NON_PRIMARY_KEY_TABLE_EXCEPTION`` for one without a primary key; then nothing is kept.
        """
        snapshots = numbers_of_buckets(snapshot_ids, "snapshot_ids")
        if not snapshots:
            raise FlussError(
                f"lease {self._lease_id}: no snapshot to acquire is named; renew() makes it last"
            )
        request = acquire_request(self._lease_id, self._duration_ms, snapshots)
        answer = await self._ask_about_tables(api.ACQUIRE_KV_SNAPSHOT_LEASE, request)
        return AcquireKvSnapshotLeaseResult(unavailable(answer))

    @blocking
    async def renew(self) -> None:
        """Have the lease last from now on, with the snapshots that it has."""
        request = acquire_request(self._lease_id, self._duration_ms, {})
        await self._cluster.request_coordinator(api.ACQUIRE_KV_SNAPSHOT_LEASE, request)

    @blocking
    async def release_snapshots(self, buckets_to_release: Iterable[TableBucket]) -> None:
        """Give the snapshots of some buckets back.

        Parameters
        ----------
        buckets_to_release
            Buckets; one that the lease has no snapshot of is no error.

        Raises
        ------
        FlussError
            As :meth:`acquire_snapshots`.
        """
        buckets = buckets_of(buckets_to_release, "buckets_to_release")
        request = release_request(self._lease_id, buckets)
        await self._ask_about_tables(api.RELEASE_KV_SNAPSHOT_LEASE, request)

    async def _ask_about_tables(
        self, kind: api.Api[api.RequestT, api.ResponseT], request: api.RequestT
    ) -> api.ResponseT:
        """Ask the coordinator, which learns of a new table a moment after it was created."""
        backoff = Backoff(self._cluster.config.retry_timeout_ms)
        while True:
            try:
                return await self._cluster.request_coordinator(
                    kind, request, retry_timeout_ms=_TABLE_WAIT_MS
                )
            except FlussError as error:
                unknown = error.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
                if unknown or not is_transient(error) or backoff.expired:
                    raise

    @blocking
    async def drop_lease(self) -> None:
        """Give everything back, and end the lease; one that has ended is no error."""
        await self._cluster.request_coordinator(
            api.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id=self._lease_id)
        )

    def __repr__(self) -> str:
        return f"KvSnapshotLease({self._lease_id!r}, {self._duration_ms} ms)"

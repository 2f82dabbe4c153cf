"""One lookup at a time on the thread of its caller, over a lane: two thread switches less."""

from __future__ import annotations

import threading

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.lookup.queue import Answer, add_keys, lookup_api, lookup_request, values_of
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol.frames import parse_response
from fluss_df.schema import TableInfo


class DirectLookup:
    """Asks the leader of a bucket for one key, when nobody else is asking.

    Lookups only read. So on any problem :class:`LookupQueue` asks again, with its retries and its
    errors.
    """

    def __init__(self, cluster: Cluster, info: TableInfo, *, prefix: bool) -> None:
        self._cluster = cluster
        self._info = info
        self._prefix = prefix
        self._busy = threading.Lock()

    def ask(self, bucket: TableBucket, key: bytes) -> Answer | None:
        """Return the values of a key; None where the queue is to be asked."""
        node = self._cluster.known_leader(bucket)
        # under load, lookups go together
        if node is None or self._cluster.closed or not self._busy.acquire(blocking=False):
            return None
        try:
            api = lookup_api(self._prefix)
            request = lookup_request(self._info, self._prefix)
            add_keys(request, bucket, [key], self._cluster.told_count(bucket))
            lane = lane_pool().take(self._cluster, self._cluster.endpoint(node))
            try:
                lane.send(api, [request.SerializeToString()], self._cluster.metrics)
                response = lane.receive(self._cluster.metrics)
            finally:
                lane_pool().give_back(lane)
            answers = parse_response(api, response, lane.address).buckets_resp
            if len(answers) != 1 or answers[0].error_code:
                return None
            values = values_of(answers[0], self._prefix)
            return values if len(values) == 1 else None
        except FlussError:
            return None
        finally:
            self._busy.release()

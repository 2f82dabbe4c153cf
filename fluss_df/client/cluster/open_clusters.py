"""Clusters that are open in this process, until they are given up."""

from __future__ import annotations

import weakref

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.runtime.io_thread import io_thread
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.folders import close_engines
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.config import Config
from fluss_df.hooks import ExitStep, at_exit

_open_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


def open_cluster(config: Config, metrics: Metrics) -> Cluster:
    """Return a new cluster, whose sockets are given up when the process ends, at the latest."""
    cluster = Cluster(config, io_thread(), metrics)
    _open_clusters.add(cluster)
    return cluster


def release(cluster: Cluster) -> None:
    """Give up the sockets of a cluster that was never closed, from any thread."""
    lane_pool().release(cluster)
    cluster.io.call_unless_closed(cluster.close)


# A finalizer's own exit hook would run before that of the writers, which needs the sockets to
# flush.
def _release_at_exit() -> None:
    for cluster in list(_open_clusters):
        if not cluster.closed:
            release(cluster)
    close_engines()


at_exit(ExitStep.CLUSTERS, _release_at_exit)

"""A real Apache Fluss cluster on this machine, for tests and trials.

See :class:`LocalCluster`, the command ``fluss-df cluster``, and the pytest fixtures of
:mod:`fluss_df.cluster.pytest_plugin`.
"""

from fluss_df.cluster.errors import (
    ClusterAlreadyRunningError,
    ClusterError,
    ClusterUnavailableError,
    PortInUseError,
)
from fluss_df.cluster.local import LocalCluster
from fluss_df.cluster.status import ClusterStatus, ProcessStatus, TabletServer

__all__ = [
    "ClusterAlreadyRunningError",
    "ClusterError",
    "ClusterStatus",
    "ClusterUnavailableError",
    "LocalCluster",
    "PortInUseError",
    "ProcessStatus",
    "TabletServer",
]

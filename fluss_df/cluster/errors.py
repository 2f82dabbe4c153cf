"""Errors of a local cluster."""

from __future__ import annotations

from fluss_df.errors import FlussError


class ClusterError(FlussError):
    """A local cluster could not be started, stopped or asked; the message says why."""


class ClusterUnavailableError(ClusterError):
    """What a Fluss server needs is missing on this machine: Java, or the server itself."""


class ClusterAlreadyRunningError(ClusterError):
    """The servers of the folder are running already."""


class PortInUseError(ClusterError):
    """A port that the cluster was to listen on belongs to another program."""

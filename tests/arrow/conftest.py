"""Tables on a cluster and on an embedded engine, as tests of frames have them."""

from tests.io.conftest import cluster_connection, cluster_tables, place

__all__ = ["cluster_connection", "cluster_tables", "place"]

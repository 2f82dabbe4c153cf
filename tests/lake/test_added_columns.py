"""Sinks with ``schema_mode="merge"`` into a table with a lake."""

import polars as pl
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, write_fluss
from fluss_df.metadata import TablePath


def test_servers_that_add_no_columns_say_so(tiering_cluster: LocalCluster) -> None:
    """Those of 0.9.1 add none to a table of an Iceberg lake."""
    with FlussConnection.create(tiering_cluster.bootstrap_servers) as connection:
        path, frame = TablePath("fluss", "of_a_lake"), pl.DataFrame({"n": [1]})
        lake = {"table.datalake.enabled": "true"}
        write_fluss(frame, path, connection=connection, create_if_not_exists=True, properties=lake)
        more = frame.with_columns(x=1)
        with pytest.raises(FlussError, match="columns 'x' of the frame cannot be added") as caught:
            write_fluss(more, path, schema_mode="merge", connection=connection)
        assert "nothing was written" in str(caught.value)
        assert read_fluss(path, connection=connection).equals(frame)

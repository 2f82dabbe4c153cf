"""Sinks with ``schema_mode="merge"`` into a table with a lake."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import read_fluss, write_fluss
from fluss_df.lake.rounds.tasks import InThreads, TaskWriter, WriteTask, Written
from fluss_df.lake.tiering.table_round import TableRound
from fluss_df.metadata import TablePath
from tests.lake.folders import BY_HAND
from tests.lake.tables_by_hand import Folder


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


def test_columns_that_are_added_during_a_round_are_not_left_out_of_the_lake(tmp_path: Path) -> None:
    path = TablePath("fluss", "t")
    with EmbeddedFluss(tmp_path, options=BY_HAND) as engine, engine.connection() as connection:
        folder = Folder(connection)
        folder.create("t", {"n": pa.int64()})
        folder.write("t", pl.DataFrame({"n": [1]}))

        def altered(writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]) -> None:
            added = pa.schema([("x", pa.int64())])
            connection.get_admin().alter_table(path, add_columns=added)
            folder.write("t", pl.DataFrame({"n": [2], "x": [5]}))
            InThreads(1)(writer, tasks, written)

        info = connection.get_admin().get_table_info(path)
        late = TableRound(connection, info, max_rows=9, max_changes=9, run_tasks=altered)
        with pytest.raises(FlussError, match=r"columns of table fluss\.t were altered"):
            late.run(lambda: None)
        folder.tier("t")
        only = read_fluss("t$lake", connection=connection).sort("n")
        assert only.select("n", "x").rows() == [(1, None), (2, 5)]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "name",
    ["__offset", "__bucket", "__timestamp", "_log_offset", "_change_type", "_commit_timestamp"],
)
def test_a_lake_has_no_room_for_columns_named_as_its_own(
    folder: Folder, name: str, keyed: bool
) -> None:
    folder.create("t", {"n": pa.int64()}, ["n"] if keyed else ())
    admin, path = folder.connection.get_admin(), TablePath("fluss", "t")
    with pytest.raises(FlussError, match=rf"Column {name} .* fluss\.t, which has a data") as caught:
        admin.alter_table(path, add_columns=pa.schema([("x", pa.int64()), (name, pa.int64())]))
    assert caught.value.error_code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    assert admin.get_table_info(path).get_column_names() == ["n"]
    folder.write("t", pl.DataFrame({"n": [1]}))
    folder.tier("t")
    assert folder.scan("t").collect().rows() == [(1,)]

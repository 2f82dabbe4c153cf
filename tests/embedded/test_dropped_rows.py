"""Primary-key tables that are dropped while their buckets are open."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.kv.kv_store import KvStore
from fluss_df.io import read_fluss, write_fluss
from fluss_df.metadata import TableBucket

PATH = TablePath("fluss", "keys")
BUCKETS = 12
SCHEMA = Schema(pa.schema([("id", pa.int64())]), ["id"])
ROWS = pl.DataFrame({"id": range(200)})


@pytest.mark.parametrize("database", [False, True])
def test_each_bucket_is_closed_at_once(
    tmp_path: Path, database: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB waits for a second where it cannot bring rows to its files as it is closed."""
    close = KvStore.close
    there: list[bool] = []

    def closed(store: KvStore) -> None:
        there.append((store.folder / "CURRENT").exists())
        close(store)

    monkeypatch.setattr(KvStore, "close", closed)
    path = TablePath("other", "keys") if database else PATH
    folder = tmp_path / "data"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_database("other")
        admin.create_table(path, TableDescriptor(SCHEMA, bucket_count=BUCKETS))
        write_fluss(ROWS, path, connection=connection)
        assert len(engine.engine.all_buckets()) == BUCKETS
        if database:
            admin.drop_database("other", cascade=True)
        else:
            admin.drop_table(path)
        # its files had their place when it was closed
        assert there == [True] * BUCKETS
        # nothing of it is left, in its place or elsewhere
        assert sorted(os.listdir(folder / "data")) == ["databases.json"]
        assert sorted(os.listdir(folder / "catalog")) == ["databases.json"]
        admin.create_table(PATH, TableDescriptor(SCHEMA, bucket_count=BUCKETS))
        assert read_fluss(PATH, connection=connection).is_empty()


def test_a_drop_that_was_killed_is_ended_when_the_folder_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, TableDescriptor(SCHEMA))
        write_fluss(ROWS, PATH, connection=connection)
        table = engine.engine.catalog.table(PATH)
    # as far as the process came: the table is put away, and its place leads there
    (folder / "data" / str(table.id)).rename(folder / "data" / f"dropped-{table.id}")
    os.symlink(f"dropped-{table.id}", folder / "data" / str(table.id))
    (folder / "catalog" / f"table-{table.id}.json").unlink()
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        assert admin.list_tables("fluss") == []
        assert sorted(os.listdir(folder / "data")) == ["databases.json"]
        assert not (folder / "set-aside").exists()
        admin.create_table(PATH, TableDescriptor(SCHEMA))
        assert engine.engine.catalog.table(PATH).id > table.id
        assert engine.engine.having_folders([TableBucket(table.id, 0)]) == set()
        assert read_fluss(PATH, connection=connection).is_empty()


def test_logs_make_room_before_rows_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To drop tables is the way out of a full disk, on which RocksDB cannot be closed at once."""
    there: list[list[str]] = []
    close = KvStore.close

    def closed(store: KvStore) -> None:
        there.append(os.listdir(store.folder.parent))
        close(store)

    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, TableDescriptor(SCHEMA, bucket_count=2))
        write_fluss(ROWS, PATH, connection=connection)
        with monkeypatch.context() as patch:
            patch.setattr(KvStore, "close", closed)
            connection.get_admin().drop_table(PATH)
    assert there == [["kv"], ["kv"]]

"""The engine of ``":memory:"`` ends with the last connection to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.client.connection import set_default_connection
from fluss_df.client.transport import folders
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.serve.server import EngineServer
from fluss_df.errors import FlussError
from fluss_df.io import write_fluss
from tests.waiting import wait_until


@pytest.fixture
def before() -> Iterator[set[Path]]:
    """The folders whose engines were there before."""
    known = set(folders._engines)
    yield known
    assert set(folders._engines) == known


def engine_of(before: set[Path]) -> EngineServer:
    (folder,) = set(folders._engines) - before
    return folders._engines[folder]


def test_it_ends_with_its_connection(before: set[Path]) -> None:
    for _ in range(3):
        with fluss.connect(":memory:") as connection:
            write_fluss(
                pl.DataFrame({"a": [1]}), "t", connection=connection, create_if_not_exists=True
            )
            engine = engine_of(before)
            assert engine.folder.exists()
        assert engine.closed
        assert not engine.folder.exists()
        assert not engine._thread.is_alive()
        connection.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name == engine._thread.name and engine._thread.is_alive()]


def test_others_that_use_it_keep_it(before: set[Path]) -> None:
    connection = fluss.connect(":memory:")
    engine = engine_of(before)
    write_fluss(pl.DataFrame({"a": [1]}), "t", connection=connection, create_if_not_exists=True)
    other = fluss.connect(connection.config.bootstrap_servers)
    connection.close()
    assert not engine.closed
    assert other.get_admin().list_tables("fluss") == ["t"]
    other.close()
    assert engine.closed
    with pytest.raises(FlussError):
        fluss.connect(connection.config.bootstrap_servers)


def test_the_default_connection_keeps_it(before: set[Path]) -> None:
    default = fluss.connect(":memory:")
    try:
        set_default_connection(default)
        with fluss.connect() as connection:
            connection.get_admin().create_database("d")
        assert default.get_admin().database_exists("d")
    finally:
        set_default_connection(None)
        default.close()


def test_the_engine_of_a_folder_stays(tmp_path: Path) -> None:
    with fluss.connect(tmp_path / "data"):
        engine = folders._engines[tmp_path / "data"]
    assert not engine.closed
    with fluss.connect(tmp_path / "data"):
        assert folders._engines[tmp_path / "data"] is engine
    engine.close()


def test_one_with_a_lake_ends_too(before: set[Path]) -> None:
    """Its tiering has a connection of its own."""
    pytest.importorskip("pyiceberg")
    path = TablePath("fluss", "tiered")
    properties = {"table.datalake.enabled": "true", "table.datalake.freshness": "1ms"}
    schema = Schema(pa.schema([("id", pa.int64())]))
    others = threading.enumerate()  # an engine of another test may tier in this process
    with fluss.connect(":memory:") as connection:
        admin = connection.get_admin()
        admin.create_table(path, TableDescriptor(schema, properties=properties))
        write_fluss(pl.DataFrame({"id": [1]}), path, connection=connection)
        engine = engine_of(before)
        # the tiering has begun
        wait_until(lambda: engine.engine.catalog.table(path).lake, 30)
        assert engine.engine.catalog.table(path).lake
    assert engine.closed
    assert not engine._thread.is_alive()
    left = {thread.name for thread in threading.enumerate() if thread not in others}
    assert "fluss-df-folder-lake" not in left


def test_it_is_closed_once_by_many(tmp_path: Path) -> None:
    engine = EmbeddedFluss(tmp_path / "data")
    errors: list[BaseException] = []

    def close() -> None:
        try:
            engine.close()
        except BaseException as error:
            errors.append(error)

    closers = [threading.Thread(target=close, daemon=True) for _ in range(8)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(20)
    # one that still waits has no error, either
    assert not any(closer.is_alive() for closer in closers)
    assert not errors
    assert engine.closed
    with EmbeddedFluss(tmp_path / "data"):
        pass

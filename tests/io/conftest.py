"""A connection to the session's cluster, and tables of one's own."""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.cluster import LocalCluster
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.engines import ENGINES

MakeTable = Callable[..., TablePath]


def sorted_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame in an order of its own, to compare."""
    return frame.sort(frame.columns, nulls_last=True)


@pytest.fixture(scope="session")
def cluster_connection(fluss_cluster: LocalCluster) -> Iterator[FlussConnection]:
    with FlussConnection.create(fluss_cluster.bootstrap_servers) as made:
        made.get_admin().create_database("io", ignore_if_exists=True)
        yield made


@pytest.fixture(scope="session")
def cluster_tables(cluster_connection: FlussConnection) -> Iterator[MakeTable]:
    with table_maker(cluster_connection) as make:
        yield make


@pytest.fixture(scope="session")
def connection(cluster_connection: FlussConnection) -> FlussConnection:
    """A connection to the cluster; modules that run on both kinds have the one of a place."""
    return cluster_connection


@pytest.fixture(scope="session")
def make_table(cluster_tables: MakeTable) -> MakeTable:
    """Return a function that creates a table and writes frames to it, each as batches."""
    return cluster_tables


@pytest.fixture
def no_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only lookups are made."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a scan")

    monkeypatch.setattr(SnapshotScanner, "batches", refuse)


@dataclass(frozen=True)
class Place:
    """A server of one of the kinds, and what makes tables on it."""

    connection: FlussConnection
    make_table: MakeTable


@pytest.fixture(scope="session", params=ENGINES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A cluster, then an embedded engine."""
    if request.param == "cluster":
        connection = request.getfixturevalue("cluster_connection")
        yield Place(connection, request.getfixturevalue("cluster_tables"))
        return
    with FlussConnection.create(":memory:") as engine:
        engine.get_admin().create_database("io")
        with table_maker(engine) as make:
            yield Place(engine, make)


@contextlib.contextmanager
def table_maker(connection: FlussConnection) -> Iterator[MakeTable]:
    """Return a function that makes tables on a server, in its database ``io``."""

    def make(
        schema: pa.Schema | Schema,
        *frames: pl.DataFrame,
        primary_keys: Sequence[str] | None = None,
        **layout: Any,
    ) -> TablePath:
        layout.setdefault("bucket_count", 1)
        if isinstance(schema, pa.Schema):
            schema = Schema(schema, primary_keys)
        descriptor = TableDescriptor(schema, **layout)
        path = TablePath("io", f"t_{uuid.uuid4().hex[:12]}")
        connection.get_admin().create_table(path, descriptor)
        write(connection, path, *frames)
        return path

    yield make


def write(connection: FlussConnection, path: TablePath, *frames: pl.DataFrame) -> None:
    """Append frames by the client, flushed one by one so that none shares a batch."""
    if not frames:
        return
    append = connection.get_table(path).new_append()
    with append.create_writer(create_partitions=True) as writer:
        for frame in frames:
            writer.write_arrow(frame)
            writer.flush()

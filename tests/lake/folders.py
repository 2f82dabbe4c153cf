"""Folders of the embedded engine with a lake, for the tests of it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal
from pyiceberg.catalog.sql import SqlCatalog

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.lake import TieringService
from tests.lake.tiering.support import COLUMNS, LakeTable
from tests.programs import command

# else it warns that a faster planner could be installed
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")

#: what programs of these tests import first
MODULES = ("fluss_df.lake.tiering", "fluss_df.embedded.folder_lake", "pyiceberg.catalog.sql")
BY_HAND = EngineOptions(lake_tiering=False)
AT_ONCE = {"table.datalake.freshness": "1ms"}
IN_A_SECOND = {"table.datalake.freshness": "1s"}


@dataclass
class Server:
    """Where a :class:`LakeTable` is."""

    bootstrap_servers: str


_OWNER = """
import os, sys, time
from fluss_df.embedded import EmbeddedFluss
with EmbeddedFluss(sys.argv[1], port=0) as engine:
    print(engine.address, os.getpid(), flush=True)
    time.sleep(60)
"""


class Owner:
    """A process that has a folder, and tiers its tables, until it is killed."""

    def __init__(self, folder: Path) -> None:
        program = [*command(preload=MODULES), "-c", _OWNER, str(folder)]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address, pid = self._process.stdout.readline().split()
        self._pid = int(pid)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate()


def tiering_threads() -> set[threading.Thread]:
    """Return the threads that tier folders, also those of engines that other tests left open."""
    return {thread for thread in threading.enumerate() if thread.name == "fluss-df-folder-lake"}


def table(
    engine: EmbeddedFluss,
    kind: str,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
) -> LakeTable:
    """Create a table of a kind, by the name of its kind where none is given.

    It is due for tiering again at once; for an engine that tiers by itself, give ``IN_A_SECOND``.
    """
    server = Server(engine.address)
    given = {**AT_ONCE, **(properties or {})}
    return LakeTable(server, kind, name or kind, given).create()  # type: ignore[arg-type]


def at(engine: EmbeddedFluss, lake_table: LakeTable) -> LakeTable:
    """Have a table be that of an engine; return it."""
    lake_table.cluster = Server(engine.address)  # type: ignore[assignment]
    return lake_table


def tier(engine: EmbeddedFluss) -> int:
    """Tier until a round had rows or changes; return how many."""
    until = time.monotonic() + 30
    with engine.connection() as connection, TieringService(connection) as service:
        while time.monotonic() < until:
            rows = sum(done.rows for done in service.run_due())
            if rows:
                return rows
            time.sleep(0.01)
    raise AssertionError("nothing was due")


def assert_reads(engine: EmbeddedFluss, lake_table: LakeTable) -> None:
    """Hold a union read against the model."""
    expected = lake_table.expected()
    frame = fluss.scan_fluss(lake_table.name, connection=engine.address).collect()
    assert_frame_equal(frame.select(expected.columns).sort(expected.columns), expected)


def catalog(folder: Path) -> SqlCatalog:
    """Open the lake of a folder as any other reader of Iceberg does."""
    return SqlCatalog("fluss-iceberg-catalog", uri=f"sqlite:///{folder / 'lake/catalog.db'}")


def rows_elsewhere(folder: Path, name: str) -> list[pl.DataFrame]:
    """Return the rows of a lake table by other readers: pyiceberg, and Polars' own."""
    lake = catalog(folder).load_table(("fluss", name))
    return [
        pl.DataFrame(pl.from_arrow(lake.scan().to_arrow())).select(COLUMNS.names),
        pl.scan_iceberg(lake).select(COLUMNS.names).collect(),
        pl.scan_iceberg(lake.metadata_location).select(COLUMNS.names).collect(),
    ]


def assert_elsewhere(folder: Path, lake_table: LakeTable) -> None:
    """Hold what other readers find in the lake against the model."""
    expected = lake_table.expected()
    for found in rows_elsewhere(folder, lake_table.name):
        same = found.with_columns(pl.col("small").cast(pl.Int16)).sort(expected.columns)
        assert_frame_equal(same.select(expected.columns), expected)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder's lake."""
    lake = folder / "lake"
    return {
        str(path.relative_to(lake)): path.read_bytes()
        for path in sorted(lake.rglob("*"))
        if path.is_file()
    }

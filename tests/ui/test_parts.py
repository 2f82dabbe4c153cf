"""Pages about a part of a table: of a run that reads some of it, or with many partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.io.runs.runner import run
from fluss_df.metadata import TablePath
from fluss_df.observe import counters
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.ui import watch
from fluss_df.ui.pages import rows
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from tests.ui.conftest import VISITS
from tests.ui.visiting import Visitor
from tests.waiting import wait_until


def runs_page(connection: FlussConnection, folder: Path) -> str:
    with ConsoleServer(connection, Settings(runs=(folder,)), "folder") as server:
        visitor = Visitor(server)
        visitor.sign_in()
        return visitor.page("/runs").words


def test_lags_are_of_the_partitions_that_a_run_reads(
    folder: FlussConnection, tmp_path: Path
) -> None:
    """Rows of those that it leaves out were told as rows that it is behind."""
    path = TablePath("fluss", "parts")
    fluss_df.write_fluss(
        VISITS, path, connection=folder, create_if_not_exists=True, partition_keys=["day"],
        create_partitions=True,
    )  # fmt: skip
    there = folder.get_admin().list_partition_infos(path)
    names = [p.partition_name for p in sorted(there, key=lambda p: p.partition_id)]
    runs = tmp_path / "runs"
    for name, partitions in (("all", None), ("new", names[-1:]), ("old", names[:1])):
        query = fluss_df.scan_fluss(path, connection=folder, partitions=partitions)
        run(query, to=tmp_path / name, checkpoint=runs / name)
    dash = "\N{EN DASH}"
    words = runs_page(folder, runs)
    assert f"{runs / 'all'} fluss.parts {dash} 0 0" in words
    fluss_df.write_fluss(VISITS.head(30), path, connection=folder)
    sunday = VISITS.head(4).with_columns(day=pl.lit("sun"))
    fluss_df.write_fluss(sunday, path, connection=folder, create_partitions=True)
    words = runs_page(folder, runs)
    # it is not known whether a run will read partitions that came later
    later = "rows of partitions that it has not read so far"
    assert f"{runs / 'all'} fluss.parts {dash} 0 30 and 4 {later}" in words
    assert f"{runs / 'new'} fluss.parts {dash} 0 10 and 4 {later}" in words
    assert f"{runs / 'old'} fluss.parts {dash} 0 10 and 224 {later}" in words


def test_lags_are_of_the_buckets_that_a_run_reads(folder: FlussConnection, tmp_path: Path) -> None:
    path = TablePath("fluss", "buckets")
    descriptor = TableDescriptor(
        Schema(pa.schema({"id": pa.int64()})), bucket_keys=["id"], bucket_count=2
    )
    folder.get_admin().create_table(path, descriptor)
    for start in (0, 100):
        some = pl.DataFrame({"id": range(start, start + 100)})
        fluss_df.write_fluss(some, path, connection=folder)
        query = fluss_df.scan_fluss(path, connection=folder, buckets=[0])
        if not start:
            run(query, to=tmp_path / "one", checkpoint=tmp_path / "runs" / "one")
    behind = query.filter(pl.col("id") >= 100).collect().height
    assert 0 < behind < 100
    words = runs_page(folder, tmp_path / "runs")
    assert words.partition("fluss.buckets \N{EN DASH} 0 ")[2].split()[0] == str(behind)


def test_rows_are_looked_for_in_further_partitions(
    alone: Visitor, folder: FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no rows in the first twenty, which all have changes."""
    alone.sql(
        "CREATE TABLE days (k INT, d STRING NOT NULL, PRIMARY KEY (k, d) NOT ENFORCED)"
        " PARTITIONED BY (d) WITH ('bucket.num' = '1')"
    )
    names = [f"d{n:02}" for n in range(21)]
    for name in names:
        folder.get_admin().create_partition(TablePath("fluss", "days"), {"d": name})
    alone.sql("INSERT INTO days VALUES " + ", ".join(f"(7, '{name}')" for name in names))
    alone.sql("DELETE FROM days WHERE d < 'd20'")
    words = alone.page("/table/fluss/days/rows").words
    assert "7 d20" in words
    assert "1 row shown" in words
    assert "were looked at" not in words
    monkeypatch.setattr(rows, "_LONGEST_S", 0.0)
    words = alone.page("/table/fluss/days/rows").words
    assert "No rows were found in 20 of 21 partitions." in words
    assert "Only 20 of 21 partitions were looked at" in words
    assert "There are no rows yet" not in words


def test_bytes_that_are_counted_with_those_of_others_are_not_known(
    folder: FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of tables, a process counts the bytes of all others together."""
    monkeypatch.setattr(counters, "table_names", counters.Names(0))
    monkeypatch.setattr(watch, "_PAUSE_S", 0.1)
    monkeypatch.setattr(watch, "_SHARE", 1)
    path = TablePath("fluss", "late")
    fluss_df.write_fluss(VISITS, path, connection=folder, create_if_not_exists=True)
    with ConsoleServer(folder, Settings(), "folder") as server:
        seen = server.state.watch

        def rate(of: TablePath) -> Any:
            growth = seen.growth(of)
            return None if growth is None else growth.rows_per_second

        people = TablePath("fluss", "people")
        wait_until(lambda: rate(path) is not None and rate(people) is not None, 30)
        late, known = seen.growth(path), seen.growth(people)
        assert late is not None
        assert late.bytes_per_second is None
        assert known is not None
        assert known.bytes_per_second == 0
        visitor = Visitor(server)
        visitor.sign_in()
        told = "not told of each of so many tables"
        assert told in visitor.page("/").words
        assert told in visitor.page("/table/fluss/late").words
        assert told not in visitor.page("/table/fluss/people").words

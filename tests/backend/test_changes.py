"""Modes of reading, and the changes of a table as tables, from Ibis and from SQL."""

import datetime as dt
from collections.abc import Callable

import polars as pl
import pytest
from ibis import _

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError

ROWS = pl.DataFrame({"id": [1, 2, 3], "v": [1.0, 2.0, 3.0]})


@pytest.fixture
def name(con: Backend, fresh: Callable[[], str]) -> str:
    """A table of which a row was changed, and a row deleted."""
    made = fresh()
    con.create_table(made, ROWS, primary_key="id", buckets=1)
    con.upsert(made, {"id": [2], "v": [20.0]}, "id")
    con.delete(made, {"id": [3]})
    return made


CHANGES = [
    ("insert", 1, 1.0),
    ("insert", 2, 2.0),
    ("insert", 3, 3.0),
    ("update_before", 2, 2.0),
    ("update_after", 2, 20.0),
    ("delete", 3, 3.0),
]


def test_modes(con: Backend, name: str, fresh: Callable[[], str]) -> None:
    log = con.create_table(fresh(), ROWS, buckets=1).op().name
    for table, mode, count in (
        (name, "auto", 2),
        (name, "snapshot", 2),
        (name, "changelog", 6),
        (log, "auto", 3),
        (log, "log", 3),
        (log, "changelog", 3),
    ):
        read = con.table(table, database="ibis", mode=mode)
        assert read.count().execute() == count, (table, mode)
    with pytest.raises(FlussError, match="mode='changelog' reads the log of its changes"):
        con.table(name, mode="log")
    with pytest.raises(FlussError, match="mode='log' reads it"):
        con.table(log, mode="snapshot")
    with pytest.raises(FlussError, match="did you mean 'snapshot'"):
        con.table(name, mode="snapshots")


def test_ranges_of_changes(con: Backend, name: str) -> None:
    part = con.table(name, mode="changelog", start=3, stop={0: 5}, include_metadata=["_bucket"])
    assert part.select("_change_type", "id", "v", "_bucket").to_polars().rows() == [
        (*change, 0) for change in CHANGES[3:5]
    ]
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert con.table(name, mode="changelog", stop=later).count().execute() == 6
    assert con.table(f"{name}$changelog", start="latest").count().execute() == 0


@pytest.mark.parametrize("front", ["ibis", "ibis, with a database", "sql", "sql, quoted"])
def test_changelog(con: Backend, name: str, front: str) -> None:
    if front == "sql":
        query = con.sql(f"SELECT _change_type, id, v FROM {name}$changelog")
    elif front == "sql, quoted":
        query = con.sql(f"SELECT c._change_type, id, v FROM ibis.`{name}$changelog` AS c")
    else:
        place = {} if front == "ibis" else {"database": "ibis"}
        table = con.table(f"{name}$changelog", **place)
        assert not table.schema()["_log_offset"].nullable
        assert not table.schema()["id"].nullable
        assert table.schema()["v"].nullable
        query = table.select("_change_type", "id", "v")
    assert query.to_polars().rows() == CHANGES
    assert query.count().execute() == 6


def test_binlog(con: Backend, name: str) -> None:
    table = con.table(f"{name}$binlog")
    query = table.select("_change_type", was=_.before["v"], now=_.after["v"])
    expected: list[tuple[str, float | None, float | None]] = [
        ("insert", None, v) for v in (1.0, 2.0, 3.0)
    ]
    expected += [("update", 2.0, 20.0), ("delete", 3.0, None)]
    assert query.to_polars().rows() == expected
    found = con.raw_sql(f"SELECT count(*) AS n FROM {name}$binlog WHERE _change_type = 'update'")
    assert found.item() == 1


def test_of_changes_too_only_what_is_asked_for_is_read(con: Backend, name: str) -> None:
    table = con.table(f"{name}$changelog")
    with fluss_df.track_scans() as scans:
        query = table.filter(_._log_offset >= 4).select("v")
        assert query.to_polars()["v"].to_list() == [20.0, 3.0]
    (scan,) = scans
    assert "id" not in scan.columns
    assert scan.plan.rows == 2


def test_hints_on_changes(con: Backend, name: str) -> None:
    for mode, count in (("full", 6), ("earliest", 6), ("latest", 0)):
        hint = f"/*+ OPTIONS('scan.startup.mode'='{mode}') */"
        found = con.raw_sql(f"SELECT count(*) AS n FROM {name}$changelog {hint}")
        assert found.item() == count
    stamp = "'scan.startup.mode'='timestamp', 'scan.startup.timestamp'='0'"
    assert con.raw_sql(f"SELECT * FROM {name}$binlog /*+ OPTIONS({stamp}) */").height == 5
    current = f"SELECT * FROM {name} /*+ OPTIONS('scan.startup.mode'='%s') */"
    assert con.raw_sql(current % "full").height == 2
    with pytest.raises(FlussError, match=rf"{name}\$changelog is the log of its changes.*line 1"):
        con.raw_sql(current % "latest")


def test_no_such_changes(con: Backend, fresh: Callable[[], str]) -> None:
    log = con.create_table(fresh(), ROWS, buckets=1).op().name
    with pytest.raises(FlussError, match="no primary key: use"):
        con.table(f"{log}$binlog")
    every = r"\$nolog.*there are .*\$changelog, .*\$binlog and .*\$lake"
    with pytest.raises(FlussError, match=every):
        con.raw_sql(f"SELECT * FROM {log}$nolog")
    with pytest.raises(FlussError, match="does not exist"):
        con.table("nowhere$changelog")

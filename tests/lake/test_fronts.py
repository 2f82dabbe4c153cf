"""A lake table by every front end: whole, the log alone, the lake alone; and how many rows."""

from __future__ import annotations

import json
from pathlib import Path

import ibis
import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.cli.main import app
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from tests.lake.folders import table, tier
from tests.lake.tiering.support import KINDS


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 1, done.output
    return done.stderr


def counts(name: str, connection: str) -> set[int]:
    """Return how many rows a table or a virtual table has, by every front end."""
    con = Backend().connect(connection)
    frame = fluss.scan_fluss(name, connection=connection)
    shown = CliRunner().invoke(app, ["sql", f"SELECT * FROM {name}", "-c", connection, "--json"])
    return {
        frame.collect().height,
        frame.select(pl.len()).collect().item(),
        con.table(name).count().execute(),
        con.table(name).to_polars().height,
        con.sql(f'SELECT count(*) AS n FROM "{name}"').to_polars().item(),
        con.raw_sql(f"SELECT count(*) AS n FROM {name}").item(),
        len(shown.stdout.splitlines()),
        len(said("head", name, "-n", "1000", "-c", connection, "--json").splitlines()),
        len(said("tail", name, "-n", "1000", "-c", connection, "--json").splitlines()),
        int(said("count", name, "-c", connection)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_all_front_ends_count_the_same(by_hand: EmbeddedFluss, kind: str, tmp_path: Path) -> None:
    lake_table = table(by_hand, kind)
    lake_table.write([*range(100)], 1)
    tier(by_hand)
    lake_table.write([*range(100, 130)], 2)
    log = 130
    if lake_table.partitioned:
        # its rows are in the lake alone from now on
        with by_hand.connection() as connection:
            connection.get_admin().drop_partition(lake_table.path, {"day": "d1"})
        written = pl.concat(lake_table.written)
        log = written.filter(pl.col("day") != "d1").height
        assert log < 130
        gone = written.head(100).filter(pl.col("day") == "d1").height
    whole = 130 if not lake_table.partitioned else log + gone
    assert counts(kind, by_hand.address) == {whole}
    assert counts(f"{kind}$lake", by_hand.address) == {100}
    con = Backend().connect(by_hand.address)
    assert con.table(kind, lake=False).count().execute() == log
    if not lake_table.keyed:
        hint = "/*+ OPTIONS('scan.startup.mode'='earliest') */"
        assert con.raw_sql(f"SELECT count(*) AS n FROM {kind} {hint}").item() == log
        whole_too = hint.replace("earliest", "full")
        assert con.raw_sql(f"SELECT count(*) AS n FROM {kind} {whole_too}").item() == whole
    assert con.table(f"fluss.{kind}", lake=False).to_polars().height == log
    assert fluss.read_fluss(kind, connection=by_hand.address, lake=False).height == log
    file = tmp_path / "rows.parquet"
    said("dump", f"{kind}$lake", str(file), "-c", by_hand.address)
    assert pl.read_parquet(file).height == 100
    if lake_table.partitioned:
        rows = said("count", kind, "--partitions", "--json", "-c", by_hand.address).splitlines()
        assert {row["partition"]: row["rows"] for row in map(json.loads, rows)}["d1"] == gone


def test_queries_over_the_lake_alone(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "keys")
    lake_table.write([*range(50)], 1)
    tier(by_hand)
    lake_table.write([*range(25, 75)], 2)
    con = Backend().connect(by_hand.address)
    lake, now = con.table("keys$lake"), con.table("keys")
    assert lake.schema() == now.schema()
    joined = lake.join(now, "id", rname="{name}_now").filter(ibis._.name != ibis._.name_now)
    assert joined.count().execute() == 25
    query = """SELECT count(*) AS n FROM "fluss"."keys$lake" AS a JOIN keys AS b ON a.id = b.id
    WHERE a.id IN (SELECT id FROM keys WHERE name LIKE 'v2%')"""
    assert con.raw_sql(query).item() == 25
    # an expression that is of no backend yet finds it by its name
    unbound = ibis.table(lake.schema(), name="keys$lake")
    assert con.execute(unbound.count()) == 50
    # ids that are in the log alone are looked up nowhere else
    assert lake.filter(lake.id == 60).count().execute() == 0
    assert con.raw_sql("SELECT * FROM keys$lake WHERE id = 60").height == 0


def test_what_is_no_virtual_table_is_refused_by_name(by_hand: EmbeddedFluss) -> None:
    table(by_hand, "keys")
    place = ["-c", by_hand.address]
    con = Backend().connect(by_hand.address)
    every = r"there are keys\$changelog, keys\$binlog and keys\$lake"
    for name in ("keys$", "keys$lak", "keys$lake$lake", "keys$changelog$lake"):
        with pytest.raises(FlussError, match=every):
            con.table(name)
        with pytest.raises(FlussError, match=every):
            fluss.scan_fluss(name, connection=by_hand.address)
        assert "keys$changelog, keys$binlog and keys$lake" in refused("head", name, *place)
    for command in (["describe", "keys$lake"], ["drop", "table", "keys$changelog", "--yes"]):
        assert "this command takes keys; head, tail, count, dump and sql read" in refused(
            *command, *place
        )
    assert "is virtual" in refused("count", "keys$changelog", "--partitions", *place)
    assert "no end to follow" in refused("tail", "keys$lake", "--follow", *place)
    with pytest.raises(FlussError, match="read by scan_fluss, Ibis and SQL"):
        con.connection.get_table("keys$lake")


def test_changes_on_the_command_line(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "keys")
    lake_table.write([1, 2], 1)
    lake_table.write([2], 2)
    lake_table.delete([1])
    place = ["--json", "-c", by_hand.address]
    shown = [json.loads(row) for row in said("head", "keys$changelog", *place).splitlines()]
    assert sorted(row["_change_type"] for row in shown) == [
        "delete", "insert", "insert", "update_after", "update_before",
    ]  # fmt: skip
    assert int(said("count", "keys$changelog", "-c", by_hand.address)) == 5
    assert len(said("tail", "keys$binlog", *place).splitlines()) == 4
    followed = said("tail", "keys$binlog", "-f", "--max-rows", "0", *place)
    assert len(followed.splitlines()) == 4

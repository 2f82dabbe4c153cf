"""Every page and form of the console, over a folder and over a real cluster."""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.io.runs.runner import run
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Settings
from tests.ui.conftest import VISITS
from tests.ui.visiting import Visitor
from tests.waiting import wait_until


def test_the_overview_has_servers_health_and_tables(visitor: Visitor, database: str) -> None:
    # a cluster has tables of other tests
    page = visitor.page(f"/?database={database}")
    assert f"{database}.visits" in page.words
    assert "coordinator" in page.words
    assert "tablet server" in page.words
    assert " health " in page.words
    narrowed = visitor.page(f"/?database={database}&like=peo*").words
    assert f"{database}.people" in narrowed
    assert f"{database}.visits" not in narrowed
    assert "No table has such a name" in visitor.page("/?like=nothing-is-called-so").words


def test_the_first_page_comes_soon(connection: FlussConnection, place: str) -> None:
    with ConsoleServer(connection, Settings(), place) as started:
        state = started.state
        # what compiles and imports has been done when somebody can ask
        assert {name for _, name in state._env.cache or {}} >= {"overview.html", "parts.html"}
        assert "anyio._backends._asyncio" in sys.modules
        # and no page waits for the acknowledgement of the one before
        assert started._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_samples_wait_for_pages(connection: FlussConnection, place: str, database: str) -> None:
    with ConsoleServer(connection, Settings(), place) as started:
        watch = started.state.watch
        asked = threading.Event()

        def tables() -> list[TablePath]:
            asked.set()
            return []

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watch, "tables", tables)
            with watch.waiting():
                watch.look()
                assert not asked.wait(0.3)
            assert asked.wait(10)


def test_rows_and_bytes_a_second_are_measured(
    visitor: Visitor, database: str, connection: FlussConnection, place: str
) -> None:
    path = TablePath(database, "visits")
    watch = visitor.server.state.watch
    deadline = time.monotonic() + 60
    growth = None
    while time.monotonic() < deadline and not (
        growth and growth.rows_per_second and growth.rows > 300
    ):
        fluss_df.write_fluss(VISITS, path, connection=connection)
        growth = watch.growth(path)
    assert growth is not None
    assert growth.rows_per_second
    assert growth.rows > 300
    assert (growth.bytes_per_second is None) == (connection.cluster.engine is None)
    assert " rows a second" in visitor.page("/").words


def test_a_table_has_columns_keys_properties_buckets_and_growth(
    visitor: Visitor, database: str, connection: FlussConnection
) -> None:
    page = visitor.page(f"/table/{database}/visits").words
    assert "log table" in page
    assert "seconds double" in page
    assert "day string partition" in page
    assert "in 3 partitions" in page
    assert "mon 0 0 100 100" in page
    assert "table.replication.factor" in page
    people = visitor.page(f"/table/{database}/people").words
    assert "primary-key table" in people
    assert "id bigint NOT NULL primary bucket" in people
    only = visitor.page(f"/table/{database}/visits?partition=tu").words
    assert "tue 0 0 100 100" in only
    assert "mon 0" not in only
    # the leaders were learned with the offsets; an engine of this process is not asked for them
    assert "ts-0" in only or (connection.cluster.engine and "this process" in only)
    watch = visitor.server.state.watch
    path = TablePath(database, "visits")
    watch.history(path)
    wait_until(lambda: len(watch.history(path)) >= 2, 90)
    plot = visitor.page(f"/table/{database}/visits/growth.svg")
    assert plot.headers["content-type"] == "image/svg+xml"
    assert "<polyline" in plot.text
    assert f"How many rows came into {database}.visits" in plot.text


def test_rows_first_and_last(visitor: Visitor, database: str) -> None:
    first = visitor.page(f"/table/{database}/visits/rows").words
    assert "20 rows shown" in first
    assert "<b onclick=\"x('3')\">&amp; mon 2026-01-01 00:03:00 1.5" in first
    last = visitor.page(f"/table/{database}/visits/rows?which=last&rows=500").words
    assert "300 rows shown" in last
    assert "299" in last
    current = visitor.page(f"/table/{database}/people/rows").words
    assert "3 rows shown" in current
    assert "1 Ann 1990" in current


def test_a_row_by_its_key(visitor: Visitor, database: str) -> None:
    rows = f"/table/{database}/people/rows?which=key&key.id="
    assert "2 Bob 1985" in visitor.page(f"{rows}2").words
    assert "There is no row with this key." in visitor.page(f"{rows}77").words
    wrong = visitor.page(f"{rows}two").words
    assert "column 'id' is bigint NOT NULL, and 'two' is no such value: write it as in 12" in wrong


def test_changes(visitor: Visitor, database: str, connection: FlussConnection) -> None:
    update = pl.DataFrame({"id": [2], "name": ["Bea"], "born": [1986]})
    fluss_df.write_fluss(update, f"{database}.people", connection=connection)
    page = visitor.page(f"/table/{database}/people/changes").words
    assert "update_after" in page
    assert page.index("Bea") < page.index("Ann")
    assert "insert" in visitor.page(f"/table/{database}/visits/changes").words


def events(
    visitor: Visitor, target: str, wanted: int, opened: Callable[[], object]
) -> list[dict[str, Any]]:
    """Return some rows that a stream gives."""
    connection = http.client.HTTPConnection("127.0.0.1", visitor.server.port, timeout=20)
    connection.request("GET", target, headers={"Cookie": visitor.cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    found: list[dict[str, Any]] = []
    kind = ""
    try:
        while sum(e.get("matched", 0) for e in found) < wanted:
            line = answer.readline().decode()
            assert line, "the stream ended"
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: "):
                found.append({"kind": kind, **json.loads(line[6:])})
                if kind == "open":
                    opened()
                assert kind != "failed", line
    finally:
        connection.close()
    return found


def test_live_rows_with_a_filter(
    visitor: Visitor, database: str, connection: FlussConnection
) -> None:
    rows = VISITS.with_columns(day=pl.lit("thu")).head(50)

    def write() -> None:
        fluss_df.write_fluss(
            rows, f"{database}.visits", connection=connection, create_partitions=True
        )

    page = visitor.page(f"/table/{database}/visits/live?column=id&condition=ge&value=40")
    assert "Only rows whose" in page.words
    target = f"/table/{database}/visits/stream?column=id&condition=ge&value=40"
    found = events(visitor, target, 10, write)
    assert sum(e.get("seen", 0) for e in found) == 50
    shown = [row for e in found for row in e.get("rows", [])]
    assert [row[0][0] for row in shown] == [str(n) for n in range(40, 50)]
    assert visitor.server.state.settings.limits.streams == 8
    wait_until(lambda: not visitor.server.state.streams, 10)
    assert visitor.server.state.streams == 0
    wrong = visitor.page(f"/table/{database}/visits/live?column=id&condition=contains&value=4")
    assert "contains no text" in wrong.words


def test_live_rows_go_on_where_a_partition_is_dropped(
    visitor: Visitor, database: str, connection: FlussConnection
) -> None:
    path = fluss_df.TablePath(database, "visits")

    def write(day: str) -> None:
        rows = VISITS.with_columns(day=pl.lit(day)).head(10)
        fluss_df.write_fluss(rows, path, connection=connection, create_partitions=True)

    def drop() -> None:
        # a poll is on its way then, and the next ones find that the partition is gone
        connection.get_admin().drop_partition(path, {"day": "tue"})
        time.sleep(2)
        write("mon")
        write("tue")

    found = events(visitor, f"/table/{database}/visits/stream", 20, drop)
    assert sum(e.get("seen", 0) for e in found) == 20


def test_sql_has_rows_a_plan_what_was_fetched_a_plot_and_files(
    visitor: Visitor, database: str
) -> None:
    page = visitor.sql(
        "SELECT day, count(*) AS n, sum(seconds) AS s FROM visits GROUP BY day ORDER BY day",
        database=database,
    )
    assert "3 rows in" in page.words
    assert "mon 100 7425.0" in page.words
    assert f"fetched of {database}.visits: 2 of 5 columns" in page.words
    assert f"FLUSS SCAN {database}.visits" in page.words
    assert '<rect class="bar"' in page.text
    query = visitor.server.state.queries.all()[0]
    parquet = visitor.page(f"/sql/run/{query.id}/result.parquet")
    assert pl.read_parquet(io.BytesIO(parquet.body)).to_dicts()[0] == {
        "day": "mon",
        "n": 100,
        "s": 7425.0,
    }
    assert "attachment" in parquet.headers["content-disposition"]
    text = visitor.page(f"/sql/run/{query.id}/result.csv").text
    assert list(csv.reader(io.StringIO(text)))[1] == ["mon", "100", "7425.0"]
    state = json.loads(visitor.page(f"/sql/run/{query.id}/state").text)
    assert state["status"] == "done"
    drawn = visitor.page(f"/sql/run/{query.id}?x=n&y=s").text
    assert '<circle class="point' in drawn or "<polyline" in drawn
    assert "Results that are kept" in visitor.page("/sql").words


def test_explain_and_errors_of_sql(visitor: Visitor, database: str) -> None:
    plan = visitor.sql("SELECT id FROM visits WHERE day = 'mon'", database=database, explain="1")
    assert "partitions 1 of 3: mon" in plan.words
    failed = visitor.sql("SELECT nothing FROM visits", database=database).words
    assert "This did not work" in failed
    assert "nothing" in failed
    assert "there is no statement" in visitor.sql(" ; ").words


def test_completion_knows_tables_columns_and_keywords(visitor: Visitor, database: str) -> None:
    def names(prefix: str) -> dict[str, str]:
        found = visitor.page(f"/sql/names?prefix={prefix}&database={database}&tables=visits")
        return {entry["text"]: entry["kind"] for entry in json.loads(found.text)}

    assert names("vis")["visits"] == "table"
    assert names("sec") == {"seconds": "double of visits"}
    assert names("sel") == {"SELECT": "keyword"}
    assert names(database)[database] == "database"


def made(visitor: Visitor, **fields: str) -> str:
    """Send a form, look at its statement, run it, and return the statement."""
    shown = visitor.post("/preview", **fields)
    assert shown.status == 200, shown.words
    assert "Run this statement?" in shown.words
    statement = shown.text.split('name="statement" value="')[1].split('"')[0]
    text = unescape(statement)
    assert " ".join(text.split()) in shown.words
    done = visitor.send("/statement", statement=text)
    place = done.headers["location"]
    visitor.server.state.queries.find(place.rpartition("/")[2]).wait(60)
    result = visitor.page(place).words
    assert "The statement ran" in result, result
    return text


def test_forms_create_alter_and_drop(
    visitor: Visitor, database: str, connection: FlussConnection
) -> None:
    admin = connection.get_admin()
    other = f"{database}_more"
    assert "Create" in visitor.page("/create").words
    assert made(visitor, what="create-database", name=other, comment="it's") == (
        f"CREATE DATABASE `{other}` COMMENT 'it''s'"
    )
    fields = {"database": other, "table": "trips"}
    columns = {
        "column.0": "id", "type.0": "BIGINT", "primary.0": "1", "column.1": "day",
        "type.1": "STRING", "primary.1": "1", "partition.1": "1", "column.2": "x`y",
        "type.2": "DECIMAL(10, 2)", "comment.2": "it's",
    }  # fmt: skip
    statement = made(
        visitor, what="create-table", **fields, **columns, buckets="2",
        properties="table.log.ttl = 3d", comment="trips",
    )  # fmt: skip
    assert statement.startswith(f"CREATE TABLE `{other}`.`trips` (")
    info = admin.get_table_info(TablePath(other, "trips"))
    assert info.get_primary_keys() == ["id", "day"]
    assert info.get_partition_keys() == ["day"]
    assert info.get_column_names() == ["id", "day", "x`y"]
    assert info.num_buckets == 2
    assert info.get_properties()["table.log.ttl"] == "3d"
    assert "Add a column" in visitor.page(f"/table/{other}/trips/change").words
    made(visitor, what="add-column", **fields, column="note", type="STRING", comment="more")
    made(visitor, what="set-property", **fields, key="owner", value="O'Neil")
    made(visitor, what="reset-property", **fields, key="owner")
    made(visitor, what="add-partition", **fields, **{"partition.day": "2026-01-31"})
    info = admin.get_table_info(TablePath(other, "trips"))
    assert info.get_column_names()[-1] == "note"
    assert [p.partition_name for p in admin.list_partition_infos(info.table_path)] == ["2026-01-31"]
    refused = visitor.post("/preview", what="drop-table", **fields, confirm="trip").words
    assert "write its name, trips, into the field" in refused
    made(visitor, what="drop-partition", **fields, partition="2026-01-31", confirm="2026-01-31")
    assert admin.list_partition_infos(info.table_path) == []
    made(visitor, what="drop-table", **fields, confirm="trips")
    assert not admin.table_exists(TablePath(other, "trips"))
    made(visitor, what="drop-database", name=other, confirm=other)
    assert not admin.database_exists(other)


def hidden(text: str) -> dict[str, str]:
    """Return the hidden fields of the last form of a page that has a statement or a table."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text.rpartition("<form")[2])
    return {name: unescape(value) for name, value in found}


@pytest.mark.parametrize("late", ["preview", "statement"])
@pytest.mark.parametrize("what", ["table", "partition"])
def test_a_form_is_of_the_table_that_was_seen(
    visitor: Visitor, database: str, connection: FlussConnection, late: str, what: str
) -> None:
    admin, path = connection.get_admin(), TablePath(database, "replaced")
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    descriptor = TableDescriptor(Schema(schema), partition_keys=["day"], bucket_count=1)

    def replace() -> None:
        if what == "table":
            admin.drop_table(path)
            admin.create_table(path, descriptor)
        else:
            admin.drop_partition(path, {"day": "mon"})
        admin.create_partition(path, {"day": "mon"})

    admin.create_table(path, descriptor)
    admin.create_partition(path, {"day": "mon"})
    try:
        page = visitor.page(f"/table/{database}/replaced/change").text
        form = page[: page.index(f"Drop {'the table' if what == 'table' else 'a partition'} with")]
        fields = hidden(form)
        assert fields.pop("what") == f"drop-{what}"
        fields.pop("csrf", None)
        confirm = "replaced" if what == "table" else "mon"
        if late == "preview":
            replace()
        shown = visitor.post(
            "/preview", what=f"drop-{what}", confirm=confirm, partition="mon", **fields
        )
        if late == "statement":
            replace()
            main = shown.text[: shown.text.index("Run it")]
            again = hidden(main)
            again.pop("csrf", None)
            shown = visitor.post("/statement", **again)
        assert "since" in shown.words
        assert "nothing was changed; open the page again" in shown.words
        assert [p.partition_name for p in admin.list_partition_infos(path)] == ["mon"]
    finally:
        admin.drop_table(path)


def test_runs_have_their_lag(
    visitor: Visitor, database: str, connection: FlussConnection, tmp_path: Path
) -> None:
    assert "Runs" in visitor.page("/runs").words
    source = fluss_df.scan_fluss(f"{database}.visits", connection=connection)
    folder = tmp_path / "runs" / "files"
    run(source, to=tmp_path / "files", checkpoint=folder)
    fluss_df.write_fluss(
        VISITS.head(3).clear(), f"{database}.copy", connection=connection,
        create_if_not_exists=True,
    )  # fmt: skip
    target = run(source, to=f"{database}.copy", checkpoint=tmp_path / "copying")
    assert target is not None
    fluss_df.write_fluss(VISITS.head(7), f"{database}.visits", connection=connection)
    # names no folder: what is asked of it fails as that of another user does
    long = tmp_path / ("x" * 300)
    settings = Settings(runs=(tmp_path / "runs", tmp_path / "none", long))
    with ConsoleServer(connection, settings, "x") as server:
        other = Visitor(server)
        other.sign_in()
        page = other.page("/runs").words
    assert f"{long} " in page
    assert "File name too long" in page
    assert f"{folder} {database}.visits \N{EN DASH} 0 7" in page
    assert f"{database}.visits {database}.copy 0 7" in page


@pytest.mark.parametrize("target", ["/table/fluss/none", "/table/none/t", "/table/a%2Fb/t", "/x"])
def test_what_is_not_there_says_so(visitor: Visitor, target: str) -> None:
    answer = visitor.get(target)
    assert answer.status == 404
    assert "To the overview" in answer.words


def test_a_lake_table_has_its_lag(folder: FlussConnection) -> None:
    """The folder tiers by itself, what is due."""
    path = TablePath("fluss", "tiered")
    descriptor = fluss_df.TableDescriptor(
        fluss_df.Schema(VISITS.to_arrow().schema),
        bucket_count=1,
        properties={"table.datalake.enabled": "true", "table.datalake.freshness": "1s"},
    )
    folder.get_admin().create_table(path, descriptor)
    fluss_df.write_fluss(VISITS, path, connection=folder)
    with ConsoleServer(folder, Settings(), "folder") as server:
        visitor = Visitor(server)
        visitor.sign_in()
        words = visitor.page("/table/fluss/tiered").words
        assert " behind in the lake iceberg" in words
        deadline = time.monotonic() + 90
        while ", 300 rows tiered" not in words and time.monotonic() < deadline:
            time.sleep(0.1)
            words = visitor.page("/table/fluss/tiered").words
        assert "0 rows behind in the lake iceberg, snapshot" in words
        assert ", 300 rows tiered" in words

"""Commands that administer, on a real cluster and on a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fluss_df as fluss
from fluss_df.cli import app
from fluss_df.engine.log import tablet
from fluss_df.errors import FlussError
from tests.cli.files.commands import lines, ok
from tests.waiting import wait_until

Run = Callable[..., Result]
LIMIT = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


@pytest.fixture
def database(at: Run, place: str) -> Iterator[str]:
    name = f"cli_{uuid.uuid4().hex[:12]}"
    ok(at("create", "database", name, "--comment", "sales", "-p", "owner=me"))
    yield name
    with fluss.connect(place) as connection:
        connection.get_admin().drop_database(name, ignore_if_not_exists=True)


def test_databases(at: Run, database: str) -> None:
    [row] = lines(at("databases", "--like", database, "--json"))
    assert (row["database"], row["tables"]) == (database, 0)
    assert row["created"].startswith("20")
    assert database in ok(at("databases"))
    ok(at("create", "database", database, "--if-not-exists"))
    refused(at("create", "database", database), database, "DATABASE_ALREADY_EXIST")
    refused(at("create", "database", "a b"), "a b")
    ok(at("create", "table", f"{database}.t", "--schema", "id INT"))
    [row] = lines(at("databases", "--like", database, "--json"))
    assert row["tables"] == 1
    refused(at("drop", "database", database, "--yes"), "--cascade", "1 tables")
    assert "dropped" in ok(at("drop", "database", database, "--cascade", "--yes"))
    refused(at("drop", "database", database, "--yes"), database)
    assert "there is no" in ok(at("drop", "database", database, "--if-exists", "--yes"))


def test_tables_and_partitions(at: Run, database: str, place: str) -> None:
    name = f"{database}.sales"
    ok(
        at(
            "create", "table", name, "--schema", "id INT, day STRING, price DECIMAL(10, 2)",
            "--primary-key", "id,day", "--partition-by", "day", "--buckets", "2",
            "--bucket-key", "id", "--comment", "all", "-p", "table.log.ttl=3d", "-p", "owner=me",
        )
    )  # fmt: skip
    described = json.loads(ok(at("describe", name, "--json")))
    assert described["primary key"] == "id, day"
    assert described["bucket key"] == "id"
    assert (described["buckets"], described["comment"]) == (2, "all")
    assert described["properties"]["table.log.ttl"] == "3d"
    assert described["custom properties"] == {"owner": "me"}
    assert [column["type"] for column in described["schema"]] == [
        "int NOT NULL", "string NOT NULL", "decimal(10,2)",
    ]  # fmt: skip
    refused(at("create", "table", name, "--schema", "id INT"), "TABLE_ALREADY_EXIST")
    ok(at("create", "table", name, "--schema", "id INT", "--if-not-exists"))
    for sized in ("CHAR(0)", "BINARY(0)", "DECIMAL(0, 0)"):
        refused(at("create", "table", f"{name}2", "--schema", f"id {sized}"), "column 'id'")
    refused(at("create", "table", f"{name}2", "--schema", "id NUMBER"), "NUMBER")
    refused(at("create", "table", f"{name}2", "--schema", "id INT", "-p", "x"), "key=value")
    refused(at("create", "table", f"{name}2", "--schema", "id INT", "-p", "table.x=1"), "table.x")

    assert "no partitions" in ok(at("partitions", name))
    for day in ("2026-01-01", "2026-01-02"):
        ok(at("create", "partition", name, f"day={day}"))
    ok(at("create", "partition", name, "day=2026-01-01", "--if-not-exists"))
    refused(at("create", "partition", name, "day=2026-01-01"), "PARTITION_ALREADY_EXISTS")
    refused(at("create", "partition", name, "2026-01-01"), "key=value")
    refused(at("create", "partition", name, "day=a", "day=b"), "named twice")
    rows = lines(at("partitions", name, "--json"))
    assert [(row["partition"], row["day"], row["buckets"]) for row in rows] == [
        ("2026-01-01", "2026-01-01", 2), ("2026-01-02", "2026-01-02", 2),
    ]  # fmt: skip
    [row] = lines(at("partitions", name, "--where", "day=2026-01-02", "--json"))
    assert row == rows[1]
    assert lines(at("partitions", name, "--where", "day=2027-01-02", "--json")) == []
    refused(at("partitions", f"{name}2"), f"{name}2")

    ok(at("drop", "partition", name, "day=2026-01-01", "--yes"))
    refused(at("drop", "partition", name, "day=2026-01-01", "--yes"), "PARTITION_NOT_EXISTS")
    ok(at("drop", "partition", name, "day=2026-01-01", "--yes", "--if-exists"))

    ok(at("alter", "table", name, "--add-columns", "note STRING"))
    ok(at("alter", "table", name, "--set", "owner=you"))
    described = json.loads(ok(at("describe", name, "--json")))
    assert described["schema"][-1]["column"] == "note"
    assert described["custom properties"] == {"owner": "you"}
    ok(at("alter", "table", name, "--reset", "owner"))
    refused(at("alter", "table", name), "nothing to change")
    refused(at("alter", "table", name, "--add-columns", "n INT NOT NULL"), "NOT NULL")

    ok(at("drop", "table", name, "--yes"))
    refused(at("drop", "table", name, "--yes"), name)
    assert "there is no" in ok(at("drop", "table", name, "--yes", "--if-exists"))
    assert "there is no" in ok(at("drop", "table", "nothing_here.t", "--yes", "--if-exists"))


@pytest.mark.parametrize("answer", ["n\n", "", "what\n"])
def test_nothing_is_dropped_without_a_yes(place: str, database: str, answer: str) -> None:
    def run(*arguments: str, said: str = answer) -> Result:
        return CliRunner().invoke(app, [*arguments, "--connection", place], input=said)

    name = f"{database}.t"
    ok(run("create", "table", name, "--schema", "id INT, day STRING", "--partition-by", "day"))
    ok(run("create", "partition", name, "day=a"))
    for what in (
        ("partition", name, "day=a"), ("table", name), ("database", database, "--cascade"),
    ):  # fmt: skip
        result = run("drop", *what)
        assert result.exit_code == 1
        assert "?" in result.output
    assert len(lines(run("partitions", name, "--json"))) == 1
    assert "dropped" in ok(run("drop", "table", name, said="y\n"))


def test_settings(at: Run, place: str) -> None:
    with fluss.connect(place):
        pass
    known = {row["key"]: row for row in lines(at("config", "list", "--json"))}
    assert known["data.dir"]["source"] == "INITIAL_SERVER_CONFIG"
    assert "data.dir" in ok(at("config", "list"))
    assert "no settings" in ok(at("config", "list", "--changed"))
    ok(at("config", "set", f"{LIMIT}=64mb"))
    [row] = lines(at("config", "list", "--changed", "--json"))
    assert row == {"key": LIMIT, "value": "64mb", "source": "DYNAMIC_SERVER_CONFIG"}
    refused(at("config", "set", f"{LIMIT}=many"), LIMIT, "many")
    refused(at("config", "set", f"{LIMIT}=1mb", "data.dir=/x"), "data.dir")
    refused(at("config", "set", LIMIT), "key=value")
    assert lines(at("config", "list", "--changed", "--json")) == [row]
    ok(at("config", "reset", LIMIT))
    assert lines(at("config", "list", "--changed", "--json")) == []


def test_balance(at: Run, place: str) -> None:
    with fluss.connect(place) as connection:
        [server] = [
            str(node.id)
            for node in connection.get_admin().get_server_nodes()
            if node.server_type == "TabletServer"
        ]
    listed = lines(at("rebalance", "servers", "--json"))
    assert str(listed[-1]["id"]) == server
    assert server in ok(at("rebalance", "servers"))
    ok(at("rebalance", "tag", server, "--tag", "temporary-offline"))
    refused(at("rebalance", "tag", server, "--tag", "permanent_offline"), "SERVER_TAG_ALREADY")
    ok(at("rebalance", "untag", server, "--tag", "TEMPORARY_OFFLINE"))
    refused(at("rebalance", "tag", "77", "--tag", "temporary_offline"), "77")
    refused(at("rebalance", "tag", server, "--tag", "gone"), "gone", "PERMANENT_OFFLINE")
    last = ok(at("rebalance", "start", "--yes")).strip()
    about = json.loads(ok(at("rebalance", "status", "--json")))
    assert about == {"id": last, "status": "COMPLETED", "progress": None, "buckets": []}
    assert "nothing to move" in ok(at("rebalance", "status", last))
    refused(at("rebalance", "status", "other"), last)
    refused(at("rebalance", "start", "--yes", "--goal", "peace"), "peace", "RACK_AWARE")
    ok(at("rebalance", "cancel", last))
    refused(at("rebalance", "cancel", "other"), last)


def test_health(at: Run, place: str, database: str) -> None:
    if "UNSUPPORTED_VERSION" in at("health").output:
        # Fluss 0.9.1
        refused(at("health"), "GET_CLUSTER_HEALTH")
        return
    ok(at("create", "table", f"{database}.t", "--schema", "id INT", "--buckets", "3"))
    # a real coordinator hears a moment later that the leaders are active
    wait_until(lambda: not at("health").exit_code, 30)
    about = json.loads(ok(at("health", "--json")))
    assert about["status"] == "GREEN"
    assert about["num_replicas"] == about["active_leader_replicas"] >= 3
    assert "GREEN" in ok(at("health"))


def test_health_of_a_bucket_whose_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "fluss")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--connection", place])

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with fluss.connect({"bootstrap.servers": place, "writer.retries": 0}) as connection:
        ok(run("create", "table", "t", "--schema", "id INT"))
        assert run("health").exit_code == 0
        monkeypatch.setattr(tablet, "sync_data", refuse)
        writer = connection.get_table("t").new_append().create_writer()
        with pytest.raises(FlussError):
            writer.append({"id": 1}).wait()
        with contextlib.suppress(FlussError):
            writer.close()
        result = run("health")
        assert result.exit_code == 3
        assert "RED: 0 of 1 leaders" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("tables",),
        ("databases",),
        ("describe", "t"),
        ("count", "t"),
        ("partitions", "t"),
        ("head", "t"),
        ("tail", "t", "--follow"),
        ("dump", "t", "t.csv"),
        ("load", __file__, "--into", "t"),
        ("drop", "table", "t", "--yes"),
        ("drop", "database", "d", "--yes"),
        ("alter", "table", "t", "--set", "a=b"),
        ("create", "partition", "t", "a=b"),
        ("config", "list"),
        ("acl", "list"),
        ("tier", "--once"),
    ],
    ids=" ".join,
)
def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    missing, other = tmp_path / "dtaa", tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for folder in (missing, other):
        result = CliRunner().invoke(app, [*words, "--connection", str(folder)])
        refused(result, "no data of Fluss in the folder", str(folder))
    assert [*other.iterdir()] == [other / "notes.txt"]
    assert not missing.exists()

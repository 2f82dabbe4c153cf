"""Commands that list, count, print, load and dump tables, on a real server."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

import fluss_df
from fluss_df.cli import app
from fluss_df.cluster import LocalCluster
from tests.cli.files.commands import lines, ok

FRAME = pl.DataFrame(
    {
        "id": range(100),
        "region": ["EU", "US"] * 50,
        "at": [dt.datetime(2026, 1, 1) + dt.timedelta(hours=i) for i in range(100)],
        "note": [None if i % 7 == 0 else f"note [{i}]" for i in range(100)],
    },
    schema_overrides={"at": pl.Datetime("us")},
)

READ: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".ndjson": pl.read_ndjson,
    ".arrow": pl.read_ipc,
    ".csv": pl.read_csv,
}

Run = Callable[..., Result]


@pytest.fixture
def run(fluss_cluster: LocalCluster) -> Run:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(
            app, [*arguments, "--connection", fluss_cluster.bootstrap_servers]
        )

    return call


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    FRAME.write_parquet(path)
    return path


def test_a_table_from_a_file_and_back(run: Run, parquet: Path, tmp_path: Path) -> None:
    loaded = run(
        "load", str(parquet), "--into", "cli_events", "--create", "--create-partitions",
        "--partition-by", "region", "--buckets", "1",
    )  # fmt: skip
    assert "100 rows" in ok(loaded)
    assert ok(run("count", "cli_events")) == "100\n"
    counted = lines(run("count", "cli_events", "--partitions", "--json"))
    assert counted == [{"partition": "EU", "rows": 50}, {"partition": "US", "rows": 50}]

    listed = lines(run("tables", "fluss", "--like", "cli_ev*", "--json"))
    assert [row["table"] for row in listed] == ["fluss.cli_events"]
    assert listed[0]["partitioned by"] == "region"
    assert "cli_events" in ok(run("tables", "fluss"))

    described = json.loads(ok(run("describe", "cli_events", "--json")))
    assert [column["column"] for column in described["schema"]] == FRAME.columns
    assert [row["latest offset"] for row in described["offsets"]] == [50, 50]
    text = ok(run("describe", "cli_events"))
    assert "timestamp" in text
    assert "EU" in text

    first = lines(run("head", "cli_events", "-n", "3", "--columns", "id,note", "--json"))
    assert first == [{"id": i, "note": None if i == 0 else f"note [{i}]"} for i in (0, 2, 4)]
    last = lines(run("tail", "cli_events", "-n", "1", "--metadata", "--json"))
    assert (last[0]["id"], last[0]["_partition"], last[0]["_log_offset"]) == (99, "US", 49)
    assert "note [2]" in ok(run("head", "cli_events"))

    for name in ("out.parquet", "out.ndjson", "out.arrow", "out.csv"):
        file = tmp_path / name
        assert "bytes" in ok(run("dump", "cli_events", str(file)))
        read = READ[file.suffix](file)
        assert read.sort("id")["id"].to_list() == FRAME["id"].to_list()
    assert pl.read_parquet(tmp_path / "out.parquet").sort("id").equals(FRAME)
    assert not list(tmp_path.glob(".out*"))


def test_a_primary_key_table(run: Run, parquet: Path) -> None:
    for name, options in (
        ("cli_keyed", ["--primary-key", "id"]),
        ("cli_keyed_parts", ["--primary-key", "region,id", "--partition-by", "region"]),
    ):
        arguments = ["load", str(parquet), "--into", name, "--create", "--create-partitions"]
        ok(run(*arguments, "--buckets", "2", *options))
        ok(run(*arguments))  # the same keys again
        assert ok(run("count", name)) == "100\n"
        assert len(lines(run("head", name, "-n", "3", "--json"))) == 3
    counted = lines(run("count", "cli_keyed_parts", "--partitions", "--json"))
    assert counted == [{"partition": "EU", "rows": 50}, {"partition": "US", "rows": 50}]
    listed = lines(run("tables", "--like", "cli_keyed", "--json"))
    assert (listed[0]["kind"], listed[0]["primary key"]) == ("primary key", "id")


def test_a_file_is_not_replaced_unasked(run: Run, parquet: Path) -> None:
    ok(run("load", str(parquet), "--into", "cli_forced", "--create"))
    before = parquet.read_bytes()
    refused = run("dump", "cli_forced", str(parquet))
    assert refused.exit_code == 1
    assert "--force" in refused.output
    assert parquet.read_bytes() == before
    ok(run("dump", "cli_forced", str(parquet), "--force"))
    assert pl.read_parquet(parquet).sort("id").equals(FRAME)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("head", "cli_nothing"), "cli_nothing does not exist"),
        (("describe", "no_db.t"), "no database 'no_db'"),
        (("count", "a.b.c"), "a.b"),
        (("dump", "cli_nothing", "rows.xlsx"), "ends in none of"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", "")


def test_a_file_that_does_not_fit_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("id,region\nx,EU\n")
    ok(run("load", str(_ids(tmp_path)), "--into", "cli_ids", "--create"))
    result = run("load", str(path), "--into", "cli_ids")
    assert result.exit_code == 1
    assert "region" in result.output
    assert ok(run("count", "cli_ids")) == "2\n"


def _ids(folder: Path) -> Path:
    path = folder / "ids.csv"
    path.write_text("id\n1\n2\n")
    return path


def test_tail_follows(run: Run, parquet: Path, fluss_cluster: LocalCluster) -> None:
    ok(run("load", str(parquet), "--into", "followed", "--create", "--buckets", "2"))
    last = lines(run("tail", "followed", "-f", "-n", "3", "--max-rows", "0", "--json"))
    assert len(last) == 3
    arguments = ["tail", "followed", "-f", "-n", "2", "--max-rows", "100", "--json"]
    # a process of its own: two command lines in one process would share its standard output
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.cli.main", *arguments),
            *("--connection", fluss_cluster.bootstrap_servers),
        ],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(2)]
            ok(run("load", str(parquet), "--into", "followed"))
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    both = [json.loads(line) for line in [*first, *rest.splitlines()]]
    assert len(both) == 102
    assert sorted(row["id"] for row in both[2:]) == list(range(100))


def test_tail_follows_changes(run: Run, parquet: Path) -> None:
    ok(
        run(
            "load", str(parquet), "--into", "keyed_log", "--create", "--primary-key", "id",
        )
    )  # fmt: skip
    found = lines(run("tail", "keyed_log", "-f", "-n", "2", "--max-rows", "0", "--json"))
    assert [row["_change_type"] for row in found] == ["insert", "insert"]


def test_lag(run: Run, parquet: Path, tmp_path: Path, fluss_cluster: LocalCluster) -> None:
    ok(run("load", str(parquet), "--into", "lagging", "--create", "--buckets", "2"))
    folder = tmp_path / "checkpoint"
    scan = pl.scan_fluss("lagging", connection=fluss_cluster.bootstrap_servers)  # type: ignore[attr-defined]
    scan.fluss.run(to=lambda *_: None, checkpoint=folder)
    (found,) = lines(run("lag", str(folder), "--json", "--max", "0"))
    assert found["lag"] == 0
    assert found["table"] == "fluss.lagging"
    ok(run("load", str(parquet), "--into", "lagging"))
    (found,) = lines(run("lag", str(folder), "--json"))
    assert found["lag"] == sum(bucket["lag"] for bucket in found["buckets"]) == 100
    assert "100 rows behind" in ok(run("lag", str(folder), "--max", "100"))
    assert run("lag", str(folder), "--max", "99").exit_code == 3
    assert run("lag", str(tmp_path)).exit_code == 1
    # of a cluster that began again, and gave the table's id to another table
    (note,) = (folder / "offsets").glob("*.json")
    batch = json.loads(note.read_text())
    note.write_text(json.dumps({**batch, "created": batch["created"] - 1}))
    other = run("lag", str(folder))
    assert other.exit_code == 1
    assert "made again" in " ".join(other.stderr.split())


def test_lag_of_a_run_into_a_table(
    run: Run, parquet: Path, tmp_path: Path, fluss_cluster: LocalCluster
) -> None:
    address = fluss_cluster.bootstrap_servers
    for name in ("lag_from", "lag_to"):
        ok(run("load", str(parquet), "--into", name, "--create", "--buckets", "2"))
    folder = str(tmp_path / "checkpoint")
    scan = pl.scan_fluss("lag_from", connection=address)  # type: ignore[attr-defined]
    assert scan.fluss.run(to="fluss.lag_to", checkpoint=folder).rows_written == 100
    # what others write into the target is not of the run
    ok(run("load", str(parquet), "--into", "lag_to"))
    (found,) = lines(run("lag", folder, "--json"))
    assert (found["table"], found["lag"]) == ("fluss.lag_from", 0)
    admin = fluss_df.connect(address).get_admin()
    admin.drop_table(fluss_df.TablePath("fluss", "lag_from"))
    gone = run("lag", folder)
    assert gone.exit_code == 1
    assert "lag_from" in gone.stderr
    ok(run("load", str(parquet), "--into", "lag_from", "--create"))
    again = run("lag", folder)
    assert again.exit_code == 1
    assert "made again" in " ".join(again.stderr.split())


def test_what_is_piped_is_whole(at: Run, tmp_path: Path) -> None:
    """No line is wrapped or cut where no terminal reads it, and no row left out."""
    table = "a_name_of_a_table_that_is_as_long_as_names_of_tables_are_in_practice"
    names = [f"a_column_with_a_long_name_{i}" for i in range(30)]
    frame = pl.DataFrame({name: ["x" * 300 + name] * 150 for name in names}).with_columns(
        real=1.123456789, list=pl.concat_list([pl.lit(i) for i in range(20)])
    )
    path = tmp_path / "wide.parquet"
    frame.write_parquet(path)
    ok(at("load", str(path), "--into", table, "--create"))
    assert any(f"fluss.{table}" in line for line in ok(at("tables")).splitlines())
    for command in (("head", table, "-n", "150"), ("sql", f"SELECT * FROM {table}")):
        shown = ok(at(*command)).splitlines()
        rows = [line for line in shown if "xxx" in line]
        assert len(rows) == 150
        for line in rows:
            assert all("x" * 300 + name in line for name in names)
            assert "1.123456789" in line
            assert "18, 19]" in line


def test_ctrl_c_ends_a_tail(at: Run, tmp_path: Path, command: Callable[..., list[str]]) -> None:
    path = tmp_path / "rows.parquet"
    FRAME.write_parquet(path)
    table = f"t_{uuid.uuid4().hex[:12]}"
    ok(at("load", str(path), "--into", table, "--create"))
    for pause in (0.0, 1.0):
        process = subprocess.Popen(
            command("tail", table, "--follow", "--json"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
        # 0.3 s where nothing else runs; a tail that goes on has no end
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, b"")

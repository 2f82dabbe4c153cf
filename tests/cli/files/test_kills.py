"""Loads that were killed are completed, every row once."""

from __future__ import annotations

import glob
import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.cli.loading.guessing import parse_schema
from tests.cli.files.commands import ROOT, Run, count, ok, put, refused

# ---- killed


def test_what_a_killed_load_left_is_removed_by_the_next(
    at: Run, tmp_path: Path, data_home: Path, table: str
) -> None:
    left = data_home / "fluss-df" / "loads" / "0123456789abcdef01234567.done-1"
    left.mkdir(parents=True)
    (left / "rows").write_text("rows")
    ok(at("load", put(tmp_path, "a.csv", "a\n1\n"), "--into", table, "--create"))
    assert not list(left.parent.iterdir())


ROWS = 300_000
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "2"))


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "primary-key"])
def test_a_load_that_was_killed_is_completed(
    at: Run, place: str, tmp_path: Path, data_home: Path, table: str,
    command: Callable[..., list[str]], keyed: bool,
) -> None:  # fmt: skip
    path = tmp_path / "rows.parquet"
    pl.DataFrame(
        {"id": range(ROWS), "text": [f"{i * 7919 % ROWS:08}" for i in range(ROWS)]}
    ).write_parquet(path)
    options = ["--primary-key", "id"] if keyed else []
    line = command("load", str(path), "--into", table, "--create", "--buckets", "3", *options)
    chance = random.Random(table)
    done = killed = 0
    for round_ in range(10 * KILLS):
        process = subprocess.Popen(
            line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        # first in the middle of the reading, then of the sending
        begun = "*.json" if round_ else ".*.arrow*"
        pattern = f"{glob.escape(str(data_home))}/fluss-df/loads/*/ledger/{begun}"
        # folders come and go meanwhile, which a glob of pathlib does not bear
        while not glob.glob(pattern) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        process.kill()
        said, _ = process.communicate()
        # who has said that it is done has it done
        done += b"rows" in said
        killed += b"rows" not in said
        if killed == KILLS:
            break
    assert killed == KILLS
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"{ROWS:,} rows" in ended.stdout
    wanted = ROWS if keyed else (done + 1) * ROWS
    found = fluss_df.read_fluss(table, connection=place)
    assert found.height == wanted
    assert found["id"].n_unique() == ROWS
    assert not list((data_home / "fluss-df" / "loads").iterdir())
    # and once more is once more
    if not keyed:
        ok(at("load", str(path), "--into", table))
        assert count(at, table) == wanted + ROWS


def interrupted(at: Run, folder: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Load a file into a new table, and fail to send its rows; return the file."""
    from fluss_df.client.write.writer import TableWriter

    def fail(*_: object) -> None:
        raise fluss_df.FlussError("the network is gone")

    path = put(folder, "a.csv", "a\n1\n2\n")
    with monkeypatch.context() as broken:
        broken.setattr(TableWriter, "send_as", fail)
        assert "the network is gone" in refused(at("load", path, "--into", table, "--create"))
    return path


def test_a_load_that_was_interrupted_keeps_to_its_files(
    at: Run, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = interrupted(at, tmp_path, table, monkeypatch)
    put(tmp_path, "a.csv", "a\n1\n2\n3\n")
    message = refused(at("load", path, "--into", table))
    assert "the files have changed since" in message
    assert count(at, table) == 0
    os.utime(path, ns=(1, 1))
    put(tmp_path, "a.csv", "a\n1\n2\n")
    assert "changed" in refused(at("load", path, "--into", table))


def test_a_load_into_a_cluster_that_began_again(
    at: Run, tmp_path: Path, data_home: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the same ids to other tables: what was interrupted was of a table that is gone."""
    path = interrupted(at, tmp_path, table, monkeypatch)
    (note,) = data_home.glob("fluss-df/loads/*/job.json")
    job = json.loads(note.read_text())
    note.write_text(json.dumps({**job, "created": job["created"] - 1}))
    other = put(tmp_path, "b.csv", "a\n3\n4\n")
    ok(at("load", other, "--into", table))
    said = ok(at("load", path, "--into", table))
    assert "interrupted" not in said
    assert count(at, table) == 4


# ---- partitions


def test_a_table_that_is_created_gets_its_partitions(at: Run, tmp_path: Path, table: str) -> None:
    first = put(tmp_path, "a.csv", "day,id\nmon,1\ntue,2\n")
    ok(at("load", first, "--into", table, "--create", "--partition-by", "day"))
    assert count(at, table) == 2
    # of a table that is there, only when it is said
    later = put(tmp_path, "b.csv", "day,id\nwed,3\n")
    message = refused(at("load", later, "--into", table, "--create"))
    assert "no partition 'wed'" in message
    assert "--create-partitions" in message
    assert count(at, table) == 2
    ok(at("load", later, "--into", table, "--create-partitions"))
    assert count(at, table) == 3


def test_a_table_whose_load_ended_before_its_partitions(
    at: Run, tmp_path: Path, table: str, place: str
) -> None:
    with fluss_df.connect(place) as connection:
        schema = fluss_df.Schema.from_columns(parse_schema("day STRING, id BIGINT"))
        descriptor = fluss_df.TableDescriptor(schema, partition_keys=["day"])
        connection.get_admin().create_table(fluss_df.TablePath("fluss", table), descriptor)
    file = put(tmp_path, "a.csv", "day,id\nmon,1\ntue,2\n")
    ok(at("load", file, "--into", table, "--create", "--partition-by", "day"))
    assert count(at, table) == 2

"""Compaction of Paimon tables, without a cluster: held against a plain model, raced, and killed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fluss_df.errors import FlussError
from fluss_df.lake.paimon.manifests import live_entries
from fluss_df.lake.paimon_writing import compaction, merging
from fluss_df.lake.paimon_writing.commit import commit_snapshot, latest_snapshot, read_said
from fluss_df.lake.paimon_writing.compaction import compact
from fluss_df.lake.paimon_writing.upkeep import PaimonUpkeep
from fluss_df.lake.rounds.tiered_lake import NotCommittedError
from tests.lake.test_paimon_writing import PROPERTIES, Lake, some

KEYED: Any = [("id", "BIGINT NOT NULL"), ("v", "STRING")]
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "3"))


def compacted(lake: Lake) -> int | None:
    return compact(lake.table, lake.schema, PROPERTIES)


def files(lake: Lake) -> list[dict[str, Any]]:
    said = read_said(lake.table, latest_snapshot(lake.table))
    return [entry["_FILE"] for _, entry in live_entries(lake.table, said)]


def on_disk(lake: Lake) -> set[Path]:
    return {path for path in lake.folder.rglob("*") if path.is_file()}


def keyed(folder: Path, **options: str) -> Lake:
    return Lake(folder, KEYED, ["id"], {name.replace("_", "-"): v for name, v in options.items()})


def fill(lake: Lake, rounds: int = 8) -> None:
    for number in range(rounds):
        lake.commit(lake.changes([(0, {"id": number, "v": str(number)})], number))


def test_small_files_of_a_log_table_become_one_in_the_order_of_offsets(tmp_path: Path) -> None:
    lake = Lake(tmp_path, options={"target-file-size": "1 mb"})
    for number in range(7):
        lake.commit(lake.log(some(number * 10, 10)))
        assert compacted(lake) is None
    lake.commit(lake.log(some(70, 10)))
    assert compacted(lake) == 9
    [file] = files(lake)
    assert (file["_ROW_COUNT"], file["_LEVEL"], file["_FILE_SOURCE"]) == (80, 0, 1)
    assert lake.rows()["id"].to_list() == list(range(80))
    said = read_said(lake.table, 9)
    assert (said["commitKind"], said["properties"]) == ("COMPACT", PROPERTIES)
    assert (said["totalRecordCount"], said["deltaRecordCount"]) == (80, 0)
    # who reads an older snapshot reads on
    assert lake.rows(8)["id"].to_list() == list(range(80))
    assert compacted(lake) is None


def test_a_large_file_stays_between_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    monkeypatch.setattr(compaction, "_SMALL_BYTES", 5000)
    for number in range(17):
        rows = some(number * 10_000, 10_000 if number == 8 else 10)
        [file] = lake.log(rows)
        entry = file.entry
        entry["_MIN_SEQUENCE_NUMBER"], entry["_MAX_SEQUENCE_NUMBER"] = number * 10, number * 10 + 9
        lake.commit([file])
    before = lake.rows()["id"].to_list()
    assert compacted(lake) == 18
    assert sorted(file["_ROW_COUNT"] for file in files(lake)) == [80, 80, 10_000]
    assert sorted(lake.rows()["id"]) == sorted(before)


def test_deletes_fall_out_of_merged_files(tmp_path: Path) -> None:
    lake = keyed(tmp_path)
    fill(lake, 7)
    lake.commit(lake.changes([(3, {"id": 3, "v": "3"}), (2, {"id": 4, "v": "new"})], 7))
    assert compacted(lake) == 9
    [file] = files(lake)
    assert (file["_LEVEL"], file["_ROW_COUNT"], file["_DELETE_ROW_COUNT"]) == (5, 6, 0)
    said = read_said(lake.table, 9)
    assert (said["totalRecordCount"], said["deltaRecordCount"]) == (6, -3)
    expected = {0: "0", 1: "1", 2: "2", 4: "new", 5: "5", 6: "6"}
    assert dict(lake.rows().select("id", "v").iter_rows()) == expected
    # of a bucket whose rows are all deleted no file is left
    lake.commit(lake.changes([(3, {"id": key, "v": ""}) for key in expected], 9))
    for number in range(7):
        lake.commit(lake.changes([(3, {"id": number, "v": ""})], 20 + number))
    assert compacted(lake) is not None
    assert files(lake) == []
    assert lake.rows().is_empty()


def test_a_large_bucket_waits_for_a_part_that_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = keyed(tmp_path)
    monkeypatch.setattr(compaction, "_MANY_FILES", 16)
    noise = random.Random(0)
    big = [(0, {"id": at, "v": str(noise.random())}) for at in range(20_000)]
    lake.commit(lake.changes(big, 0))
    for number in range(7):
        lake.commit(lake.changes([(2, {"id": number, "v": "x"})], 20_000 + number))
    assert compacted(lake) == 9
    for number in range(15):
        lake.commit(lake.changes([(2, {"id": number, "v": "y"})], 30_000 + number))
        assert compacted(lake) is None
    lake.commit(lake.changes([(2, {"id": 15, "v": "y"})], 40_000))
    assert compacted(lake) is not None
    assert lake.rows().filter(pl.col("v") == "y").height == 16


@pytest.mark.parametrize(
    "options",
    [{"write-only": "true"}, {"changelog-producer": "lookup"},
     {"changelog-producer": "full-compaction"}],
)  # fmt: skip
def test_what_others_compact_is_left_alone(tmp_path: Path, options: dict[str, str]) -> None:
    lake = keyed(tmp_path, **options)
    fill(lake, 10)
    assert compacted(lake) is None
    assert len(files(lake)) == 10


def test_a_log_table_with_deletion_vectors_is_left_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path, options={"deletion-vectors.enabled": "true"})
    for number in range(10):
        lake.commit(lake.log(some(number * 10, 10)))
    assert compacted(lake) is None


def test_moments_that_arrow_may_read_wrong_are_left_alone(tmp_path: Path) -> None:
    nested = {"type": "ROW", "fields": [{"id": 2, "name": "at", "type": "TIMESTAMP(9)"}]}
    lake = Lake(tmp_path, [("id", "BIGINT"), ("n", nested)])
    for number in range(8):
        rows = pl.DataFrame({"id": [number]}).with_columns(
            n=pl.lit(None, pl.Struct({"at": pl.Datetime("ns")}))
        )
        lake.commit(lake.log(rows))
    assert compacted(lake) is None


def test_a_column_that_is_not_of_the_type_of_the_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lake = Lake(tmp_path)
    for number in range(8):
        [file] = lake.log(some(number, 1))
        rows = pq.read_table(file.path)
        pq.write_table(rows.set_column(0, "id", rows["id"].cast(pa.int32())), file.path)
        lake.commit([file])
    before = on_disk(lake)
    with pytest.raises(FlussError, match="column 'id' is int32 where the lake table has int64"):
        compacted(lake)
    assert on_disk(lake) == before


def test_after_a_commit_of_another_service_nothing_is_merged(tmp_path: Path) -> None:
    lake = keyed(tmp_path)
    fill(lake)
    assert compact(lake.table, lake.schema, {"fluss-offsets": "/of an older one"}) is None
    assert len(files(lake)) == 8


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_lost_race_gives_up_and_deletes_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = keyed(tmp_path) if kind == "keys" else Lake(tmp_path)
    for number in range(8):
        lake.commit(lake.changes([(0, {"id": number, "v": ""})], number) if kind == "keys"
                    else lake.log(some(number, 1)))  # fmt: skip

    def late(*arguments: Any) -> int:
        said = {**read_said(lake.table, 8), "id": 9, "commitKind": "COMPACT", "commitUser": "other"}
        (lake.folder / "snapshot" / "snapshot-9").write_text(json.dumps(said))
        return commit_snapshot(*arguments)

    before = on_disk(lake)
    monkeypatch.setattr(compaction, "commit_snapshot", late)
    assert compacted(lake) is None
    assert {path.name for path in on_disk(lake) - before} == {"snapshot-9"}
    assert before <= on_disk(lake)
    assert lake.ids() == list(range(8))


def test_one_that_surely_failed_deletes_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = keyed(tmp_path)
    fill(lake)
    before = on_disk(lake)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(NotCommittedError, match="No space left"):
            compacted(lake)
    assert on_disk(lake) == before
    assert compacted(lake) == 9


@pytest.mark.parametrize("kind", ["log", "keyed"])
def test_a_writer_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = keyed(tmp_path) if kind == "keyed" else Lake(tmp_path)
    for number in range(8):
        rows = [(0, {"id": number, "v": str(number)})]
        lake.commit(lake.changes(rows, number) if kind == "keyed" else lake.log(some(number, 1)))
    name = "MergedWriter" if kind == "keyed" else "LogWriter"

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compaction, name, fails)
    with pytest.raises(MemoryError):
        compacted(lake)


def test_a_table_that_was_rolled_back_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = keyed(tmp_path)
    fill(lake)

    def late(*arguments: Any) -> int:
        # and its number came again, with another row
        (lake.folder / "snapshot" / "snapshot-8").unlink()
        assert lake.commit(lake.changes([(0, {"id": 100, "v": ""})], 7)) == 8
        return commit_snapshot(*arguments)

    monkeypatch.setattr(compaction, "commit_snapshot", late)
    assert compacted(lake) is None
    assert lake.ids() == [*range(7), 100]


def test_a_file_whose_keys_do_not_rise_is_not_merged(tmp_path: Path) -> None:
    lake = keyed(tmp_path)
    fill(lake, 7)
    import pyarrow.parquet as pq

    [file] = lake.changes([(0, {"id": at, "v": "x"}) for at in range(3)], 7)
    rows = pq.read_table(file.path)
    pq.write_table(rows.take([2, 0, 1]), file.path)
    lake.commit([file])
    before = on_disk(lake)
    with pytest.raises(FlussError, match=r"fluss\.t: keys do not rise"):
        compacted(lake)
    assert on_disk(lake) == before


@pytest.mark.parametrize("seed", range(6))
def test_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Writes, deletes, compactions and expiry in small batches, held against a dictionary."""
    choose = random.Random(seed)
    monkeypatch.setattr(merging, "_ROWS", choose.choice([8, 64, 1 << 17]))
    monkeypatch.setattr(merging, "_LEAST_ROWS", choose.choice([1, 3]))
    monkeypatch.setattr(compaction, "_SMALL_FILES", choose.choice([2, 3, 8]))
    columns = [("k", "STRING NOT NULL"), ("n", "INT NOT NULL"), ("v", "STRING"), ("m", "BIGINT")]
    producer = choose.choice(["none", "input"])
    lake = Lake(tmp_path, columns, ["k", "n"], {"changelog-producer": producer})
    kept = PaimonUpkeep(lake.options)
    model: dict[tuple[str, int], str] = {}
    offset = merges = 0
    for _ in range(40):
        changes: list[tuple[int, dict[str, Any]]] = []
        for _ in range(choose.randrange(1, 60)):
            key = choose.choice("aäb\U0001f600\uffffz") * choose.randrange(3), choose.randrange(20)
            row: dict[str, Any] = {
                "k": key[0],
                "n": key[1],
                "v": str(offset + len(changes)),
                "m": None,
            }
            if key in model and choose.random() < 0.4:
                del model[key]
                changes.append((3, row))
            else:
                changes.append((2 if key in model else 0, row))
                model[key] = row["v"]
        lake.commit(lake.changes(changes, offset))
        offset += len(changes)
        pinned = latest_snapshot(lake.table)
        if choose.random() < 0.7:
            merges += compacted(lake) is not None
        for number in (None, pinned):
            found = {(k, n): v for k, n, v in lake.rows(number).select("k", "n", "v").iter_rows()}
            assert found == model
        said = read_said(lake.table, latest_snapshot(lake.table))
        assert said["totalRecordCount"] == sum(file["_ROW_COUNT"] for file in files(lake))
        if choose.random() < 0.2:
            kept.expire(0)
            assert kept.remove_orphans(0) == 0
    assert merges


_SCRIPT = """
import sys
from pathlib import Path
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.compaction import compact
from fluss_df.lake.paimon_writing.tiered_table import newest_schema
from tests.lake.test_paimon_writing import PATH, PROPERTIES
table = TableFiles(LakeOptions(PATH, "paimon", {"warehouse": sys.argv[1]}))
print("begins", flush=True)
compact(table, newest_schema(table), PROPERTIES)
print("ended", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_table_that_reads_right(tmp_path: Path) -> None:
    lake = keyed(tmp_path)
    rows = 20_000
    offset = 0
    expected: dict[int, str] = {}
    within = 0
    for number in range(KILLS):
        for part in range(8):
            ids = range(part, rows, 8)
            changes: Any = [(2, {"id": at, "v": f"{number}.{part}"}) for at in ids]
            expected |= {row["id"]: row["v"] for _, row in changes}
            lake.commit(lake.changes(changes, offset))
            offset += len(changes)
        before = latest_snapshot(lake.table)
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(0.3 * number / KILLS)  # the first at once
        process.send_signal(signal.SIGKILL)
        within += process.stdout.read() == ""
        process.wait()
        process.stdout.close()
        assert latest_snapshot(lake.table) - before in (0, 1)
        assert dict(lake.rows().select("id", "v").iter_rows()) == expected
        PaimonUpkeep(lake.options).remove_orphans(0)
        assert dict(lake.rows().select("id", "v").iter_rows()) == expected
        assert PaimonUpkeep(lake.options).remove_orphans(0) == 0
    print(f"{within} of {KILLS} kills were within a compaction")
    assert within
    there = {path.name for path in lake.folder.rglob("data-*")}
    assert {file["_FILE_NAME"] for file in files(lake)} <= there

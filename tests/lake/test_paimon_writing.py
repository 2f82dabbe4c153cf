"""The parts that write Paimon tables, without a cluster."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import FlussError
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.binary_rows import BYTES, TEXTS, TIMES, value_at
from fluss_df.lake.paimon.catalog import open_paimon
from fluss_df.lake.paimon.manifests import live_entries, read_avro
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import FieldType, field_type
from fluss_df.lake.paimon_writing import manifests, upkeep
from fluss_df.lake.paimon_writing.commit import (
    Base,
    OutcomeUnknownError,
    commit_snapshot,
    latest_snapshot,
    newest_base,
    read_said,
)
from fluss_df.lake.paimon_writing.files import KeyedWriter, LogWriter, NewFile, PaimonFiles, discard
from fluss_df.lake.paimon_writing.rows import binary_row
from fluss_df.lake.paimon_writing.statistics import cut, cut_above
from fluss_df.lake.paimon_writing.tiered_table import newest_schema
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, NotCommittedError
from fluss_df.metadata import TablePath

PATH = TablePath("fluss", "t")
EMPTY = binary_row([], [])
PROPERTIES = {"fluss-offsets": "/somewhere", "fluss-df.offsets": "{}"}


class Lake:
    """A Paimon table in a folder, as Fluss makes them."""

    def __init__(
        self,
        folder: Path,
        columns: Sequence[tuple[str, Any]] = (("id", "BIGINT"), ("a b", "STRING")),
        keys: Sequence[str] = (),
        options: dict[str, str] | None = None,
    ) -> None:
        self.options = LakeOptions(PATH, "paimon", {"warehouse": str(folder)})
        self.folder = folder / "fluss.db" / "t"
        (self.folder / "schema").mkdir(parents=True)
        fields = [{"id": at, "name": name, "type": kind} for at, (name, kind) in enumerate(columns)]
        schema = {
            "version": 3,
            "id": 0,
            "fields": fields,
            "highestFieldId": len(fields) - 1,
            "partitionKeys": [],
            "primaryKeys": list(keys),
            "options": {"bucket": "1" if keys else "-1", **(options or {})},
        }
        (self.folder / "schema" / "schema-0").write_text(json.dumps(schema))
        self.table = TableFiles(self.options)
        self.schema = newest_schema(self.table)
        self.files = PaimonFiles(self.table, self.schema)

    def log(self, rows: pl.DataFrame) -> list[NewFile]:
        writer = LogWriter(self.files, EMPTY, 0)
        writer.write(rows.to_arrow().cast(self.schema.rows), 0, rows.height - 1)
        return writer.close()

    def changes(self, changes: Sequence[tuple[int, dict[str, Any]]], first: int) -> list[NewFile]:
        writer = KeyedWriter(self.files, EMPTY, 0)
        rows = pa.Table.from_pylist([row for _, row in changes], self.schema.rows)
        kinds = pa.array([kind for kind, _ in changes], pa.int8())
        writer.write(rows, kinds, pa.array(range(first, first + len(changes)), pa.int64()))
        return writer.close()

    def commit(self, files: Sequence[NewFile], base: Base | None = None) -> int:
        on = newest_base(self.table) if base is None else base
        return commit_snapshot(self.table, self.schema, on, files, PROPERTIES)

    def rows(self, number: int | None = None) -> pl.DataFrame:
        snapshot = open_paimon(self.options, number or latest_snapshot(self.table))
        return snapshot.frame(snapshot.files).collect()

    def ids(self) -> list[int]:
        return sorted(self.rows()["id"])


def some(first: int, count: int) -> pl.DataFrame:
    return pl.DataFrame({"id": range(first, first + count), "a b": "x"})


# ---- rows and statistics


def values_of(kind: FieldType) -> st.SearchStrategy[Any]:
    if kind.root in TEXTS:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    if kind.root in BYTES:
        return st.binary(max_size=40)
    if kind.root == "BOOLEAN":
        return st.booleans()
    if kind.root == "DECIMAL":
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale))
    if kind.root in TIMES:
        unit = 10 ** (9 - min(kind.precision, 9))
        return st.integers(-(2**62) // unit, 2**62 // unit).map(lambda n: n * unit)
    bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "DATE": 32, "TIME": 32}.get(kind.root, 64)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TYPES = [
    field_type(text)
    for text in (
        "STRING", "BYTES", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIME(3)",
        "DECIMAL(9, 3)", "DECIMAL(18, 0)", "DECIMAL(28, 5)", "TIMESTAMP(3)", "TIMESTAMP(9)",
        "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    )
]  # fmt: skip


def a_field(kind: FieldType) -> st.SearchStrategy[tuple[FieldType, Any]]:
    return st.tuples(st.just(kind), st.none() | values_of(kind))


@settings(deadline=None)
@given(st.lists(st.sampled_from(TYPES).flatmap(a_field), max_size=70))
def test_rows_are_read_as_they_were_written(fields: list[tuple[FieldType, Any]]) -> None:
    kinds = [kind for kind, _ in fields]
    values = [value for _, value in fields]
    row = binary_row(values, kinds)
    assert [value_at(row, at, kind) for at, kind in enumerate(kinds)] == values
    # parts of rows are aligned
    assert len(row) % 8 == 4


def test_rows_are_those_of_java() -> None:
    # of a manifest that Flink's service wrote
    text = field_type("STRING")
    assert binary_row(["d1"], [text]) == (
        b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00d1\x00\x00\x00\x00\x00\x82"
    )
    assert binary_row([1], [field_type("BIGINT")]).endswith(b"\x01\x00\x00\x00\x00\x00\x00\x00")
    long = binary_row(["a longer text"], [text])
    assert long[12:20] == (16 << 32 | 13).to_bytes(8, "little")
    assert long[20:] == b"a longer text\0\0\0"


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.binary())
def test_cut_values_are_bounds(value: str | bytes) -> None:
    assert cut(value) <= value
    assert len(cut(value)) <= 16
    above: Any = cut_above(value)
    if above is not None:
        assert above >= value
        assert len(above) <= 16
        if isinstance(above, str):
            above.encode()
    else:
        last = "\U0010ffff" if isinstance(value, str) else b"\xff"
        assert value[:16] == last * 16


def test_files_are_left_out_by_their_statistics(tmp_path: Path) -> None:
    from fluss_df.pushdown.column import col

    lake = Lake(tmp_path, [("id", "BIGINT"), ("a b", "STRING"), ("f", "DOUBLE"), ("n", "INT")])
    frame = some(0, 100).with_columns(f=pl.col("id") / 7, n=pl.lit(None, pl.Int32))
    lake.commit(lake.log(frame) + lake.log(frame.with_columns(pl.col("id") + 1000)))
    snapshot = open_paimon(lake.options, 1)
    for predicate, count in (
        (col("id") >= 1000, 1),
        (col("id") > 5000, 0),
        (col("a b") == "y", 0),
        (col("f") > 100.0, 2),  # of fractions nothing is known
        (col("n").is_not_null(), 0),
    ):
        assert len(snapshot.wanted([predicate])) == count, predicate


# ---- files


def test_files_are_rolled(tmp_path: Path) -> None:
    lake = Lake(tmp_path, options={"target-file-size": "200 kb"})
    writer = LogWriter(lake.files, EMPTY, 0)
    for part in range(4):
        rows = some(part * 300_000, 300_000).to_arrow().cast(lake.schema.rows)
        writer.write(rows, part * 300_000, part * 300_000 + 299_999)
    made = writer.close()
    assert len(made) > 1
    assert sum(file.rows for file in made) == 1_200_000
    for file in made:
        assert file.entry["_FILE_SIZE"] == Path(file.path).stat().st_size
    spans = [
        (file.entry["_MIN_SEQUENCE_NUMBER"], file.entry["_MAX_SEQUENCE_NUMBER"]) for file in made
    ]
    assert spans[0][0] == 0
    assert spans[-1][1] == 1_199_999
    assert all(one[1] + 1 == following[0] for one, following in itertools.pairwise(spans))
    lake.commit(made)
    assert lake.rows().height == 1_200_000


def test_what_is_given_up_is_deleted(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    writer = LogWriter(lake.files, EMPTY, 0)
    for part in range(3):
        writer.write(some(part * 200_000, 200_000).to_arrow().cast(lake.schema.rows), 0, 1)
    assert list(lake.folder.rglob("*.parquet"))
    writer.abort()
    assert not list(lake.folder.rglob("*.parquet"))


def test_an_option_that_is_no_size(tmp_path: Path) -> None:
    with pytest.raises(FlussError, match="target-file-size is 'much', and not a number of bytes"):
        Lake(tmp_path, options={"target-file-size": "much"})


@pytest.mark.parametrize("producer", ["none", "input"])
def test_the_newest_change_of_each_key_counts(tmp_path: Path, producer: str) -> None:
    columns = [("id", "BIGINT NOT NULL"), ("^v.*$", "STRING")]
    lake = Lake(tmp_path, columns, ["id"], {"changelog-producer": producer})

    def row(key: int, value: str) -> dict[str, Any]:
        return {"id": key, "^v.*$": value}

    first = [(0, row(2, "b")), (0, row(1, "a")), (1, row(1, "a")), (2, row(1, "c"))]
    files = lake.changes(first, 0)
    lake.commit(files)
    # a round that ends between the two halves of an update, and has a delete
    lake.commit(lake.changes([(3, row(2, "b")), (0, row(3, "d")), (1, row(1, "c"))], 4))
    assert dict(lake.rows().select("id", pl.nth(1)).sort("id").iter_rows()) == {1: "c", 3: "d"}
    [data] = [file for file in files if not file.changelog]
    assert (data.rows, data.entry["_DELETE_ROW_COUNT"]) == (2, 0)
    changelog = [file.rows for file in files if file.changelog]
    assert changelog == ([4] if producer == "input" else [])
    said = read_said(lake.table, 2)
    assert said["changelogRecordCount"] == (3 if producer == "input" else 0)
    assert (said["changelogManifestList"] is None) == (producer == "none")


# ---- commits


def test_a_commit_on_another_snapshot_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    empty = newest_base(lake.table)
    assert lake.commit(lake.log(some(0, 10))) == 1
    with pytest.raises(LakeMovedError, match="committed the snapshot 1 meanwhile"):
        lake.commit(lake.log(some(10, 10)), base=empty)
    with pytest.raises(LakeMovedError, match="snapshot 2 is gone"):
        lake.commit(lake.log(some(10, 10)), base=replace(newest_base(lake.table), number=2))
    assert lake.ids() == list(range(10))
    # nothing of those that were refused is left
    said = read_said(lake.table, 1)
    names = {file.name for file in (lake.folder / "manifest").iterdir()}
    lists = {said["baseManifestList"], said["deltaManifestList"]}
    assert len(names) == 3
    assert lists < names


def test_a_compaction_meanwhile_is_no_reason_to_refuse(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit(lake.log(some(0, 10)))
    base = newest_base(lake.table)
    said = {**read_said(lake.table, 1), "id": 2, "commitKind": "COMPACT", "commitUser": "another"}
    (lake.folder / "snapshot" / "snapshot-2").write_text(json.dumps(said))
    assert lake.commit(lake.log(some(10, 10)), base=base) == 3
    assert lake.ids() == list(range(20))


@pytest.mark.parametrize("more", [0, 1])
def test_a_commit_on_a_snapshot_that_was_rolled_back_is_refused(tmp_path: Path, more: int) -> None:
    lake = Lake(tmp_path)
    lake.commit(lake.log(some(0, 10)))
    lake.commit(lake.log(some(10, 10)))
    base = newest_base(lake.table)
    planned = lake.log(some(20, 10))
    (lake.folder / "snapshot" / "snapshot-2").unlink()
    for number in range(1 + more):
        # the number comes again
        assert lake.commit(lake.log(some(100 + number, 1))) == 2 + number
    with pytest.raises(LakeMovedError, match=r"snapshot 2 is gone, or another one.*rolled back"):
        lake.commit(planned, base)
    assert lake.ids() == [*range(10), *range(100, 101 + more)]


def test_of_many_that_commit_at_once_each_snapshot_is_of_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    start = threading.Barrier(4)
    done: list[int] = []

    def commit(number: int) -> None:
        start.wait()
        for turn in range(5):
            first = (number * 5 + turn) * 10
            files = lake.log(some(first, 10))
            while True:
                try:
                    lake.commit(files)
                    break
                except LakeMovedError:
                    continue
            done.append(first)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 20
    assert latest_snapshot(lake.table) == 20
    assert lake.ids() == list(range(200))
    assert read_said(lake.table, 20)["totalRecordCount"] == 200


def test_manifests_are_merged(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(70):
        lake.commit(lake.log(some(number * 10, 10)))
    assert lake.ids() == list(range(700))
    said = read_said(lake.table, 70)
    lines = read_avro(lake.table, f"manifest/{said['baseManifestList']}")
    assert len(lines) < 31
    assert sum(line["_NUM_ADDED_FILES"] for line in lines) == 69
    assert len(live_entries(lake.table, said)) == 70


def test_a_disk_that_takes_no_more_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.commit(lake.log(some(0, 10)))
    before = {path for path in lake.folder.rglob("*") if path.is_file()}
    files = lake.log(some(10, 10))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("link", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(NotCommittedError, match=r"cannot be written: .*No space left"):
                lake.commit(files)
    discard(files)
    assert {path for path in lake.folder.rglob("*") if path.is_file()} == before
    assert lake.ids() == list(range(10))


def test_a_link_whose_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    real = os.link

    def twice(*arguments: Any) -> None:
        real(*arguments)
        real(*arguments)  # as a client of a network's storage does that asks again

    monkeypatch.setattr(os, "link", twice)
    assert lake.commit(lake.log(some(0, 10))) == 1
    assert lake.commit(lake.log(some(10, 10))) == 2
    assert lake.ids() == list(range(20))


def test_a_snapshot_of_which_the_storage_does_not_say_whether_it_is_there_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    link, read = os.link, Path.read_text

    def unanswered(source: Any, target: Any) -> None:
        link(source, target)
        raise OSError(errno.EIO, "no answer")

    def unread(path: Path, *args: Any, **options: Any) -> str:
        if path.name.startswith("snapshot-"):
            raise OSError(errno.EIO, "no answer")
        return read(path, *args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(os, "link", unanswered)
        broken.setattr(Path, "read_text", unread)
        with pytest.raises(OutcomeUnknownError, match=r"snapshot-1: .*no answer"):
            lake.commit(lake.log(some(0, 10)))
    assert lake.ids() == list(range(10))


# ---- upkeep


def test_old_snapshots_expire_with_the_files_that_only_they_have(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [("id", "BIGINT NOT NULL"), ("v", "STRING")], ["id"],
                {"changelog-producer": "input"})  # fmt: skip
    kept = upkeep.PaimonUpkeep(lake.options)
    assert kept.expire(0) is None
    for number in range(40):
        change = [(0 if number == 0 else 2, {"id": 1, "v": str(number)})]
        lake.commit(lake.changes(change, number))
    assert kept.expire(3600) is None
    done = kept.expire(0)
    assert done is not None
    # the snapshots of the two newest rounds stay
    names = {file.name for file in (lake.folder / "snapshot").iterdir()}
    assert names == {"snapshot-39", "snapshot-40", "LATEST", "EARLIEST"}
    assert (lake.folder / "snapshot" / "EARLIEST").read_text() == "39"
    assert done[0] == 38
    for number in (39, 40):
        assert lake.rows(number)["v"].to_list() == [str(number - 1)]
    # changes of expired snapshots are gone, and rows of keys are in no compacted file yet
    assert len(list(lake.folder.rglob("changelog-*"))) == 2
    assert len(list(lake.folder.rglob("data-*"))) == 40
    assert kept.remove_orphans(0) == 0
    assert lake.commit(lake.changes([(2, {"id": 1, "v": "last"})], 40)) == 41
    assert lake.rows()["v"].to_list() == ["last"]


def test_what_a_tag_names_and_a_consumer_reads_stays(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(6):
        lake.commit(lake.log(some(number * 10, 10)))
    (lake.folder / "tag").mkdir()
    (lake.folder / "tag" / "tag-a").write_bytes(
        (lake.folder / "snapshot" / "snapshot-2").read_bytes()
    )
    (lake.folder / "consumer").mkdir()
    (lake.folder / "consumer" / "consumer-c").write_text('{"nextSnapshot": 4}')
    kept = upkeep.PaimonUpkeep(lake.options)
    done = kept.expire(0)
    assert done is not None
    assert done[0] == 3
    said = json.loads((lake.folder / "tag" / "tag-a").read_bytes())
    assert len(live_entries(lake.table, said)) == 2
    kept.remove_orphans(0)
    assert len(live_entries(lake.table, said)) == 2


def test_files_that_no_snapshot_has_go_when_they_are_old(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit(lake.log(some(0, 10)))
    [left] = lake.log(some(10, 10))
    other = lake.folder / "bucket-0" / "of somebody else"
    other.write_bytes(b"")
    kept = upkeep.PaimonUpkeep(lake.options)
    assert kept.remove_orphans(60) == 0
    long_ago = time.time() - 120
    for file in lake.folder.rglob("*"):
        os.utime(file, (long_ago, long_ago))
    assert kept.remove_orphans(60) == 1
    assert not Path(left.path).exists()
    assert other.exists()
    assert lake.ids() == list(range(10))


def test_a_table_with_branches_is_left_as_it_is(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(4):
        lake.commit(lake.log(some(number * 10, 10)))
    (lake.folder / "branch").mkdir()
    kept = upkeep.PaimonUpkeep(lake.options)
    assert kept.expire(0) is None
    assert kept.remove_orphans(0) == 0


def test_a_file_that_is_removed_does_not_come_back_when_manifests_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    writer = manifests.ManifestWriter(lake.table, lake.schema)

    def added(first: int) -> dict[str, Any]:
        (line,) = writer.changed(lake.log(some(first, 1)))
        return line

    def files(lines: list[dict[str, Any]]) -> list[str]:
        names, nothing = writer.list_of(lines)[0], writer.list_of([])[0]
        said = {"baseManifestList": names, "deltaManifestList": nothing}
        return [entry["_FILE"]["_FILE_NAME"] for _, entry in live_entries(lake.table, said)]

    first = [added(0), added(1)]
    gone = [
        entry for line in first for entry in read_avro(lake.table, f"manifest/{line['_FILE_NAME']}")
    ]
    (large,) = writer.changed([], gone)
    lines = [*first, large, *(added(number) for number in range(2, 32))]
    monkeypatch.setattr(manifests, "_is_small", lambda line: line is not large)
    joined = writer.merged(lines)
    assert len(joined) == 3
    assert joined[1] is large
    assert files(joined) == files(lines)
    assert len(files(joined)) == 30


def test_a_table_without_columns_of_fluss_is_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit(lake.log(some(0, 2)))
    assert not open_paimon(lake.options, 1).has_own_columns
    columns = [("id", "BIGINT"), ("__bucket", "INT"), ("__offset", "BIGINT")]
    lake = Lake(tmp_path / "other", columns)
    rows = pl.DataFrame({"id": [1], "__bucket": [0], "__offset": [0]})
    lake.commit(lake.log(rows))
    assert open_paimon(lake.options, 1).has_own_columns

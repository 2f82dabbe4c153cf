"""The parts of the tiering service, without a cluster."""

from __future__ import annotations

import errno
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from fluss_df.errors import FlussError
from fluss_df.lake.iceberg_writing.commit import commit_snapshot
from fluss_df.lake.iceberg_writing.compaction import compact
from fluss_df.lake.iceberg_writing.files import LakeFiles, RollingWriter
from fluss_df.lake.iceberg_writing.keyed import last_changes, replace_rows
from fluss_df.lake.iceberg_writing.live_rows import PartitionFiles, files_by_partition
from fluss_df.lake.iceberg_writing.tiered_table import newest_tiered
from fluss_df.lake.offsets import OFFSETS_PROPERTY, offsets_in, offsets_to_text
from fluss_df.lake.rounds.lake_rows import to_lake
from fluss_df.lake.rounds.offsets import TieredSnapshot
from fluss_df.lake.rounds.tiered_lake import NotCommittedError

PROPERTIES = {"commit-user": "__fluss_lake_tiering", "fluss-offsets": "/somewhere"}


@pytest.fixture
def lake(tmp_path: Path) -> Table:
    """Return a lake table as Fluss makes them, with small files."""
    schema = Schema(
        NestedField(0, "id", LongType(), required=True),
        NestedField(1, "a b", StringType()),
        NestedField(2, "__bucket", IntegerType(), required=True),
        NestedField(3, "__offset", LongType(), required=True),
        NestedField(4, "__timestamp", TimestamptzType(), required=True),
    )
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path / "w"))
    catalog.create_namespace("fluss")
    table = catalog.create_table("fluss.t", schema)
    spec = PartitionSpec(
        PartitionField(table.schema().find_field("id").field_id, 1000, BucketTransform(2), "b")
    )
    catalog.drop_table("fluss.t")
    return catalog.create_table(
        "fluss.t", schema, partition_spec=spec, properties={"write.target-file-size-bytes": "20000"}
    )


def some_rows(first: int, count: int, text: str, kind: pa.Schema) -> pa.Table:
    frame = pl.DataFrame({"id": range(first, first + count)}).with_columns(
        pl.lit(text).alias("a b"),
        _log_offset=first + pl.int_range(pl.len()),
        _commit_timestamp=pl.lit(17).cast(pl.Datetime("ms", "UTC")),
    )
    return to_lake(frame.to_arrow(), kind, 1, "t")


def ids_of(table: Table) -> list[int]:
    return sorted(table.scan(selected_fields=("id",)).to_arrow().column("id").to_pylist())


@pytest.mark.parametrize(
    "offsets", [{}, {(None, 0): 5, (None, 11): 0}, {(7, 0): 1, (12, 1): 2**40}]
)
def test_offsets_are_text_and_back(offsets: dict[tuple[int | None, int], int]) -> None:
    assert offsets_in({OFFSETS_PROPERTY: offsets_to_text(offsets)}) == offsets


@pytest.mark.parametrize("text", ["", "[]", '{"": 1}', '{"x": {"0": 1}}'])
def test_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(FlussError, match="is not what fluss_df writes"):
        offsets_in({OFFSETS_PROPERTY: text})


def test_the_last_change_of_each_key_counts() -> None:
    changes = [
        ("+I", 1, "a"), ("+I", 2, "b"), ("-U", 1, "a"), ("+U", 1, "c"), ("-D", 2, "b"),
        ("+I", 3, "d"), ("-D", 3, "d"), ("+I", 3, "e"),
    ]  # fmt: skip
    tables = [
        pl.DataFrame(part, ["_change_type", "id", "v"], orient="row").to_arrow()
        for part in (changes[:3], changes[3:])
    ]
    keys, rows = last_changes(tables, ["id"], pl.DataFrame)
    assert sorted(keys["id"]) == [1, 2, 3]
    assert sorted(zip(*rows.select(["id", "v"]).to_pydict().values(), strict=True)) == [
        (1, "c"),
        (3, "e"),
    ]


def test_files_are_rolled_and_have_statistics(lake: Table) -> None:
    files = LakeFiles(lake)
    writer = files.writer((1,))
    for part in range(4):
        writer.write(some_rows(part * 300_000, 300_000, f"x{part}", files.arrow_schema))
    made = writer.close()
    assert len(made) == 4
    assert sum(file.record_count for file in made) == 1_200_000
    for file in made:
        assert file.file_size_in_bytes == Path(file.file_path).stat().st_size
        assert file.partition[0] == 1
        # the name that Iceberg's own writers give the column
        assert pq.read_schema(file.file_path).names[1] == "a_x20b"
    commit_snapshot(lake, made, [], [], PROPERTIES)
    lake.refresh()
    assert ids_of(lake) == list(range(1_200_000))
    task = lake.scan(row_filter="id = 900001").plan_files()
    assert len(list(task)) == 1


def test_a_commit_is_refused_when_the_table_is_another(lake: Table, tmp_path: Path) -> None:
    files = LakeFiles(lake)

    def written(first: int) -> list[object]:
        writer = files.writer((0,))
        writer.write(some_rows(first, 10, "x", files.arrow_schema))
        return list(writer.close())

    same = lake.catalog.load_table("fluss.t")
    commit_snapshot(lake, written(0), [], [], PROPERTIES)  # type: ignore[arg-type]
    manifests = set(tmp_path.rglob("*.avro"))
    assert manifests
    with pytest.raises(CommitFailedException):
        commit_snapshot(same, written(100), [], [], PROPERTIES)  # type: ignore[arg-type]
    # nobody else would remove those of a snapshot that there is not
    assert set(tmp_path.rglob("*.avro")) == manifests
    assert ids_of(lake.catalog.load_table("fluss.t")) == list(range(10))


def test_only_files_with_touched_keys_are_written_again(lake: Table) -> None:
    files = LakeFiles(lake)
    for first in (0, 100, 200):
        writer = files.writer((0,))
        writer.write(some_rows(first, 100, "old", files.arrow_schema))
        commit_snapshot(lake, writer.close(), [], [], PROPERTIES)
        lake.refresh()
    files = LakeFiles(lake)
    touched = pl.DataFrame({"id": [150, 500]})
    existing = files_by_partition(lake)[(0,)]
    new = [some_rows(500, 1, "new", files.arrow_schema)]
    done = replace_rows(files, (0,), existing, ["id"], touched, new)
    assert [file.record_count for file in done.removed] == [100]
    assert [file.record_count for file in done.added] == [100]
    commit_snapshot(lake, done.added, done.removed, [], PROPERTIES)
    lake.refresh()
    assert ids_of(lake) == [i for i in range(300) if i != 150] + [500]
    summary = lake.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["total-records"], summary["total-data-files"]) == ("300", "3")


def test_many_small_files_become_one(lake: Table) -> None:
    files = LakeFiles(lake)
    for first in range(0, 80, 10):
        writer = files.writer((0,))
        writer.write(some_rows(first, 10, "old", files.arrow_schema))
        commit_snapshot(lake, writer.close(), [], [], PROPERTIES)
        lake.refresh()
    files = LakeFiles(lake)
    existing = files_by_partition(lake)[(0,)]
    new = [some_rows(500, 1, "new", files.arrow_schema)]
    done = replace_rows(files, (0,), existing, ["id"], pl.DataFrame({"id": [500]}), new)
    assert (len(done.removed), len(done.added)) == (8, 1)
    commit_snapshot(lake, done.added, done.removed, [], PROPERTIES)
    lake.refresh()
    assert ids_of(lake) == [*range(80), 500]


def test_small_files_of_a_log_table_are_merged_in_the_order_of_offsets(lake: Table) -> None:
    files = LakeFiles(lake)
    for first in range(0, 80, 10):
        writer = files.writer((0,))
        writer.write(some_rows(first, 10, "x", files.arrow_schema))
        assert compact(lake, PROPERTIES) is None
        commit_snapshot(lake, writer.close(), [], [], PROPERTIES)
    before = lake.current_snapshot()
    assert compact(lake, PROPERTIES) is not None
    lake.refresh()
    after = lake.current_snapshot()
    assert before is not None
    assert after is not None
    assert after.summary is not None
    assert after.summary.operation == Operation.REPLACE
    assert after.summary["total-data-files"] == "1"
    [task] = lake.scan().plan_files()
    assert pq.read_table(task.file.file_path, columns=["id"])["id"].to_pylist() == list(range(80))
    assert lake.scan(snapshot_id=before.snapshot_id).to_arrow().num_rows == 80
    assert newest_tiered(lake) == TieredSnapshot(
        after.snapshot_id, "/somewhere", None, after.timestamp_ms
    )
    assert compact(lake, PROPERTIES) is None


@pytest.mark.parametrize("fails", ["writer", "manifest"])
def test_a_compaction_that_surely_failed_deletes_its_own_files(
    lake: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    files = LakeFiles(lake)
    for partition in (0, 1):
        for first in range(0, 80, 10):
            writer = files.writer((partition,))
            writer.write(some_rows(first, 10, "x", files.arrow_schema))
            commit_snapshot(lake, writer.close(), [], [], PROPERTIES)
            lake.refresh()
    before = set(tmp_path.rglob("*.parquet"))
    closed = RollingWriter.close
    done: list[RollingWriter] = []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def second_is_full(writer: RollingWriter) -> list[DataFile]:
        if done:
            full()
        done.append(writer)
        return closed(writer)

    with monkeypatch.context() as patch:
        if fails == "writer":
            patch.setattr(RollingWriter, "close", second_is_full)
        else:
            patch.setattr(_SnapshotProducer, "_manifests", full)
        with pytest.raises((OSError, NotCommittedError), match="No space left"):
            compact(lake, PROPERTIES)
    assert set(tmp_path.rglob("*.parquet")) == before
    assert compact(lake, PROPERTIES) is not None
    lake.refresh()
    assert len(list(lake.scan().plan_files())) == 2


def test_the_newest_tiered_snapshot_is_found_below_others(lake: Table) -> None:
    assert newest_tiered(lake) is None
    files = LakeFiles(lake)
    writer = files.writer((0,))
    writer.write(some_rows(0, 10, "x", files.arrow_schema))
    offsets = offsets_to_text({(None, 0): 10})
    tiered = commit_snapshot(
        lake, writer.close(), [], [], {**PROPERTIES, "fluss-df.offsets": offsets}
    )
    lake.refresh()
    commit_snapshot(lake, [], [], [], {})  # by somebody else
    lake.refresh()
    found = newest_tiered(lake)
    assert found is not None
    assert (found.snapshot_id, found.offsets) == (tiered, {(None, 0): 10})


def test_a_column_that_fluss_lacks_is_named(lake: Table) -> None:
    with pytest.raises(FlussError, match="column 'a b' of the lake table of t is not in Fluss"):
        to_lake(pa.table({"id": [1]}), LakeFiles(lake).arrow_schema, 0, "t")


def test_no_files_are_written_for_no_rows(lake: Table) -> None:
    files = LakeFiles(lake)
    done = replace_rows(files, (0,), PartitionFiles(), ["id"], pl.DataFrame({"id": [1]}), [])
    assert done.added == ()

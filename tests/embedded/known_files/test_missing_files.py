"""A folder knows what must be in it: what is missing or exchanged is told, or mended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.damage import Contents
from tests.embedded.known_files.folders import (
    KEYED,
    LOGS,
    OPTIONS,
    bucket_folder,
    refused,
    segments,
)
from tests.embedded.test_damaged_rows import create, write
from tests.embedded.test_damaged_rows import frame as rows_frame
from tests.embedded.test_durability import contents

# ---- what is missing


def test_a_missing_first_segment(folder: Path, expected: Contents) -> None:
    segments(folder, LOGS[0])[0].unlink()
    (error,) = refused(folder, expected, LOGS[0])
    assert "offset 0" in error
    assert "is missing" in error


@pytest.mark.parametrize("bucket", [LOGS[1], KEYED[0]])
@pytest.mark.parametrize("part", [".", "log"])
def test_a_missing_folder_of_a_bucket(
    folder: Path, expected: Contents, bucket: TableBucket, part: str
) -> None:
    shutil.rmtree(bucket_folder(folder, bucket) / part)
    for _ in range(2):  # also when it was opened before
        refused(folder, expected, bucket)


def test_a_backup_of_a_folder_that_lacks_a_bucket(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(bucket_folder(folder, LOGS[0]))
    engine = Engine(folder, OPTIONS)
    try:
        with pytest.raises(FlussError, match="is missing, and rows were written to it"):
            back_up(engine, tmp_path / "b.tar.zst")
    finally:
        engine.close()


def test_a_restored_folder_knows_its_buckets(
    folder: Path, expected: Contents, tmp_path: Path
) -> None:
    engine = Engine(folder, OPTIONS)
    try:
        back_up(engine, tmp_path / "b.tar.zst")
    finally:
        engine.close()
    restore(tmp_path / "b.tar.zst", tmp_path / "again")
    assert check_folder(tmp_path / "again").findings == []
    shutil.rmtree(bucket_folder(tmp_path / "again", LOGS[0]))
    refused(tmp_path / "again", expected, LOGS[0])


def test_a_bucket_without_rows_may_be_missing(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        create(connection)
        assert engine.engine.kv_bucket(TableBucket(0, 0))[1].get([b"x"]) == [None]
    shutil.rmtree(bucket_folder(tmp_path / "d", TableBucket(0, 0)))
    assert check_folder(tmp_path / "d").findings == []
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        write(connection, rows_frame(0, 10))


def test_dropped_partitions_and_tables_are_not_missed(tmp_path: Path) -> None:
    path = fluss.TablePath("fluss", "parted")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        schema = pa.schema([("n", pa.int64()), ("day", pa.string())])
        for name in ("parted", "gone"):
            admin.create_table(
                fluss.TablePath("fluss", name),
                fluss.TableDescriptor(fluss.Schema(schema), partition_keys=["day"], bucket_count=1),
            )
            table = connection.get_table(fluss.TablePath("fluss", name))
            with table.new_append().create_writer(create_partitions=True) as writer:
                writer.write_arrow(pa.table([[1, 2], ["a", "b"]], schema=schema))
        admin.drop_partition(path, {"day": "a"})
        admin.drop_table(fluss.TablePath("fluss", "gone"))
    assert check_folder(tmp_path / "d").findings == []
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        assert fluss.scan_fluss(path, connection=connection).collect()["n"].to_list() == [2]
    assert sorted(p.name for p in (tmp_path / "d" / "catalog").glob("*.buckets")) == [
        "table-0.buckets"
    ]


@pytest.mark.parametrize("lost", ["catalog/table-0.buckets", "data/0/buckets"])
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_the_list_of_buckets_is_kept_twice(
    folder: Path, expected: Contents, lost: str, how: str
) -> None:
    whole = (folder / lost).read_bytes()
    if how == "deleted":
        (folder / lost).unlink()
    else:
        (folder / lost).write_bytes(b"\1" + whole[1:])
    refused(folder, expected)
    assert (folder / lost).read_bytes() == whole
    shutil.rmtree(bucket_folder(folder, LOGS[1]))
    refused(folder, expected, LOGS[1])


# ---- what is exchanged


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


@pytest.mark.parametrize("part", ["", "log"])
def test_exchanged_folders_of_buckets(folder: Path, expected: Contents, part: str) -> None:
    exchange(*(bucket_folder(folder, bucket) / part for bucket in LOGS))
    errors = refused(folder, expected, *LOGS)
    assert "has that of bucket 1 (table 0): folders were exchanged" in errors[0]
    exchange(*(bucket_folder(folder, bucket) / part for bucket in LOGS))
    refused(folder, expected)


@pytest.mark.parametrize("name", ["kv", "log/synced"])
def test_exchanged_files_that_can_be_made_again(
    folder: Path, expected: Contents, name: str
) -> None:
    exchange(*(bucket_folder(folder, bucket) / name for bucket in KEYED))
    refused(folder, expected)
    assert check_folder(folder).findings == []


def log_of(folder: Path, number: int) -> Tablet:
    owner = BucketIds(0, -1, number)
    return Tablet(folder / str(number), "bucket", segment_bytes=300, owner=owner)


def read_log(folder: Path, number: int) -> None:
    tablet = log_of(folder, number)
    try:
        contents(tablet)
    finally:
        tablet.abandon()


@pytest.mark.parametrize("index", [True, False], ids=["closed", "killed"])
def test_exchanged_segments(tmp_path: Path, index: bool) -> None:
    """Each batch has offsets and a checksum that are right, in files of one size or of two."""
    for size in (0, 5):
        folder = tmp_path / str(size)
        for number in range(2):
            tablet = log_of(folder, number)
            for i in range(6):
                rows = pa.record_batch({"a": pa.array([f"{number}{i}" + "x" * size * number])})
                encoded = encode_log_batch(rows, schema_id=1, compression=Compression("none"))
                encoded.stamp(-1, -1)
                tablet.append(memoryview(encoded.to_bytes()), {1: None})
            tablet.sync()
            tablet.close() if index else tablet.abandon()
        logs = [sorted((folder / str(number)).glob("*.log")) for number in range(2)]
        assert [file.name for file in logs[0]] == [file.name for file in logs[1]]
        for one, other in zip(*logs, strict=True):
            exchange(one, other)
            for number in range(2):
                with pytest.raises(FlussError, match="damaged"):
                    read_log(folder, number)
            exchange(one, other)

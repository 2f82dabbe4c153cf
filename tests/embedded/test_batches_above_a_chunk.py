"""Log batches that are larger than what is read of a log at once when it is opened or checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.engine.log import recovery
from fluss_df.engine.upkeep.check import check_folder

PATH = fluss.TablePath("db", "t")
SCHEMA = pa.schema([("id", pa.int64()), ("data", pa.binary())])
# smaller than a batch of one row, larger than the header of a batch
CHUNK = 4 << 10
SIZES = [10, 100_000, 20, 50_000, 30]


def rows(name: str) -> list[tuple[int, int]]:
    with fluss.connect(name) as connection:
        found = fluss.read_fluss(PATH, connection=connection).sort("id")
        return [(row["id"], len(row["data"])) for row in found.to_dicts()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a crash leaves it: without the index of its newest segment."""
    monkeypatch.setattr(recovery, "_CHUNK", CHUNK)
    living, left = tmp_path / "living", tmp_path / "left"
    with fluss.connect(str(living)) as connection:
        admin = connection.get_admin()
        admin.create_database("db")
        properties = {"table.log.arrow.compression.type": "NONE"}
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA), bucket_count=1, properties=properties
        )
        admin.create_table(PATH, descriptor)
        with connection.get_table(PATH).new_append().create_writer() as writer:
            for i, size in enumerate(SIZES):
                writer.append((i, b"x" * size)).wait()
        shutil.copytree(living, left, ignore=shutil.ignore_patterns("*.sock", "lock*"))
    return left


def test_a_log_with_large_batches_is_opened_after_a_crash(folder: Path) -> None:
    assert rows(str(folder)) == list(enumerate(SIZES))


def test_a_log_with_large_batches_is_sound(folder: Path) -> None:
    report = check_folder(folder)
    assert report.sound, report
    assert report.records == len(SIZES)


def test_damage_behind_a_large_batch_is_found(folder: Path) -> None:
    (log,) = folder.rglob("*.log")
    data = bytearray(log.read_bytes())
    data[-5] ^= 1
    log.write_bytes(data)
    report = check_folder(folder)
    assert not report.sound
    with pytest.raises(fluss.FlussError, match="offset 4"):
        rows(str(folder))

"""A filled folder, what is in it, and how a read or check refuses what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from fluss_df.embedded import EngineOptions
from fluss_df.engine.engine import Engine
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.metadata import TableBucket
from tests.embedded.damage import Contents, read_all

OPTIONS = EngineOptions(segment_bytes=2500)
LOGS = [TableBucket(0, 0), TableBucket(0, 1)]
KEYED = [TableBucket(1, 0), TableBucket(1, 1)]


def bucket_folder(folder: Path, bucket: TableBucket) -> Path:
    return folder / "data" / str(bucket.table_id) / "table" / str(bucket.bucket_id)


def segments(folder: Path, bucket: TableBucket) -> list[Path]:
    return sorted((bucket_folder(folder, bucket) / "log").glob("*.log"))


def seen(folder: Path) -> Contents:
    engine = Engine(folder, OPTIONS)
    try:
        return read_all(engine)
    finally:
        engine.close()


def refused(folder: Path, expected: Contents, *buckets: TableBucket) -> list[str]:
    """Hold what is seen and what ``check`` says against what must be refused; return the errors."""
    report = check_folder(folder)
    found = seen(folder)
    names = [str(bucket_folder(folder, bucket).relative_to(folder)) for bucket in buckets]
    errors = [found.pop(name) for name in names]
    assert found == {name: value for name, value in expected.items() if name not in names}
    assert report.sound == (not buckets)
    damaged = {f.where for f in report.findings if f.level == "damage"}
    assert damaged == {bucket_folder(folder, bucket) for bucket in buckets}
    assert all(isinstance(error, str) for error in errors)
    return [str(error) for error in errors]

"""Files that are cut while they are read; buckets that are written to while a table is dropped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.tables.tables import Table
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from tests.embedded.damage import Contents
from tests.embedded.known_files.folders import seen
from tests.embedded.test_durability import batch

# ---- files that are cut while they are open


@pytest.mark.parametrize("use", ["read", "filter", "time"])
def test_a_file_that_is_cut_while_it_is_open(folder: Path, use: str) -> None:
    """It does not end the process."""
    program = """
import os, sys
from pathlib import Path
sys.path.insert(0, ".")
from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.errors import FlussError
from fluss_df.engine.log.tablet import Tablet
from fluss_df.metadata import TableBucket
from fluss_df.record.log.log_batch import Compression, encode_log_batch
engine = Engine(Path(sys.argv[1]), EngineOptions(segment_bytes=2500))
tablet = engine.bucket(TableBucket(0, 0))[1]
uses = {
    "read": lambda: tablet.read(0, 1 << 20, at_least_one=True),
    "filter": lambda: tablet.stretches(0)[1][0].view[-1],
    "time": lambda: tablet.offset_for_time(1),
}
use = uses[sys.argv[2]]
use()
os.truncate(tablet._segments[0].path, 0)
try:
    use()
except FlussError as error:
    print(error.error_code, error.message)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder), use],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run
    assert run.stdout.startswith(f"{ErrorCode.UNKNOWN_SERVER_ERROR} the log of TableBucket")
    assert "it was cut while it was open" in run.stdout


# ---- a bucket that is written to while its table is dropped


def make_table(engine: Engine, name: str = "t") -> Table:
    schema = fluss.Schema(pa.schema([("n", pa.int32())]))
    descriptor = fluss.TableDescriptor(schema, bucket_count=1)
    path = fluss.TablePath("fluss", name)
    table = engine.catalog.create_table(path, descriptor.to_json(), False)
    assert table is not None
    return table


def drop(engine: Engine, table: Table) -> None:
    engine.catalog.drop_table(table.path, False)
    engine.drop_table(table)


def lists(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "catalog").glob("*.buckets"))


def test_a_bucket_of_a_dropped_table_is_not_noted(tmp_path: Path) -> None:
    """A bucket may be opened in the moment in which its table is dropped."""
    engine = Engine(tmp_path / "d")
    table, kept = make_table(engine), make_table(engine, "kept")
    opened = engine._open_bucket(TableBucket(table.id, 0))
    drop(engine, table)
    with pytest.raises(FlussError, match="Unknown table or bucket") as caught:
        opened.tablet.append(batch(), {1: None})
    assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    opened.abandon()
    engine.bucket(TableBucket(kept.id, 0))[1].append(batch(), {1: None})
    assert lists(tmp_path / "d") == [f"table-{kept.id}.buckets"]
    engine.close()


def test_notes_beside_drops_leave_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "d")
    for number in range(40):
        table = make_table(engine, f"t{number}")
        begin = threading.Barrier(3)

        def note(table: Table = table, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for bucket in range(5):
                with contextlib.suppress(FlussError):
                    engine._used.note(BucketIds(table.id, -1, bucket))

        threads = [threading.Thread(target=note) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        time.sleep(number / 10_000)
        drop(engine, table)
        for thread in threads:
            thread.join()
        assert lists(tmp_path / "d") == []
    engine.close()


def test_a_list_of_buckets_without_a_table_is_set_aside(folder: Path, expected: Contents) -> None:
    """As all that may be left of a table is."""
    data = (folder / "catalog" / "table-0.buckets").read_bytes()
    (folder / "catalog" / "table-77.buckets").write_bytes(data)
    report = check_folder(folder)
    assert report.sound
    assert [f.where.name for f in report.findings] == ["table-77.buckets"]
    assert seen(folder) == expected
    assert lists(folder) == ["table-0.buckets", "table-1.buckets"]
    assert [p.read_bytes() for p in (folder / "set-aside").iterdir()] == [data]

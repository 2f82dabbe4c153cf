"""What ``check`` says, whatever is damaged, and what memory it takes for it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import polars as pl
import pyarrow as pa
import pytest
import rocksdict

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.files import ownership
from fluss_df.engine.files.files import TooManyFilesError
from fluss_df.engine.kv.store_folders import store_folder
from fluss_df.engine.upkeep import check, row_digests
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError

PATH = fluss.TablePath("fluss", "rows")
ROWS = 3_000


def frame(first: int, count: int, text: str = "t") -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    values = [float("nan") if i % 7 == 0 else float(i) for i in range(count)]
    texts = pa.array([f"{text}{i}" for i in range(count)], pa.string())
    return pa.table({"id": ids, "x": pa.array(values, pa.float64()), "text": texts})


def fill(folder: Path) -> None:
    """Rows that were put, replaced and deleted, some of an older schema."""
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        schema = fluss.Schema(frame(0, 0).schema, primary_keys=["id"])
        admin = connection.get_admin()
        admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
        for first, text in [(0, "a"), (500, "b"), (0, "c")]:
            with connection.get_table(PATH).new_upsert().create_writer() as writer:
                writer.write_arrow(frame(first, ROWS - first, text))
        with connection.get_table(PATH).new_upsert().create_writer() as writer:
            for number in range(0, 1000, 3):
                writer.delete({"id": number})
        with connection.get_table(PATH).new_upsert().create_writer() as writer:
            writer.write_arrow(frame(0, 100, "again"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "d")
    return tmp_path / "d"


BUCKET = Path("data/0/table/0")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have rows compared in many pieces; return how many were held at once."""
    monkeypatch.setattr(row_digests, "MOST_ROWS", 200)
    monkeypatch.setattr(row_digests, "_AT_LEAST", 100)
    held: list[int] = []
    merge = row_digests.RowDigests._merge

    def counted(self: row_digests.RowDigests) -> None:
        merge(self)
        held.append(self._rows.height)

    monkeypatch.setattr(row_digests.RowDigests, "_merge", counted)
    return held


def test_rows_are_compared_in_pieces(folder: Path, small_pieces: list[int]) -> None:
    report = check_folder(folder)
    assert report.findings == []
    rows = ROWS - len(range(0, 1000, 3)) + len(range(0, 100, 3))
    assert report.rows == rows
    assert max(small_pieces) <= 200
    # every row is in one piece
    assert sum(small_pieces) >= 2 * rows
    with EmbeddedFluss(folder) as engine:
        end = engine.engine.bucket(fluss.TableBucket(0, 0))[1].end_offset
    assert report.records == end


def change(folder: Path, edit: Callable[[rocksdict.Rdict, bytes, bytes], None]) -> None:
    """Change a store behind the engine's back, with checksums that are right."""
    db = rocksdict.Rdict(str(store_folder(folder / BUCKET)), rocksdict.Options(raw_mode=True))
    rows = db.iter()
    rows.seek(b"\0")
    for _ in range(random.Random(1).randrange(500)):
        rows.next()
    edit(db, rows.key(), rows.value())
    del rows
    db.flush()
    db.close()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("removed", "1 keys in one only, 0 other values"),
        ("added", "1 keys in one only, 0 other values"),
        ("changed", "0 keys in one only, 1 other values"),
        ("moved", "2 keys in one only, 0 other values"),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_a_row_that_differs_is_found_in_its_piece(folder: Path, what: str, message: str) -> None:
    def edit(db: rocksdict.Rdict, key: bytes, value: bytes) -> None:
        if what == "removed":
            del db[key]
        elif what == "added":
            db[key + b"\1"] = value
        elif what == "changed":
            db[key] = value[:-1] + bytes([value[-1] ^ 1])
        else:
            del db[key]
            db[key + b"\1"] = value

    change(folder, edit)
    report = check_folder(folder)
    (finding,) = report.findings
    assert (finding.level, finding.where) == ("damage", folder / BUCKET)
    assert message in finding.message


def renamed(folder: Path) -> Path:
    """Give a folder a name that is not UTF-8, as those of old archives are."""
    odd = folder.with_name(os.fsdecode(b"caf\xe9"))
    folder.rename(odd)
    return odd


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 on other systems")
def test_rows_in_a_folder_whose_name_is_not_utf8_are_compared(folder: Path) -> None:
    odd = renamed(folder)
    report = check_folder(odd)
    assert report.findings == []
    assert report.rows == ROWS - len(range(0, 1000, 3)) + len(range(0, 100, 3))
    odd.rename(folder)

    def edit(db: rocksdict.Rdict, key: bytes, _: bytes) -> None:
        del db[key]

    change(folder, edit)
    odd = renamed(folder)
    report = check_folder(odd)
    (finding,) = report.findings
    assert (finding.level, finding.where) == ("damage", odd / BUCKET)
    assert "1 keys in one only, 0 other values" in finding.message
    done = subprocess.run(
        [*(sys.executable, "-m", "fluss_df", "check"), os.fsencode(odd)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 keys in one only" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 on other systems")
def test_rows_that_rocksdb_cannot_look_at_are_not_called_sound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = renamed(folder)
    # a system without paths by descriptors
    monkeypatch.setattr(ownership, "_DESCRIPTORS", "/nowhere")
    report = check_folder(odd)
    assert not report.sound
    (finding,) = report.findings
    assert finding.where == odd / BUCKET
    assert finding.message.startswith("could not be verified: RocksDB cannot look at ")


MEASURED = """
import resource, sys
from pathlib import Path
from fluss_df.engine.upkeep.check import check_folder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = check_folder(Path(sys.argv[1]))
assert report.findings == [], report.findings
print(report.rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """A bucket of 320 MB of rows, which were held twice before."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        descriptor = fluss.TableDescriptor(
            fluss.Schema(schema, primary_keys=["id"]), bucket_count=1
        )
        connection.get_admin().create_table(PATH, descriptor)
        text = "x" * 8192
        with connection.get_table(PATH).new_upsert().create_writer() as writer:
            for first in range(0, 40_000, 1000):
                ids = pa.array(range(first, first + 1000), pa.int64())
                writer.write_arrow(pa.table({"id": ids, "text": [text] * 1000}, schema=schema))
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "d")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows, megabytes = map(int, said.stdout.split())
    assert rows == 40_000
    assert megabytes < 250


# ---- whatever is damaged


def store(folder: Path, name: str, value: Any, generation: Any = 99) -> None:
    """Write a value with a checksum that is right."""
    body = json.dumps({"generation": generation, "value": value}).encode()
    for place in name.split():
        (folder / place).write_bytes(body + b"\n%08x\n" % google_crc32c.value(body))


DATABASES = "catalog/databases.json data/databases.json"
CLUSTER = "catalog/cluster.json data/cluster.json"
TABLE = "catalog/table-0.json data/0/table.json"
BAD: dict[str, tuple[str, Any, Any]] = {
    "databases that are a list": (DATABASES, {"next": {}, "databases": [1]}, 99),
    "databases that are none": (DATABASES, {"next": {}, "databases": None}, 99),
    "an infinite generation": (DATABASES, {"next": {}, "databases": {}}, float("inf")),
    "a table without anything": (TABLE, {"id": 0}, 99),
    "a table that is numbers": (TABLE, {"id": 0, "path": 1, "descriptor": 2}, 99),
    "producers that are numbers": (CLUSTER, {"producers": [1], "tags": 1, "rebalance": 1}, 99),
    "an infinite tag": (
        CLUSTER,
        {"producers": {}, "tags": {"1": float("inf")}, "rebalance": None},
        99,
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_values_of_other_kinds_are_findings(folder: Path, what: str) -> None:
    """Never a traceback; and the engine refuses the folder with an error of its own."""
    names, value, generation = BAD[what]
    store(folder, names, value, generation)
    report = check_folder(folder)
    assert not report.sound
    found = {f.where for f in report.findings if f.level == "damage"}
    assert folder / names.split()[0] in found
    with pytest.raises(FlussError):
        Engine(folder)


class PanicError(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error",
    [
        OverflowError("a"),
        AttributeError("b"),
        pa.ArrowNotImplementedError("c"),
        RuntimeError("d"),
        PanicError("e"),
        AssertionError("f"),
    ],
)
def test_whatever_reading_raises_is_a_finding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(check, "load_log", fail)
    (finding,) = check_folder(folder).findings
    assert (finding.level, finding.where) == ("damage", folder / BUCKET)
    assert type(error).__name__ in finding.message


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), MemoryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(24, os.strerror(24)), TooManyFilesError),
        (TooManyFilesError("none"), TooManyFilesError),
    ],
)
def test_what_says_nothing_about_the_files_is_raised(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(check, "load_log", fail)
    with pytest.raises(raised):
        check_folder(folder)


# ---- what is lost


@pytest.mark.parametrize("format_file", ["kept", "lost", "damaged"])
def test_lost_databases_are_damage(folder: Path, format_file: str) -> None:
    """Also where something else is wrong that opening mends."""
    for name in DATABASES.split():
        (folder / name).unlink()
    if format_file == "lost":
        # another file says that the folder is one of an engine
        (folder / "data" / "databases.json").mkdir()
        (folder / "FORMAT").unlink()
    elif format_file == "damaged":
        (folder / "FORMAT").write_text("{")
    report = check_folder(folder)
    damaged = {f.where for f in report.findings if f.level == "damage"}
    assert damaged == {folder / "catalog" / "databases.json"}


def test_a_table_whose_file_leads_nowhere(folder: Path) -> None:
    """Its name is there, and neither of its files."""
    for name in TABLE.split():
        (folder / name).unlink()
    (folder / "catalog" / "table-0.json").symlink_to(folder / "nowhere")
    report = check_folder(folder)
    damaged = {f.where for f in report.findings if f.level == "damage"}
    assert folder / "catalog" / "table-0.json" in damaged


def test_digests_of_equal_rows_are_equal() -> None:
    values = [os.urandom(n) for n in range(40)]
    one, other = row_digests.binary(values), pl.Series(values, dtype=pl.Binary)
    assert one.hash(1).equals(other.hash(1))


def test_rows_whose_table_is_lost_are_damage(folder: Path) -> None:
    for part in [*folder.glob("catalog/table-0*.json"), *folder.glob("data/0/table.json")]:
        part.unlink()
    report = check_folder(folder)
    assert not report.sound
    (found,) = [finding for finding in report.findings if finding.level == "damage"]
    assert "has rows, and the catalog has no such table" in found.message

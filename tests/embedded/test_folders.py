"""Folders: verified, backed up while they are written to, restored, locked, forked."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.cli.main import app
from fluss_df.client.transport.folders import back_up_folder
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.files.files import FORMAT, read_format
from fluss_df.engine.kv.kv_tablet import KvTablet
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from tests.embedded.golden import GOLDEN, contents, fill

LOG = fluss.TablePath("fluss", "log")
ROWS = fluss.TablePath("fluss", "rows")
KEPT = fluss.TablePath("fluss", "kept")


def filled(folder: Path) -> dict[str, Any]:
    """Fill a folder with every kind of table; return what is in it."""
    options = EngineOptions(segment_bytes=1000)
    with EmbeddedFluss(folder, options=options) as engine, engine.connection() as connection:
        fill(connection)
        return contents(connection)


def found_in(folder: Path) -> dict[str, Any]:
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        return contents(connection)


def test_a_folder_with_settings(tmp_path: Path) -> None:
    """Whose address is a folder, only the address changes for a cluster."""
    settings = {"bootstrap.servers": str(tmp_path / "d"), "writer.batch-size": 4096}
    for description in (
        settings,
        fluss.Config({**settings, "bootstrap.servers": tmp_path / "d"}),
        fluss.Config({**settings, "bootstrap.servers": f"file:{tmp_path / 'd'}"}),
        {**settings, "bootstrap.servers": ":memory:"},
    ):
        with fluss.connect(description) as connection:
            assert connection.config.writer_batch_size == 4096
            assert connection.get_admin().list_databases() == ["fluss"]
    assert (tmp_path / "d" / "FORMAT").exists()


def test_a_sound_folder(tmp_path: Path) -> None:
    expected = filled(tmp_path / "d")
    report = check_folder(tmp_path / "d")
    assert report.sound
    assert report.findings == []
    assert report.tables == 3
    assert report.records > report.rows > 0
    assert report.rows == len(expected["rows"]) + len(expected["parted"])
    run = CliRunner().invoke(app, ["check", str(tmp_path / "d")])
    assert run.exit_code == 0, run.output
    assert "sound" in run.output


def test_every_damaged_byte_of_a_log_is_found(tmp_path: Path) -> None:
    filled(tmp_path / "d")
    choose = random.Random(5)
    files = sorted((tmp_path / "d" / "data").rglob("*.log"))
    files = [file for file in files if file.stat().st_size and file.parent.name == "log"]
    for _ in range(25):
        file = choose.choice(files)
        good = file.read_bytes()
        place = choose.randrange(len(good))
        bad = bytearray(good)
        bad[place] ^= 1 << choose.randrange(8)
        file.write_bytes(bytes(bad))
        report = check_folder(tmp_path / "d")
        file.write_bytes(good)
        # leader epoch and commit timestamp stand before what the checksum covers
        assert not report.sound or in_a_free_field(good, place), f"{file} at {place}"
    assert check_folder(tmp_path / "d").sound


def in_a_free_field(data: bytes, place: int) -> bool:
    at = 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "little")
        if place < at + size:
            return 13 <= place - at < 25
        at += size
    return False


@pytest.mark.parametrize("name", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_damaged_rows_are_found(tmp_path: Path, name: str) -> None:
    expected = filled(tmp_path / "d")
    file = next((tmp_path / "d").rglob(f"kv/{name}"))
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(bytes(data))
    report = check_folder(tmp_path / "d")
    # they can be made again
    assert report.findings
    assert found_in(tmp_path / "d")["rows"] == expected["rows"]


@pytest.mark.parametrize(
    "what", ["catalog", "cluster", "table", "segment", "tail", "point", "unknown"]
)
def test_what_else_may_be_wrong(tmp_path: Path, what: str) -> None:
    filled(tmp_path / "d")
    data = tmp_path / "d" / "data"
    logs = sorted(data.rglob("log"))
    damaged = True
    if what == "catalog":
        for file in (tmp_path / "d").rglob("databases.json"):
            file.write_text("{")
    elif what == "cluster":
        (tmp_path / "d" / "catalog" / "cluster.json").write_text('{"producers": [1]}')
    elif what == "table":
        (tmp_path / "d" / "catalog" / "table-1.json").write_text("[]")
        (data / "1" / "table.json").write_text("[]")
    elif what == "segment":
        long = next(log for log in logs if len(list(log.glob("*.log"))) > 2)
        sorted(long.glob("*.log"))[1].unlink()
    elif what == "tail":
        with open(max(logs[0].glob("*.log")), "ab") as stream:
            stream.write(b"torn")
        damaged = False
    elif what == "point":
        (logs[0] / "synced").write_bytes(b"torn")
        damaged = False
    else:
        (data / "999").mkdir()
        damaged = False
    report = check_folder(tmp_path / "d")
    assert report.findings
    assert report.sound == (not damaged)
    run = CliRunner().invoke(app, ["check", str(tmp_path / "d")])
    assert run.exit_code == int(damaged)


def test_a_folder_in_use_is_not_checked(tmp_path: Path) -> None:
    with (
        EmbeddedFluss(tmp_path / "d"),
        pytest.raises(FlussError, match=f"in use by process {os.getpid()}"),
    ):
        check_folder(tmp_path / "d")
    with pytest.raises(FlussError, match="holds no Fluss data"):
        check_folder(tmp_path)


@pytest.mark.parametrize("suffix", [".tar.zst", ".tar.lz4"])
def test_backup_and_restore(tmp_path: Path, suffix: str) -> None:
    expected = filled(tmp_path / "d")
    file = tmp_path / f"b{suffix}"
    run = CliRunner().invoke(app, ["backup", str(tmp_path / "d"), str(file)])
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(app, ["restore", str(file), str(tmp_path / "again")])
    assert run.exit_code == 0, run.output
    assert "sound" in run.output
    assert found_in(tmp_path / "again") == expected
    # the folder is free again, and as it was
    assert found_in(tmp_path / "d") == expected
    # a backup is not lost by a command that is given twice
    before = file.read_bytes()
    again = ["backup", str(tmp_path / "d"), str(file)]
    run = CliRunner().invoke(app, again)
    assert (run.exit_code, file.read_bytes()) == (1, before)
    assert f"{file} exists; --force replaces it" in run.stderr
    run = CliRunner().invoke(app, [*again, "--force"])
    assert run.exit_code == 0, run.output


def test_a_backup_beside_writers(tmp_path: Path) -> None:
    """What was acknowledged before the backup is in it, whole; the folder is in use."""
    stop = threading.Event()
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    written = {LOG: 0, ROWS: 0}
    options = EngineOptions(segment_bytes=20_000)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        admin = connection.get_admin()
        for path, keys in ((LOG, None), (ROWS, ["n"])):
            descriptor = fluss.TableDescriptor(fluss.Schema(schema, keys), bucket_count=1)
            admin.create_table(path, descriptor)

        def write(path: fluss.TablePath) -> None:
            table = connection.get_table(path)
            made = table.new_append() if path == LOG else table.new_upsert()
            with made.create_writer() as writer:
                while not stop.is_set():
                    rows = range(written[path], written[path] + 50)
                    texts = [f"{i:030}" for i in rows]
                    writer.write_arrow(pa.table({"n": rows, "text": texts}, schema=schema))
                    writer.flush()
                    written[path] += 50

        threads = [threading.Thread(target=write, args=[path]) for path in written]
        for thread in threads:
            thread.start()
        try:
            for i in range(4):
                before = dict(written)
                file = tmp_path / f"{i}.tar.zst"
                # by the socket, as another process does it
                assert back_up_folder(tmp_path / "d", file) > 0
                restore(file, tmp_path / str(i))
                report = check_folder(tmp_path / str(i))
                assert report.findings == []
                with EmbeddedFluss(tmp_path / str(i)) as copy, copy.connection() as other:
                    log = fluss.scan_fluss(LOG, connection=other).collect()["n"].to_list()
                    rows = fluss.scan_fluss(ROWS, connection=other).collect()["n"].to_list()
                assert log == list(range(len(log)))
                assert sorted(rows) == list(range(len(rows)))
                assert len(log) >= before[LOG]
                assert len(rows) >= before[ROWS]
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_a_backup_while_changes_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a backup begins where its copy of the rows ends, or before."""
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    options = EngineOptions(segment_bytes=1)
    checkpoint = KvTablet.checkpoint
    expiring: list[threading.Thread] = []
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        properties = {"table.log.ttl": "1ms"}
        descriptor = fluss.TableDescriptor(
            fluss.Schema(schema, ["n"]), bucket_count=1, properties=properties
        )
        connection.get_admin().create_table(ROWS, descriptor)

        def written(first: int) -> None:
            for n in range(first, first + 3):
                row = pl.DataFrame({"n": [n], "text": ["x"]})
                fluss.write_fluss(row, ROWS, connection=connection)

        def then_more(self: KvTablet, folder: Path) -> None:
            checkpoint(self, folder)
            written(3)
            time.sleep(0.05)
            expiring.append(threading.Thread(target=engine.engine.expire))
            expiring[0].start()
            expiring[0].join(0.5)

        written(0)
        monkeypatch.setattr(KvTablet, "checkpoint", then_more)
        back_up(engine.engine, tmp_path / "b.tar.zst")
        expiring[0].join()
        assert engine.engine.bucket(TableBucket(0, 0))[1].start_offset == 5
    restore(tmp_path / "b.tar.zst", tmp_path / "again")
    assert check_folder(tmp_path / "again").findings == []
    with EmbeddedFluss(tmp_path / "again") as engine, engine.connection() as connection:
        found = fluss.scan_fluss(ROWS, connection=connection).collect()
        assert sorted(found["n"]) == list(range(6))


def test_what_is_not_restored(tmp_path: Path) -> None:
    filled(tmp_path / "d")
    file = tmp_path / "b.tar.zst"
    back_up_folder(tmp_path / "d", file)
    with pytest.raises(FlussError, match="not empty"):
        restore(file, tmp_path / "d")
    with pytest.raises(FlussError, match=r"ends with \.tar\.zst or \.tar\.lz4"):
        restore(tmp_path / "b.zip", tmp_path / "new")
    whole = file.read_bytes()
    for bad in (whole[: len(whole) // 2], whole[:100], b"nonsense", b""):
        file.write_bytes(bad)
        with pytest.raises(FlussError, match="cannot restore"):
            restore(file, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    evil = tmp_path / "evil.tar.zst"
    with (
        pa.OSFile(str(evil), "w") as stream,
        pa.CompressedOutputStream(stream, "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(FlussError, match="cannot restore"):
        restore(evil, tmp_path / "new")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("version", GOLDEN)
def test_the_golden_folder(tmp_path: Path, version: int) -> None:
    """A folder that an earlier version wrote is opened by every later one."""
    restore(GOLDEN[version], tmp_path / "d")
    assert read_format(tmp_path / "d") == (version, None)
    assert check_folder(tmp_path / "d").findings == []
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        found = contents(connection)
    expected = filled(tmp_path / "new")
    assert found == expected
    # and it is written to
    with (
        EmbeddedFluss(tmp_path / "d") as engine,
        engine.connection() as connection,
        connection.get_table(ROWS).new_upsert().create_writer() as writer,
    ):
        writer.upsert({"id": 1, "text": "new", "number": None})
    assert check_folder(tmp_path / "d").findings == []
    # and is as safe as a new one
    assert read_format(tmp_path / "d") == (FORMAT, None)
    shutil.rmtree(tmp_path / "d" / "data" / "1" / "table" / "1")
    report = check_folder(tmp_path / "d")
    assert [finding.where.name for finding in report.findings] == ["1"]
    assert not report.sound


def test_the_package_needs_no_file_locks() -> None:
    """Only an engine needs them, and says so."""
    program = """
import sys
import fluss_df
assert not any(name.startswith("fluss_df.embedded") for name in sys.modules)
sys.modules["fcntl"] = None
try:
    fluss_df.connect("./nowhere")
except fluss_df.FlussError as error:
    print(error.message)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "needs Linux or macOS" in run.stdout, run.stderr


def test_a_temporary_folder_is_gone_before_the_end(tmp_path: Path) -> None:
    """The engine of a process ends with it: what it cannot flush any more is no news."""
    program = """
import sys, tempfile
import fluss_df as fluss
import pyarrow as pa
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder, fluss.connect(folder) as connection:
    path = fluss.TablePath("fluss", "t")
    schema = fluss.Schema(pa.schema([("id", pa.int64())]), primary_keys=["id"])
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=2))
    with connection.get_table(path).new_upsert().create_writer() as writer:
        writer.write_arrow(pa.table({"id": range(100)}))
print("end")
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


def _child(folder: str, begun: Any, end: Any) -> None:
    begun.set()
    end.wait(20)


def test_a_forked_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()
    engine = EmbeddedFluss(tmp_path / "d")
    child = context.Process(target=_child, args=[str(tmp_path), begun, end])
    child.start()
    try:
        assert begun.wait(20)
        # the parent still has it
        with pytest.raises(FlussError, match="in use"):
            check_folder(tmp_path / "d")
        engine.close()
        assert check_folder(tmp_path / "d").sound
    finally:
        end.set()
        child.join()
        engine.close()
    assert child.exitcode == 0


def test_old_segments_of_unused_buckets_expire(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    options = EngineOptions(segment_bytes=500)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        for path, keys, ttl in ((LOG, None, "1ms"), (ROWS, ["n"], "1ms"), (KEPT, None, "1h")):
            descriptor = fluss.TableDescriptor(
                fluss.Schema(schema, keys), bucket_count=1, properties={"table.log.ttl": ttl}
            )
            connection.get_admin().create_table(path, descriptor)
            table = connection.get_table(path)
            made = table.new_upsert() if keys else table.new_append()
            with made.create_writer() as writer:
                for i in range(10):
                    rows = [[i, i + 1], ["x" * 200, "y" * 200]]
                    writer.write_arrow(pa.table(rows, schema=schema))
                    writer.flush()
    with EmbeddedFluss(tmp_path / "d", options=options) as engine:
        # it began when the folder was opened; buckets that nobody used are looked at, too
        engine.engine.expire()
        with engine.connection() as connection:
            assert fluss.scan_fluss(KEPT, connection=connection).collect().height == 20
            assert fluss.scan_fluss(LOG, connection=connection).collect().height < 20
            # rows stay, whatever becomes of their changelog
            left = fluss.scan_fluss(ROWS, connection=connection).collect()
            assert sorted(left["n"].to_list()) == list(range(11))

"""A disk that refuses single calls: what was acknowledged stays, what was refused is not there."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.access.login_attempts import Attempts
from fluss_df.engine.engine import Engine
from fluss_df.engine.files import files
from fluss_df.engine.files.files import DamagedError
from fluss_df.engine.files.open_files import OpenFiles
from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.kv import kv_tablet
from fluss_df.engine.log import log_segments
from fluss_df.engine.log import tablet as tablets
from fluss_df.engine.log.segment import Segment
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.requests.request_limits import check_entries
from fluss_df.engine.tables.tables import now_ms
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import api
from tests.embedded import attacking, power
from tests.embedded.test_durability import batch, contents, opened
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])
PATH = fluss.TablePath("fluss", "t")


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def append(tablet: Tablet, first: int, count: int) -> None:
    for i in range(first, first + count):
        tablet.append(batch(writer=7, sequence=i), {1: None})
        tablet.sync()


def test_segments_that_cannot_be_removed_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablet = opened(tmp_path / "log", 300)
    append(tablet, 0, 8)
    active = tablet._active.base_offset
    unlink, left = Path.unlink, [3]

    def some(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".log":
            left[0] -= 1
            if left[0] in (0, 1):
                refuse()
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", some)
    with pytest.raises(FlussError, match="cannot remove expired segments"):
        tablet.expire(now_ms() + 1000, 1)
    assert tablet.start_offset == active
    append(tablet, 8, 1)
    expected = contents(tablet)
    # as after a kill: some of the files are there, and not the ones behind them
    names = sorted(p.name for p in (tmp_path / "log").glob("*.log"))
    (tmp_path / "log" / names[1]).rename(tmp_path / "kept")
    again = opened(tmp_path / "log", 300)
    assert contents(again)[-len(expected) :] == expected
    again.abandon()
    (tmp_path / "kept").rename(tmp_path / "log" / names[1])
    monkeypatch.undo()
    assert tablet.may_expire(now_ms(), 10**9)
    tablet.expire(now_ms(), 10**9)
    assert len(list((tmp_path / "log").glob("*.log"))) <= 2
    tablet.close()


def test_a_segment_whose_name_is_not_on_the_disk_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablet = opened(tmp_path / "log", 300)
    append(tablet, 0, 1)
    while tablet._active.size < 300:
        append(tablet, tablet.end_offset // 3, 1)
    number, active = tablet.end_offset // 3, tablet._active
    monkeypatch.setattr(log_segments, "sync_folder", refuse)
    for _ in range(2):
        with pytest.raises(FlussError, match="cannot begin a segment"):
            tablet.append(batch(writer=7, sequence=number), {1: None})
        assert tablet._active is active
    monkeypatch.undo()
    append(tablet, number, 1)
    assert tablet._active is not active
    tablet.close()


def test_a_log_that_was_not_found_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(b"rows")
    with pytest.raises(DamagedError, match="was not found when the log was opened"):
        Segment.begin(tmp_path, 0)
    assert (tmp_path / f"{0:020}.log").read_bytes() == b"rows"


def test_a_lost_file_of_a_bucket_with_rows_is_damage(tmp_path: Path) -> None:
    """Also where no sync said how far it went."""
    engine = Engine(tmp_path / "d", EngineOptions(durability="none"))
    engine.catalog.create_table(PATH, power._descriptor(None), False)
    bucket = TableBucket(engine.catalog.table(PATH).id, 0)
    engine.bucket(bucket)[1].append(batch(), {1: None})
    # as after a kill
    for name in ("left", "lost"):
        shutil.copytree(tmp_path / "d", tmp_path / name)
    engine.close()
    (segment,) = (tmp_path / "lost").rglob("*.log")
    left = Engine(tmp_path / "left")
    assert left.bucket(bucket)[1].end_offset == 3
    left.close()
    segment.unlink()
    lost = Engine(tmp_path / "lost")
    with pytest.raises(DamagedError, match=r"damaged at offset 0, .* its files are missing"):
        lost.bucket(bucket)
    lost.close()
    assert not segment.exists()


def test_a_refused_drop_is_taken_back_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "d")
    schema = fluss.Schema(SCHEMA)
    descriptor = fluss.TableDescriptor(schema, partition_keys=["day"])
    engine.catalog.create_table(PATH, descriptor.to_json(), False)
    engine.catalog.create_partition(PATH, {"day": "a"}, False)
    fsync, calls = os.fsync, [0]

    def synced(fd: int) -> None:
        calls[0] += 1
        if calls[0] == 1:  # of the folder; files have fdatasync
            refuse()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(FlussError, match="cannot write table-0"):
        engine.catalog.drop_partition(PATH, {"day": "a"}, False)
    monkeypatch.undo()
    # as after a kill
    shutil.copytree(tmp_path / "d", tmp_path / "left")
    engine.close()
    left = Engine(tmp_path / "left")
    assert list(left.catalog.table(PATH).partitions) == ["a"]
    left.close()


def left_by_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have a folder, and all below it, stay where it is to be removed."""
    rmtree = shutil.rmtree

    def refused(path: Any, ignore_errors: bool = False, **given: Any) -> None:
        if not Path(path).is_relative_to(folder):
            rmtree(path, ignore_errors=ignore_errors, **given)
        elif not ignore_errors:
            refuse()

    monkeypatch.setattr(shutil, "rmtree", refused)
    return monkeypatch


def test_a_partition_whose_data_stay_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), partition_keys=["day"], bucket_count=1)

    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_table(PATH, descriptor)
        row = pl.DataFrame({"id": [1], "day": ["a"]})
        fluss.write_fluss(row, PATH, connection=connection, create_partitions=True)
        (place,) = (p for p in (folder / "data" / "0").iterdir() if p.name.isdecimal())
        with monkeypatch.context() as patch:
            left_by_disk(place, patch)
            admin.drop_partition(PATH, {"day": "a"})
        assert place.exists()
    with monkeypatch.context() as patch:
        left_by_disk(place, patch)
        EmbeddedFluss(folder).close()
    assert place.exists()
    EmbeddedFluss(folder).close()
    assert not place.exists()
    assert not (folder / "set-aside").exists()


def test_a_place_of_a_dropped_table_that_stays_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened a bucket may have made it again."""
    folder = tmp_path / "d"
    engine = Engine(folder)
    engine.catalog.create_table(PATH, power._descriptor(None), False)
    table = engine.catalog.drop_table(PATH, False)
    assert table is not None
    place = folder / "data" / str(table.id)
    (place / "table").mkdir(parents=True)
    for close_only in (False, True):
        with monkeypatch.context() as patch:
            left_by_disk(place, patch)
            if not close_only:
                engine._catalog_files.remove_place(table.id)
                engine._catalog_files.remove_dropped()
                engine.close()
            else:
                Engine(folder).close()
        assert place.exists()
    Engine(folder).close()
    assert not place.exists()
    assert not list((folder / "data").glob("dropped-*"))
    assert not (folder / "set-aside").exists()


def test_a_database_that_cannot_be_dropped_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_database("db")
        for name in "ab":
            path = fluss.TablePath("db", name)
            admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        write = files.write_atomically

        def full(path: Path, data: bytes, *, durable: bool = True) -> None:
            if path.name == "databases.json":
                raise FlussError("full", ErrorCode.UNKNOWN_SERVER_ERROR)
            write(path, data, durable=durable)

        monkeypatch.setattr("fluss_df.engine.files.kept_json.write_atomically", full)
        with pytest.raises(FlussError, match="full"):
            admin.drop_database("db", cascade=True)
        assert not [p for p in (tmp_path / "d" / "data").iterdir() if p.is_dir()]
        monkeypatch.undo()
        admin.drop_database("db", cascade=True)
        assert "db" not in admin.list_databases()


def test_a_failing_disk_is_no_port_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # where it is to be written down how others reach it
        patched.setattr(FolderLock, "announce", lambda _, socket: refuse() if socket else None)
        with pytest.raises(FlussError, match=r"cannot serve .*/d: .*error") as caught:
            EmbeddedFluss(tmp_path / "d", port=0)
        assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    # it was given up
    EmbeddedFluss(tmp_path / "d", port=0).close()


def test_syncs_in_the_background_go_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddedFluss(tmp_path / "d", options=EngineOptions(durability="interval"))
    with engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        sync, calls = Tablet.sync, [0]

        def once(self: Tablet) -> None:
            calls[0] += 1
            if calls[0] == 1:
                refuse()
            sync(self)

        monkeypatch.setattr(Tablet, "sync", once)
        with connection.get_table(PATH).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"id": [1], "day": ["a"]}, schema=SCHEMA))
        wait_until(lambda: calls[0] >= 2, 20, "nothing is synced any more")


def test_who_fails_to_rest_is_counted_on() -> None:
    class User:
        files = 3
        fails = True

        def release_files(self) -> bool:
            if self.fails:
                refuse()
            return True

    user = User()
    opened: OpenFiles[str] = OpenFiles(100)
    opened.use("a", user)
    with pytest.raises(OSError, match="Input/output"):
        opened.rest_all()
    user.fails = False
    opened.rest_all()
    assert (opened._files, opened._used) == (0, {})


async def test_wrong_passwords_take_little_memory_and_hold_nobody_up_for_good() -> None:
    attempts = Attempts()

    async def give(user: str, right: bool = False) -> None:
        async with attempts.turn("host", user) as attempt:
            attempt.right = right

    await give("x" * 65_000)
    assert [len(user) for _, user in attempts._tries] == [256]
    for _ in range(3):
        await give("alice")
    turns = [asyncio.ensure_future(give("alice")) for _ in range(8)]
    await asyncio.sleep(0.1)
    # the first one was tried, and five wait
    refused = [turn.exception() for turn in turns if turn.done()]
    codes = {error.error_code for error in refused if isinstance(error, FlussError)}
    assert codes == {ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION}
    for turn in turns:
        turn.cancel()
    attempts._tries["host", "alice"].next = 0
    await give("alice", right=True)
    await asyncio.wait_for(give("alice"), 0.5)
    assert attempts._tries["host", "alice"].wrong == 1


async def test_guesses_at_once_are_as_few_as_one_after_another() -> None:
    attempts = Attempts()
    begun: list[None] = []
    looked_at = asyncio.Event()

    async def give(right: bool) -> None:
        async with attempts.turn("host", "alice") as attempt:
            begun.append(None)
            await looked_at.wait()
            attempt.right = right

    guesses = [asyncio.ensure_future(give(False)) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert len(begun) == 3
    # who goes away may know without an answer that they are wrong
    for turn in guesses[:3]:
        turn.cancel()
    await asyncio.sleep(0.05)
    assert len(begun) == 4
    looked_at.set()
    await asyncio.sleep(0.05)
    assert len([turn for turn in guesses if not turn.done()]) == 5
    for turn in guesses:
        turn.cancel()
    await asyncio.wait(guesses)
    assert len(begun) == 4
    attempts._tries.clear()
    # and who knows the password is let in at once
    await asyncio.wait_for(asyncio.gather(*(give(True) for _ in range(300))), 2)
    assert not attempts._tries


def test_a_fetch_of_all_buckets_that_a_table_may_have() -> None:
    request = attacking._fetch(120_000)(0, 0)
    check_entries(api.FETCH_LOG, pa.py_buffer(request))
    with pytest.raises(FlussError, match="more than 131,072 entries"):
        check_entries(api.FETCH_LOG, pa.py_buffer(attacking._fetch(140_000)(0, 0)))


def test_what_a_failed_sync_left_is_written_again_when_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes pages for written whose writing failed: a second sync alone does nothing."""
    log = opened(tmp_path / "log")
    log.append(batch(writer=7, sequence=0), {1: None})
    log.sync()
    synced = log._active.size
    log.append(batch(writer=7, sequence=1), {1: None})

    with monkeypatch.context() as patched:
        patched.setattr(tablets, "sync_data", refuse)
        with pytest.raises(FlussError):
            log.sync()
    log.close()
    file = tmp_path / "log" / f"{0:020d}.log"
    before, pwrite = file.read_bytes(), os.pwrite
    written: list[tuple[int, bytes]] = []

    def noted(fd: int, data: Any, position: int) -> int:
        if os.path.samestat(os.fstat(fd), file.stat()):
            written.append((position, bytes(data)))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", noted)
    again = opened(tmp_path / "log")
    assert written == [(synced, before[synced:])]
    assert (file.read_bytes(), again.high_watermark) == (before, 6)
    again.close()
    written.clear()
    # nothing behind what is known to be on the disk
    opened(tmp_path / "log").close()
    assert written == []


def full() -> None:
    # of this code, which is not tried again
    raise FlussError("no room", ErrorCode.UNKNOWN_SERVER_ERROR)


def test_rows_that_wait_for_room_are_refused_before_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_tablet, "_PENDING_BYTES", 0)
    options = EngineOptions(durability="none")
    opened_engine = EmbeddedFluss(tmp_path / "d", options=options)
    with opened_engine as engine, engine.connection() as connection:
        schema = fluss.Schema(SCHEMA, primary_keys=["id"])
        connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
        rows = pl.DataFrame({"id": [1, 2], "day": ["a", "b"]})
        fluss.write_fluss(rows, PATH, connection=connection)
        log = engine.engine.bucket(TableBucket(0, 0))[1]
        with monkeypatch.context() as patched:
            patched.setattr(log, "sync", full)
            with pytest.raises(FlussError, match="no room"):
                fluss.write_fluss(rows, PATH, connection=connection)
        assert log.end_offset == 2
        fluss.write_fluss(rows, PATH, connection=connection)
        assert log.end_offset == 6

"""What goes wrong beside a folder's lake: full disks, locked catalogs, processes that end."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ibis
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from fluss_df.lake import TieringService
from fluss_df.lake.rounds.split_reader import SplitReader
from tests.lake.folders import (
    BY_HAND,
    MODULES,
    Owner,
    Server,
    assert_elsewhere,
    assert_reads,
    at,
    catalog,
    files_of,
    table,
    tier,
)
from tests.lake.tiering.support import KINDS
from tests.programs import command
from tests.waiting import wait_until

KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "4"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "1"))


def read(engine: EmbeddedFluss, name: str, *, lake: bool = True) -> pl.DataFrame:
    return fluss.read_fluss(name, connection=engine.address, lake=lake)


# ---- columns


MORE = pa.schema(
    [
        ("word", pa.string()),
        ("list", pa.list_(pa.int32())),
        ("row", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_added_before_and_after_rows_are_tiered(
    by_hand: EmbeddedFluss, kind: str
) -> None:
    lake_table = table(by_hand, kind)
    lake_table.write(list(range(10)), 1)
    with by_hand.connection() as connection:
        connection.get_admin().alter_table(lake_table.path, add_columns=MORE)
    tier(by_hand)
    more = read(by_hand, kind).head(0)
    new = pl.DataFrame(
        {
            "id": [100, 101],
            "day": ["d1", "d2"],
            "word": ["x", None],
            "list": [[1, None], None],
            "row": [{"a": 1, "b": "y"}, None],
        },
        schema_overrides={"list": pl.List(pl.Int32)},
    )
    new = pl.concat([more, new], how="diagonal")
    fluss.write_fluss(new, kind, connection=by_hand.address)
    before = read(by_hand, kind).sort("id")
    assert before.height == 12
    assert_frame_equal(before.tail(2), new)
    tier(by_hand)
    assert_frame_equal(read(by_hand, kind).sort("id"), before)
    lake = catalog(by_hand.folder).load_table(("fluss", kind))
    assert [field.name for field in lake.schema().fields][-6:-3] == MORE.names
    found = pl.DataFrame(pl.from_arrow(lake.scan().to_arrow())).sort("id").tail(2)
    assert_frame_equal(found.select(MORE.names), new.select(MORE.names))


def test_a_column_that_is_not_added_in_fluss_is_not_in_the_lake(
    by_hand: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_table = table(by_hand, "log")
    lake_table.write([1], 1)

    def refuse(*_: object) -> None:
        raise FlussError("the disk is full")

    with by_hand.connection() as connection:
        admin = connection.get_admin()
        with monkeypatch.context() as patch:
            patch.setattr(by_hand.engine.catalog, "replace", refuse)
            with pytest.raises(FlussError, match="the disk is full"):
                admin.alter_table(lake_table.path, add_columns=MORE)
        names = [f.name for f in catalog(by_hand.folder).load_table("fluss.log").schema().fields]
        assert "word" not in names
        assert tier(by_hand) == 1
        assert_reads(by_hand, lake_table)
        # of another type then
        admin.alter_table(lake_table.path, add_columns=pa.schema([("word", pa.int64())]))
    assert tier_after_write(by_hand, lake_table) == 1


def tier_after_write(engine: EmbeddedFluss, lake_table: object) -> int:
    frame = read(engine, "log").with_columns(word=pl.lit(7, pl.Int64))
    fluss.write_fluss(frame, "log", connection=engine.address)
    return tier(engine)


ALTERED = """
import os, signal, sys
import pyarrow as pa
import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.embedded import folder_lake
with EmbeddedFluss(sys.argv[1], options=EngineOptions(lake_tiering=False)) as engine:
    catalog, replace = engine.engine.catalog, engine.engine.catalog.replace
    def dying(*arguments):
        if sys.argv[2] == "after":
            replace(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    catalog.replace = dying
    with engine.connection() as connection:
        more = pa.schema([("word", pa.string())])
        connection.get_admin().alter_table(fluss.TablePath("fluss", "log"), add_columns=more)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_while_it_adds_a_column(tmp_path: Path, when: str) -> None:
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write([1, 2], 1)
    program = [*command(preload=MODULES), "-c", ALTERED, str(tmp_path), when]
    done = subprocess.run(program, check=False)
    assert done.returncode == -signal.SIGKILL
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        assert tier(engine) == 2
        assert ("word" in read(engine, "log").columns) == (when == "after")
        assert_reads(engine, at(engine, lake_table))


# ---- partitions and tables


@pytest.mark.parametrize("kind", ["partitioned", "partitioned_keys"])
def test_a_partition_that_is_dropped_and_made_again(by_hand: EmbeddedFluss, kind: str) -> None:
    lake_table = table(by_hand, kind)
    lake_table.write(list(range(30)), 1)
    tier(by_hand)
    with by_hand.connection() as connection:
        connection.get_admin().drop_partition(lake_table.path, {"day": "d1"})
        assert_reads(by_hand, lake_table)
        lake_table.write([1, 100], 2)
        assert_reads(by_hand, lake_table)
        tier(by_hand)
        assert_reads(by_hand, lake_table)
        connection.get_admin().drop_partition(lake_table.path, {"day": "d1"})
    assert_reads(by_hand, lake_table)
    assert_elsewhere(by_hand.folder, lake_table)


def test_a_partition_that_is_made_again_with_more_rows_than_a_round_takes(
    by_hand: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_table = table(by_hand, "partitioned_keys", {"table.datalake.freshness": "1ms"})
    lake_table.write(list(range(90)), 1)
    tier(by_hand)
    real = SplitReader.current_rows
    called: list[int] = []

    def later(*arguments: Any, **more: Any) -> Any:
        # after the keys were read, and before the rows are: a key is new, one changes, one goes
        monkeypatch.undo()
        called.append(1)
        lake_table.write([31, 94, 1000], 3)
        lake_table.delete([37])
        return real(*arguments, **more)

    with by_hand.connection() as connection:
        connection.get_admin().drop_partition(lake_table.path, {"day": "d1"})
        lake_table.write([*range(31, 91, 3), *range(94, 190, 3)], 2)
        monkeypatch.setattr(SplitReader, "current_rows", later)
        with TieringService(connection, max_changes=5) as service:
            until = time.monotonic() + 60
            while not any(done.rows for done in service.run_due()):
                assert time.monotonic() < until
            # what changed meanwhile is in the log behind the snapshot
            assert_reads(by_hand, lake_table)
            while lake_table.ends().items() - lake_table.tiered().items():
                service.run_due()
                assert time.monotonic() < until
    assert called
    assert_reads(by_hand, lake_table)
    assert_elsewhere(by_hand.folder, lake_table)


def test_a_table_that_is_made_again_while_it_is_tiered(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path, port=0) as engine:
        for turn in range(5):
            lake_table = table(engine, "keys", {"table.datalake.freshness": "1ms"})
            lake_table.write(list(range(turn, turn + 50)), turn)
            time.sleep(0.1 * turn)
            assert_reads(engine, lake_table)
            if turn < 4:
                with engine.connection() as connection:
                    connection.get_admin().drop_table(lake_table.path)
        wait_until(lambda: catalog(tmp_path).load_table("fluss.keys").scan().count() >= 50, 30)
        assert_reads(engine, lake_table)
    assert_elsewhere(tmp_path, lake_table)
    assert check_folder(tmp_path).sound


# ---- a catalog that others have open


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SQLite wait for a lock as long as a test can, and not as long as users are given."""
    connect: Any = sqlite3.connect

    def soon(*arguments: Any, **options: Any) -> Any:
        return connect(*arguments, **{**options, "timeout": 0.5})

    # of the two, SQLAlchemy has the second one
    monkeypatch.setattr(sqlite3, "connect", soon)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", soon)


def test_a_reader_that_has_the_catalog_open_holds_up_nothing_for_good(
    by_hand: EmbeddedFluss,
) -> None:
    lake_table = table(by_hand, "keys")
    lake_table.write([1, 2], 1)
    reader = sqlite3.connect(by_hand.folder / "lake/catalog.db", check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM iceberg_tables").fetchall()
    ending = threading.Timer(2, reader.close)
    ending.start()
    assert tier(by_hand) == 2
    ending.join()
    assert_reads(by_hand, lake_table)


@pytest.mark.usefixtures("impatient")
def test_a_catalog_that_stays_locked_is_said_and_loses_nothing(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    lake_table.write([1, 2], 1)
    tier(by_hand)
    lake_table.write([3], 1)
    other = sqlite3.connect(by_hand.folder / "lake/catalog.db")
    other.execute("BEGIN EXCLUSIVE")
    with by_hand.connection() as connection:
        with pytest.raises(FlussError, match=r"fluss\.log.*locked"):
            tier(by_hand)
        with pytest.raises(FlussError, match=r"fluss\.keys.*locked.*try again"):
            table(by_hand, "keys")
        with pytest.raises(FlussError, match=r"fluss\.log.*locked.*try again") as raised:
            connection.get_admin().alter_table(lake_table.path, add_columns=MORE)
        assert "SELECT" not in raised.value.message
        assert read(by_hand, "log", lake=False).height == 3
    other.close()
    tier(by_hand)
    assert_reads(by_hand, lake_table)
    assert_reads(by_hand, table(by_hand, "keys"))
    assert_elsewhere(by_hand.folder, lake_table)


@pytest.mark.usefixtures("impatient")
def test_a_moved_lake_whose_catalog_is_locked_is_right_later(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with EmbeddedFluss(old, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write([1, 2], 1)
        tier(engine)
    old.rename(new)
    other = sqlite3.connect(new / "lake/catalog.db")
    other.execute("BEGIN EXCLUSIVE")
    locked = pytest.raises(FlussError, match=r"fluss\.log.*catalog\.db.*locked")
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine, locked:
        read(engine, "log")
    other.close()
    with EmbeddedFluss(new, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))


# ---- a full disk


FULL = """
import json, resource, sys, time
import polars as pl
import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import FlussError
from fluss_df.lake import TieringService
said = {}
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
if sys.argv[2] == "moving":
    limit(1000)
with EmbeddedFluss(sys.argv[1], port=0, options=EngineOptions(lake_tiering=False)) as engine:
    limit(resource.RLIM_INFINITY)
    name = sys.argv[3]
    with engine.connection() as connection:
        if sys.argv[2] == "tiering":
            time.sleep(0.01)
            with TieringService(connection) as service:
                limit(1000)
                try:
                    service.run_due()
                except FlussError as error:
                    said["tier"] = error.message
                limit(resource.RLIM_INFINITY)
        try:
            said["rows"] = fluss.read_fluss(name, connection=connection).height
        except FlussError as error:
            said["read"] = error.message
        said["log"] = fluss.read_fluss(name, connection=connection, lake=False).height
print(json.dumps(said))
"""


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
@pytest.mark.parametrize("when", ["tiering", "moving"])
def test_a_full_disk_loses_nothing_and_leaves_nothing(tmp_path: Path, kind: str, when: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with EmbeddedFluss(old, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, kind)
        lake_table.write(list(range(100)), 1)
        tier(engine)
        lake_table.write(list(range(100, 300)), 1)
    folder = old.rename(new) if when == "moving" else old
    before = {name for name in files_of(folder) if "warehouse" in name}
    done = subprocess.run(
        [*command(preload=MODULES), "-c", FULL, str(folder), when, kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["log"] == 300
    if when == "moving":
        assert "full" in said["read"]
        assert f"fluss.{kind}" in said["read"]
        assert "lake=False" in said["read"]
    else:
        assert said["rows"] == 300
        assert f"fluss.{kind}" in said["tier"]
        left = {name for name in files_of(folder) if "warehouse" in name} - before
        assert not [name for name in left if name.endswith(".parquet")]
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        assert_reads(engine, at(engine, lake_table))
        tier(engine)
        assert_reads(engine, lake_table)
    assert_elsewhere(folder, lake_table)
    assert check_folder(folder).findings == []


# ---- kills


def test_owners_that_are_killed_lose_and_repeat_nothing(tmp_path: Path) -> None:
    choose = random.Random(SEED)
    folder = tmp_path / "folder"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        tables = [
            table(engine, kind, {"table.datalake.freshness": "10ms"})
            for kind in ("log", "partitioned_keys")
        ]
    for turn in range(KILLS):
        owner = Owner(folder)
        for lake_table in tables:
            lake_table.cluster = Server(owner.address)  # type: ignore[assignment]
            lake_table.write(list(range(turn * 3, turn * 3 + 40)), turn)
        time.sleep(choose.random() * 1.2)
        owner.kill()
        if choose.random() < 0.3:
            folder = folder.rename(tmp_path / f"folder-{turn}")
        if turn % 10 == 9:
            with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
                for lake_table in tables:
                    assert_reads(engine, at(engine, lake_table))
            assert check_folder(folder).sound
    with EmbeddedFluss(folder, port=0) as engine:
        until = time.monotonic() + 60
        for lake_table in tables:
            assert_reads(engine, at(engine, lake_table))
            rows = lake_table.expected().height
            while len(lake_table.iceberg().scan().to_arrow()) != rows:
                assert time.monotonic() < until
                time.sleep(0.1)
    for lake_table in tables:
        assert_elsewhere(folder, lake_table)
    report = check_folder(folder)
    assert report.findings == []
    assert report.lake_files


# ---- front ends


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_every_front_end_reads_the_lake_of_a_folder(tmp_path: Path, kind: str) -> None:
    small = EngineOptions(segment_bytes=1, lake_tiering=False)
    folder = tmp_path / "folder"
    with EmbeddedFluss(folder, port=0, options=small) as engine:
        lake_table = table(engine, kind, {"table.log.ttl": "1ms"})
        for turn in range(4):
            lake_table.write(list(range(100)), turn)
        tier(engine)
        lake_table.write(list(range(50, 150)), 5)
        time.sleep(0.05)
        assert engine.engine.expire() > 0
        expected = lake_table.expected()
        total = expected["id"].sum()
        assert_reads(engine, lake_table)
        con = ibis.fluss.connect(engine.address)
        assert con.table(kind).id.sum().execute() == total
        found = con.sql(f"SELECT sum(id) AS s, count(*) AS n FROM {kind}").to_polars()
        assert found.rows() == [(total, expected.height)]
        con.disconnect()
    # the folder as it is, from another process, which moves and opens it
    folder = folder.rename(tmp_path / "moved")
    tool = Path(sys.executable).with_name("fluss-df")
    asked = subprocess.run(
        [tool, "sql", f"SELECT sum(id) AS s FROM {kind}", "--connection", folder, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == [{"s": total}] or json.loads(asked.stdout) == {"s": total}
    checked = subprocess.run([tool, "check", folder], capture_output=True, text=True, check=False)
    assert "files of the lake" in checked.stdout
    assert checked.returncode == 0, checked.stderr

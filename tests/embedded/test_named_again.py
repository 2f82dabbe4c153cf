"""Tables and partitions whose name another one has by now, and clocks that were wrong."""

from __future__ import annotations

import datetime
import threading
import time
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine import auto_partitions
from fluss_df.engine.auto_partitions import keep_partitions, partition_time
from fluss_df.engine.catalog import validation
from fluss_df.engine.lake import tiering_states
from fluss_df.engine.lake.tiering_states import TieringStates
from fluss_df.engine.tables.tables import Table, TableVersion
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import write_fluss

PATH = TablePath("fluss", "days")
DAYS = Schema(pa.schema([("day", pa.string()), ("id", pa.int64())]))
AUTOMATIC = {
    "table.auto-partition.enabled": "true",
    "table.auto-partition.time-unit": "DAY",
    "table.auto-partition.num-precreate": "0",
    "table.auto-partition.num-retention": "7",
}
OLD = "20200101"


def by_day(**properties: str) -> TableDescriptor:
    return TableDescriptor(DAYS, partition_keys=["day"], properties=properties)


def partitions(engine: EmbeddedFluss) -> list[str]:
    return sorted(engine.engine.catalog.table(PATH).partitions)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[zoneinfo.ZoneInfo]:
    """The zone of the system, which has summer time."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield zoneinfo.ZoneInfo("Europe/Berlin")
    monkeypatch.undo()
    time.tzset()


def test_the_partitions_of_a_table_are_not_those_of_the_one_before(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_table(PATH, by_day(**AUTOMATIC))
        before = engine.engine.catalog.table(PATH)
        admin.drop_table(PATH)
        admin.create_table(PATH, by_day())
        admin.create_partition(PATH, {"day": OLD})
        # as a check that began before the table was dropped
        keep_partitions(engine.engine, before)
        assert partitions(engine) == [OLD]
        for change in (
            lambda: engine.engine.catalog.create_partition(before, {"day": "20200102"}, False),
            lambda: engine.engine.catalog.drop_partition(before, {"day": OLD}, False),
            lambda: engine.engine.catalog.sequence_range(before, 1),
        ):
            with pytest.raises(FlussError) as refused:
                change()
            assert refused.value.error_code == ErrorCode.TABLE_NOT_EXIST
        assert partitions(engine) == [OLD]


def test_old_partitions_go_when_a_folder_is_opened(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, by_day(**AUTOMATIC))
        connection.get_admin().create_partition(PATH, {"day": OLD})
        assert partitions(engine) == [OLD]
        # as one that was created days ago
        table = engine.engine.catalog.table(PATH)
        table.descriptor.properties["table.auto-partition.num-precreate"] = "2"
        engine.engine.catalog._store(table)
    before = datetime.datetime.now()
    with EmbeddedFluss(tmp_path / "data") as engine:
        there = partitions(engine)
        assert OLD not in there
        assert len(there) == 2
        assert there[0] in {f"{day:%Y%m%d}" for day in (before, datetime.datetime.now())}


def test_old_partitions_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that has as many as it may have gets the partition of a new day at once."""
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, by_day(**AUTOMATIC))
        for day in (OLD, "20200102"):
            connection.get_admin().create_partition(PATH, {"day": day})
        table = engine.engine.catalog.table(PATH)
        table.descriptor.properties["table.auto-partition.num-precreate"] = "2"
        monkeypatch.setattr(validation, "MAX_PARTITIONS", 2)
        before = datetime.datetime.now()
        keep_partitions(engine.engine)
        there = partitions(engine)
        assert len(there) == 2
        assert there[0] in {f"{day:%Y%m%d}" for day in (before, datetime.datetime.now())}


def test_partitions_that_a_full_disk_refuses_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, by_day(**AUTOMATIC))
        table = engine.engine.catalog.table(PATH)
        table.descriptor.properties["table.auto-partition.num-precreate"] = "2"

        def refuses(_: Table) -> None:
            raise FlussError("the disk is full", ErrorCode.UNKNOWN_SERVER_ERROR)

        monkeypatch.setattr(engine.engine.catalog, "_store", refuses)
        keep_partitions(engine.engine)
        assert "the auto partitions of table fluss.days could not be kept" in caplog.text
        assert "the disk is full" in caplog.text


@pytest.mark.parametrize(
    ("now", "steps", "there"),
    [
        # summer time ends at 3:00, which becomes 2:00
        (datetime.datetime(2026, 10, 25, 0, 30), 6, "2026102505"),
        # and begins at 2:00, which becomes 3:00
        (datetime.datetime(2026, 3, 29, 0, 30), 6, "2026032907"),
        (datetime.datetime(2026, 3, 29, 6, 30), -6, "2026032823"),
        (datetime.datetime(2026, 6, 1, 23, 30), 1, "2026060200"),
    ],
)
def test_hours_of_the_systems_zone_follow_its_summer_time(
    now: datetime.datetime,
    steps: int,
    there: str,
    zone: zoneinfo.ZoneInfo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a zone by name has always been right
    assert partition_time(now.replace(tzinfo=zone), steps, "HOUR") == there

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return now if tz is None else now.replace(tzinfo=zone).astimezone(tz)

    module = SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr(auto_partitions, "datetime", module)
    assert partition_time(auto_partitions._now({}), steps, "HOUR") == there


def test_tiering_goes_on_after_a_clock_that_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    year_ms = 365 * 86_400_000
    now = 1_800_000_000_000
    descriptor = TableDescriptor(DAYS, properties={"table.datalake.enabled": "true"})
    version = TableVersion(descriptor, now + year_ms, {1: DAYS})
    table = Table(1, PATH, now + year_ms, version)
    table.lake = {"snapshot": {"time": now + year_ms}}
    states = TieringStates(lambda: [table])
    monkeypatch.setattr(tiering_states, "now_ms", lambda: now)
    assert states.request(lambda _: True) is None
    monkeypatch.setattr(tiering_states, "now_ms", lambda: now + 4 * 60_000)
    found = states.request(lambda _: True)
    assert found is not None
    assert found[0] is table


def test_the_lake_table_of_a_table_that_was_created_again_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    path = TablePath("fluss", "tiered")
    descriptor = TableDescriptor(
        Schema(pa.schema([("id", pa.int64())])), properties={"table.datalake.enabled": "true"}
    )
    with (
        EmbeddedFluss(
            tmp_path / "data", port=0, options=EngineOptions(lake_tiering=False)
        ) as engine,
        engine.connection() as connection,
        # requests of one connection follow each other
        fluss.connect(engine.address) as other,
    ):
        admin = connection.get_admin()
        admin.create_table(path, descriptor)
        lake = engine.engine.lake
        assert lake is not None
        # the table is gone, its data are to be removed
        dropping, created = threading.Event(), threading.Event()
        drop = engine.engine.drop_table

        def drop_table(table: Table) -> None:
            dropping.set()
            assert created.wait(20)
            drop(table)

        monkeypatch.setattr(engine.engine, "drop_table", drop_table)
        dropper = threading.Thread(target=lambda: admin.drop_table(path))
        dropper.start()
        assert dropping.wait(20)
        other.get_admin().create_table(path, descriptor)
        created.set()
        dropper.join(20)
        assert lake._catalog().table_exists(("fluss", "tiered"))  # type: ignore[attr-defined]
        admin.drop_table(path)
        assert not lake._catalog().table_exists(("fluss", "tiered"))  # type: ignore[attr-defined]


def test_hours_are_those_of_rows(tmp_path: Path) -> None:
    """What is created for this hour takes the rows of this hour."""
    properties = {**AUTOMATIC, "table.auto-partition.time-unit": "HOUR"}
    properties["table.auto-partition.num-precreate"] = "2"
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        before = datetime.datetime.now()
        connection.get_admin().create_table(PATH, by_day(**properties))
        after = datetime.datetime.now()
        hours = {f"{each:%Y%m%d%H}" for each in (before, after)}
        assert hours & set(partitions(engine))
        hour = min(hours & set(partitions(engine)))
        write_fluss(pl.DataFrame({"day": [hour], "id": [1]}), PATH, connection=connection)

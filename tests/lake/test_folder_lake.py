"""The lake of an embedded engine's folder, held against the model that a cluster's is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.tiering import TieringService
from fluss_df.lake.tiering.coordinator import Coordinator
from tests.lake.folders import (
    AT_ONCE,
    BY_HAND,
    IN_A_SECOND,
    Owner,
    Server,
    assert_reads,
    catalog,
    table,
    tier,
    tiering_threads,
)
from tests.lake.tiering.support import KINDS, LakeTable
from tests.waiting import wait_until


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_a_part_and_everything_tiered(by_hand: EmbeddedFluss, kind: str) -> None:
    lake_table = table(by_hand, kind)
    lake_table.write(list(range(100)), 1)
    assert_reads(by_hand, lake_table)
    assert tier(by_hand) == 100
    assert_reads(by_hand, lake_table)
    lake_table.write(list(range(50, 150)), 2)
    if lake_table.keyed:
        lake_table.delete(list(range(10)))
    assert_reads(by_hand, lake_table)
    tier(by_hand)
    lake = fluss.scan_fluss(f"{lake_table.name}$lake", connection=by_hand.address).collect()
    assert lake.height == lake_table.expected().height
    assert_reads(by_hand, lake_table)


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_the_owner_tiers_and_goes_on_after_it_is_opened_again(tmp_path: Path, kind: str) -> None:
    others = tiering_threads()
    with EmbeddedFluss(tmp_path, port=0) as engine:
        lake_table = table(engine, kind, IN_A_SECOND)
        lake_table.write(list(range(100)), 1)
        wait_for_rows(lake_table, 100)
        assert tiering_threads() - others
    assert not tiering_threads() - others
    with EmbeddedFluss(tmp_path, port=0) as engine:
        lake_table.cluster = Server(engine.address)  # type: ignore[assignment]
        assert_reads(engine, lake_table)
        lake_table.write(list(range(100, 150)), 2)
        wait_for_rows(lake_table, 150)
        assert_reads(engine, lake_table)


@pytest.mark.parametrize("kind", ["log", "partitioned_keys"])
def test_what_is_not_in_the_lake_does_not_expire(tmp_path: Path, kind: str) -> None:
    small = EngineOptions(lake_tiering=False, segment_bytes=1)
    with EmbeddedFluss(tmp_path, port=0, options=small) as engine:
        lake_table = LakeTable(
            Server(engine.address),  # type: ignore[arg-type]
            kind,
            kind,
            {"table.log.ttl": "1ms", **AT_ONCE},
        ).create()
        for turn in range(4):
            lake_table.write(list(range(100)), turn)
        time.sleep(0.05)
        assert engine.engine.expire() == 0
        tier(engine)
        # more writes than the table has buckets, so that a bucket has a segment that is complete
        for turn in range(5, 10):
            lake_table.write(list(range(100, 200)), turn)
        time.sleep(0.05)
        assert engine.engine.expire() > 0
        assert_reads(engine, lake_table)
        assert engine.engine.expire() == 0
        tier(engine)
        assert engine.engine.expire() > 0
        assert_reads(engine, lake_table)


def wait_for_rows(lake_table: LakeTable, rows: int) -> None:
    until = time.monotonic() + 30
    found = -1
    while time.monotonic() < until:
        found = len(lake_table.iceberg().scan().to_arrow())
        if found == rows:
            return
        time.sleep(0.1)
    raise AssertionError(f"the lake has {found} rows, not {rows}")


def test_no_lake_table_costs_no_thread_and_no_file(tmp_path: Path) -> None:
    others = tiering_threads()
    with EmbeddedFluss(tmp_path, port=0) as engine, engine.connection() as connection:
        schema = fluss.Schema(pl.DataFrame({"a": [1]}).to_arrow().schema)
        connection.get_admin().create_table(
            fluss.TablePath("fluss", "plain"), fluss.TableDescriptor(schema)
        )
        assert not tiering_threads() - others
        assert not (tmp_path / "lake").exists()


def test_a_dropped_table_leaves_no_lake_table_and_its_name_is_free(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "keys")
    lake_table.write([1, 2], 1)
    tier(by_hand)
    with by_hand.connection() as connection:
        connection.get_admin().drop_table(lake_table.path)
    assert not (by_hand.folder / "lake/warehouse/fluss/keys").exists()
    again = table(by_hand, "keys")
    again.write([7], 1)
    assert tier(by_hand) == 1
    assert_reads(by_hand, again)


def test_only_the_service_that_has_a_table_may_report_it(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    with by_hand.connection() as connection:
        first = Coordinator(connection)
        until = time.monotonic() + 30
        lease = None
        while lease is None and time.monotonic() < until:
            lease, _ = first.heartbeat(request=True)
        assert lease is not None
        assert lease.path == lake_table.path
        assert Coordinator(connection).heartbeat(request=True)[0] is None
        assert first.heartbeat(tiering=[lease])[1] == {}
        assert first.heartbeat(failed=[lease])[1] == {}
        second, _ = first.heartbeat(request=True)
        assert second is not None
        assert second.tiering_epoch == lease.tiering_epoch + 1
        _, refused = first.heartbeat(finished=[lease])
        assert f"({ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION})" in refused[lease.table_id]


def test_offsets_that_were_not_prepared_are_refused(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    with by_hand.connection() as connection:
        info = connection.get_admin().get_table_info(lake_table.path)
        coordinator = Coordinator(connection)
        with pytest.raises(FlussError, match="are not known: prepare them again"):
            coordinator.commit(info.table_id, lake_table.path, 5, "x/y.offsets", {}, {})
        assert coordinator.known_snapshot(lake_table.path) is None
        path = coordinator.prepare(info.table_id, lake_table.path, {(None, 0): 3})
        for _ in range(2):
            coordinator.commit(info.table_id, lake_table.path, 5, path, {}, {})
        known = coordinator.known_snapshot(lake_table.path)
        assert known is not None
        assert (known.snapshot_id, known.offsets) == (5, {(None, 0): 3})


def test_tables_that_iceberg_cannot_hold_are_refused_and_leave_nothing(
    by_hand: EmbeddedFluss,
) -> None:
    two = fluss.Schema(pl.DataFrame({"a": [1], "b": [1]}).to_arrow().schema, ["a", "b"])
    descriptor = fluss.TableDescriptor(two, properties={"table.datalake.enabled": "true"})
    with by_hand.connection() as connection:
        with pytest.raises(FlussError, match="at most one bucket key"):
            connection.get_admin().create_table(fluss.TablePath("fluss", "two"), descriptor)
        assert connection.get_admin().list_tables("fluss") == []


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_an_owner_that_is_killed_while_it_tiers_loses_and_repeats_nothing(
    tmp_path: Path, kind: str
) -> None:
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, kind, IN_A_SECOND)
    for turn in range(4):
        owner = Owner(tmp_path)
        lake_table.cluster = Server(owner.address)  # type: ignore[assignment]
        lake_table.write(list(range(turn * 50, turn * 50 + 100)), turn)
        time.sleep(turn * 0.5)
        owner.kill()
    with EmbeddedFluss(tmp_path, port=0) as engine:
        lake_table.cluster = Server(engine.address)  # type: ignore[assignment]
        assert_reads(engine, lake_table)
        wait_for_rows(lake_table, lake_table.expected().height)
        assert_reads(engine, lake_table)


@pytest.mark.parametrize("name", ["per%cent", "what?", "number#1"])
def test_addresses_cannot_have_some_characters(tmp_path: Path, name: str) -> None:
    with EmbeddedFluss(tmp_path / name, port=0, options=BY_HAND) as engine:
        with pytest.raises(FlussError, match=r"lake cannot be at .*rename the folder"):
            table(engine, "log")
        with engine.connection() as connection:
            assert connection.get_admin().list_tables("fluss") == []


@pytest.mark.parametrize("name", ["with space", "ünï'code", "a+b&c"])
def test_a_folder_of_any_other_name_has_a_lake(tmp_path: Path, name: str) -> None:
    with EmbeddedFluss(tmp_path / name, port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "keys")
        lake_table.write([1, 2, 3], 1)
        tier(engine)
        lake_table.write([3, 4], 2)
        assert_reads(engine, lake_table)


def test_the_lake_table_has_the_properties_that_its_table_says(tmp_path: Path) -> None:
    codec = "iceberg.write.parquet.compression-codec"
    path = fluss.TablePath("fluss", "said")
    schema = fluss.Schema(pa.schema([("id", pa.int64())]))
    lake = {"table.datalake.enabled": "true", **AT_ONCE}

    def descriptor(of: dict[str, str]) -> fluss.TableDescriptor:
        return fluss.TableDescriptor(schema, properties=lake, custom_properties=of)

    with (
        EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine,
        engine.connection() as connection,
    ):
        admin = connection.get_admin()
        with pytest.raises(
            FlussError, match=rf"fluss\.said: {codec}='lz5': expected one of zstd, "
        ):
            admin.create_table(path, descriptor({codec: "lz5"}))
        assert not admin.table_exists(path)
        admin.create_table(path, descriptor({codec: "lz4", "iceberg.own": "x", "other": "y"}))
        fluss.write_fluss(pl.DataFrame({"id": range(1000)}), path, connection=connection)
        tier(engine)
        assert fluss.read_fluss(path, connection=connection).height == 1000
    properties = catalog(tmp_path).load_table(("fluss", "said")).properties
    assert properties["own"] == "x"
    assert "other" not in properties
    (file,) = tmp_path.glob("lake/warehouse/**/*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "LZ4"


def test_a_key_column_has_the_name_that_rows_are_numbered_by(tmp_path: Path) -> None:
    kind = {"table.datalake.enabled": "true", "table.datalake.freshness": "1ms"}
    first = pl.DataFrame({"__row": [1, 2, 3], "__row_": ["a", "b", "c"]})
    second = pl.DataFrame({"__row": [2, 3, 4], "__row_": ["B", "C", "D"]})
    with EmbeddedFluss(tmp_path, options=BY_HAND) as engine, engine.connection() as connection:
        given: dict[str, Any] = {"connection": connection, "create_if_not_exists": True}
        for rows in (first, second):
            fluss.write_fluss(rows, "named", primary_keys=["__row"], properties=kind, **given)
            with TieringService(connection) as service:
                wait_until(lambda: sum(done.rows for done in service.run_due()), 30)
        found = fluss.scan_fluss("named$lake", connection=connection).collect()
    expected = pl.concat([first.head(1), second])
    assert_frame_equal(found.select(expected.columns).sort("__row"), expected)

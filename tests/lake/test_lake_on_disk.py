"""What the lake of a folder keeps on the disk: before a commit, after it, and for how long."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.exceptions import CommitFailedException

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.embedded.lake_paths import LakePaths
from fluss_df.engine.files.files import sync_file
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg import file_io
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.iceberg_writing.commit import commit_snapshot
from fluss_df.lake.iceberg_writing.tasks import _rows_of
from fluss_df.lake.rounds.lake_rows import dictionary_columns
from tests.lake.folders import assert_reads, catalog, table, tier


def test_files_are_on_the_disk_before_the_catalog_names_them(
    by_hand: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_table = table(by_hand, "keys")
    lake_table.write(list(range(100)), 1)
    synced: dict[Path, int] = {}
    folders: set[Path] = set()
    real = sync_file

    def sync(path: Path) -> None:
        real(path)
        synced[path] = path.stat().st_size

    monkeypatch.setattr(file_io, "sync_file", sync)
    monkeypatch.setattr(file_io, "sync_folder", folders.add)
    before = set((by_hand.folder / "lake/warehouse").rglob("*.*"))
    tier(by_hand)
    made = set((by_hand.folder / "lake/warehouse").rglob("*.*")) - before
    # a file with rows, a manifest, the list of manifests, and the metadata
    assert {path.suffix for path in made} == {".parquet", ".avro", ".json"}
    assert made <= synced.keys()
    assert all(path.stat().st_size == synced[path] for path in made)
    assert {path.parent for path in made} <= folders


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_rows_that_the_lake_has_are_on_the_disk_of_the_log(tmp_path: Path, kind: str) -> None:
    options = EngineOptions(lake_tiering=False, durability="none")
    with EmbeddedFluss(tmp_path / "folder", port=0, options=options) as engine:
        lake_table = table(engine, kind)
        lake_table.write(list(range(100)), 1)
        logs = [engine.engine.bucket(bucket)[1] for bucket in engine.engine.all_buckets()]
        assert any(log.synced_offset < log.end_offset for log in logs)
        tier(engine)
        assert all(log.synced_offset == log.end_offset for log in logs)


def test_rounds_that_replace_rows_leave_no_manifests(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "keys")
    counts = []
    for version in range(5):
        lake_table.write([1, 2, 3], version)
        tier(by_hand)
        lake = catalog(by_hand.folder).load_table(("fluss", "keys"))
        snapshot = lake.current_snapshot()
        assert snapshot is not None
        counts.append(len(snapshot.manifests(lake.io)))
    # one with the rows, and one with what the newest round removed
    assert counts == [1, 2, 2, 2, 2]
    assert_reads(by_hand, lake_table)


def test_a_table_that_is_open_keeps_no_connection(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    lake_table.write([1], 1)
    tier(by_hand)
    with by_hand.connection() as connection:
        info = connection.get_admin().get_table_info(lake_table.path)
    database = os.path.realpath(by_hand.folder / "lake/catalog.db")

    def connections() -> int:
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == database for link in links)

    # those of the round are closed when what it opened is collected
    gc.collect()
    before = connections()
    opened = [open_table(info) for _ in range(3)]
    assert connections() == before
    assert opened[0].current_snapshot() is not None


def test_a_first_snapshot_is_not_given_to_another_table_of_its_name(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    lakes = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    lakes.create_namespace("db")
    columns = pa.schema([("n", pa.int64())])
    planned = lakes.create_table("db.t", columns)
    lakes.drop_table("db.t")
    lakes.create_table("db.t", columns)
    with pytest.raises(CommitFailedException, match="UUID"):
        commit_snapshot(planned, [], [], [], {})
    assert lakes.load_table("db.t").current_snapshot() is None


def test_rows_of_keys_that_came_later_are_left_to_the_next_round() -> None:
    class Lake:
        arrow_schema = pa.schema([("k", pa.int64()), ("v", pa.string())])

    rows = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})
    touched = pl.DataFrame({"k": [3, 1]})
    lake: Any = Lake()
    assert _rows_of(lake, ["k"], touched, rows).to_pydict() == {"k": [1, 3], "v": ["a", "c"]}
    assert _rows_of(lake, ["k"], touched, rows.slice(0, 0)).num_rows == 0


# ---- names and places


def test_a_database_may_have_the_name_of_the_warehouse(by_hand: EmbeddedFluss) -> None:
    places = [fluss.TablePath("warehouse", "t"), fluss.TablePath("t", "x")]
    descriptor = fluss.TableDescriptor(
        fluss.Schema(pa.schema([("n", pa.int64())])),
        properties={"table.datalake.enabled": "true", "table.datalake.freshness": "1ms"},
    )
    with by_hand.connection() as connection:
        admin = connection.get_admin()
        for place in places:
            admin.create_database(place.database_name)
            admin.create_table(place, descriptor)
            fluss.write_fluss(pl.DataFrame({"n": [1, 2]}), place, connection=connection)
        assert tier(by_hand) == 4
        metadata = catalog(by_hand.folder).load_table(("warehouse", "t")).metadata_location
        found = LakePaths.of(metadata, by_hand.folder / "lake")
        assert found is not None
        assert (by_hand.folder / "lake" / found[1]).is_file()
        admin.drop_table(places[0])
        assert not (by_hand.folder / "lake/warehouse/warehouse/t").exists()
        kept = fluss.read_fluss("t.x$lake", connection=connection)
        assert_frame_equal(kept, pl.DataFrame({"n": [1, 2]}))


@pytest.mark.parametrize(
    "name",
    ["write.data.path", "write.metadata.path", "py-io-impl", "write.py-location-provider.impl"],
)
def test_a_table_cannot_say_where_or_by_what_its_lake_is_written(
    by_hand: EmbeddedFluss, tmp_path: Path, name: str
) -> None:
    path = fluss.TablePath("fluss", "made")
    descriptor = fluss.TableDescriptor(
        fluss.Schema(pa.schema([("n", pa.int64())])),
        properties={"table.datalake.enabled": "true"},
        custom_properties={f"iceberg.{name}": f"file://{tmp_path}/other"},
    )
    with by_hand.connection() as connection:
        with pytest.raises(FlussError, match=f"fluss.made: iceberg.{name}=.*leave the property"):
            connection.get_admin().create_table(path, descriptor)
        assert not connection.get_admin().table_exists(path)


def test_a_lake_table_whose_metadata_is_elsewhere_takes_no_other_with_it(
    by_hand: EmbeddedFluss,
) -> None:
    first, second = table(by_hand, "log"), table(by_hand, "log", name="other")
    for lake_table in (first, second):
        lake_table.write([1, 2], 1)
        tier(by_hand)
    # as an older release took it
    lakes = catalog(by_hand.folder)
    lake = lakes.load_table(("fluss", "log"))
    elsewhere = by_hand.folder / "lake/warehouse/fluss/log_metadata"
    with lake.transaction() as change:
        change.set_properties({"write.metadata.path": f"file://{elsewhere}"})
    with lake.transaction() as change:
        change.set_properties({"another": "commit"})
    assert list(elsewhere.iterdir())
    with by_hand.connection() as connection:
        connection.get_admin().drop_table(first.path)
    assert_reads(by_hand, second)
    other = fluss.read_fluss(f"{second.name}$lake", connection=by_hand.address)
    assert other.height == 2


def test_a_lake_is_not_switched_off(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    lake_table.write([1, 2], 1)
    tier(by_hand)
    name = "table.datalake.enabled"
    with by_hand.connection() as connection:
        admin = connection.get_admin()
        with pytest.raises(FlussError, match=r"table\.datalake\.enabled' cannot be removed"):
            admin.alter_table(lake_table.path, reset_properties=[name])
    assert_reads(by_hand, lake_table)


def test_a_change_that_is_done_is_no_error_where_its_mark_is_gone(by_hand: EmbeddedFluss) -> None:
    lake_table = table(by_hand, "log")
    lake = by_hand.engine.lake
    assert lake is not None
    with by_hand.connection() as connection:
        schema = connection.get_admin().get_table_info(lake_table.path).schema
    with lake.altering(lake_table.path, schema, schema):
        (by_hand.folder / "lake/altering").unlink()
    assert not (by_hand.folder / "lake/altering").exists()


def test_columns_whose_values_repeat_have_dictionaries(tmp_path: Path) -> None:
    count = 3000
    rows = pa.table(
        {
            "number": range(count),
            "kind": [n % 5 for n in range(count)],
            "a.b": [f"{n % 7}" for n in range(count)],
            "text": [f"{n}" for n in range(count)],
            "parts": [[{"x": n % 3}] for n in range(count)],
            "named": pa.array([[("k", n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
            "none": pa.nulls(count, pa.string()),
            "flag": [True] * count,
        }
    )
    file = tmp_path / "rows.parquet"
    for part in (rows, rows.slice(0, 0), rows.slice(5, 1)):
        names = dictionary_columns(part, part.schema)
        pq.write_table(part, file, use_dictionary=names)
        groups = pq.ParquetFile(file).metadata
        found = set()
        for group in map(groups.row_group, range(groups.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if "RLE_DICTIONARY" in column.encodings:
                    found.add(column.path_in_schema)
        if part.num_rows == count:
            nested = {"parts.list.element.x", "named.key_value.key", "named.key_value.value"}
            assert found == {"kind", "a.b", "none", *nested}
        assert pq.read_table(file).equals(part)

"""Tables of a folder's lake: they are created, altered, dropped and tiered; what is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, folder_lake, lake_layout
from fluss_df.embedded.folder_lake import FolderLake
from fluss_df.embedded.lake_layout import match_columns
from fluss_df.embedded.lake_rows import CATALOG_FILE
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake import TieringService
from tests.lake.folders import AT_ONCE, BY_HAND, assert_reads, at, catalog, table, tier

LOG = fluss.TablePath("fluss", "log")
MADE = fluss.TablePath("fluss", "made")
MORE = pa.schema([("word", pa.string())])
COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string())])
NANOSECONDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("ns"), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
OF_ID = {"keys": ["id", "at"], "bucket_keys": ["id"]}


def one(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("a", kind, nullable=False), pa.field("b", pa.int64())])


def with_row(name: str) -> pa.Schema:
    return pa.schema([(name, pa.int64()), ("r", pa.struct([("x", pa.int64())]))])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "e", port=0, options=BY_HAND) as made:
        yield made


def create(engine: EmbeddedFluss, columns: pa.Schema, **more: Any) -> None:
    properties = {"table.datalake.enabled": "true", **more.pop("properties", {})}
    keys = more.pop("keys", None)
    with engine.connection() as connection:
        connection.get_admin().create_table(
            MADE, fluss.TableDescriptor(fluss.Schema(columns, keys), properties=properties, **more)
        )


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        (COLUMNS, {"properties": {"table.datalake.format": "paimon"}}, "a folder is 'iceberg'"),
        (COLUMNS, {"bucket_keys": ["a", "b"]}, r"at most one bucket key, but got: \['a', 'b'\]"),
        (COLUMNS, {"partition_keys": ["a"]}, "Column `a` is not string type"),
        (NANOSECONDS, OF_ID, r"'at' of the primary key is timestamp\(9\).* a precision of 6"),
        *(
            (one(kind), more, f"'a' of type {name} cannot be the bucket key.* choose a column of")
            for more in ({"bucket_keys": ["a"]}, {"keys": ["a"]})
            for kind, name in (
                (pa.bool_(), "boolean"),
                (pa.int8(), "tinyint"),
                (pa.int16(), "smallint"),
                (pa.timestamp("us", "UTC"), "timestamp_ltz"),
            )
        ),
        (one(pa.float64()), {"bucket_keys": ["a"]}, "'a' of type double cannot be the bucket key"),
        (one(pa.float64()), {"keys": ["a"]}, "'a' is of the primary key, and .* DECIMAL"),
        (with_row("r.x"), {}, r"multiple fields for name r\.x.* give one of them another name"),
        (
            pa.schema([("a", pa.int64()), ("a_bucket", pa.int64())]),
            {"bucket_keys": ["a"]},
            "column 'a_bucket' has the name .*; give the column another name",
        ),
    ],
)
def test_what_the_lake_cannot_have_is_refused(
    engine: EmbeddedFluss, columns: pa.Schema, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(FlussError, match=message) as refused:
        create(engine, columns, **more)
    assert "fluss.made" in str(refused.value)
    assert "try again" not in str(refused.value)
    with engine.connection() as connection:
        assert not connection.get_admin().table_exists(MADE)
    # nothing of it is in the lake, and the name is free
    assert not list((engine.folder / "lake").glob("warehouse/fluss/*"))
    create(engine, COLUMNS)
    with closing(catalog(engine.folder)) as lake:
        assert lake.list_tables("fluss") == [("fluss", "made")]


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        (NANOSECONDS.remove(0), {"keys": ["at"]}),
        (NANOSECONDS, {"keys": ["id"]}),
        (NANOSECONDS, {"bucket_keys": ["at"]}),
        (NANOSECONDS.set(1, NANOSECONDS.field(1).with_type(pa.timestamp("us"))), OF_ID),
        (NANOSECONDS.set(1, NANOSECONDS.field(1).with_type(pa.int8())), OF_ID),
    ],
    ids=["only key", "no key", "log", "microseconds", "small"],
)
def test_what_the_lake_can_have_is_tiered(
    engine: EmbeddedFluss, columns: pa.Schema, more: dict[str, Any]
) -> None:
    create(engine, columns, properties=AT_ONCE, **more)
    rows = pa.table([pa.array([1, 2], field.type) for field in columns], schema=columns)
    with engine.connection() as connection:
        fluss.write_fluss(rows, MADE, connection=connection)
        # what is one row in the lake is one row in Fluss, too
        there = fluss.read_fluss(MADE, connection=connection, lake=False)
        assert tier(engine)
        lake = fluss.read_fluss("fluss.made$lake", connection=connection)
        assert sorted(lake["v"]) == sorted(there["v"])


@pytest.mark.parametrize(
    ("columns", "more", "added"),
    [(with_row("a"), {}, "r.x"), (COLUMNS, {"bucket_keys": ["a"]}, "a_bucket")],
)
def test_a_column_that_the_lake_cannot_have_is_not_added(
    engine: EmbeddedFluss, columns: pa.Schema, more: dict[str, Any], added: str
) -> None:
    create(engine, columns, **more)
    with engine.connection() as connection:
        admin = connection.get_admin()
        with pytest.raises(FlussError, match=rf"fluss\.made.*{added}.*another name") as refused:
            admin.alter_table(MADE, add_columns=pa.schema([(added, pa.int64())]))
        assert refused.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert "try again" not in str(refused.value)
        admin.alter_table(MADE, add_columns=MORE)
        assert admin.get_table_info(MADE).get_column_names() == [*columns.names, "word"]


def test_a_lake_is_not_switched_off(engine: EmbeddedFluss) -> None:
    create(engine, COLUMNS)
    with engine.connection() as connection:
        admin = connection.get_admin()
        enabled = "table.datalake.enabled"
        with pytest.raises(FlussError, match=rf"'{enabled}' cannot be .* that has a data lake"):
            admin.alter_table(MADE, set_properties={enabled: "false"})
        admin.alter_table(MADE, set_properties={enabled: "true"})


def test_a_row_with_an_empty_bucket_key_is_named(engine: EmbeddedFluss) -> None:
    create(engine, COLUMNS, bucket_keys=["b"])
    rows = pa.table({"a": [1, 2], "b": ["x", ""]})
    with (
        engine.connection() as connection,
        pytest.raises(
            FlussError, match=r"table fluss\.made, bucket key 'b': .* leave out the rows"
        ),
    ):
        fluss.write_fluss(rows, MADE, connection=connection)


def test_keys_of_nanoseconds_of_an_earlier_release_are_not_tiered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the lake they would be one row: the table stays in the log, where all of them are."""
    folder = tmp_path / "d"
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        with monkeypatch.context() as patch:
            # earlier releases did not look
            patch.setattr(lake_layout, "refuse_keys_finer_than_iceberg", lambda *_: None)
            create(engine, NANOSECONDS, properties=AT_ONCE, **OF_ID)
        other = table(engine, "log")
    with EmbeddedFluss(folder, port=0, options=BY_HAND) as engine:
        at(engine, other).write([1, 2], 1)
        times = pa.array([1_001, 1_002, 1_999], pa.timestamp("ns"))
        rows = pa.table([pa.array([1, 1, 1]), times, pa.array([1, 2, 3])], schema=NANOSECONDS)
        with engine.connection() as connection:
            fluss.write_fluss(rows, MADE, connection=connection)
            with (
                TieringService(connection) as service,
                pytest.raises(FlussError, match=r"fluss\.made: column 'at' .* one row in the lake"),
            ):
                service.run_due()
            assert sorted(fluss.read_fluss(MADE, connection=connection)["v"]) == [1, 2, 3]
            admin = connection.get_admin()
            with pytest.raises(FlussError):
                admin.get_latest_lake_snapshot(MADE)
            assert admin.get_latest_lake_snapshot(LOG).snapshot_id
        assert not list((folder / "lake" / "warehouse" / "fluss" / "made").rglob("*.parquet"))
        assert_reads(engine, other)


def test_maps_and_lists_of_rows_are_in_the_lake(engine: EmbeddedFluss) -> None:
    row = pa.struct([("x", pa.int32()), ("d", pa.decimal128(9, 2))])
    columns = pa.schema(
        [("id", pa.int64()), ("m", pa.map_(pa.string(), row)), ("l", pa.list_(row))]
    )
    create(engine, columns)
    lake = catalog(engine.folder).load_table(("fluss", "made"))
    assert "map<string, struct<" in str(lake.schema())
    assert "list<struct<" in str(lake.schema())
    ids = [field.field_id for field in lake.schema().fields]
    assert len(set(ids)) == len(ids)


def test_without_the_extra_the_way_out_is_said(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    with pytest.raises(FlussError, match=r"pip install 'fluss-df\[lake\]'"):
        create(engine, COLUMNS)


def test_a_folder_whose_name_is_no_text_has_no_lake(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff")
    with (
        EmbeddedFluss(odd, options=BY_HAND) as engine,
        pytest.raises(FlussError, match=r"bytes that are not UTF-8.*rename the folder"),
    ):
        create(engine, COLUMNS)


def test_a_table_of_somebody_else_in_the_catalog_stays(engine: EmbeddedFluss) -> None:
    create(engine, COLUMNS)  # which makes the catalog
    with engine.connection() as connection:
        connection.get_admin().drop_table(fluss.TablePath("fluss", "made"))
    with closing(catalog(engine.folder)) as theirs:
        theirs.create_namespace_if_not_exists("fluss")
        place = f"file://{engine.folder}/lake/warehouse/theirs"
        theirs.create_table(("fluss", "made"), COLUMNS, location=place)
        with pytest.raises(FlussError, match="embedded engine did not make it: drop or rename"):
            create(engine, COLUMNS)
        assert theirs.table_exists(("fluss", "made"))


@pytest.mark.parametrize("times", [1, 100])
def test_a_lake_table_that_others_change_meanwhile(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    lake_table = table(engine, "log")
    lake_table.write([1], 1)
    failed = [0]

    def commit(*arguments: Any) -> None:
        failed[0] += 1
        if failed[0] <= times:
            raise CommitFailedException("somebody was first")
        match_columns(*arguments)

    monkeypatch.setattr(folder_lake, "match_columns", commit)
    with engine.connection() as connection:
        admin = connection.get_admin()
        if times == 1:
            admin.alter_table(LOG, add_columns=MORE)
        else:
            with pytest.raises(FlussError, match=r"fluss\.log.*changed by others all the time"):
                admin.alter_table(LOG, add_columns=MORE)
        added = "word" in admin.get_table_info(LOG).get_schema().get_column_names()
    assert added == (times == 1)
    names = [f.name for f in catalog(engine.folder).load_table(("fluss", "log")).schema().fields]
    assert ("word" in names) == added
    assert_reads(engine, lake_table)


@pytest.mark.parametrize("lost", [False, True])
def test_a_table_is_dropped_whatever_its_lake_table_says(
    engine: EmbeddedFluss,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lost: bool,
) -> None:
    table(engine, "log").write([1], 1)

    def refuse(*_: object) -> None:
        raise ValueError("no such luck")

    if lost:
        (engine.folder / "lake" / CATALOG_FILE).unlink()
    else:
        monkeypatch.setattr(FolderLake, "_drop", refuse)
    with engine.connection() as connection:
        connection.get_admin().drop_table(LOG)
        assert not connection.get_admin().table_exists(LOG)
    assert ("could not be removed: no such luck" in caplog.text) == (not lost)


def test_a_table_that_fails_keeps_no_other_from_being_tiered(engine: EmbeddedFluss) -> None:
    tables = [table(engine, "log", name=name) for name in ("one", "two", "three")]
    for each in tables:
        each.write(list(range(5)), 0)
    catalog(engine.folder).drop_table(("fluss", "one"))
    with engine.connection() as connection, TieringService(connection) as service:
        with pytest.raises(FlussError):
            service.run_due()
        for name in ("two", "three"):
            found = connection.get_admin().get_latest_lake_snapshot(fluss.TablePath("fluss", name))
            assert found.snapshot_id

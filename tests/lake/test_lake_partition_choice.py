"""Partitions chosen by name, of rows of a lake whose partition columns are no texts."""

from __future__ import annotations

import datetime as dt
import struct
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.scans.union import _is_named, _named
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import Field, FieldType, LakeSchema
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.schema import Schema
from tests.lake_tables import create_lake_table

UTC = dt.UTC
CASES = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [5, -7]),
    (pa.int64(), [2**63 - 1, -(2**63)]),
    (pa.float64(), [1.5, float("nan"), float("inf"), -2.0]),
    (pa.binary(), [b"ab", b"\x00"]),
    (pa.date32(), [dt.date(2026, 11, 21), dt.date(1969, 1, 2)]),
    (pa.time32("ms"), [dt.time(1, 2, 3, 4000), dt.time(0)]),
    (pa.time64("us"), [dt.time(1, 2, 3, 4567), dt.time(23, 59, 59, 999999)]),
    (pa.timestamp("us"), [dt.datetime(2026, 11, 21, 12, 34, 56, 789012), dt.datetime(1969, 1, 1)]),
    (pa.timestamp("ms", "UTC"), [dt.datetime(2026, 11, 21, 12, tzinfo=UTC)]),
    (pa.string(), ["a", "a-b"]),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda item: str(item)[:20])
def test_a_name_chooses_its_rows(kind: pa.DataType, values: list[object]) -> None:
    array = pa.array(values, kind)
    (column,) = Schema(pa.schema([("p.x", kind)])).columns
    frame = pl.DataFrame(pa.table({"p.x": array})).with_row_index("row")
    names = partition_names([array], [column.type]).to_pylist()
    assert len(set(names)) == len(values)
    for row, name in enumerate(names):
        chosen = _is_named(exact("p.x"), column, name, frame.schema["p.x"])
        assert frame.filter(chosen)["row"].to_list() == [row]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda item: str(item)[:20])
def test_rows_say_the_names_of_their_partitions(kind: pa.DataType, values: list[object]) -> None:
    array = pa.array([*values, *reversed(values)], kind)
    (column,) = Schema(pa.schema([("p.x", kind)])).columns
    frame = pl.DataFrame(pa.table({"p.x": array}))
    names = partition_names([array], [column.type]).to_pylist()
    assert frame.select(_named(column, frame.schema["p.x"])).to_series().to_list() == names
    for engine in ("in-memory", "streaming"):
        name = _named(column, frame.schema["p.x"])
        found = frame.lazy().filter(name == names[0]).collect(engine=engine)
        assert found.height == 2


@pytest.mark.parametrize(("legacy", "folder"), [(None, "20778"), ("false", "2026-11-21")])
def test_folders_of_dates(tmp_path: Path, legacy: str | None, folder: str) -> None:
    (tmp_path / "fluss.db" / "t").mkdir(parents=True)
    path = fluss.TablePath("fluss", "t")
    table = TableFiles(LakeOptions(path, "paimon", {"warehouse": str(tmp_path)}))
    day = FieldType("DATE", 0, 0, pl.Date())
    options = {} if legacy is None else {"partition.legacy-name": legacy}
    schema = LakeSchema(0, (Field(0, "d", day),), ("d",), (), options)
    # one field: its count, the kind and the nulls, the days since 1970
    row = struct.pack(">i", 1) + bytes(8) + struct.pack("<q", 20778)
    partitions = Partitions(table, schema)
    assert partitions.texts(row) == {"d": "2026-11-21"}
    assert partitions.path(row, 0, "f.parquet") == f"d={folder}/bucket-0/f.parquet"


PARTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, True]),
    "i8": (pa.int8(), [5, -7, 0]),
    "i64": (pa.int64(), [2**63 - 1, -(2**63), 0]),
    "f": (pa.float64(), [1.5, float("nan"), -2.0]),
    "b": (pa.binary(), [b"ab", b"\x00", b"c"]),
    "d": (pa.date32(), [dt.date(2026, 11, 21), dt.date(1969, 1, 2), dt.date(1970, 1, 1)]),
    "t": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), dt.time(0), dt.time(23, 59)]),
    "ts": (
        pa.timestamp("us"),
        [dt.datetime(2026, 11, 21, 12, 34, 56, 789012), dt.datetime(1969, 1, 1)] * 2,
    ),
    "tz": (
        pa.timestamp("ms", "UTC"),
        [dt.datetime(2026, 11, n, 12, tzinfo=UTC) for n in (1, 2, 3)],
    ),
    "f4": (pa.float32(), [0.5, 1e20, -2.0]),
    "s": (pa.string(), ["a", "a-b", "c"]),
}


def test_partitions_of_every_type_are_chosen_on_a_real_lake(paimon_tiering: LocalCluster) -> None:
    # Fluss refuses those of an Iceberg lake that are no texts
    count = 3
    columns = {name: pa.array(values[:count], kind) for name, (kind, values) in PARTS.items()}
    rows = pa.table({"id": pa.array(range(count), pa.int64()), **columns})
    path = fluss.TablePath("fluss", "parts_of_every_type")
    with fluss.connect(paimon_tiering.bootstrap_servers) as connection:
        create_lake_table(
            paimon_tiering,
            connection,
            path,
            fluss.TableDescriptor(
                Schema(rows.schema),
                bucket_count=1,
                partition_keys=list(PARTS),
                properties={"table.datalake.enabled": "true", "table.datalake.freshness": "1s"},
            ),
        )
        fluss.write_fluss(rows, path, connection=connection, create_partitions=True)
        admin = connection.get_admin()
        deadline = time.monotonic() + 120
        while True:
            try:
                tiered = admin.get_latest_lake_snapshot(path).table_buckets_offset
                if sum(tiered.values()) == count:
                    break
            except FlussError:
                pass  # no snapshot yet
            assert time.monotonic() < deadline, "nothing was tiered in two minutes"
            time.sleep(0.2)
        for table in (str(path), f"{path}$lake"):
            whole = fluss.read_fluss(table, connection=connection).sort("id")
            assert whole.equals(pl.DataFrame(rows)), table
            for name, (_, values) in PARTS.items():
                for value in values[:count]:
                    same = [
                        i for i, other in enumerate(values[:count]) if repr(other) == repr(value)
                    ]
                    chosen = fluss.scan_fluss(
                        table, connection=connection, partitions={name: value}
                    ).collect()
                    assert sorted(chosen["id"]) == same, (table, name, value)
                    kept = fluss.scan_fluss(table, connection=connection).filter(
                        exact(name).eq(pl.lit(pl.DataFrame(rows)[name][same[0]]))
                        if value == value
                        else exact(name).is_nan()
                    )
                    assert sorted(kept.collect()["id"]) == same, (table, name, value)
            names = [p.partition_name for p in admin.list_partition_infos(path)]
            for number, partition in enumerate(names):
                one = fluss.scan_fluss(table, connection=connection, partitions=partition)
                assert one.collect().height == 1, (table, number, partition)

"""Frames over partitions: split, routed, created only when told to."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.errors import SchemaMismatchError
from tests.client.support import Official, Tables, close_failed

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("hour", pa.int32())])


def frame(rows: int, days: int = 3, hours: int = 1) -> pa.Table:
    ids = range(rows)
    columns = {
        "id": list(ids),
        "day": [f"d{i % days}" for i in ids],
        "hour": [i % hours for i in ids],
    }
    return pa.table(columns, schema=SCHEMA)


def by_partition(tables: Tables, table: fluss.FlussTable) -> dict[str, list[int]]:
    """Return partition name -> ids in it, read partition by partition."""
    result = {}
    for name, partition in tables.partitions(table).items():
        scanner = table.new_scan().create_record_batch_log_scanner()
        for bucket in range(table.get_table_info().num_buckets):
            scanner.subscribe_partition(partition, bucket, fluss.EARLIEST_OFFSET)
        result[name] = scanner.to_arrow().column("id").to_pylist()
    return result


def test_a_frame_spans_partitions(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    tables.write(table, frame(10), create_partitions=True)
    assert by_partition(tables, table) == {"d0": [0, 3, 6, 9], "d1": [1, 4, 7], "d2": [2, 5, 8]}
    # partition after partition, in the order of their names
    assert tables.read(table).column("day").to_pylist() == ["d0"] * 4 + ["d1"] * 3 + ["d2"] * 3


def test_rows_one_by_one(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    with table.new_append().create_writer(create_partitions=True) as writer:
        for row in frame(7).to_pylist():
            writer.append(row)
    assert by_partition(tables, table) == {"d0": [0, 3, 6], "d1": [1, 4], "d2": [2, 5]}


def test_several_keys(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["hour", "day"], bucket_count=2)
    data = frame(60, days=2, hours=3)
    tables.write(table, data, create_partitions=True)
    found = by_partition(tables, table)
    assert sorted(found) == ["0$d0", "0$d1", "1$d0", "1$d1", "2$d0", "2$d1"]
    for name, ids in found.items():
        hour, day = name.split("$")
        wanted = pc.and_(pc.equal(data["hour"], int(hour)), pc.equal(data["day"], day))
        assert sorted(ids) == data.filter(wanted).column("id").to_pylist()


def test_missing_partition_writes_nothing(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    path = table.get_table_path()
    tables.connection.get_admin().create_partition(path, {"day": "d0"})
    writer = table.new_append().create_writer()
    with pytest.raises(FlussError, match="has no partition 'd1', 'd2'") as raised:
        writer.write_arrow(frame(10)).wait()
    assert raised.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert str(path) in raised.value.message
    assert "create_partitions=True" in raised.value.message
    close_failed(writer, "has no partition")
    assert by_partition(tables, table) == {"d0": []}


def test_missing_partition_of_a_large_frame_is_told_at_once(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    writer = table.new_append().create_writer()
    with pytest.raises(FlussError, match="has no partition"):
        writer.write_arrow(frame(300_000))
    writer.close()
    assert tables.partitions(table) == {}


def test_missing_partition_of_a_row_fails_its_handle(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    tables.connection.get_admin().create_partition(table.get_table_path(), {"day": "d0"})
    writer = table.new_append().create_writer()
    writer.append((0, "d0", 0)).wait()
    handle = writer.append((1, "nix", 0))
    with pytest.raises(FlussError, match="has no partition 'nix'"):
        handle.wait()
    with pytest.raises(FlussError, match="has no partition 'nix'"):
        writer.flush()
    writer.append((2, "d0", 0)).wait()
    writer.close()
    assert by_partition(tables, table) == {"d0": [0, 2]}


def test_partition_created_meanwhile_is_found(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    writer = table.new_append().create_writer()
    with pytest.raises(FlussError):
        writer.append((0, "d0", 0)).wait()
    tables.connection.get_admin().create_partition(table.get_table_path(), {"day": "d0"})
    writer.append((1, "d0", 0)).wait()
    close_failed(writer)  # the row that had no partition
    assert by_partition(tables, table) == {"d0": [1]}


def test_null_partition_is_refused(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    writer = table.new_append().create_writer(create_partitions=True)
    data = pa.table({"id": [1, 2], "day": ["d0", None], "hour": [0, 0]}, schema=SCHEMA)
    with pytest.raises(FlussError, match="day"):
        writer.write_arrow(data).wait()
    close_failed(writer, "day")
    assert tables.partitions(table) == {}


def test_a_name_that_is_not_allowed(tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"])
    writer = table.new_append().create_writer(create_partitions=True)
    with pytest.raises(FlussError, match="a/b") as raised:
        writer.append((1, "a/b", 0)).wait()
    assert raised.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    close_failed(writer)
    assert tables.partitions(table) == {}


KEYS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "string": (pa.string(), ["eu-west_1", "A"], ["eu-west_1", "A"]),
    "boolean": (pa.bool_(), [True, False], ["true", "false"]),
    "tinyint": (pa.int8(), [-5, 7], ["-5", "7"]),
    "smallint": (pa.int16(), [-32768, 0], ["-32768", "0"]),
    "int": (pa.int32(), [299_000], ["299000"]),
    "bigint": (pa.int64(), [-(2**63)], ["-9223372036854775808"]),
    "bytes": (pa.binary(), [b"\x10\xff"], ["10ff"]),
    "binary": (pa.binary(2), [b"\x00\x01"], ["0001"]),
    "date": (pa.date32(), [dt.date(2025, 5, 27)], ["2025-05-27"]),
    "time": (pa.time32("ms"), [dt.time(1, 30, 2, 199000)], ["01-30-02_199"]),
    "timestamp": (
        pa.timestamp("us"),
        [dt.datetime(2025, 5, 31, 3, 42, 35, 428099)],
        ["2025-05-31-03-42-35_428099"],
    ),
    "timestamp_ltz": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2025, 5, 31, 3, 42, 35, tzinfo=dt.UTC)],
        ["2025-05-31-03-42-35_"],
    ),
    "float": (pa.float32(), [5.73], ["5_73"]),
    "double": (pa.float64(), [-0.5], ["-0_5"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_key_types(tables: Tables, official_client: Official, kind: str) -> None:
    """Rows go where the server, and the official client, look for them."""
    arrow_type, values, names = KEYS[kind]
    schema = pa.schema([("id", pa.int64()), ("key", arrow_type)])
    table = tables(schema, partition_keys=["key"])
    data = pa.table({"id": range(len(values)), "key": values}, schema=schema)
    tables.write(table, data, create_partitions=True)
    found = tables.partitions(table)
    assert sorted(found) == sorted(names)
    assert by_partition(tables, table) == {name: [i] for i, name in enumerate(names)}
    for i, name in enumerate(names):
        got = official_client.read_partition(table, found[name])
        assert got.column("id").to_pylist() == [i]
    if kind == "timestamp":
        return  # the official client looks for another name than servers do, for ever
    # it derives the partition of a row itself
    for i in range(len(values)):
        official_client.write(table, data.slice(i, 1))
    assert by_partition(tables, table) == {name: [i, i] for i, name in enumerate(names)}


def test_partition_dropped_while_writing(tables: Tables) -> None:
    """A writer that does not create partitions says so; one that does creates it again."""
    table = tables(SCHEMA, partition_keys=["day"])
    admin, path = tables.connection.get_admin(), table.get_table_path()
    admin.create_partition(path, {"day": "d0"})
    writer = table.new_append().create_writer()
    writer.append((1, "d0", 0)).wait()
    admin.drop_partition(path, {"day": "d0"})
    began = time.monotonic()
    with pytest.raises(FlussError, match="d0") as raised:  # noqa: PT012
        while time.monotonic() < began + 90:  # the server goes on for a moment
            writer.append((2, "d0", 0)).wait()
            time.sleep(0.02)
    assert raised.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    close_failed(writer, "d0")
    with table.new_append().create_writer(create_partitions=True) as creating:
        creating.append((3, "d0", 0)).wait()
    assert by_partition(tables, table) == {"d0": [3]}


def test_a_row_is_named_by_its_place_in_the_frame(tables: Tables) -> None:
    """Rows that wait for more are named by the frame that they came in."""
    table = tables(SCHEMA, partition_keys=["day"])
    days = ["d0"] * 150 + ["x y"] * 10
    data = pa.table({"id": range(160), "day": days, "hour": [0] * 160}, schema=SCHEMA)
    polars = pl.from_arrow(data)
    assert isinstance(polars, pl.DataFrame)
    path, connection = table.get_table_path(), tables.connection
    writes: list[Callable[[], object]] = [
        lambda: fluss.write_fluss(polars, path, connection=connection, create_partitions=True),
        lambda: fluss.sink_fluss(
            polars.lazy(), path, connection=connection, create_partitions=True
        ),
    ]
    for write in writes:
        with pytest.raises(SchemaMismatchError, match="row 150: 'x y'") as raised:
            write()
        assert "rows count from" not in raised.value.message


def test_more_partitions_than_servers_allow(tables: Tables) -> None:
    """None is created where not all can be; the limit and the way out are named."""
    table = tables(SCHEMA, partition_keys=["day"])
    for name in ("d0", "there"):
        tables.connection.get_admin().create_partition(table.get_table_path(), {"day": name})
    writer = table.new_append().create_writer(create_partitions=True)
    writer.write_arrow(frame(1001, days=1001))
    with pytest.raises(FlussError, match=r"has 2 partitions.* 1000 more.*allow 1000") as raised:
        writer.flush()
    assert raised.value.error_code == ErrorCode.PARTITION_MAX_NUM_EXCEPTION
    assert sorted(tables.partitions(table)) == ["d0", "there"]
    assert tables.read(table).num_rows == 0
    writer.close()

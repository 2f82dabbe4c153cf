"""Log tables whose batches are rows: the log formats ``indexed`` and ``compacted``."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import SchemaMismatchError
from tests.client.support import Tables
from tests.client.test_types import everything

FORMATS = ["INDEXED", "COMPACTED"]


# values that rows cannot hold: digits of a time behind milliseconds, a zero byte at the end
BEYOND = ("time(6)", "time(9)", "binary")


def rows_of_every_type() -> pa.Table:
    table = everything()
    return table.select([n for n in table.schema.names if n not in BEYOND])


@pytest.fixture(scope="module", params=FORMATS)
def table(request: pytest.FixtureRequest, tables: Tables) -> fluss.FlussTable:
    data = rows_of_every_type()
    made = tables(data.schema, log_format=request.param)
    tables.write(made, data)
    tables.write(made, data.slice(3, 5))
    return made


def expected() -> pa.Table:
    data = rows_of_every_type()
    return pa.concat_tables([data, data.slice(3, 5)])


def test_every_type_comes_back(tables: Tables, table: fluss.FlussTable) -> None:
    got = tables.read(table)
    for name in expected().schema.names:
        assert got.column(name).equals(expected().column(name)), name
    got.validate(full=True)


def test_columns_are_chosen_here(tables: Tables, table: fluss.FlussTable) -> None:
    names = ["string", "row", "boolean"]
    assert tables.read(table, names).equals(expected().select(names))


def test_batches_and_records(table: fluss.FlussTable) -> None:
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe(0, 14)
    records = list(scanner.poll(10_000))
    assert [r.offset for r in records] == [14, 15, 16]
    assert {r.change_type for r in records} == {fluss.ChangeType.AppendOnly}
    assert [r.row["row"] for r in records] == expected().column("row").to_pylist()[14:]


def test_rows_one_by_one_and_metadata(tables: Tables) -> None:
    made = tables(pa.schema({"id": pa.int64(), "text": pa.string()}), log_format="INDEXED")
    with made.new_append().create_writer() as writer:
        for i in range(5_000):
            writer.append({"id": i, "text": None if i % 3 else f"nr {i}"})
    path = made.get_table_path()
    frame = fluss.scan_fluss(path, connection=tables.connection, include_metadata=True).collect()
    assert frame["id"].to_list() == list(range(5_000))
    assert frame["_log_offset"].to_list() == list(range(5_000))
    assert frame["text"].null_count() == 3_333
    some = fluss.scan_fluss(path, connection=tables.connection, start={0: 1234}, stop={0: 1240})
    assert some.collect()["id"].to_list() == list(range(1234, 1240))


def test_a_changelog_that_the_server_wrote_as_rows(tables: Tables) -> None:
    # The one log of rows at hand that is not by our own encoder: the official client has none, and
    # servers of 0.9.1 fail on primary-key tables with an indexed log ("requires ... IndexedRow").
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    made = tables(schema, ["id"], log_format="COMPACTED", kv_format="COMPACTED")
    with made.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "text": "a"})
        writer.upsert({"id": 2, "text": None})
        writer.flush()
        writer.upsert({"id": 1, "text": "ü"})
        writer.delete({"id": 2})
    scanner = made.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    got = scanner.to_arrow()
    assert got.select(["id", "text"]).to_pylist() == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": None},
        {"id": 1, "text": "a"},
        {"id": 1, "text": "ü"},
        {"id": 2, "text": None},
    ]
    assert got.column("_change_type").to_pylist() == ["+I", "+I", "-U", "+U", "-D"]
    records = made.new_scan().create_log_scanner()
    records.subscribe(0, fluss.EARLIEST_OFFSET)
    kinds = [r.change_type.short_string() for r in records.poll(10_000)]
    assert kinds == ["+I", "+I", "-U", "+U", "-D"]


def test_compression_is_ignored(tables: Tables) -> None:
    data = pa.table({"id": range(1000)})
    level = {"table.log.arrow.compression.type": "ZSTD"}
    made = tables(data.schema, log_format="INDEXED", properties=level)
    tables.write(made, data)
    assert tables.read(made).equals(data)


def test_times_that_rows_cannot_hold(tables: Tables) -> None:
    data = pa.table({"t": pa.array([1], pa.time64("us"))})
    made = tables(data.schema, log_format="INDEXED")
    writer = made.new_append().create_writer()
    with pytest.raises(SchemaMismatchError, match=r"'t'.*whole milliseconds"):
        writer.write_arrow(data)
    with pytest.raises(SchemaMismatchError, match=r"'t'.*whole milliseconds"):
        writer.append(data.to_pylist()[0])
    # neither is a row that waits for a flush
    writer.close()
    assert tables.read(made).num_rows == 0


def test_added_columns(tables: Tables) -> None:
    made = tables(pa.schema({"id": pa.int32()}), log_format="INDEXED")
    tables.write(made, pa.table({"id": pa.array([1, 2], pa.int32())}))
    path = made.get_table_path()
    admin = tables.connection.get_admin()
    admin.alter_table(path, add_columns=pa.schema({"more": pa.string()}))
    newer = tables.connection.get_table(path)
    tables.write(newer, pa.table({"id": pa.array([3], pa.int32()), "more": ["x"]}))
    assert tables.read(newer).to_pylist() == [
        {"id": 1, "more": None},
        {"id": 2, "more": None},
        {"id": 3, "more": "x"},
    ]

"""Tables that get columns while they are read and written."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss_df as fluss
from tests.client.support import Tables

OLD = pa.schema([("n", pa.int64()), ("text", pa.string())])
NEW = pa.schema([*OLD, ("extra", pa.int32()), ("more", pa.list_(pa.string()))])


def add_columns(tables: Tables, table: fluss.FlussTable, columns: pa.Schema) -> None:
    tables.connection.get_admin().alter_table(table.get_table_path(), add_columns=columns)


def old(start: int, rows: int = 3) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"n": numbers, "text": [str(i) for i in numbers]}, schema=OLD)


def new(start: int, rows: int = 3) -> pa.Table:
    table = old(start, rows)
    more = {"extra": [i * 10 for i in range(rows)], "more": [["a"], None, []][:rows]}
    return pa.table({**table.to_pydict(), **more}, schema=NEW)


def with_nulls(table: pa.Table) -> pa.Table:
    for field in list(NEW)[len(table.schema) :]:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


@pytest.fixture
def evolved(tables: Tables) -> fluss.FlussTable:
    """A table opened again after it had rows and then got columns."""
    table = tables(OLD)
    tables.write(table, old(0))
    add_columns(tables, table, pa.schema(list(NEW)[2:]))
    again = tables.connection.get_table(table.get_table_path())
    assert again.get_table_info().schema.arrow_schema == NEW
    assert again.get_table_info().schema_id == table.get_table_info().schema_id + 1
    return again


def test_old_batches_have_nulls(tables: Tables, evolved: fluss.FlussTable) -> None:
    tables.write(evolved, new(3))
    expected = pa.concat_tables([with_nulls(old(0)), new(3)])
    assert tables.read(evolved).equals(expected)


@pytest.mark.parametrize("names", [["extra"], ["more", "n"], ["n"], ["text", "extra"]])
def test_projections_over_both_schemas(
    tables: Tables, evolved: fluss.FlussTable, names: list[str]
) -> None:
    """Servers refuse to project a column that a batch is older than."""
    tables.write(evolved, new(3))
    expected = pa.concat_tables([with_nulls(old(0)), new(3)]).select(names)
    assert tables.read(evolved, names).equals(expected)
    scan = evolved.new_scan().project_by_name(names)
    scanner = tables.subscribe_all(scan.create_record_batch_log_scanner(), evolved)
    assert scanner.poll_arrow(2000).equals(expected)
    reader = tables.scanner(evolved, names).to_arrow_batch_reader()
    assert reader.read_all().equals(expected)


def test_records_of_both_schemas(tables: Tables, evolved: fluss.FlussTable) -> None:
    tables.write(evolved, new(3))
    scanner = evolved.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    rows = [record.row for record in scanner.poll(2000)]
    assert rows == pa.concat_tables([with_nulls(old(0)), new(3)]).to_pylist()


def test_old_writers_and_old_readers_go_on(tables: Tables) -> None:
    """Whoever opened the table before sees and writes the columns that it had then."""
    table = tables(OLD)
    reader = tables.scanner(table)
    with table.new_append().create_writer() as writer:
        writer.write_arrow(old(0)).wait()
        assert reader.poll_arrow(2000).equals(old(0))
        add_columns(tables, table, pa.schema(list(NEW)[2:]))
        writer.write_arrow(old(3)).wait()
        again = tables.connection.get_table(table.get_table_path())
        tables.write(again, new(6))
        writer.append((9, "9")).wait()
    seen = reader.to_arrow()
    assert seen.equals(pa.concat_tables([old(3), old(6), old(9, 1)]))
    expected = pa.concat_tables([with_nulls(old(0, 6)), new(6), with_nulls(old(9, 1))])
    assert tables.read(again).equals(expected)


def test_reader_that_polls_while_columns_come(tables: Tables) -> None:
    table = tables(OLD)
    tables.write(table, old(0))
    scan = table.new_scan().project_by_name(["text"])
    scanner = tables.subscribe_all(scan.create_record_batch_log_scanner(), table)
    assert scanner.poll_arrow(2000).equals(old(0).select(["text"]))
    for round_ in range(2):
        add_columns(tables, table, pa.schema([list(NEW)[2 + round_]]))
        again = tables.connection.get_table(table.get_table_path())
        names = again.get_table_info().get_column_names()
        tables.write(again, new(3).select(names))
        assert scanner.poll_arrow(2000).equals(new(3).select(["text"]))


def test_a_column_of_the_new_schema_is_unknown_to_the_old(tables: Tables) -> None:
    table = tables(OLD)
    add_columns(tables, table, pa.schema(list(NEW)[2:]))
    with pytest.raises(fluss.FlussError, match="'extra' does not exist"):
        table.new_scan().project_by_name(["extra"])
    with (
        table.new_append().create_writer() as writer,
        pytest.raises(fluss.FlussError, match="extra"),
    ):
        writer.write_arrow(new(0))

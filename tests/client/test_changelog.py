"""The changelog of primary-key tables: change types, offsets, projection, updates in one piece."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import fluss_df as fluss
from tests.client.kv_support import SCHEMA, Rows, changelog, random_changes
from tests.client.support import Tables


@pytest.fixture(scope="module")
def changed(tables: Tables) -> fluss.FlussTable:
    table = tables(SCHEMA, ["id"])
    model: Rows = {}
    with table.new_upsert() as writer:
        random_changes(writer, model, random.Random(3), ids=30, calls=150)
    return table


def test_columns_of_a_changelog(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"])
    with table.new_upsert() as writer:
        writer.upsert([1, "a", 1.0])
        writer.upsert([1, "b", 1.0])
        writer.delete([1])
        writer.flush()
        writer.delete([1])  # changes nothing, and takes an offset
        writer.flush()
        writer.upsert([2, "c", None])
    log = changelog(tables, table, ["name", "id"])
    assert log.schema.names == ["name", "id", "_change_type", "_log_offset", "_commit_timestamp"]
    assert log.column("_change_type").to_pylist() == ["+I", "-U", "+U", "-D", "+I"]
    assert log.column("name").to_pylist() == ["a", "a", "b", "b", "c"]
    assert log.column("_log_offset").to_pylist() == [0, 1, 2, 3, 5]
    assert log.column("_commit_timestamp").type == pa.timestamp("ms", "UTC")


def test_a_changelog_of_changes_that_change_nothing(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"])
    with table.new_upsert() as writer:
        writer.delete([1])
    log = changelog(tables, table)
    assert log.num_rows == 0
    assert log.schema.equals(tables.scanner(table).schema)


def test_polls_of_every_kind_agree(tables: Tables, changed: fluss.FlussTable) -> None:
    expected = changelog(tables, changed)
    scan = changed.new_scan()
    with tables.subscribe_all(scan.create_record_batch_log_scanner(), changed) as scanner:
        tables_read = [scanner.poll_arrow(2000)]
        while sum(t.num_rows for t in tables_read) < expected.num_rows:
            tables_read.append(scanner.poll_arrow(2000))
    assert pa.concat_tables(tables_read).combine_chunks().equals(expected.combine_chunks())
    with tables.subscribe_all(scan.create_record_batch_log_scanner(), changed) as scanner:
        batches = scanner.poll_record_batch(2000)
        assert batches[0].batch.schema == expected.schema
        assert batches[0].batch.column("_log_offset")[0].as_py() == batches[0].base_offset
    with tables.subscribe_all(scan.create_record_batch_log_scanner(), changed) as scanner:
        streamed = scanner.to_arrow_batch_reader().read_all()
    assert streamed.combine_chunks().equals(expected.combine_chunks())


def test_updates_are_not_torn_apart(
    address: str, tables: Tables, changed: fluss.FlussTable
) -> None:
    expected = changelog(tables, changed)
    config = fluss.Config({"bootstrap.servers": address}).copy(scanner_log_max_poll_records=3)
    seen: list[tuple[str, int]] = []
    sizes = set()
    with fluss.connect(config) as connection:
        opened = connection.get_table(changed.get_table_path())
        with tables.subscribe_all(opened.new_scan().create_log_scanner(), opened) as scanner:
            while len(seen) < expected.num_rows:
                records = list(scanner.poll(2000))
                sizes.add(len(records))
                assert records[-1].change_type != fluss.ChangeType.UpdateBefore
                seen += [(r.change_type.short_string(), r.offset) for r in records]
    assert {3, 4} <= sizes <= {1, 2, 3, 4}
    pairs = zip(
        expected.column("_change_type").to_pylist(),
        expected.column("_log_offset").to_pylist(),
        strict=True,
    )
    assert seen == list(pairs)


def test_a_changelog_from_an_offset(tables: Tables, changed: fluss.FlussTable) -> None:
    expected = changelog(tables, changed)
    start = expected.column("_log_offset")[expected.num_rows // 2].as_py()
    with changed.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, start)
        rest = scanner.to_arrow()
    assert rest.combine_chunks().equals(expected.slice(expected.num_rows // 2).combine_chunks())


def test_wal_image(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"], properties={"table.changelog.image": "WAL"})
    with table.new_upsert() as writer:
        for name in "ab":
            writer.upsert([1, name, None])
            writer.flush()
        writer.delete([1])
        writer.flush()
        writer.upsert([2, "c", None])
    kinds = changelog(tables, table).column("_change_type").to_pylist()
    assert "-U" not in kinds
    assert kinds[2] == "-D"
    rows = table.new_scan().create_snapshot_scanner().to_arrow().to_pylist()
    assert rows == [{"id": 2, "name": "c", "score": None}]


def test_a_log_table_has_no_change_types(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, pa.table([[1], ["a"], [None]], schema=SCHEMA))
    assert tables.read(table).schema.names == SCHEMA.names

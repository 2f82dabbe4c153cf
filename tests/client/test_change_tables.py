"""``$changelog`` and ``$binlog``: tables of the changes of a table."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import FlussError
from tests.client.kv_support import SCHEMA, Rows, changelog, random_changes
from tests.client.support import Tables

METADATA = ["_change_type", "_log_offset", "_commit_timestamp"]
LONG = {"+I": "insert", "-U": "update_before", "+U": "update_after", "-D": "delete"}


def virtual(table: fluss.FlussTable, kind: str) -> fluss.FlussTable:
    connection = table._connection
    assert isinstance(connection, fluss.FlussConnection)
    return connection.get_table(f"{table.get_table_path()}{kind}")


@pytest.fixture(scope="module")
def changed(tables: Tables) -> fluss.FlussTable:
    table = tables(SCHEMA, ["id"], bucket_count=2)
    model: Rows = {}
    with table.new_upsert() as writer:
        random_changes(writer, model, random.Random(4), ids=30, calls=150)
    return table


def test_a_log_table_has_inserts(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, pa.table([[1, 2], ["a", "b"], [None, 0.5]], schema=SCHEMA))
    opened = virtual(table, "$changelog")
    found = tables.read(opened)
    assert found.schema.names == [*METADATA, *SCHEMA.names] == opened.arrow_schema.names
    assert found.column("_change_type").to_pylist() == ["insert", "insert"]
    assert found.column("_log_offset").to_pylist() == [0, 1]
    assert found.column("name").to_pylist() == ["a", "b"]
    with pytest.raises(FlussError, match=r"no \$binlog"):
        virtual(table, "$binlog")
    with pytest.raises(FlussError, match="is read by scan_fluss"):
        virtual(table, "$lake")
    with pytest.raises(FlussError, match=f"append to table {table.get_table_path()}"):
        opened.new_append()


def test_changelog(tables: Tables, changed: fluss.FlussTable) -> None:
    opened = virtual(changed, "$changelog")
    found = tables.read(opened)
    found.validate(full=True)
    expected = changelog(tables, changed)
    for name in [*SCHEMA.names, *METADATA[1:]]:
        assert found.column(name).equals(expected.column(name)), name
    kinds = expected.column("_change_type").to_pylist()
    assert found.column("_change_type").to_pylist() == [LONG[kind] for kind in kinds]
    some = tables.read(opened, ["name", "_change_type"])
    assert some.combine_chunks().equals(found.select(["name", "_change_type"]).combine_chunks())


def test_binlog(tables: Tables, changed: fluss.FlussTable) -> None:
    opened = virtual(changed, "$binlog")
    found = tables.read(opened)
    found.validate(full=True)
    expected = []
    pending = None
    for change in changelog(tables, changed).to_pylist():
        kind, offset, time = (change.pop(name) for name in METADATA)
        if kind == "-U":
            pending = (offset, time, change)
        elif kind == "+U":
            assert pending is not None
            expected.append(("update", *pending, change))
        elif kind == "+I":
            expected.append(("insert", offset, time, None, change))
        else:
            expected.append(("delete", offset, time, change, None))
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    assert {"insert", "update", "delete"} == set(found.column("_change_type").to_pylist())
    some = tables.read(opened, ["after", "_log_offset"])
    assert some.combine_chunks().equals(found.select(["after", "_log_offset"]).combine_chunks())


@pytest.mark.parametrize("kind", ["$changelog", "$binlog"])
def test_every_way_to_read_agrees(tables: Tables, changed: fluss.FlussTable, kind: str) -> None:
    opened = virtual(changed, kind)
    expected = tables.read(opened).combine_chunks()
    assert tables.scanner(opened).schema.equals(expected.schema)
    streamed = tables.scanner(opened).to_arrow_batch_reader().read_all()
    assert streamed.combine_chunks().equals(expected)
    with tables.scanner(opened) as scanner:
        polled = [scanner.poll_arrow(2000)]
        while sum(part.num_rows for part in polled) < expected.num_rows:
            polled.append(scanner.poll_arrow(2000))
        with pytest.raises(FlussError, match="use poll_arrow"):
            scanner.poll_record_batch(0)
    keys = [("_log_offset", "ascending"), ("_commit_timestamp", "ascending")]
    whole = pa.concat_tables(polled).sort_by(keys)
    assert sorted(map(str, whole.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_what_virtual_tables_cannot_do(tables: Tables, changed: fluss.FlussTable) -> None:
    opened = virtual(changed, "$binlog")
    assert not opened.arrow_schema.field("_change_type").nullable
    for refused in (
        opened.new_upsert,
        opened.new_lookup,
        opened.new_scan().create_log_scanner,
        opened.new_scan().create_snapshot_scanner,
        opened.new_scan().filter(fluss.col("id") > 3).create_record_batch_log_scanner,
    ):
        with pytest.raises(FlussError, match=r"\$binlog (is a virtual|cannot be filtered)"):
            refused()
    with pytest.raises(FlussError, match="nothing"):
        opened.new_scan().project_by_name(["nothing"])
    table = tables(SCHEMA, ["id"], properties={"table.changelog.image": "WAL"})
    with table.new_upsert() as writer:
        writer.upsert([1, "a", None])
        writer.flush()
        writer.upsert([1, "b", None])
    with pytest.raises(FlussError, match=r"'table.changelog.image' is WAL has no \$binlog"):
        tables.read(virtual(table, "$binlog"))

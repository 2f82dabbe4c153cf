"""A frame of several requests whose last row does not fit is not written in part."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.io.sinks import writing
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, DataType, TypeRoot
from tests.io.conftest import MakeTable

ROWS = 1000
CREATE = {"create_partitions": True}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_SLICE_BYTES", 1000)


@pytest.mark.parametrize(
    ("column", "good", "bad", "options"),
    [
        ("p", "a", "a/b", {"partition_keys": ["p"], **CREATE}),
        ("p", "a", "a/b", {"partition_keys": "p", "primary_keys": ["id", "p"], **CREATE}),
        ("op", "+I", "??", {"primary_keys": ["id"], "change_type_column": "op"}),
        ("op", "+I", None, {"primary_keys": ["id"], "change_type_column": "op"}),
        ("k", "a", None, {"bucket_keys": ["k"], "bucket_count": 2}),
        ("t", dt.time(1), dt.time(1, 1, 1, 1), {"primary_keys": ["id"]}),
        ("t", dt.time(1), dt.time(1, 1, 1, 1), {"properties": {"table.log.format": "indexed"}}),
    ],
)  # fmt: skip
def test_the_last_row_does_not_fit(
    make_table: MakeTable,
    connection: FlussConnection,
    request: pytest.FixtureRequest,
    column: str,
    good: Any,
    bad: Any,
    options: dict[str, Any],
) -> None:
    path = TablePath("io", f"whole_{abs(hash(request.node.nodeid)) % 10**9}")
    connection.get_admin().drop_table(path, ignore_if_not_exists=True)
    frame = pl.DataFrame({"id": range(ROWS)}).with_columns(pl.lit(good).alias(column))
    last = pl.DataFrame({"id": [ROWS], column: [bad]}, schema=frame.schema)
    where: dict[str, Any] = {"connection": connection, "create_if_not_exists": True, **options}
    with pytest.raises(SchemaMismatchError):
        write_fluss(pl.concat([frame, last]), path, **where)
    with pytest.raises(FlussError, match="does not exist"):
        scan_fluss(path, connection=connection)
    assert write_fluss(frame, path, **where).rows == ROWS
    with pytest.raises(SchemaMismatchError):
        write_fluss(pl.concat([frame, last]), path, **{**where, "create_if_not_exists": False})
    assert scan_fluss(path, connection=connection).collect().height == ROWS


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "keys"])
@pytest.mark.parametrize(
    ("column", "bad", "why"),
    [("c", "\U0001f600a", "more than 3 bytes"), ("b", b"a\0", "ends with a zero byte")],
)
def test_what_indexed_rows_cannot_hold_is_told_before_a_row_is_sent(
    make_table: MakeTable,
    connection: FlussConnection,
    column: str,
    bad: Any,
    why: str,
    keys: list[str] | None,
) -> None:
    columns = [
        Column("id", DataType(TypeRoot.INTEGER, nullable=not keys)),
        Column("c", DataType(TypeRoot.CHAR, length=3)),
        Column("b", DataType(TypeRoot.BINARY, length=2)),
    ]
    kind = "table.kv.format" if keys else "table.log.format"
    path = TablePath("io", f"indexed_{column}_{'keys' if keys else 'log'}")
    admin = connection.get_admin()
    admin.create_database("io", ignore_if_exists=True)
    admin.drop_table(path, ignore_if_not_exists=True)
    schema = Schema.from_columns(columns, keys or [])
    admin.create_table(path, TableDescriptor(schema, bucket_count=1, properties={kind: "indexed"}))
    frame = pl.DataFrame(
        {"id": range(ROWS), "c": "abc", "b": b"ab"},
        schema={"id": pl.Int32, "c": pl.String, "b": pl.Binary},
    )
    last = frame.tail(1).with_columns(pl.lit(bad).alias(column))
    with pytest.raises(SchemaMismatchError, match=why) as caught:
        write_fluss(pl.concat([frame, last]), path, connection=connection)
    assert f"row {ROWS}" in str(caught.value)
    assert scan_fluss(path, connection=connection).collect().height == 0
    assert write_fluss(frame, path, connection=connection).rows == ROWS

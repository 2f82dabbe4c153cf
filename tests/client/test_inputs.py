"""Whatever holds rows can be written, results go where Arrow goes, what does not fit is named."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import duckdb
import narwhals as nw
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import FlussError
from fluss_df.errors import SchemaMismatchError
from tests.client.support import Tables

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(6, 2)),
        ("at", pa.timestamp("us")),
    ]
)
DATA = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["a", None, "ü"],
        "price": [Decimal("1.50"), Decimal("-9.99"), None],
        "at": [dt.datetime(1969, 7, 20), None, dt.datetime(2026, 11, 21, 1, 2, 3, 4)],
    },
    schema=SCHEMA,
)


# results are nullable throughout: batches of other schemas may lack a column
EXPECTED = DATA.cast(pa.schema([field.with_nullable(True) for field in SCHEMA]))


class Stream:
    """Exports a stream and is nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Array:
    """Exports one batch and is nothing else."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


FORMS: dict[str, Any] = {
    "arrow table": lambda: DATA,
    "arrow batch": lambda: DATA.to_batches()[0],
    "chunks": lambda: pa.concat_tables([DATA.slice(0, 1), DATA.slice(1, 2)]),
    "reader": lambda: DATA.to_reader(max_chunksize=2),
    "polars": lambda: pl.from_arrow(DATA),
    "stream": lambda: Stream(DATA),
    "array": lambda: Array(DATA.to_batches()[0]),
    "duckdb": lambda: duckdb.from_arrow(DATA),
    "narwhals": lambda: nw.from_native(DATA),
    "other order": lambda: DATA.select(["at", "price", "name", "id"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_frames(tables: Tables, form: str) -> None:
    table = tables(SCHEMA)
    tables.write(table, FORMS[form]())
    assert tables.read(table).equals(EXPECTED)


def test_batches(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.write_arrow_batch(DATA.to_batches()[0]).wait()
        writer.write_arrow_batch(Array(DATA.to_batches()[0]))
    assert tables.read(table).equals(pa.concat_tables([EXPECTED, EXPECTED]))


def test_pandas(tables: Tables) -> None:
    table = tables(SCHEMA)
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "name": ["a", None, "ü"],
            "price": [Decimal("1.50"), Decimal("-9.99"), None],
            "at": DATA["at"].to_pandas().to_numpy(),
        },
        index=[7, 8, 9],
    )
    with table.new_append().create_writer() as writer:
        writer.write_pandas(frame)
        writer.write_pandas(frame[["at", "id", "price", "name"]])
    assert tables.read(table).equals(pa.concat_tables([EXPECTED, EXPECTED]))


@pytest.mark.parametrize("kind", [dict, OrderedDict, list, tuple])
def test_rows(tables: Tables, kind: Any) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        for row in DATA.to_pylist():
            writer.append(kind(row) if issubclass(kind, dict) else kind(row.values()))
    assert tables.read(table).equals(EXPECTED)


def test_columns_that_a_row_leaves_out_are_null(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.append({"id": 1})
        writer.append({"name": "a", "id": 2})
        # frames are tables of their own: what they lack is more often a mistake
        with pytest.raises(SchemaMismatchError, match=r"'name' .* is missing in the data"):
            writer.write_arrow(DATA.select(["id"]))
    assert tables.read(table).to_pylist() == [
        {"id": 1, "name": None, "price": None, "at": None},
        {"id": 2, "name": "a", "price": None, "at": None},
    ]


# ---- out


def test_results_go_where_arrow_goes(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, DATA)
    result = tables.read(table)
    expected = pl.DataFrame(DATA)
    assert pl.DataFrame(result).equals(expected)
    with duckdb.connect() as duck:
        assert duck.execute("select sum(id) from result").fetchall() == [(6,)]
    assert nw.from_native(result).select("name").to_native().equals(DATA.select(["name"]))
    reader = tables.scanner(table).to_arrow_batch_reader()
    assert pl.DataFrame(reader).equals(expected)
    reader = tables.scanner(table).to_arrow_batch_reader()
    with duckdb.connect() as duck:
        assert duck.execute("select count(*) from reader").fetchall() == [(3,)]
    frame = tables.scanner(table).to_pandas()
    assert frame["id"].tolist() == [1, 2, 3]
    assert frame["at"].iloc[2] == pd.Timestamp("2026-11-21 01:02:03.000004")


# ---- what does not fit

BAD_ROWS: dict[str, tuple[Any, list[str]]] = {
    "wrong type": ({"id": "x"}, ["'id'", "'x'"]),
    "too large": ({"id": 2**31}, ["'id'", "2147483648"]),
    "fraction": ({"id": 1.5}, ["'id'", "1.5"]),
    "boolean": ({"id": True}, ["'id'", "True"]),
    "null": ({"id": None}, ["'id'", "NOT NULL"]),
    "missing": ({"name": "a"}, ["'id'", "NOT NULL"]),
    "number for text": ({"id": 1, "name": 5}, ["'name'", "5"]),
    "bytes for text": ({"id": 1, "name": b"a"}, ["'name'", "b'a'"]),
    "lone surrogate": ({"id": 1, "name": "\ud800"}, ["'name'"]),
    "decimal too wide": ({"id": 1, "price": Decimal("12345.67")}, ["'price'", "12345.67"]),
    "decimal too fine": ({"id": 1, "price": Decimal("1.234")}, ["'price'", "1.234"]),
    "float for decimal": ({"id": 1, "price": 1.234}, ["'price'", "1.234"]),
    "text for time": ({"id": 1, "at": "yesterday"}, ["'at'", "yesterday"]),
    "unknown column": ({"id": 1, "nmae": "a"}, ["'nmae'", "id, name, price, at"]),
    "too short": ((1, "a"), ["2", "4"]),
    "too long": ((1, "a", None, None, 5), ["5", "4"]),
    "no row": (5, ["int"]),
    "text": ("abcd", ["str"]),
    "none": (None, ["None"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_is_refused_at_once(tables: Tables, case: str) -> None:
    """And alone: the rows around it are written."""
    row, parts = BAD_ROWS[case]
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.append({"id": 1})
        with pytest.raises(SchemaMismatchError) as raised:
            writer.append(row)
        writer.append({"id": 2})
    for part in (*parts, str(table.get_table_path())):
        assert part in raised.value.message, raised.value.message
    assert tables.read(table).column("id").to_pylist() == [1, 2]


def changed(name: str, values: pa.Array) -> pa.Table:
    return DATA.set_column(DATA.schema.get_field_index(name), name, values)


BAD_FRAMES: dict[str, tuple[Any, list[str]]] = {
    "wrong type": (changed("id", pa.array(["1", "x", "3"])), ["'id'"]),
    "too large": (changed("id", pa.array([1, 2**31, 3])), ["'id'", "row 1", "2147483648"]),
    "null": (changed("id", pa.array([1, 2, None], pa.int32())), ["'id'", "row 2", "NOT NULL"]),
    "decimal": (
        changed("price", pa.array([None, None, Decimal("12345.67")])),
        ["'price'", "row 2", "12345.67"],
    ),
    "time": (
        changed("at", pa.array([1, 2, 1001], pa.int64()).cast(pa.timestamp("ns"))),
        ["'at'", "row 0"],
    ),
    "unknown column": (DATA.rename_columns(["id", "nmae", "price", "at"]), ["'nmae'", "'name'"]),
    "missing column": (DATA.drop_columns(["id"]), ["'id'"]),
    "column twice": (DATA.append_column("name", DATA["name"]), ["'name'"]),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_bad_frame_is_refused_as_a_whole(tables: Tables, case: str) -> None:
    frame, parts = BAD_FRAMES[case]
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        with pytest.raises(SchemaMismatchError) as raised:
            writer.write_arrow(frame)
        large = pa.concat_tables([frame.slice(0, 0)] + [frame] * 50_000)
        with pytest.raises(SchemaMismatchError):
            writer.write_arrow(large)
    for part in (*parts, str(table.get_table_path())):
        assert part in raised.value.message, raised.value.message
    assert tables.read(table).num_rows == 0


def test_bad_pandas_frame(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        whole = DATA.to_pandas()
        texts = pd.array(["x"] * len(whole), dtype="string")
        with pytest.raises(SchemaMismatchError, match=r"column 'id': .*cast it to an integer"):
            writer.write_pandas(whole.assign(id=texts))
        # what texts are without a type of their own, and with pandas before 3
        with pytest.raises(SchemaMismatchError, match=r"column 'id': row 0: 'x' .* it takes int"):
            writer.write_pandas(whole.assign(id=pd.Series(texts, dtype=object)))
        with pytest.raises(SchemaMismatchError, match=r"'id' is the index .*reset_index\(\)"):
            writer.write_pandas(whole.set_index("id"))
        with pytest.raises(SchemaMismatchError, match="nmae"):
            writer.write_pandas(pd.DataFrame({"id": [1], "nmae": ["a"]}))
    assert tables.read(table).num_rows == 0


def test_stream_that_breaks_says_what_was_taken(tables: Tables) -> None:
    table = tables(SCHEMA)
    wrong = pa.RecordBatch.from_pydict(
        {**DATA.to_pydict(), "price": [None, None, Decimal("9999.99")]}, schema=SCHEMA
    )
    null = pa.RecordBatch.from_arrays(
        [pa.array([1, None, 2], pa.int32()), *wrong.columns[1:]], names=SCHEMA.names
    )
    nullable = pa.schema([field.with_nullable(True) for field in SCHEMA])
    batches = [pa.RecordBatch.from_arrays(b.columns, schema=nullable) for b in (wrong, null)]
    with table.new_append().create_writer() as writer:
        reader = pa.RecordBatchReader.from_batches(nullable, batches)
        with pytest.raises(SchemaMismatchError, match="3 rows before this batch were taken"):
            writer.write_arrow(reader)
    assert tables.read(table).num_rows == 3


@pytest.mark.parametrize("what", [5, None, [1, 2], {"id": 1}, "x"])
def test_what_is_no_frame(tables: Tables, what: Any) -> None:
    table = tables(SCHEMA)
    with (
        table.new_append().create_writer() as writer,
        pytest.raises(SchemaMismatchError, match=f"cannot write {type(what).__name__}"),
    ):
        writer.write_arrow(what)


def test_scan_of_unknown_columns(tables: Tables) -> None:
    table = tables(SCHEMA)
    scan = table.new_scan()
    with pytest.raises(FlussError, match=r"column 'nmae' does not exist.*did you mean 'name'"):
        scan.project_by_name(["nmae"])
    with pytest.raises(FlussError, match="no column 4: its columns are 0 to 3") as raised:
        scan.project([0, 4])
    assert raised.value.error_code == fluss.ErrorCode.INVALID_COLUMN_PROJECTION
    bad: Any
    for bad, message in (
        ([], "at least one column"),
        (["id", "id"], "stands twice"),
        ("id", "expected a list of column names"),
    ):
        with pytest.raises(FlussError, match=message):
            scan.project_by_name(bad)
    with pytest.raises(FlussError, match="invalid column index '0'"):
        scan.project(["0"])  # type: ignore[list-item]
    with pytest.raises(FlussError, match="no column -1"):
        scan.project([-1])

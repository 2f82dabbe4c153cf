"""Datasets of tables, read by Arrow and by what reads its datasets."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import gc
import math
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from hypothesis import HealthCheck, given, settings

import fluss_df
from fluss_df.arrow import FlussDataset, dataset
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io.scans.report import ScanReport
from fluss_df.metadata import TablePath
from tests.arrow.test_expressions import COLUMNS, ROWS, conditions
from tests.io.conftest import Place, write

field = pc.field
SALES = pa.schema(
    [
        ("shop", pa.string()),
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("note", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
SOLD = pl.DataFrame(
    {
        "shop": ["a", "b", "a", "c", "b"],
        "id": [1, 2, 3, 4, 5],
        "amount": [5.0, None, math.nan, 2.5, -1.0],
        "note": ["x" * 1000, None, "", "y", "z"],
        "at": [NOON, None, NOON + dt.timedelta(hours=1), NOON, NOON],
    }
).with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))


@pytest.fixture(scope="module")
def sales(place: Place) -> FlussDataset:
    path = place.make_table(SALES, SOLD, partition_keys=["shop"])
    return dataset(path, connection=place.connection)


@pytest.fixture(scope="module")
def people(place: Place) -> FlussDataset:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])
    rows = pl.DataFrame({"id": range(1000)}).with_columns(
        name=pl.format("name {}", "id"), age=(pl.col("id") % 90).cast(pl.Int32)
    )
    path = place.make_table(schema, primary_keys=["id"], bucket_count=3)
    fluss_df.write_fluss(rows, path, connection=place.connection)
    return dataset(path, connection=place.connection)


def scanned(read: Callable[[], Any]) -> tuple[Any, ScanReport]:
    """What is read, and the report of the only scan that it takes."""
    with fluss_df.track_scans() as scans:
        found = read()
    assert len(scans) == 1
    return found, scans[0]


def by_duckdb(query: str, **tables: FlussDataset) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        rows: list[tuple[Any, ...]] = database.execute(query).fetchall()
    return rows


# ---- DuckDB


def test_duckdb_reads_a_variable_with_columns_and_filter_pushed(sales: FlussDataset) -> None:
    with fluss_df.track_scans() as scans:
        query = "SELECT sum(id) FROM sales WHERE shop = 'a' AND id > 1"
        part, all_of_it = duckdb.sql(query), duckdb.sql("FROM sales")
        assert part is not None
        assert all_of_it is not None
        assert part.fetchall() == [(3,)]
        assert len(all_of_it.to_arrow_table()) == 5
    scan, whole = scans
    assert scan.columns == ("shop", "id")
    assert scan.partitions == ("a",)
    assert scan.plan.pushed == ("shop == 'a'",)
    assert scan.rows == 2
    assert whole.rows == 5
    assert scan.bytes < whole.bytes / 2


def test_duckdb_pushes_lists(sales: FlussDataset) -> None:
    rows, scan = scanned(
        lambda: by_duckdb("SELECT id FROM t WHERE shop IN ('b', 'c') ORDER BY id", t=sales)
    )
    assert rows == [(2,), (4,), (5,)]
    assert scan.partitions == ("b", "c")


def test_duckdb_looks_keys_up(people: FlussDataset) -> None:
    rows, scan = scanned(lambda: by_duckdb("SELECT name FROM t WHERE id = 7", t=people))
    assert rows == [("name 7",)]
    assert scan.lookups == 1
    rows, scan = scanned(
        lambda: by_duckdb("SELECT name FROM t WHERE id IN (7, 8, 5000) ORDER BY 1", t=people)
    )
    assert rows == [("name 7",), ("name 8",)]
    assert scan.lookups == 3


@pytest.mark.parametrize(
    "condition",
    [
        "amount > 1",
        "amount = 'nan'::DOUBLE",
        "amount <> 2.5",
        "NOT (amount > 1)",
        "amount IS NULL",
        "amount <= 2.5 OR shop = 'a'",
        "note IS NOT NULL AND note <> ''",
        "note LIKE 'x%'",
        "shop IN ('a', 'b') AND id >= 3",
        "id IN (1, NULL)",
        "id NOT IN (1, 2)",
        "\"at\" > TIMESTAMPTZ '2024-05-01 12:00:00+00'",
        "\"at\" = TIMESTAMPTZ '2024-05-01 14:00:00+02'",
        "id + 1 = 3",
        "shop < 'b'",
        "id > 2.5",
    ],
)
def test_duckdb_gets_what_it_gets_of_a_table_in_memory(sales: FlussDataset, condition: str) -> None:
    memory = sales.to_table()
    query = f"SELECT id FROM t WHERE {condition} ORDER BY id"
    with duckdb.connect() as database:
        database.register("t", memory)
        wanted = database.execute(query).fetchall()
    assert by_duckdb(query, t=sales) == wanted


def test_duckdb_joins_and_aggregates(sales: FlussDataset, people: FlussDataset) -> None:
    query = "SELECT p.name, count(*) FROM s JOIN p ON s.id = p.id WHERE s.shop = 'a' GROUP BY 1"
    assert sorted(by_duckdb(query, s=sales, p=people)) == [("name 1", 1), ("name 3", 1)]


# ---- others


def test_polars_reads_it(sales: FlussDataset) -> None:
    query = pl.scan_pyarrow_dataset(sales).filter(pl.col("shop") == "b").select("id")
    rows, scan = scanned(query.collect)
    assert rows["id"].to_list() == [2, 5]
    assert (scan.columns, scan.partitions) == (("shop", "id"), ("b",))
    assert pl.DataFrame(sales).height == 5


def test_pandas_reads_it(sales: FlussDataset) -> None:
    rows, scan = scanned(lambda: sales.to_table(["id"], filter=field("shop") == "b").to_pandas())
    assert rows["id"].tolist() == [2, 5]
    assert scan.partitions == ("b",)
    assert isinstance(rows, pd.DataFrame)


def test_narwhals_reads_it_by_duckdb(sales: FlussDataset) -> None:
    relation = duckdb.sql("FROM sales")
    assert relation is not None
    frame = nw.from_native(relation)
    query = frame.filter(nw.col("shop") == "b").select("id")
    rows, scan = scanned(lambda: query.collect().to_native())
    assert rows.column("id").to_pylist() == [2, 5]
    assert (scan.columns, scan.partitions) == (("shop", "id"), ("b",))
    assert nw.from_arrow(sales, backend="pyarrow").shape == (5, 5)


# ---- the interface of Arrow


def test_it_is_a_dataset(sales: FlussDataset) -> None:
    assert isinstance(sales, pads.Dataset)
    assert sales.schema == SALES
    # NaN is not equal to itself
    assert str(pa.table(sales).to_pylist()) == str(sales.to_table().to_pylist())


def test_a_scanner(sales: FlussDataset) -> None:
    scanner = sales.scanner(["amount", "id"], filter=field("shop") == "a", batch_size=1)
    assert scanner.projected_schema.names == ["amount", "id"]
    assert scanner.dataset_schema == SALES
    for _ in range(2):
        assert [batch.num_rows for batch in scanner.to_batches()] == [1, 1]
    assert scanner.to_table().column("id").to_pylist() == [1, 3]
    assert scanner.count_rows() == 2
    assert scanner.head(1).column("id").to_pylist() == [1]
    assert scanner.head(0).num_rows == 0
    assert scanner.take([1]).column("id").to_pylist() == [3]
    assert pa.table(scanner).num_rows == 2
    assert str(scanner.explain()) == str(sales.explain(["amount", "id"], field("shop") == "a"))


def test_expressions_for_columns(sales: FlussDataset) -> None:
    rows, scan = scanned(
        lambda: sales.to_table({"twice": field("id") * 2}, filter=field("shop") == "c")
    )
    assert rows.to_pydict() == {"twice": [8]}
    assert scan.columns == ("shop", "id")


def test_columns_keep_their_order(sales: FlussDataset) -> None:
    assert sales.to_table(["note", "id", "shop"]).column_names == ["note", "id", "shop"]
    assert sales.to_table(["id", "id"]).column_names == ["id", "id"]


def test_no_columns(sales: FlussDataset) -> None:
    rows, scan = scanned(lambda: sum(batch.num_rows for batch in sales.to_batches(columns=[])))
    assert rows == 5
    assert scan.columns == ("id",)


def test_counts(sales: FlussDataset, people: FlussDataset) -> None:
    with fluss_df.track_scans() as scans:
        assert sales.count_rows() == 5
    # the offsets tell it
    assert len(scans) == 0
    assert sales.count_rows(filter=field("shop") == "a") == 2
    assert sales.filter(field("shop") == "a").count_rows() == 2
    assert people.count_rows() == 1000


def test_head_asks_for_no_more(sales: FlussDataset) -> None:
    rows, scan = scanned(lambda: sales.head(1, columns=["id"]))
    assert rows.num_rows == scan.rows == 1


def test_filters_add_up(sales: FlussDataset) -> None:
    part = sales.filter(field("shop") == "b").filter(field("id") > 2)
    assert part.to_table(["id"]).to_pydict() == {"id": [5]}
    assert part.to_table(["id"], filter=field("id") < 5).num_rows == 0
    assert "shop" in repr(part)


def test_pickles(sales: FlussDataset) -> None:
    part = sales.filter(field("shop") == "b")
    copied = pickle.loads(pickle.dumps(part))
    assert copied._node.source.table == part._node.source.table
    assert copied._condition.equals(part._condition)


def test_names_that_are_not_there(sales: FlussDataset) -> None:
    reads: list[Callable[[], object]] = [
        lambda: sales.to_table(["ids"]),
        lambda: sales.to_table(filter=field("ids") == 1),
        lambda: sales.to_table({"x": field("ids")}),
    ]
    for read in reads:
        with pytest.raises(FlussError, match="column 'ids' does not exist"):
            read()


def test_arguments_that_are_wrong(sales: FlussDataset) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"columns": "id"}, "list of names"),
        ({"filter": "id > 1"}, "expected an expression of Arrow"),
        ({"batch_size": 0}, "at least 1"),
        ({"limit": 3}, "no argument 'limit'"),
    ]
    for arguments, message in wrong:
        with pytest.raises(FlussError, match=message):
            sales.scanner(**arguments)
    with pytest.raises(FlussError, match="no less than 0"):
        sales.scanner().head(-1)


def test_what_needs_files_says_so(sales: FlussDataset) -> None:
    uses: list[Callable[[], object]] = [
        lambda: sales.get_fragments(),
        lambda: sales.join(sales, "id"),
        lambda: sales.join_asof(sales, "at", "id", 1),
        lambda: sales.sort_by("id"),
        lambda: sales.replace_schema(SALES),
        lambda: sales.children,
    ]
    for what in uses:
        with pytest.raises(FlussError, match=f"dataset of table {sales._node.source.table}: "):
            what()
    # what reads it past its methods fails, and does not end the process or read nothing
    with pytest.raises(FileNotFoundError, match="is a table of Fluss"):
        pads.Scanner.from_dataset(sales).to_table()


# ---- tables


def test_every_type_comes_back(place: Place) -> None:
    kinds = {
        "flag": pa.bool_(), "tiny": pa.int8(), "small": pa.int16(), "int": pa.int32(),
        "big": pa.int64(), "single": pa.float32(), "double": pa.float64(),
        "text": pa.string(), "raw": pa.binary(), "fixed": pa.binary(3), "day": pa.date32(),
        "d": pa.decimal128(38, 9), "t0": pa.time32("s"), "t3": pa.time32("ms"),
        "s3": pa.timestamp("ms"), "s6": pa.timestamp("us"), "s9": pa.timestamp("ns"),
        "z6": pa.timestamp("us", "UTC"), "list": pa.list_(pa.int64()),
        "row": pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}),
        "map": pa.map_(pa.string(), pa.int64()),
    }  # fmt: skip
    schema = pa.schema(list(kinds.items()))
    moment = dt.datetime(1900, 1, 2, 3, 4, 5, 6000)
    row = {
        "flag": True, "tiny": -1, "small": 2, "int": 3, "big": 2**60, "single": 0.5,
        "double": -0.0, "text": "ä", "raw": b"\x00", "fixed": b"abc", "day": dt.date(1900, 1, 1),
        "d": decimal.Decimal("-12345678901234567890.123456789"), "t0": dt.time(1, 2, 3),
        "t3": dt.time(1, 2, 3, 4000), "s3": moment, "s6": moment, "s9": moment,
        "z6": moment.replace(tzinfo=dt.UTC), "list": [1, None], "row": {"a": 1, "b": ["x", None]},
        "map": [("k", 1)],
    }  # fmt: skip
    rows = pa.Table.from_pylist([row, dict.fromkeys(kinds), row], schema)
    path = place.make_table(schema)
    with place.connection.get_table(path).new_append().create_writer() as writer:
        writer.write_arrow(rows)
    found = dataset(path, connection=place.connection)
    assert found.schema == place.connection.get_table(path).get_table_info().schema.arrow_schema
    assert found.to_table().to_pylist() == rows.cast(found.schema).to_pylist()
    assert found.to_table(filter=field("int") == 3).num_rows == 2
    for name in ("row", "list", "map", "d"):
        assert found.to_table([name], filter=field(name).is_valid()).num_rows == 2
    assert found.to_table(["int"], filter=field("row", "a") == 1).num_rows == 2


@pytest.mark.filterwarnings("ignore:.*HealthCheck")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(conditions)
def test_any_condition_gives_what_arrow_gives(
    typed: tuple[FlussDataset, pa.Table], expression: pc.Expression
) -> None:
    found, memory = typed
    try:
        wanted = memory.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return
    assert found.to_table(["i"], filter=expression).equals(wanted.select(["i"]))


@pytest.fixture(scope="module")
def typed(place: Place) -> tuple[FlussDataset, pa.Table]:
    """Rows of every type, in a partition and a log batch each, in the order of the table."""
    rows = pl.DataFrame(ROWS).with_columns(part=pl.int_range(pl.len()).cast(pl.String))
    schema = pa.schema(
        [*((name, kind) for name, (kind, _) in COLUMNS.items()), ("part", pa.string())]
    )
    path = place.make_table(schema, *rows.iter_slices(2), partition_keys=["part"], bucket_count=1)
    found = dataset(path, connection=place.connection)
    return found, found.to_table()


def test_no_rows(place: Place) -> None:
    path = place.make_table(SALES, partition_keys=["shop"])
    found = dataset(path, connection=place.connection)
    assert found.to_table().num_rows == 0
    assert found.to_table().schema == SALES
    assert found.count_rows() == found.count_rows(filter=field("id") > 1) == 0
    assert list(found.to_batches()) == []
    assert by_duckdb("SELECT count(*), sum(id) FROM t WHERE shop = 'a'", t=found) == [(0, None)]


def test_changes(place: Place, people: FlussDataset) -> None:
    path = people._node.source.table
    found = dataset(f"{path}$changelog", connection=place.connection)
    query = "SELECT count(*) FROM t WHERE _change_type = 'insert' AND id < 10"
    assert by_duckdb(query, t=found) == [(10,)]


def test_arguments_of_scans(place: Place, sales: FlussDataset) -> None:
    path = sales._node.source.table
    found = dataset(
        path,
        connection=place.connection,
        columns=["id", "note"],
        partitions="b",
        include_metadata=["_log_offset"],
    )
    assert found.schema.names == ["id", "note", "_log_offset"]
    assert found.to_table(["id"], filter=field("_log_offset") == 1).to_pydict() == {"id": [5]}
    with pytest.raises(FlussError, match="has no partition 'nowhere'"):
        dataset(path, connection=place.connection, partitions="nowhere").to_table()


def test_columns_with_strange_names(place: Place) -> None:
    names = ["*", "^a.*$", "a b", 'q"', "SELECT"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    path = place.make_table(schema, pl.DataFrame({name: [1, 2] for name in names}))
    found = dataset(path, connection=place.connection)
    for name in names:
        read = functools.partial(found.to_table, [name], filter=field(name) == 2)
        rows, scan = scanned(read)
        assert rows.to_pydict() == {name: [2]}
        assert scan.columns == (name,)
    assert by_duckdb('SELECT "*" FROM t WHERE "q""" = 2', t=found) == [(2,)]


def test_each_scan_sees_what_is_there(place: Place) -> None:
    schema = pa.schema([("id", pa.int64())])
    path = place.make_table(schema, pl.DataFrame({"id": [1]}))
    found = dataset(path, connection=place.connection)
    scanner = found.scanner()
    assert scanner.count_rows() == 1
    write(place.connection, path, pl.DataFrame({"id": [2]}))
    assert scanner.count_rows() == found.count_rows() == 2


def test_a_table_that_is_made_again(place: Place) -> None:
    path = place.make_table(pa.schema([("id", pa.int64())]))
    found = dataset(path, connection=place.connection)
    admin = place.connection.get_admin()
    admin.drop_table(path)
    with pytest.raises(FlussError, match=str(path)):
        found.to_table()
    schema = fluss_df.Schema(pa.schema([("id", pa.string())]))
    admin.create_table(path, fluss_df.TableDescriptor(schema, bucket_count=1))
    with pytest.raises(SchemaMismatchError, match="changed since"):
        found.to_table()


# ---- many rows, and ends before the end

MANY = 1_000_000


@pytest.fixture(scope="module")
def many() -> FlussDataset:
    connection = FlussConnection.create(":memory:")
    for first in range(0, MANY, MANY // 4):
        rows = pl.DataFrame({"id": range(first, first + MANY // 4)}).with_columns(
            text=pl.format("text {}", "id"), half=pl.col("id") / 2
        )
        fluss_df.write_fluss(
            rows, "many", connection=connection, create_if_not_exists=True, bucket_count=2
        )
    return dataset("many", connection=connection)


def queries() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fluss-df-query"]


def wait_for_no_query() -> None:
    gc.collect()
    until = time.monotonic() + 10
    for thread in queries():
        thread.join(until - time.monotonic())
    assert queries() == []


def test_a_million_rows(many: FlussDataset) -> None:
    total = MANY * (MANY - 1) // 2
    assert by_duckdb("SELECT count(*), sum(id) FROM t", t=many) == [(MANY, total)]
    assert pc.sum(many.to_table(["id"]).column("id")).as_py() == total
    sizes = [batch.nbytes for batch in many.to_batches(filter=field("id") >= 0)]
    assert max(sizes) < 4 << 20
    assert many.count_rows(filter=field("id") < 1000) == 1000
    order = many.to_table(["id"]).column("id").to_pylist()
    frame = fluss_df.read_fluss("many", connection=many._node.source.connection, columns=["id"])
    assert order == frame["id"].to_list()


@pytest.mark.parametrize("how", ["batches", "reader", "capsule", "head", "limit", "interrupt"])
def test_who_stops_half_way_leaves_nothing(many: FlussDataset, how: str) -> None:
    wait_for_no_query()
    if how == "batches":
        batches = many.to_batches()
        next(iter(batches))
        del batches
    elif how == "reader":
        with many.to_reader() as reader:
            reader.read_next_batch()
        # what is closed reads on no more than what is held
        assert fluss_df.last_scan() is not None
        del reader
    elif how == "capsule":
        capsule = many.__arrow_c_stream__()
        reader = pa.RecordBatchReader.from_stream(many)
        reader.read_next_batch()
        del reader, capsule
    elif how == "head":
        assert many.head(3, filter=field("id") >= 0).num_rows == 3
    elif how == "limit":
        assert len(by_duckdb("SELECT * FROM t LIMIT 3", t=many)) == 3
    else:
        with duckdb.connect() as database:
            database.register("t", many)
            reader = database.sql("SELECT * FROM t").to_arrow_reader(1000)
            reader.read_next_batch()
            del reader
            database.interrupt()
    wait_for_no_query()


def test_what_is_held_is_bounded(many: FlussDataset) -> None:
    """Who takes one batch and waits has the scan wait, and not read the table."""
    connection = many._node.source.connection
    numbers = np.random.default_rng(1)
    for _ in range(8):
        columns = {f"c{i}": numbers.integers(0, 2**62, MANY // 4) for i in range(8)}
        fluss_df.write_fluss(
            pl.DataFrame(columns), "more", connection=connection, create_if_not_exists=True
        )
    more = dataset("more", connection=connection)
    batches = iter(more.to_batches())
    first = next(batches)
    thread = queries()[-1]
    thread.join(0.5)
    report = fluss_df.last_scan()
    assert report is not None
    assert thread.is_alive()
    # of 128 MB that do not compress: what is held, and what was on its way
    assert report.bytes_received < 90 << 20
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 2 * MANY
    wait_for_no_query()


def test_a_connection_that_is_closed() -> None:
    connection = FlussConnection.create(":memory:")
    rows = pl.DataFrame({"id": [1]})
    fluss_df.write_fluss(rows, "t", connection=connection, create_if_not_exists=True)
    found = dataset("t", connection=connection)
    scanner = found.scanner()
    connection.close()
    for read in (found.to_table, scanner.to_table, found.count_rows):
        with pytest.raises(FlussError, match="closed"):
            read()
    with pytest.raises(duckdb.Error, match="the connection is closed"):
        by_duckdb("SELECT * FROM t", t=found)
    wait_for_no_query()


def test_two_threads_read_at_once(many: FlussDataset) -> None:
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(many.scanner(["id"]).count_rows()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [MANY] * 4


def test_a_failure_in_the_middle_is_an_error(
    many: FlussDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss_df.io.polars_reader import LogRead

    real = LogRead._fetch

    def broken(self: LogRead, *arguments: Any) -> Any:
        for number, frame in enumerate(real(self, *arguments)):
            if number == 1:
                raise FlussError("the disk is gone")
            yield frame

    monkeypatch.setattr(LogRead, "_fetch", broken)
    with pytest.raises(FlussError, match="the disk is gone"):
        many.to_table()
    with pytest.raises(duckdb.Error, match="the disk is gone"):
        by_duckdb("SELECT sum(id) FROM t", t=many)
    wait_for_no_query()


def test_the_path_of_a_table(place: Place, sales: FlussDataset) -> None:
    path = sales._node.source.table
    assert isinstance(path, TablePath)
    assert dataset(str(path), connection=place.connection).count_rows() == 5

"""Joins with primary-key tables by looking keys up."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any, Literal

import ibis
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io import lookup_join, read_fluss, run, scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable, write

SCHEMA = pa.schema({"id": pa.int32(), "name": pa.string(), "score": pa.float64()})
ROWS = pl.DataFrame({"id": range(100)}, schema={"id": pl.Int32}).with_columns(
    name=pl.format("name {}", "id"), score=pl.col("id") / 4
)
LEFT = pl.DataFrame(
    {"id": [5, 3, None, 5, 1000, 99, -(2**40)], "score": list("abcdefg")},
    schema={"id": pl.Int64, "score": pl.String},
)
HOWS: list[Literal["left", "inner", "semi", "anti"]] = ["left", "inner", "semi", "anti"]
pytestmark = pytest.mark.usefixtures("no_scans")


@pytest.fixture(scope="module")
def users(make_table: MakeTable, connection: FlussConnection) -> TablePath:
    path = make_table(SCHEMA, primary_keys=["id"], bucket_count=3)
    write_fluss(ROWS, path, connection=connection)
    return path


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_it_is_the_join_of_polars(
    users: TablePath,
    connection: FlussConnection,
    how: Literal["left", "inner", "semi", "anti"],
    engine: Literal["streaming", "in-memory"],
) -> None:
    right = ROWS.with_columns(pl.col("id").cast(pl.Int64))
    options: Any = {"maintain_order": "left"} if how in ("left", "inner") else {}
    expected = LEFT.join(right, on="id", how=how, **options)
    query = lookup_join(LEFT.lazy(), users, on="id", how=how, connection=connection)
    assert query.collect_schema() == expected.schema
    assert_frame_equal(query.collect(engine=engine), expected)
    renamed = LEFT.lazy().rename({"id": "user"})
    by_name = lookup_join(renamed, users, on={"user": "id"}, how=how, connection=connection)
    assert_frame_equal(by_name.collect(engine=engine), expected.rename({"id": "user"}))
    empty = lookup_join(LEFT.head(0).lazy(), users, how=how, connection=connection)
    assert_frame_equal(empty.collect(engine=engine), expected.head(0))
    # what comes behind the join is not pushed below it
    if how == "left":
        late = query.filter(pl.col("name").is_not_null()).select("name")
        found = expected.filter(pl.col("name").is_not_null()).select("name")
        assert_frame_equal(late.collect(engine=engine), found)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("there", [[0.0], [-0.0], [0.0, -0.0], [1.5]])
def test_both_zeros_are_one_key(
    make_table: MakeTable,
    connection: FlussConnection,
    how: Literal["left", "inner", "semi", "anti"],
    there: list[float],
) -> None:
    schema = pa.schema({"k": pa.float64(), "j": pa.float32(), "v": pa.string()})
    path = make_table(schema, primary_keys=["k", "j"], bucket_count=2)
    keys = [(k, j) for k in there for j in there]
    rows = pl.DataFrame(
        [(k, j, f"{k} {j}") for k, j in keys],
        schema={"k": pl.Float64, "j": pl.Float32, "v": pl.String},
        orient="row",
    )
    write_fluss(rows, path, connection=connection)
    for given in ([0.0, -0.0], [-0.0, 0.0, 0.0, None], [-0.0], [float("nan"), -0.0, 1.5]):
        left = pl.DataFrame({"k": given}).with_columns(j=pl.col("k").cast(pl.Float32))
        found = lookup_join(left.lazy(), path, how=how, connection=connection).collect()
        expected = left.join(rows, on=["k", "j"], how=how)
        assert_frame_equal(found, expected, check_row_order=False)


def test_columns_that_would_have_one_name_are_refused(
    users: TablePath, connection: FlussConnection
) -> None:
    left = LEFT.with_columns(score_right=pl.lit(1)).lazy()
    with pytest.raises(
        SchemaMismatchError, match=rf"'score' of table {users} .*'score_right'.*the frame.*suffix="
    ):
        lookup_join(left, users, connection=connection)
    # where no column is added, and where another name or fewer columns are wanted
    assert lookup_join(left, users, how="semi", connection=connection).collect().height == 4
    for options in ({"suffix": "_of_user"}, {"columns": ["name"]}):
        found: Any = lookup_join(left, users, connection=connection, **options)
        assert found.collect().height == LEFT.height
    with pytest.raises(SchemaMismatchError, match="called 'score', as a column of the frame is"):
        lookup_join(left, users, suffix="", connection=connection)


def test_columns_and_keys_of_several_columns(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    schema = pa.schema({"day": pa.string(), "id": pa.int64(), "value": pa.string()})
    path = make_table(schema, primary_keys=["day", "id"], partition_keys=["day"])
    rows = pl.DataFrame({"day": ["mon", "tue"], "id": [1, 1], "value": ["m", "t"]})
    write_fluss(rows, path, connection=connection, create_partitions=True)
    left = pl.DataFrame({"id": [1, 1, 1], "when": ["tue", "sun", "mon"]}).lazy()
    on = {"when": "day", "id": "id"}
    joined: Any = left.fluss.lookup_join(path, on=on, columns=["value"], connection=connection)  # type: ignore[attr-defined]
    assert joined.collect().rows() == [(1, "tue", "t"), (1, "sun", None), (1, "mon", "m")]


def test_streams_are_joined(
    users: TablePath, make_table: MakeTable, connection: FlussConnection, tmp_path: Path
) -> None:
    visits = pa.schema({"id": pa.int32(), "page": pa.string()})
    log = make_table(visits)
    for i in range(4):
        pages = pl.DataFrame(
            {"id": [i, i + 98], "page": ["x", "y"]}, schema_overrides={"id": pl.Int32}
        )
        write(connection, log, pages)
    scan = scan_fluss(log, connection=connection, follow=True, max_rows=8)
    followed = lookup_join(scan, users, on="id", how="inner", connection=connection)
    batches = followed.collect_batches()
    names = [name for batch in batches for name in batch["name"]]
    assert sorted(names) == sorted(f"name {i}" for i in [0, 1, 2, 3, 98, 99])
    bounded = lookup_join(
        scan_fluss(log, connection=connection), users, on="id", connection=connection
    )
    run(bounded, to=tmp_path / "out", checkpoint=tmp_path / "checkpoint", max_batch_rows=3)
    found = pl.read_parquet(tmp_path / "out" / "*.parquet")
    assert_frame_equal(found.sort("id"), bounded.collect().sort("id"))
    copy = pickle.loads(pickle.dumps(bounded))
    assert_frame_equal(copy.collect(), bounded.collect())


def test_what_cannot_be_joined(
    users: TablePath, make_table: MakeTable, connection: FlussConnection
) -> None:
    left = LEFT.lazy()
    options: dict[str, Any] = {"connection": connection}
    with pytest.raises(FlussError, match="has no primary key"):
        lookup_join(left, make_table(SCHEMA), on="id", **options)
    with pytest.raises(FlussError, match="whole primary key: id"):
        lookup_join(left, users, on="score", **options)
    with pytest.raises(FlussError, match="expected one of 'left'"):
        lookup_join(left, users, on="id", how="outer", **options)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match="cast the one of the frame"):
        lookup_join(left.with_columns(pl.col("id").cast(pl.String)), users, **options)
    with pytest.raises(FlussError, match="'user'"):
        lookup_join(left, users, on={"user": "id"}, **options)


def test_key_prefixes_are_looked_up(make_table: MakeTable, connection: FlussConnection) -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.float64()})
    path = make_table(schema, primary_keys=["a", "b"], bucket_keys=["a"], bucket_count=3)
    rows = pl.DataFrame({"a": ["x", "y", "z"] * 20, "b": range(60)}).with_columns(v=pl.col("b") / 2)
    write_fluss(rows, path, connection=connection)
    scan = scan_fluss(path, connection=connection)
    for condition, count in (
        (pl.col("a") == "x", 1),
        (pl.col("a").is_in(["x", "z", "w"]), 3),
        ((pl.col("a") == "y") & (pl.col("b") > 30), 1),
    ):
        query = scan.filter(condition)
        assert f"lookup of {count} key prefixes" in query.explain()
        assert_frame_equal(query.collect().sort("b"), rows.filter(condition))
        assert_frame_equal(
            query.select("v").collect().sort("v"), rows.filter(condition).select("v")
        )
        assert query.select(pl.len()).collect().item() == rows.filter(condition).height
    one = scan.filter((pl.col("a") == "x") & (pl.col("b") == 3))
    assert "lookup of 1 keys" in one.explain()
    assert one.collect().rows() == [("x", 3, 1.5)]


def test_a_read_of_all_is_a_scan(users: TablePath, connection: FlussConnection) -> None:
    with pytest.raises(Exception, match="a scan"):
        read_fluss(users, connection=connection)


def test_keys_that_no_row_can_have_find_nothing(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    schema = pa.schema({"p": pa.string(), "id": pa.int32(), "v": pa.string()})
    path = make_table(schema, primary_keys=["p", "id"], partition_keys=["p"], bucket_count=2)
    row = pl.DataFrame({"p": ["a"], "id": [1], "v": ["x"]}, schema_overrides={"id": pl.Int32})
    write_fluss(row, path, connection=connection, create_partitions=True)
    # none of these names a partition
    odd = ["a/b", "", "__a", "ä", "a$", "x" * 300]
    left = pl.DataFrame({"p": ["a", *odd], "id": [1] * 7}, schema_overrides={"id": pl.Int32})
    found = lookup_join(left.lazy(), path, connection=connection).collect()
    assert found["v"].to_list() == ["x", *[None] * 6]
    table = scan_fluss(path, connection=connection)
    for text in odd:
        assert table.filter(p=text, id=1).collect().is_empty()
    assert table.filter(pl.col("p").is_in([*odd, "a"]), id=1).collect().height == 1
    lookuper = connection.get_table(path).new_lookup().create_lookuper()
    assert lookuper.lookup({"p": "a/b", "id": 1}) is None


@pytest.mark.parametrize(
    ("kind", "there", "others"),
    [("CHAR(3)", "abc", ["abcd", "é" * 4, ""]), ("BINARY(2)", b"\0\1", [b"\0", b"\0\1\2", b""])],
)
def test_keys_of_another_length_find_nothing(
    make_table: MakeTable, connection: FlussConnection, kind: str, there: Any, others: list[Any]
) -> None:
    path = make_table(pa.schema({"other": pa.int32()}))  # a name of its own
    path = TablePath(path.database_name, f"{path.table_name}_{kind[:4].lower()}")
    ibis.fluss.connect(connection).raw_sql(
        f"CREATE TABLE {path} (c {kind}, v INT, PRIMARY KEY (c) NOT ENFORCED)"
        " WITH ('bucket.num' = '1')"
    )
    row = pl.DataFrame({"c": [there], "v": [1]}, schema_overrides={"v": pl.Int32})
    write_fluss(row, path, connection=connection)
    left = pl.LazyFrame({"c": [there, *others]})
    found = lookup_join(left, path, connection=connection).collect()
    assert found["v"].to_list() == [1, *[None] * 3]
    table = scan_fluss(path, connection=connection)
    for value in others if kind == "CHAR(3)" else []:
        assert table.filter(pl.col("c") == value).collect().is_empty()


def test_times_finer_than_keys_find_nothing(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    schema = pa.schema({"t": pa.time64("ns"), "n": pa.int64(), "v": pa.string()})
    path = make_table(schema, primary_keys=["t", "n"], bucket_keys=["t"], bucket_count=2)
    ten = dt.time(10)
    finer = [ten.replace(microsecond=us) for us in (1, 500, 999)]
    row = {"t": ten, "n": 1, "v": "x"}
    write_fluss(pl.DataFrame([row]), path, connection=connection)
    table = scan_fluss(path, connection=connection)
    chosen = pl.col("t").is_in([ten, *finer])
    assert table.filter(chosen, n=1).collect().to_dicts() == [row]
    assert table.filter(chosen).collect().to_dicts() == [row]
    assert table.filter(pl.col("t") == finer[0], n=1).collect().is_empty()
    left = pl.LazyFrame({"t": [ten, *finer] * 2, "n": [1] * 8})
    found = lookup_join(left, path, connection=connection).collect()
    assert found["v"].to_list() == ["x", None, None, None] * 2
    lookup = connection.get_table(path).new_lookup()
    assert lookup.lookup({"t": ten, "n": 1}) == row
    assert lookup.lookup([finer[1], 1]) is None
    assert lookup.prefix_lookup([ten]) == [row]
    assert lookup.prefix_lookup([finer[1]]) == []
    keys = left.collect().to_arrow()
    rows = lookup.lookup_arrow(keys, found_column="found")
    assert rows.column("found").to_pylist() == [True, False, False, False] * 2
    assert lookup.lookup_arrow(keys.slice(1, 1)).to_pylist() == [dict.fromkeys(row)]
    assert lookup.prefix_lookup_arrow(keys.select(["t"]), index_column="i").column(
        "i"
    ).to_pylist() == [0, 4]


def test_times_that_name_partitions(make_table: MakeTable, connection: FlussConnection) -> None:
    schema = pa.schema({"t": pa.time64("us"), "n": pa.int64()})
    path = make_table(schema, primary_keys=["t", "n"], partition_keys=["t"], bucket_count=1)
    rows = pl.DataFrame({"t": [dt.time(10)], "n": [1]})
    write_fluss(rows, path, connection=connection, create_partitions=True)
    left = pl.LazyFrame({"t": [dt.time(10), dt.time(10, 0, 0, 500)], "n": [1, 1]})
    assert lookup_join(left, path, how="semi", connection=connection).collect().equals(rows)
    wanted = pl.col("t").is_in(left.collect()["t"].implode())
    assert scan_fluss(path, connection=connection).filter(wanted, n=1).collect().equals(rows)


def test_nanoseconds_that_icebergs_keys_lack(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    schema = pa.schema({"t": pa.timestamp("ns"), "v": pa.string()})
    iceberg = {"table.datalake.format": "iceberg"}
    path = make_table(schema, primary_keys=["t"], bucket_count=2, properties=iceberg)
    times = pl.Series("t", [1000, 1001, 2000, 3500, 3000]).cast(pl.Datetime("ns"))
    rows = pl.DataFrame({"t": times.gather([0, 3]), "v": ["x", "y"]})
    write_fluss(rows, path, connection=connection)
    table = scan_fluss(path, connection=connection)
    found = table.filter(pl.col("t").is_in(times.implode())).collect()
    assert_frame_equal(found.sort("t"), rows)
    assert table.filter(pl.col("t").is_in(times.gather([1]).implode())).collect().is_empty()
    left = times.to_frame().lazy()
    joined = lookup_join(left, path, connection=connection).collect()
    assert joined["v"].to_list() == ["x", None, None, "y", None]
    lookup = connection.get_table(path).new_lookup()
    assert lookup.lookup_arrow(times.to_frame()).column("v").to_pylist() == joined["v"].to_list()
    found_row = lookup.lookup([dt.datetime(1970, 1, 1, microsecond=1)])
    assert found_row is not None
    assert found_row["v"] == "x"
    assert lookup.lookup([dt.datetime(1970, 1, 1, microsecond=3)]) is None

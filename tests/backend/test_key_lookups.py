"""Semi-joins with a small side: what is read for them, and that the rows are those of the join."""

from collections.abc import Callable
from typing import NamedTuple

import ibis
import ibis.expr.types as ir
import polars as pl
import pytest
from ibis import _

import fluss_df
from fluss_df.backend import Backend, key_lookups
from fluss_df.client.connection import FlussConnection
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from tests.backend.conftest import backend_on

N = 300
KEYED = pl.DataFrame({"id": range(N), "v": [i % 7 for i in range(N)]})
PAIRS = pl.DataFrame({"a": [i // 3 for i in range(N)], "b": [f"b{i % 3}" for i in range(N)]})
SMALL = pl.DataFrame({"id": [1, 5, 5, None, N + 7, -1], "k": [1, 1, 2, 2, 3, 3]})
# ids of another type, of which one is none of the table's
WIDE = ibis.memtable({"n": [3, 4, 2**40]})


class Tables(NamedTuple):
    con: Backend
    keyed: ir.Table
    pairs: ir.Table
    narrow: ir.Table
    small: ir.Table
    log: ir.Table
    days: ir.Table


@pytest.fixture(scope="module")
def tables(connection: FlussConnection) -> Tables:
    con = backend_on(connection)
    name = ibis.util.gen_name("k").lower()
    days = KEYED.with_columns(day=pl.format("d{}", pl.col("id") % 4))
    narrow = KEYED.with_columns(pl.col("id").cast(pl.Int32))
    con.create_table("local", pl.DataFrame({"id": [7, 8]}), temp=True)
    return Tables(
        con,
        con.create_table(f"{name}_keyed", KEYED, primary_key="id", buckets=2),
        con.create_table(
            f"{name}_pairs", PAIRS.with_row_index("v"), primary_key=["a", "b"], bucket_by="a",
            buckets=2,
        ),
        con.create_table(f"{name}_narrow", narrow, primary_key="id", buckets=1),
        con.create_table(f"{name}_small", SMALL, buckets=1),
        con.create_table(f"{name}_log", KEYED, bucket_by="id", buckets=5),
        con.create_table(
            f"{name}_days", days, primary_key=["id", "day"], partition_by="day", buckets=1
        ),
    )  # fmt: skip


LOOKED_UP: dict[str, Callable[[Tables], ir.Table]] = {
    "semi_join": lambda t: t.keyed.semi_join(t.small, "id"),
    "memtable": lambda t: t.keyed.semi_join(ibis.memtable({"id": [3, 999]}), "id"),
    "isin": lambda t: t.keyed.filter(_.v > 0, _.id.isin(t.small.filter(t.small.k < 3).id)),
    "exists": lambda t: t.keyed.filter((t.small.id == t.keyed.id).any()),
    "renamed": lambda t: (
        t.keyed.filter(_.v > 1).select(x="id", w=_.v * 2).semi_join(t.small, _.x == t.small.id)
    ),
    "two keys": lambda t: t.pairs.semi_join(
        ibis.memtable({"b": ["b0", "b2", "b9"], "a": [1, 2, 3]}), ["a", "b"]
    ),
    "prefix": lambda t: t.pairs.filter(_.a.isin(t.small.id)),
    "partitioned": lambda t: t.days.semi_join(
        ibis.memtable({"id": [4, 5, 6], "day": ["d0", "d1", "none"]}), ["id", "day"]
    ),
    "other integers": lambda t: t.narrow.semi_join(WIDE, _.id == WIDE.n),
    "keys of keys": lambda t: t.keyed.filter(
        _.id.isin(t.pairs.filter(_.a == 2, _.b == "b1").v.cast("int64"))
    ),
    "no key": lambda t: t.keyed.semi_join(t.small.filter(t.small.k > 99), "id"),
    "sql": lambda t: t.con.sql(
        f"SELECT x.v FROM {t.keyed.get_name()} AS x WHERE x.id IN (SELECT id FROM"
        f" {t.small.get_name()} /*+ OPTIONS('scan.startup.mode'='earliest') */ AS s) AND v > 0"
    ),
    "sql, of the connection": lambda t: t.con.sql(
        f"SELECT * FROM {t.keyed.get_name()} WHERE id IN (SELECT id FROM local)"
    ),
    "sql, nested": lambda t: t.con.sql(
        f"SELECT * FROM {t.keyed.get_name()} WHERE id IN (SELECT id FROM {t.small.get_name()}"
        f" WHERE id IN (SELECT id + 0 FROM {t.small.get_name()} WHERE k = 1))"
    ),
}


def rows(query: ir.Table) -> list[tuple[object, ...]]:
    return sorted(query.to_polars().rows())


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("scanned, not looked up")

    monkeypatch.setattr(SnapshotScanner, "batches", refuse)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_keys_are_looked_up(tables: Tables, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = LOOKED_UP[name](tables)
    with monkeypatch.context() as patch:
        forbid(patch)
        found = rows(query)
    # no side is small
    monkeypatch.setattr(key_lookups, "SMALL_SIDE_ROWS", -1)
    assert found == rows(LOOKED_UP[name](tables))
    assert bool(found) == (name != "no key")


@pytest.mark.parametrize(
    ("query", "height"),
    [
        # rows that the condition does not speak of
        (lambda t: t.keyed.filter(~_.id.isin(t.small.id.fill_null(0))), N - 3),
        (lambda t: t.keyed.filter(_.v.isin(t.small.k)), N // 7 * 3 + 3),
        # which rows are numbered, counted or taken first must not depend on the join
        (lambda t: t.keyed.mutate(n=ibis.row_number()).semi_join(t.small, "id"), 2),
        (lambda t: t.keyed.mutate(n=_.v.sum()).semi_join(t.small, "id"), 2),
        (lambda t: t.keyed.order_by("id").head(2).semi_join(t.small, "id"), 1),
    ],
)  # fmt: skip
def test_what_is_no_lookup_is_a_join(
    tables: Tables, query: Callable[[Tables], ir.Table], height: int
) -> None:
    frame = query(tables).to_polars()
    assert frame.height == height
    if "n" in frame.columns and frame["n"].n_unique() == 1:
        assert frame["n"][0] == KEYED["v"].sum()


def test_the_side_is_read_once_and_anew(tables: Tables) -> None:
    con = tables.con
    name = ibis.util.gen_name("side").lower()
    side = con.create_table(name, pl.DataFrame({"id": [1]}), buckets=1)
    query = tables.keyed.semi_join(side, "id").select("id")
    frame = con.compile(query)
    with fluss_df.track_scans() as scans:
        assert frame.collect().rows() == [(1,)]
    found = [(str(scan.plan.table), scan.lookups) for scan in scans]
    assert found == [(f"ibis.{name}", 0), (tables.keyed.get_name(), 1)]
    con.insert(name, pl.DataFrame({"id": [2]}))
    assert sorted(frame.collect(engine="streaming")["id"]) == [1, 2]
    assert sorted(con.to_pyarrow_batches(query).read_all()["id"].to_pylist()) == [1, 2]
    both = pl.collect_all([frame, frame.filter(pl.col("id") > 1)])
    assert [part.height for part in both] == [2, 1]


def test_of_a_log_only_the_buckets_and_partitions_of_the_keys_are_read(tables: Tables) -> None:
    for query, buckets, partitions in (
        (tables.log.semi_join(ibis.memtable({"id": [5]}), "id"), 1, ()),
        (tables.log.filter(_.id.isin(ibis.memtable({"id": [5]}).id)).head(1), 1, ()),
    ):
        with fluss_df.track_scans() as scans:
            assert query.to_polars()["id"].to_list() == [5]
        (scan,) = scans
        assert (scan.buckets, scan.partitions) == (buckets, partitions)


def test_more_keys_than_the_limit_are_joined(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookups, "MAX_LOOKUPS", 2)
    query = tables.keyed.semi_join(ibis.memtable({"id": [1, 2, 3]}), "id")
    assert "scan of the current rows" in tables.con.compile(query).explain()
    assert query.count().execute() == 3
    small = tables.keyed.semi_join(ibis.memtable({"id": [1, 2]}), "id")
    assert "lookup of 2 keys" in tables.con.compile(small).explain()


def test_files_are_not_taken_for_small(tables: Tables, tmp_path: object) -> None:
    path = f"{tmp_path}/side.parquet"
    pl.DataFrame({"id": [1, 2]}).write_parquet(path)
    query = tables.keyed.semi_join(tables.con.read_parquet(path), "id")
    assert "scan of the current rows" in tables.con.compile(query).explain()
    assert query.count().execute() == 2


def test_another_subquery_over_the_same_table_keeps_its_rows(tables: Tables) -> None:
    query = tables.keyed.filter(_.id.isin(tables.small.id), tables.keyed.count() == N)
    assert rows(query.select("id")) == [(1,), (5,)]


def test_what_a_named_table_expression_hides_is_not_taken_for_a_table(tables: Tables) -> None:
    small = tables.small.op().name
    query = (
        f"WITH {small} AS (SELECT 3 AS id) SELECT id FROM {tables.keyed.get_name()} WHERE id IN"
        f" (SELECT id FROM {small})"
    )
    assert tables.con.raw_sql(query).rows() == [(3,)]


def test_deleting_by_keys_of_another_table(tables: Tables) -> None:
    con = tables.con
    name = ibis.util.gen_name("gone").lower()
    con.create_table(name, KEYED, primary_key="id", buckets=1)
    con.raw_sql(f"DELETE FROM {name} WHERE id IN (SELECT id FROM {tables.small.get_name()})")
    assert con.table(name).count().execute() == N - 2


JOINED: dict[str, Callable[[Tables], ir.Table]] = {
    "inner, table on the right": lambda t: t.small.join(t.keyed, "id"),
    "inner, table on the left": lambda t: t.keyed.join(t.small, "id"),
    "left": lambda t: t.small.left_join(t.keyed.filter(_.v != 5), "id"),
    "right": lambda t: t.keyed.right_join(t.small, "id"),
    "memtable": lambda t: t.keyed.join(ibis.memtable({"key": [1, 5, 999]}), [("id", "key")]),
    "two tables": lambda t: t.small.join(t.pairs, [("id", "a")]).join(
        t.keyed.select(i="id", w="v"), [("a", "i")]
    ),
    "aggregate": lambda t: t.small.group_by("id").agg(n=_.count()).join(t.keyed, "id"),
    "no key": lambda t: t.small.filter(_.k > 99).join(t.keyed, "id"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_keys_of_joins_are_looked_up(
    tables: Tables, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = JOINED[name](tables)
    # of so few rows all are read
    plain = query.to_polars()
    monkeypatch.setattr(key_lookups, "LARGE_TABLE_ROWS", 0)
    with monkeypatch.context() as patch:
        forbid(patch)
        found = query.to_polars()
    assert found.schema == plain.schema
    order = pl.all().fill_null(-99)
    assert sorted(found.select(order).rows()) == sorted(plain.select(order).rows())
    assert bool(found.height) == (name != "no key")


def test_joins_that_keep_all_rows_of_a_table_read_them(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookups, "LARGE_TABLE_ROWS", 0)
    assert tables.keyed.left_join(tables.small, "id").to_polars().height == N + 1
    assert tables.keyed.outer_join(tables.small, "id").to_polars().height == N + 4
    assert tables.keyed.anti_join(tables.small, "id").to_polars().height == N - 2


def test_a_compiled_join_reads_when_it_is_collected(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookups, "LARGE_TABLE_ROWS", 0)
    con, name = tables.con, ibis.util.gen_name("later").lower()
    later = con.create_table(name, pl.DataFrame({"id": [1]}), buckets=1)
    query = later.join(tables.keyed, "id")
    view = con.create_view(f"{name}_view", query)
    frame = con.compile(query)
    con.insert(name, pl.DataFrame({"id": [2]}))
    assert query.count().execute() == view.count().execute() == frame.collect().height == 2

"""Lake and log as one table, on a real cluster whose tables Flink's service tiers meanwhile."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ibis
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.scans import union
from fluss_df.io.source import Halves, ScanSource
from fluss_df.metadata import TableBucket
from tests.lake_tables import create_lake_table, dropped_after

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("small", pa.int16()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("ms")),
        ("day", pa.string()),
    ]
)
KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "bucketed": {"bucket_keys": ["id"]},
    "parted": {"partition_keys": ["day"]},
    "keyed": {"keys": ["id"]},
    "keyed_parted": {"keys": ["day", "id"], "partition_keys": ["day"]},
}
col = pl.col
FILTERS = [
    col("id") > 150,
    col("id").is_in([3, 13, 205]),
    col("name").str.starts_with("b-"),
    (col("day") == "tue") & (col("id") < 90),
    col("price") > 100,
    col("at") >= dt.datetime(2026, 1, 1, 0, 2),
    col("small").is_null(),
    col("day") == "sun",
]


@dataclass
class Lake:
    """A table that is tiered, and what must be in it."""

    cluster: LocalCluster
    kind: str
    name: str
    connection: fluss.FlussConnection
    rows: pl.DataFrame = field(default_factory=lambda: rows(0, 0, ""))

    @property
    def keys(self) -> list[str]:
        return list(KINDS[self.kind].get("keys", []))

    def create(self) -> None:
        options = KINDS[self.kind]
        schema = fluss.Schema(COLUMNS, options.get("keys"))
        create_lake_table(
            self.cluster,
            self.connection,
            fluss.TablePath("fluss", self.name),
            fluss.TableDescriptor(
                schema,
                bucket_count=2,
                partition_keys=options.get("partition_keys"),
                bucket_keys=options.get("bucket_keys"),
                properties=LAKE,
            ),
        )

    def write(self, frame: pl.DataFrame) -> None:
        options: Any = {"create_partitions": True} if "partition_keys" in KINDS[self.kind] else {}
        fluss.write_fluss(frame, self.name, connection=self.connection, **options)
        self.rows = pl.concat([self.rows, frame])
        if self.keys:
            self.rows = self.rows.unique(self.keys, keep="last")

    def delete(self, where: pl.Expr) -> None:
        gone = self.rows.filter(where).select(self.keys)
        fluss.write_fluss(gone, self.name, connection=self.connection, mode="delete")
        self.rows = self.rows.filter(~where)

    def scan(self, **options: Any) -> pl.LazyFrame:
        return fluss.scan_fluss(self.name, connection=self.connection, **options)

    def tiered(self) -> None:
        """Wait until all of it is in the lake."""
        admin = self.connection.get_admin()
        path = fluss.TablePath("fluss", self.name)
        info = admin.get_table_info(path)
        partitions = admin.list_partition_infos(path) if info.is_partitioned() else [None]
        deadline = time.monotonic() + 120
        while True:
            ends: dict[TableBucket, int] = {}
            for partition in partitions:
                number, spec = None, fluss.OffsetSpec.latest()
                if partition is None:
                    found = admin.list_offsets(path, [0, 1], spec)
                else:
                    name, number = partition.partition_name, partition.partition_id
                    found = admin.list_partition_offsets(path, name, [0, 1], spec)
                ends |= {TableBucket(info.table_id, b, number): o for b, o in found.items() if o}
            has: dict[TableBucket, int] = {}
            with contextlib.suppress(FlussError):  # there is no snapshot yet
                has = admin.get_latest_lake_snapshot(path).table_buckets_offset
            if all(has.get(bucket, 0) >= end for bucket, end in ends.items()):
                return
            assert time.monotonic() < deadline, (has, ends)
            time.sleep(0.1)

    def check(self, frame: pl.LazyFrame, expected: pl.DataFrame) -> None:
        for engine in ("in-memory", "streaming"):
            found = frame.collect(engine=engine)
            assert found.schema == expected.schema
            assert found.sort(found.columns).equals(expected.sort(expected.columns)), engine


def rows(start: int, stop: int, name: str) -> pl.DataFrame:
    ids = range(start, stop)
    return pl.DataFrame(
        {
            "id": ids,
            "name": [f"{name}-{number}" for number in ids],
            "small": [None if number % 7 == 0 else number % 100 for number in ids],
            "price": [f"{number}.25" for number in ids],
            "at": [dt.datetime(2026, 1, 1) + dt.timedelta(seconds=number) for number in ids],
            "day": ["mon" if number % 2 else "tue" for number in ids],
        },
        schema={
            "id": pl.Int64,
            "name": pl.String,
            "small": pl.Int16,
            "price": pl.String,
            "at": pl.Datetime("ms"),
            "day": pl.String,
        },
    ).with_columns(col("price").cast(pl.Decimal(10, 2)))


@pytest.fixture(scope="module", params=KINDS)
def lake(request: pytest.FixtureRequest, tiering: LocalCluster) -> Iterator[Lake]:
    """Return a table of which a first part is in the lake, and a second may be."""
    connection = fluss.connect(tiering.bootstrap_servers)
    made = Lake(tiering, request.param, f"union_{request.param}", connection)
    with dropped_after():
        made.create()
        # nothing is in the lake
        made.check(made.scan(), made.rows)
        assert made.scan().head(0).collect().columns == COLUMNS.names
        made.write(rows(0, 200, "a"))
        made.check(made.scan(), made.rows)
        if made.keys:
            made.delete(col("id") % 10 == 3)
        made.tiered()
        made.check(made.scan(), made.rows)
        made.check(fluss.scan_fluss(f"{made.name}$lake", connection=connection), made.rows)
        made.write(rows(100, 300, "b"))
        if made.keys:
            made.delete(col("id") % 10 == 7)
        yield made
    connection.close()


def test_all_rows_are_there_once_while_tiering_goes_on(lake: Lake) -> None:
    for _ in range(20):
        lake.check(lake.scan(), lake.rows)
    lake.check(lake.scan(lake=False), lake.rows)
    assert lake.scan().select(pl.len()).collect().item() == lake.rows.height
    assert fluss.count(lake.scan()) == lake.rows.height


def test_ibis_and_sql_read_both_halves(lake: Lake) -> None:
    con = ibis.fluss.connect(lake.cluster.bootstrap_servers)
    try:
        table = con.table(lake.name)
        assert table.count().execute() == lake.rows.height
        found = table.filter(table.id > 150).select("id", "name").to_polars()
        expected = lake.rows.filter(col("id") > 150).select("id", "name")
        assert found.sort("id", "name").equals(expected.sort("id", "name"))
        (total,) = con.sql(f"SELECT sum(id) AS s FROM {lake.name}").to_polars()["s"]
        assert total == lake.rows["id"].sum()
    finally:
        con.disconnect()


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_filters_and_projections(lake: Lake, where: pl.Expr) -> None:
    lake.check(lake.scan().filter(where), lake.rows.filter(where))
    names = ["name", "small"]
    lake.check(lake.scan().filter(where).select(names), lake.rows.filter(where).select(names))
    lake.check(lake.scan(columns=["day", "id"]), lake.rows.select("day", "id"))
    assert lake.scan().filter(where).head(3).collect().height == min(
        3, lake.rows.filter(where).height
    )


def test_both_halves_are_explained_and_counted(lake: Lake) -> None:
    query = lake.scan().filter(col("id") >= 0)
    assert "Parquet SCAN" in query.explain()
    assert "lake       snapshot " in fluss.explain(query)
    query.collect()
    report = fluss.last_scan()
    assert report is not None
    assert report.plan.lake is not None
    assert report.plan.lake.files > 0
    assert "of the lake" in str(report)


def test_metadata_columns_are_those_of_the_log(lake: Lake) -> None:
    if lake.keys:
        with pytest.raises(FlussError, match="which are not a log"):
            lake.scan(include_metadata=True)
        return
    whole = lake.scan(include_metadata=True)
    lake.check(whole, lake.scan(include_metadata=True, lake=False).collect())


def test_buckets_and_partitions(lake: Lake) -> None:
    if "partition_keys" in KINDS[lake.kind]:
        for chosen in ("mon", {"day": "mon"}, ["mon"]):
            lake.check(lake.scan(partitions=chosen), lake.rows.filter(col("day") == "mon"))
        with pytest.raises(FlussError, match=r"no partition 'sun' \(partitions: mon, tue\)"):
            lake.scan(partitions="sun").collect()
    if not lake.keys:
        for bucket in (0, 1):
            found = lake.scan(buckets=bucket).collect()
            log = lake.scan(buckets=bucket, lake=False).collect()
            assert found.sort(found.columns).equals(log.sort(log.columns))


def test_a_frame_that_was_pickled(lake: Lake) -> None:
    copy = pickle.loads(pickle.dumps(lake.scan()))
    lake.check(copy, lake.rows)


def test_what_offsets_say_is_of_the_log(lake: Lake) -> None:
    if lake.keys:
        with pytest.raises(FlussError, match="which are not a log"):
            lake.scan(stop=0)
        return
    assert lake.scan(stop=0).collect().is_empty()
    with pytest.raises(FlussError, match="the lake has no changes, no offsets"):
        lake.scan(stop=0, lake=True)


def test_the_lake_alone(lake: Lake, tmp_path: Path) -> None:
    name = f"{lake.name}$lake"
    alone = fluss.scan_fluss(name, connection=lake.connection)
    with pytest.raises(FlussError, match=r"a run reads a log: leave out \$lake"):
        fluss.run(alone, to=tmp_path / "out", checkpoint=tmp_path / "c")
    if "partition_keys" in KINDS[lake.kind]:
        with pytest.raises(FlussError, match=r"no partition 'sun' \(partitions: mon, tue\)"):
            fluss.read_fluss(name, connection=lake.connection, partitions="sun")
    if not lake.keys:
        run = fluss.run(lake.scan(), to=tmp_path / "whole", checkpoint=tmp_path / "d")
        assert run.rows_read == lake.rows.height  # from the first row that the log still has


def test_rows_in_neither_half_are_an_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = union.pin_lake

    def ahead(source: object, info: object) -> object:
        found = pin(source, info)  # type: ignore[arg-type]
        assert found is not None
        offsets = dict.fromkeys(found.snapshot.table_buckets_offset, 10**9)
        return replace(found, snapshot=replace(found.snapshot, table_buckets_offset=offsets))

    monkeypatch.setattr(union, "pin_lake", ahead)
    with pytest.raises(
        FlussError, match=r"ends at the offset 1000000000, and the log has the"
    ) as e:
        lake.scan().collect()
    assert e.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert f"table fluss.{lake.name}, bucket " in str(e.value)


def test_a_snapshot_that_is_not_in_the_catalog(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = type(lake.connection.get_admin())
    ask = admin.get_latest_lake_snapshot
    monkeypatch.setattr(
        admin, "get_latest_lake_snapshot", lambda *a: replace(ask(*a), snapshot_id=17)
    )
    with pytest.raises(FlussError, match="the snapshot 17, which the cluster says is the newest"):
        lake.scan().collect()


def test_a_partition_that_fluss_has_no_more(tiering: LocalCluster) -> None:
    with fluss.connect(tiering.bootstrap_servers) as connection:
        lakes = [
            Lake(tiering, kind, f"expired_{kind}", connection)
            for kind in ("parted", "keyed_parted")
        ]
        for lake in lakes:
            lake.create()
            lake.write(rows(0, 100, "a"))
        con = ibis.fluss.connect(tiering.bootstrap_servers)
        for lake in lakes:
            lake.tiered()
            path = fluss.TablePath("fluss", lake.name)
            connection.get_admin().drop_partition(path, {"day": "mon"})
            lake.check(lake.scan(), lake.rows)
            monday = lake.rows.filter(col("day") == "mon")
            lake.check(lake.scan(partitions="mon"), monday)
            lake.check(lake.scan().filter(col("day") == "mon"), monday)
            if lake.keys:
                one = (col("day") == "mon") & (col("id") == 11)
                lake.check(lake.scan().filter(one), lake.rows.filter(one))
            assert lake.scan(lake=False).collect().height == 50
            table = con.table(lake.name)
            one_key = table.filter((table.day == "mon") & (table.id == 11)).to_polars()
            assert one_key["name"].to_list() == ["a-11"]
            wanted = ibis.memtable({"day": ["mon", "tue"], "id": [11, 12]})
            joined = wanted.join(table, ["day", "id"]).select("id", "name").to_polars()
            assert sorted(joined["name"]) == ["a-11", "a-12"]
        con.disconnect()


def test_names_that_are_patterns(tiering: LocalCluster) -> None:
    columns = pa.schema([("^a$", pa.int64()), ("*", pa.string()), ("a", pa.int64())])
    first = pl.DataFrame({"^a$": [1, 2, 3], "*": ["x", "y", "z"], "a": [7, 8, 9]})
    later = pl.DataFrame({"^a$": [2, 4], "*": ["v", "w"], "a": [5, 6]})
    rows_now = {
        "log": pl.concat([first, later]),
        "keyed": pl.concat([first.filter(col("a") != 8), later]),
    }
    with fluss.connect(tiering.bootstrap_servers) as connection:
        lakes = [Lake(tiering, kind, f"patterns_{kind}", connection) for kind in rows_now]
        for lake in lakes:
            schema = fluss.Schema(columns, ["^a$"] if lake.keys else None)
            create_lake_table(
                tiering,
                connection,
                fluss.TablePath("fluss", lake.name),
                fluss.TableDescriptor(schema, bucket_count=2, properties=LAKE),
            )
        for frame in (first, later):
            for lake in lakes:
                fluss.write_fluss(frame, lake.name, connection=connection)
            for lake in lakes:
                lake.tiered()
        for lake in lakes:
            there = rows_now[lake.kind]
            lake.check(lake.scan(), there)
            lake.check(lake.scan(columns=["*", "^a$"]), there[["*", "^a$"]])
            fluss.write_fluss(later, lake.name, connection=connection)
            expected = there if lake.keys else pl.concat([there, later])
            lake.check(lake.scan(), expected)


def test_a_table_without_a_lake(fluss_cluster: LocalCluster) -> None:
    with fluss.connect(fluss_cluster.bootstrap_servers) as connection:
        connection.get_admin().create_table(
            fluss.TablePath("fluss", "no_lake"), fluss.TableDescriptor(fluss.Schema(COLUMNS))
        )
        for options in ({"source": "no_lake", "lake": True}, {"source": "no_lake$lake"}):
            with pytest.raises(FlussError, match=r"no_lake has no data lake: its property table\."):
                fluss.scan_fluss(connection=connection, **options)


def test_a_catalog_that_cannot_be_reached(
    fluss_flink_tiering: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fluss.connect(fluss_flink_tiering.bootstrap_servers) as connection:
        lake = Lake(fluss_flink_tiering, "log", "unreached", connection)
        lake.create()
        lake.write(rows(0, 10, "a"))
        lake.tiered()
        folder = Path(fluss_flink_tiering.dir) / "lake"
        aside = folder / "aside"
        aside.mkdir()
        union._opened.cache_clear()
        # SQLite's log of writes and its index go with the database
        for file in folder.glob("catalog.db*"):
            file.rename(aside / file.name)
        try:
            with pytest.raises(FlussError, match=r"Iceberg catalog of table fluss\.unreached"):
                lake.scan().collect()
            lake.check(lake.scan(lake=False), lake.rows)
        finally:
            for file in folder.glob("catalog.db*"):
                file.unlink()
            for file in aside.iterdir():
                file.rename(folder / file.name)
        lake.check(lake.scan(), lake.rows)


def test_old_pickles_of_scans_read_the_log() -> None:
    nothing: Any = None
    source = ScanSource(nothing, nothing, (), (), pa.schema([]), halves=Halves.BOTH)
    state: Any = source.__getstate__()
    old = object.__new__(ScanSource)
    old.__setstate__(state[:-1])
    assert old.halves is Halves.LOG
    assert pickle.loads(pickle.dumps(source)).halves is Halves.BOTH

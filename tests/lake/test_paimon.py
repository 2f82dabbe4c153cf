"""Paimon tables on a real cluster that Flink's service tiers: compacted, changed, and damaged."""

from __future__ import annotations

import datetime as dt
import functools
import json
import operator
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.scans import union
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon.catalog import open_paimon
from fluss_df.lake.paimon.snapshot import PaimonSnapshot
from fluss_df.pushdown.column import col as ref
from tests.lake_tables import create_lake_table, dropped_after

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "100ms"}
COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("day", pa.string())])
col = pl.col


@dataclass
class Table:
    """A table, the rows that it must have, and how many changes there were."""

    cluster: LocalCluster
    connection: fluss.FlussConnection
    name: str
    rows: pl.DataFrame
    changes: int = 0
    looked_at: int = 0

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath("fluss", self.name)

    @property
    def warehouse(self) -> Path:
        return Path(self.cluster.dir) / "lake" / "warehouse"

    @property
    def folder(self) -> Path:
        return self.warehouse / "fluss.db" / self.name

    def write(self, rows: pl.DataFrame, **options: Any) -> None:
        fluss.write_fluss(rows, self.name, connection=self.connection, **options)
        self.rows = pl.concat([self.rows, rows])

    def lake(self) -> pl.LazyFrame:
        return fluss.scan_fluss(f"{self.name}$lake", connection=self.connection)

    def tiered(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if ready():
                return
            time.sleep(0.1)
        pytest.fail(f"{self.path} was not tiered in two minutes")

    def in_lake(self, rows: int, *, readable: bool = True) -> None:
        """Wait until the lake has a number of changes of the log."""
        admin = self.connection.get_admin()

        def ready() -> bool:
            try:
                found = admin.get_latest_lake_snapshot(self.path, readable=readable)
            except FlussError:
                return False  # there is none yet
            return sum(found.table_buckets_offset.values()) >= rows

        self.tiered(ready)


@pytest.fixture
def connection(paimon_tiering: LocalCluster) -> Iterator[fluss.FlussConnection]:
    with fluss.connect(paimon_tiering.bootstrap_servers) as made:
        yield made


def created(
    cluster: LocalCluster,
    connection: fluss.FlussConnection,
    name: str,
    schema: pa.Schema = COLUMNS,
    keys: list[str] | None = None,
    **more: Any,
) -> Table:
    properties = LAKE | more.pop("properties", {})
    create_lake_table(
        cluster,
        connection,
        fluss.TablePath("fluss", name),
        fluss.TableDescriptor(fluss.Schema(schema, keys), properties=properties, **more),
    )
    return Table(cluster, connection, name, pl.DataFrame(schema.empty_table()))


def numbers(start: int, stop: int, n: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"id": range(start, stop), "n": n, "day": "mon"},
        schema=pl.DataFrame(COLUMNS.empty_table()).schema,
    )


def snapshot_of(table: Table, warehouse: Path, number: int) -> PaimonSnapshot:
    options = LakeOptions(table.path, "paimon", {"warehouse": str(warehouse)})
    return open_paimon(options, number)


def newest(folder: Path) -> int:
    """Return the number of the newest snapshot; 0 where there is none."""
    found = folder.glob("snapshot/snapshot-*")
    return max((int(file.name.split("-")[1]) for file in found), default=0)


def same(table: Table, levels: set[tuple[int, ...]], deletions: set[int]) -> bool:
    """Whether the newest snapshot has the rows of a table; notes of what it is made."""
    number = newest(table.folder)
    if number == table.looked_at:
        return False  # it had not
    table.looked_at = number
    found = snapshot_of(table, table.warehouse, number)
    levels.add(tuple(sorted({file.level for file in found.files})))
    deletions.add(found.delete_files)
    expected = table.rows.sort("id")
    for engine in ("in-memory", "streaming"):
        rows = found.frame(found.wanted([])).collect(engine=engine)
        if not rows.select(expected.columns).sort("id").equals(expected):
            return False
    return True


@pytest.mark.parametrize("vectors", [False, True], ids=["merged", "deletion vectors"])
def test_a_compacted_table(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection, vectors: bool
) -> None:
    options = {"paimon.num-sorted-run.compaction-trigger": "3"}
    if vectors:
        options["paimon.deletion-vectors.enabled"] = "true"
    table = created(
        paimon_tiering,
        connection,
        f"compacted_{vectors}".lower(),
        keys=["id"],
        bucket_count=1,
        properties={"table.datalake.auto-compaction": "true"},
        custom_properties=options,
    )
    levels: set[tuple[int, ...]] = set()
    deletions: set[int] = set()
    for turn in range(8):
        table.write(numbers(turn * 30, turn * 30 + 100, turn))
        table.rows = table.rows.unique("id", keep="last")
        where = (col("id") % 11 == turn) & (col("id") < turn * 30 + 90)
        gone = table.rows.filter(where).select("id")
        fluss.write_fluss(gone, table.name, connection=connection, mode="delete")
        table.rows = table.rows.filter(~where)
        for engine in ("in-memory", "streaming"):
            for query, rows in (
                (fluss.scan_fluss(table.name, connection=connection), table.rows),
                (
                    fluss.scan_fluss(table.name, connection=connection).filter(col("n") < turn),
                    table.rows.filter(col("n") < turn),
                ),
            ):
                assert query.collect(engine=engine).sort("id").equals(rows.sort("id"))

        # which snapshots of a table with deletion vectors can be read is for servers to say: at
        # first they name none. The lake itself has them.
        table.tiered(functools.partial(same, table, levels, deletions))
    assert any(level and max(level) > 0 for level in levels)
    assert (max(deletions) > 0) is vectors
    left_out = 0
    for file in table.folder.glob("snapshot/snapshot-*"):
        found = snapshot_of(table, table.warehouse, int(file.name.split("-")[1]))
        left_out += pruned_rightly(found, vectors)
    assert left_out


def test_what_no_reader_sees_yet_is_not_taken_for_nothing(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection
) -> None:
    table = created(
        paimon_tiering,
        connection,
        "vectors",
        keys=["id", "day"],
        partition_keys=["day"],
        bucket_count=1,
        custom_properties={"paimon.deletion-vectors.enabled": "true"},
    )
    table.write(numbers(0, 50, 1), create_partitions=True)
    table.in_lake(50, readable=False)
    with pytest.raises(FlussError) as caught:
        connection.get_admin().get_latest_lake_snapshot(table.path)
    assert caught.value.error_code == fluss.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    # Fluss has all rows of the keys
    found = fluss.read_fluss(table.name, connection=connection)
    assert found.sort("id").equals(table.rows.sort("id"))
    refused = rf"{table.name}.*cannot be read yet.*lake=False"
    with pytest.raises(FlussError, match=refused):
        table.lake().collect()
    # and now the lake alone has those of a day
    connection.get_admin().drop_partition(table.path, {"day": "mon"})
    with pytest.raises(FlussError, match=refused):
        fluss.read_fluss(table.name, connection=connection)
    assert fluss.read_fluss(table.name, connection=connection, lake=False).is_empty()


def pruned_rightly(found: PaimonSnapshot, vectors: bool) -> int:
    """Filter a snapshot in many ways; return how many files were left out."""
    if vectors:
        rows = found.frame(found.files).collect()
    else:
        # the plainest of merges
        parts = [pl.read_parquet(file.path) for file in found.files]
        rows = pl.concat(parts).sort("_SEQUENCE_NUMBER").unique("id", keep="last")
        rows = rows.filter(col("_VALUE_KIND").is_in([0, 2]))
    rows = rows.select(COLUMNS.names).sort("id")
    left_out = 0
    a, b = ref("id"), ref("n")
    for turn in range(8):
        at = turn * 30
        cases: list[tuple[Any, pl.Expr]] = [
            (b < turn, col("n") < turn),
            (b == turn, col("n") == turn),
            ((b < turn) & (a > at), (col("n") < turn) & (col("id") > at)),
            (~(b > turn) | (a < turn), ~(col("n") > turn) | (col("id") < turn)),
            (a.is_in([at, at + 5]), col("id").is_in([at, at + 5])),
        ]
        for predicate, where in cases:
            files = found.wanted([predicate])
            left_out += len(found.files) - len(files)
            kept = found.frame(files).filter(where).select(COLUMNS.names)
            for engine in ("in-memory", "streaming"):
                assert kept.collect(engine=engine).sort("id").equals(rows.filter(where)), where
    return left_out


def test_names_in_partitions_and_paths(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection
) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("a b", pa.string()), ("__x", pa.int32()), ("d é=%", pa.string())]
    )
    keys = ["d é=%"]
    table = created(
        paimon_tiering, connection, "odd_names", schema, bucket_count=1, partition_keys=keys
    )
    rows = pl.DataFrame(
        {"id": [1, 2, 3], "a b": ["x", None, "z"], "__x": [1, 2, None], keys[0]: ["a-b", "C", "C"]},
        schema=table.rows.schema,
    )
    table.write(rows, create_partitions=True)
    table.in_lake(3)
    assert table.lake().collect().sort("id").equals(rows)
    assert table.lake().filter(col(keys[0]) == "C").select("a b").collect().height == 2
    report = fluss.last_scan()
    assert report is not None
    assert report.plan.lake is not None
    assert (report.plan.lake.files, report.plan.lake.of_files) == (1, 2)


def test_columns_that_were_added(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection
) -> None:
    tables = [
        created(paimon_tiering, connection, name, keys=keys, bucket_count=1)
        for name, keys in (("added_log", None), ("added_keyed", ["id"]))
    ]
    for table in tables:
        table.write(numbers(0, 5, 1))
    for table in tables:
        table.in_lake(5)
        added = pa.schema([("more", pa.int32())])
        connection.get_admin().alter_table(table.path, add_columns=added)
        table.rows = table.rows.with_columns(more=pl.lit(None, pl.Int32))
        table.write(numbers(5, 9, 2).with_columns(more=pl.lit(7, pl.Int32)))
    for table in tables:
        table.in_lake(9)
        for rows in (table.lake(), fluss.scan_fluss(table.name, connection=connection)):
            assert rows.collect().sort("id").equals(table.rows)
            assert rows.filter(col("more") == 7).collect().height == 4
            assert rows.filter(col("more").is_null()).collect().height == 5


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [False, True]),
    "i8": (pa.int8(), [-128, -1, 0, 5]),
    "i64": (pa.int64(), [-(2**63), -1, 0, 2**40]),
    "f64": (pa.float64(), [-1.5, 0.0, float("nan"), float("inf")]),
    "short": (pa.decimal128(5, 2), ["-999.99", "0.00", "1.25"]),
    "long": (pa.decimal128(38, 10), ["-1000000000000000000000000.5", "0", "1.25", "1e20"]),
    "text": (pa.string(), ["", "a", "é", "x" * 40, "x" * 40 + "y", "z\U0001f600"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", b"\xff" * 20]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 1, 2)]),
    "time": (pa.time32("ms"), [dt.time(0), dt.time(1, 2, 3), dt.time(23, 59, 59, 999000)]),
    "ts_ms": (pa.timestamp("ms"), [-5, 0, 1_000]),
    "ts_us": (pa.timestamp("us"), [-5_000, 0, 1_001]),
    "ts_ns": (pa.timestamp("ns"), [-5_000_000, 0, 1_001]),
    "tz_us": (pa.timestamp("us", "UTC"), [-5_000, 0, 1_001]),
}


def test_files_that_are_left_out_have_no_wanted_rows(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection
) -> None:
    """One file for each round: its values are all that it has."""
    from decimal import Decimal

    rounds = 3
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    table = created(paimon_tiering, connection, "left_out", schema, bucket_count=1)
    for turn in range(rounds):
        columns = {}
        for name, (kind, values) in VALUES.items():
            values = [Decimal(v) for v in values] if pa.types.is_decimal(kind) else values
            chosen = [values[turn % len(values)], None, values[(turn + 1) % len(values)]]
            columns[name] = pa.array(chosen if turn else chosen[:1] * 3, kind)
        fluss.write_fluss(pa.table(columns), table.name, connection=connection)
        table.in_lake(3 * (turn + 1))
    rows = fluss.read_fluss(table.name, connection=connection, lake=False)
    assert rows.height == 3 * rounds
    left_out = 0
    operators = [
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge
    ]  # fmt: skip
    for name in rows.columns:
        conditions = [col(name).is_null(), col(name).is_not_null()]
        for value in rows[name].drop_nulls().unique():
            literal = pl.lit(value, dtype=rows.schema[name])
            conditions += [compare(col(name), literal) for compare in operators]
            conditions += [
                ~(col(name) <= literal),
                ~((col(name) == literal) | (col(name) < literal)),
            ]
            if name == "text":
                conditions += [col(name).str.starts_with(value[:n]) for n in (0, 1, 39)]
        for where in conditions:
            found = table.lake().filter(where).collect()
            expected = rows.filter(where)
            assert found.sort(found.columns).equals(expected.sort(found.columns)), str(where)
            report = fluss.last_scan()
            assert report is not None
            assert report.plan.lake is not None
            left_out += report.plan.lake.of_files - report.plan.lake.files
    assert left_out > 20 * rounds


def test_a_number_that_comes_again_after_a_rollback(
    paimon_tiering: LocalCluster, connection: fluss.FlussConnection
) -> None:
    table = created(paimon_tiering, connection, "rolled", bucket_count=1)
    table.write(numbers(0, 10, 1))
    table.in_lake(10)
    before = newest(table.folder)
    table.write(numbers(10, 25, 1))
    table.in_lake(25)
    last = newest(table.folder)
    info = connection.get_admin().get_table_info(table.path)
    planned = {file.path for file in union.opened_lake(info, last).files}
    assert table.lake().collect().height == 25
    # as after a rollback, and a commit that gave the same number to other files
    first = json.loads((table.folder / "snapshot" / f"snapshot-{before}").read_text())
    again = table.folder / "snapshot" / f"snapshot-{last}"
    kept = again.read_bytes()
    again.write_text(json.dumps(first | {"id": last}))
    try:
        assert table.lake().collect().height == 10
        # Spark's tasks look for the files that a query was planned with
        with pytest.raises(FlussError, match=r"fluss\.rolled: the file .* gone") as told:
            union.opened_lake(info, last).at(planned)
        assert told.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    finally:
        again.write_bytes(kept)
    assert table.lake().collect().height == 25


# ---- what is wrong


@pytest.fixture(scope="module")
def sound(paimon_tiering: LocalCluster) -> Iterator[Table]:
    with fluss.connect(paimon_tiering.bootstrap_servers) as connection, dropped_after():
        table = created(paimon_tiering, connection, "sound", keys=["id"], bucket_count=1)
        table.write(numbers(0, 10, 1))
        table.in_lake(10)
        yield table


def rewritten(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def option(folder: Path, name: str, value: str) -> None:
    rewritten(folder / "schema" / "schema-0", lambda said: said["options"].update({name: value}))


def manifests(folder: Path) -> list[Path]:
    return [f for f in folder.glob("manifest/manifest-*") if "list" not in f.name]


def renamed(folder: Path, kind: str) -> None:
    """Have the manifests say that the files are of another format."""
    for file in manifests(folder):
        with file.open("rb") as stream:
            reader: Any = fastavro.reader(stream)
            schema, entries = reader.writer_schema, list(reader)
        for entry in entries:
            name: str = entry["_FILE"]["_FILE_NAME"]
            entry["_FILE"]["_FILE_NAME"] = name.replace(".parquet", f".{kind}")
        with file.open("wb") as out:
            fastavro.writer(out, schema, entries)


def each(folder: Path, pattern: str, do: Callable[[Path], Any]) -> None:
    files = list(folder.glob(pattern))
    assert files
    for file in files:
        do(file)


WRONG: dict[str, tuple[Callable[[Path], Any], str, int]] = {
    "no table": (
        shutil.rmtree,
        r"is not in its Paimon catalog: there is no .*/fluss\.db/sound: was it dropped",
        ErrorCode.TABLE_NOT_EXIST,
    ),
    "no snapshot": (
        lambda folder: each(folder, "snapshot/snapshot-*", Path.unlink),
        r"the snapshot 1, which the cluster says is the newest .*snapshot-1\): was it expired",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ),
    "no data file": (
        lambda folder: each(folder, "bucket-0/data-*", Path.unlink),
        r"the file .*/sound/bucket-0/data-.*\.parquet of its snapshot is gone: .* Run the query",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ),
    "no manifest": (
        lambda folder: each(folder, "manifest/*", Path.unlink),
        r"the file .*/sound/manifest/manifest-list-.* of its snapshot is gone",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ),
    "no schema": (
        lambda folder: each(folder, "schema/*", Path.unlink),
        r"the file .*/schema/schema-0 of its snapshot is gone",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ),
    "damaged snapshot": (
        lambda folder: each(folder, "snapshot/snapshot-*", lambda f: f.write_text("{")),
        r"/snapshot/snapshot-1 cannot be understood",
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "damaged manifest": (
        lambda folder: each(folder, "manifest/*", lambda f: f.write_bytes(f.read_bytes()[:-40])),
        r"/manifest/manifest-.* cannot be understood",
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "empty manifest": (
        lambda folder: each(folder, "manifest/*", lambda f: f.write_bytes(b"")),
        r"/manifest/manifest-.* cannot be understood",
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "ORC": (
        lambda folder: renamed(folder, "orc"),
        r"/bucket-0/data-.*\.orc is ORC, and only Parquet is read \(option 'file\.format'",
        ErrorCode.UNSUPPORTED_VERSION,
    ),
    "Avro": (
        lambda folder: renamed(folder, "avro"),
        r"/bucket-0/data-.*\.avro is AVRO, and only Parquet is read",
        ErrorCode.UNSUPPORTED_VERSION,
    ),
    "merge engine": (
        lambda folder: option(folder, "merge-engine", "aggregation"),
        r"has the merge engine 'aggregation', which fluss_df does not read",
        ErrorCode.UNSUPPORTED_VERSION,
    ),
    "sequence field": (
        lambda folder: option(folder, "sequence.field", "n"),
        r"has the option 'sequence\.field'",
        ErrorCode.UNSUPPORTED_VERSION,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table(sound: Table, tmp_path: Path, what: str) -> None:
    change, message, code = WRONG[what]
    warehouse = tmp_path / "warehouse"
    shutil.copytree(sound.warehouse / "fluss.db" / sound.name, warehouse / "fluss.db" / sound.name)
    table = snapshot_of(sound, warehouse, 1)
    assert table.frame(table.wanted([])).collect().height == 10
    change(warehouse / "fluss.db" / sound.name)

    def read() -> None:
        opened = snapshot_of(sound, warehouse, 1)
        opened.frame(opened.wanted([]))

    with pytest.raises(FlussError, match=message) as refused:
        read()
    assert refused.value.error_code == code
    assert "table fluss.sound" in str(refused.value)
    assert "lake=False" in str(refused.value) or what == "no table"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"metastore": "hive", "uri": "thrift://bob:hunter2@h:1"}, "of the kind 'hive', and only"),
        ({"metastore": "jdbc", "jdbc.password": "hunter2"}, "of the kind 'jdbc', and only"),
        ({"metastore": "rest", "token": "hunter2"}, "of the kind 'rest', and only"),
        ({"warehouse": "s3://a:hunter2@b/c"}, r"has the warehouse 's3://\*\*\*@b/c', and only"),
        ({"warehouse": "relative"}, "has the warehouse 'relative', and only folders"),
        ({}, "has the warehouse '', and only folders"),
        ({"warehouse": "file:/nowhere/w"}, "its warehouse /nowhere/w is not a folder of this"),
    ],
    ids=str,
)
def test_catalogs_that_are_not_read(properties: dict[str, str], message: str) -> None:
    options = LakeOptions(fluss.TablePath("db", "t"), "paimon", properties)
    with pytest.raises(FlussError, match=message) as refused:
        open_paimon(options, 1)
    text = str(refused.value)
    assert "table db.t" in text
    assert "lake=False" in text
    assert "hunter2" not in text


def test_a_file_that_was_deleted_after_it_was_planned_with(sound: Table) -> None:
    assert sound.lake().collect().height == 10  # its files are known from now on
    (file,) = sound.folder.glob("bucket-0/data-*")
    aside = file.with_suffix(".aside")
    file.rename(aside)
    try:
        for query in (sound.lake(), fluss.scan_fluss(sound.name, connection=sound.connection)):
            for engine in ("in-memory", "streaming"):
                with pytest.raises(
                    FlussError, match=f"fluss.sound: the file {re.escape(str(file))}"
                ):
                    query.collect(engine=engine)
        found = fluss.read_fluss(sound.name, connection=sound.connection, lake=False)
        assert found.height == 10
    finally:
        aside.rename(file)
    assert sound.lake().collect().height == 10


def test_without_the_extra(sound: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    union._opened.cache_clear()
    for name in [name for name in sys.modules if name.startswith("fluss_df.lake.paimon.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(FlussError, match=r"pip install 'fluss-df\[paimon\]'") as refused:
        sound.lake().collect()
    assert "table fluss.sound" in str(refused.value)

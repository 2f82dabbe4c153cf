"""Files of a lake table as frames: deletes by position and by values, and which files are read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import polars_schema
from fluss_df.lake.iceberg import snapshot as iceberg_snapshot
from fluss_df.lake.iceberg.files import LakeFile, SnapshotFiles, snapshot_files
from fluss_df.lake.iceberg.frames import lake_frame
from fluss_df.lake.iceberg.pruning import file_filter
from fluss_df.lake.iceberg.snapshot import IcebergSnapshot
from fluss_df.metadata import TablePath
from fluss_df.pushdown.from_polars import PolarsConjunct
from fluss_df.pushdown.predicate import Comparison, Not, Op
from tests.lake.data_files import data_file

col = pl.col
ID = {"id": 1, "name": 2, "day": 3, "more": 99}
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "day", StringType()),
)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    made.create_namespace("db")
    return made


class Files:
    """A snapshot that is put together by hand."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table = table
        self._folder = folder
        self._files: dict[DataFileContent, list[LakeFile]] = {c: [] for c in DataFileContent}
        self._number = 0

    def add(
        self, sequence: int, rows: pl.DataFrame, kind: DataFileContent = DataFileContent.DATA
    ) -> str:
        self._number += 1
        path = self._folder / f"{self._number}.parquet"
        file = data_file(path, rows.to_arrow(), ID, kind)
        self._files[kind].append(LakeFile(file, sequence))
        return f"file:{path}"

    def delete_positions(self, sequence: int, positions: Mapping[str, list[int]]) -> None:
        pairs = [(path, at) for path, places in positions.items() for at in places]
        rows = pl.DataFrame(pairs, schema={"file_path": pl.String, "pos": pl.Int64}, orient="row")
        self.add(sequence, rows, DataFileContent.POSITION_DELETES)

    def delete_ids(self, sequence: int, ids: list[int]) -> None:
        self.add(sequence, pl.DataFrame({"id": ids}), DataFileContent.EQUALITY_DELETES)

    @property
    def snapshot(self) -> SnapshotFiles:
        of = {kind: tuple(files) for kind, files in self._files.items()}
        return SnapshotFiles(
            1,
            of[DataFileContent.DATA],
            of[DataFileContent.POSITION_DELETES],
            of[DataFileContent.EQUALITY_DELETES],
        )

    def names(self) -> list[str]:
        frame = lake_frame(self.table, self.snapshot)
        found = frame.collect()
        assert found.columns == ["id", "name", "day"]
        streamed = frame.collect(engine="streaming")
        assert sorted(streamed["name"]) == sorted(found["name"])
        return sorted(found["name"])


@pytest.fixture
def files(catalog: SqlCatalog, tmp_path: Path) -> Files:
    return Files(catalog.create_table("db.t", SCHEMA), tmp_path)


def frame(ids: list[int], mark: str) -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "name": [f"{mark}{i}" for i in ids], "day": ["mon"] * len(ids)})


def test_a_snapshot_without_files(files: Files) -> None:
    assert files.names() == []


def test_deletes_by_values_hold_for_earlier_files_only(files: Files) -> None:
    files.add(1, frame([1, 2, 3], "a"))
    files.delete_ids(2, [2, 3])
    files.add(2, frame([2], "b"))
    files.add(3, frame([3], "c"))
    assert files.names() == ["a1", "b2", "c3"]
    files.delete_ids(4, [3, 9])
    assert files.names() == ["a1", "b2"]


def test_deletes_by_position_hold_for_their_file(files: Files) -> None:
    first = files.add(1, frame([1, 2, 3, 4], "a"))
    second = files.add(1, frame([5, 6], "b"))
    files.delete_positions(1, {first: [0, 3], second: [1]})
    files.delete_positions(2, {first: [0, 1]})
    assert files.names() == ["a3", "b5"]


def test_both_kinds_of_deletes(files: Files) -> None:
    first = files.add(1, frame([1, 2, 3], "a"))
    files.delete_positions(1, {first: [0]})
    files.delete_ids(2, [2])
    files.add(2, frame([2], "b"))
    assert files.names() == ["a3", "b2"]


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_file_that_is_gone_is_named_with_its_table(
    gone: int, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows, deletes by position, deletes by values
    path = files.add(1, frame([1, 2, 3], "a"))
    files.delete_positions(2, {path: [0]})
    files.delete_ids(2, [2])
    monkeypatch.setattr(iceberg_snapshot, "snapshot_files", lambda *_: files.snapshot)
    snapshot = IcebergSnapshot(TablePath("db", "t"), files.table, 1)
    assert snapshot.frame(snapshot.files).collect()["id"].to_list() == [3]
    missing = Path(str(snapshot.files[0].path)).with_name(f"{gone}.parquet")
    missing.unlink()
    with pytest.raises(
        FlussError, match=rf"lake table db\.t: the file {missing} .* is gone"
    ) as got:
        snapshot.frame(snapshot.files).collect()
    assert got.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_filters_see_what_is_not_deleted(files: Files) -> None:
    first = files.add(1, frame(list(range(100)), "a"))
    files.delete_positions(1, {first: list(range(0, 100, 2))})
    files.delete_ids(2, list(range(0, 100, 3)))
    whole = lake_frame(files.table, files.snapshot)
    expected = [i for i in range(100) if i % 2 and i % 3]
    found = whole.filter(col("id") > 50).select("id").collect()
    assert sorted(found["id"]) == [i for i in expected if i > 50]
    assert whole.select(pl.len()).collect().item() == len(expected)


def test_random_histories_against_a_dict(files: Files) -> None:
    """Upserts as merge-on-read writers make them: new rows, and deletes of the keys before."""
    choose = random.Random(7)
    rows: dict[int, str] = {}
    for sequence in range(1, 25):
        keys = choose.sample(range(40), choose.randrange(1, 15))
        again = [k for k in keys if choose.random() < 0.3]
        path = files.add(sequence, frame([*again, *keys], f"s{sequence}-"))
        # a key twice in one commit: the first one goes by its position
        if again:
            files.delete_positions(sequence, {path: list(range(len(again)))})
        gone = choose.sample(range(40), choose.randrange(0, 6))
        files.delete_ids(sequence, [*keys, *gone])
        rows = {k: v for k, v in rows.items() if k not in gone}
        rows |= {key: f"s{sequence}-{key}" for key in keys}
        assert files.names() == sorted(rows.values())


def test_columns_that_older_files_do_not_have(files: Files) -> None:
    files.add(1, frame([1], "a").drop("day"))
    files.add(2, frame([2], "b").with_columns(more=pl.lit(1)))
    found = lake_frame(files.table, files.snapshot).collect().sort("id")
    assert found.rows() == [(1, "a1", None), (2, "b2", "mon")]


# ---- which files are read

MANY = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("t", pa.timestamp("us")),
        ("b", pa.bool_()),
        ("part", pa.string()),
    ]
)


def random_rows(choose: np.random.Generator, part: str) -> pa.Table:
    count = int(choose.integers(1, 30))
    low = int(choose.integers(-50, 50))
    numbers = choose.integers(low, low + 10, count)
    nulls = choose.random((3, count)) < 0.2
    return pa.table(
        {
            "i": pa.array(numbers, mask=nulls[0]),
            "s": pa.array([f"{chr(97 + n % 26)}{n}" for n in numbers], mask=nulls[1]),
            "f": pa.array(np.where(choose.random(count) < 0.1, np.nan, numbers / 2)),
            "t": pa.array(numbers * 1_000_000_000, mask=nulls[2]).cast(pa.timestamp("us")),
            "b": pa.array(choose.random(count) < 0.5),
            "part": [part] * count,
        },
        schema=MANY,
    )


def conditions(choose: np.random.Generator) -> Iterator[pl.Expr]:
    number = int(choose.integers(-60, 60))
    text = f"{chr(97 + number % 26)}"
    moment = pl.lit(number * 1_000_000_000).cast(pl.Datetime("us"))
    atoms: list[Callable[[], pl.Expr]] = [
        lambda: col("i") > number,
        lambda: col("i") == number,
        lambda: col("i") != number,
        lambda: col("i").is_in([number, number + 1, None]),
        lambda: col("i").is_null(),
        lambda: col("s").is_not_null(),
        lambda: col("s").str.starts_with(text),
        lambda: col("s").str.contains(text, literal=True),
        lambda: col("s") < text,
        lambda: col("f") > number / 2,
        lambda: col("f").is_nan(),
        lambda: col("t") >= moment,
        lambda: col("b"),
        lambda: col("part") == f"p{number % 4}",
        lambda: col("part") > f"p{number % 4}",
    ]
    while True:
        made = atoms[int(choose.integers(len(atoms)))]()
        for _ in range(int(choose.integers(0, 3))):
            other = atoms[int(choose.integers(len(atoms)))]()
            made = [made & other, made | other, ~made][int(choose.integers(3))]
        yield made


@pytest.mark.parametrize("parted", [False, True])
def test_no_file_with_wanted_rows_is_left_out(catalog: SqlCatalog, parted: bool) -> None:
    choose = np.random.default_rng(int(parted))
    table: Any = catalog.create_table("db.many", MANY)
    if parted:
        with table.update_spec() as update:
            update.add_identity("part")
    for number in range(12):
        table.append(random_rows(choose, f"p{number % 4}"))
    found = snapshot_files(table, table.current_snapshot().snapshot_id)
    assert len(found.rows) == 12
    whole = {f.file.file_path: lake_frame(table, _only(found, f)).collect() for f in found.rows}
    assert polars_schema(MANY) == next(iter(whole.values())).schema
    left_out = 0
    for _, condition in zip(range(400), conditions(choose), strict=False):
        conjunct = PolarsConjunct(condition, MANY)
        predicates = [] if conjunct.predicate is None else [conjunct.predicate]
        keep = file_filter(table, predicates)
        for file in found.rows:
            rows = whole[file.file.file_path].filter(condition).height
            kept = keep(file.file)
            assert kept or not rows, (condition, file.file)
            left_out += not kept
    assert left_out > 500


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("digits", [-1000, -999, -1, 0, 1, 999, 1000])
def test_moments_that_are_finer_than_the_lake(
    catalog: SqlCatalog, zone: str | None, digits: int
) -> None:
    """Iceberg has microseconds, TIMESTAMP(9) nanoseconds: a literal must not lose its last ones."""
    # with pandas, Arrow makes a value of nanoseconds one that Iceberg takes for microseconds
    pytest.importorskip("pandas")
    rows = pa.table({"t": pa.array([1_000_000], pa.timestamp("us", zone))})
    table: Any = catalog.create_table("db.fine", rows.schema)
    table.append(rows)
    files = snapshot_files(table, table.current_snapshot().snapshot_id)
    whole = pl.Series("t", [10**9]).cast(pl.Datetime("ns", zone)).to_frame()
    literal = pa.scalar(10**9 + digits, pa.timestamp("ns", zone))
    # as Polars gives it to a scan: a literal of the type of the column
    moment = pl.lit(10**9 + digits).cast(pl.Datetime("ns", zone))
    for op, where in {
        Op.LT: col("t") < moment,
        Op.LE: col("t") <= moment,
        Op.GT: col("t") > moment,
        Op.GE: col("t") >= moment,
        Op.EQ: col("t") == moment,
        Op.NE: col("t") != moment,
    }.items():
        atom = Comparison("t", op, literal)
        for predicate, wanted in ((atom, where), (Not(atom), ~where)):
            kept = file_filter(table, [predicate])(files.rows[0].file)
            assert kept or whole.filter(wanted).is_empty(), predicate


def _only(files: SnapshotFiles, file: LakeFile) -> SnapshotFiles:
    return SnapshotFiles(files.snapshot_id, (file,), (), ())


def test_partitions_by_identity(catalog: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
    table: Any = catalog.create_table("db.days", SCHEMA, partition_spec=spec)
    days = ["mon", "tue", "wed"]
    table.append(pa.table({"id": [1, 2, 3], "name": days, "day": days}))
    files = snapshot_files(table, table.current_snapshot().snapshot_id)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())])
    wanted = PolarsConjunct(col("day").is_in(["tue", "sun"]), schema).predicate
    assert wanted is not None
    keep = file_filter(table, [wanted])
    (only,) = (file for file in files.rows if keep(file.file))
    assert lake_frame(table, _only(files, only)).collect()["day"].to_list() == ["tue"]

"""Rows of primary-key tables in a lake, of which some, all or none changed since."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.errors import FlussError
from fluss_df.io import overridden
from tests.lake.tables_by_hand import Folder

ROOT = Path(__file__).parents[2]
Engine: TypeAlias = Literal["in-memory", "streaming"]
ENGINES: tuple[Engine, ...] = ("in-memory", "streaming")


def rows(ids: range, text: str) -> pl.DataFrame:
    columns = {"id": ids, "v": [f"{text}{n}" for n in ids], "n": [n % 7 for n in ids]}
    return pl.DataFrame(columns, schema={"id": pl.Int64, "v": pl.String, "n": pl.Int64})


def keyed(folder: Folder, name: str = "t") -> None:
    columns = {"id": pa.int64(), "v": pa.string(), "n": pa.int64()}
    folder.create(name, columns, ["id"], buckets=2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("changed", [0, 1, 1000, 65_536])
def test_the_last_of_each_key(folder: Folder, engine: Engine, changed: int) -> None:
    keyed(folder)
    before = rows(range(65_536), "a")
    folder.write("t", before)
    folder.tier("t")
    # each twice, so that the first change must not be what is found
    folder.write("t", rows(range(changed), "b"))
    folder.write("t", rows(range(changed), "c"))
    added = rows(range(100_000, 100_000 + changed), "d")
    folder.write("t", added)
    gone = pl.DataFrame({"id": range(changed // 2)}, schema={"id": pl.Int64})
    folder.write("t", gone, mode="delete")
    expected = pl.concat([rows(range(changed), "c"), before.slice(changed), added])
    expected = expected.slice(gone.height).sort("id")
    scan = folder.scan("t")

    def found(query: pl.LazyFrame) -> pl.DataFrame:
        return query.collect(engine=engine)

    assert_frame_equal(found(scan).sort("id"), expected)
    for where in (
        pl.col("id") < 700,
        pl.col("v").str.starts_with("c1"),
        pl.col("n").is_in([3, 5]) & (pl.col("id") > 64_000),
        # nothing that Fluss has a word for
        pl.col("v").str.len_bytes() > 5,
    ):
        assert_frame_equal(found(scan.filter(where)).sort("id"), expected.filter(where))
    assert found(scan.select(pl.len())).item() == expected.height
    assert found(scan.select(pl.col("n").sum())).item() == expected["n"].sum()
    assert found(scan.head(10)).height == min(10, expected.height)
    assert found(scan.slice(5, 7)).height == 7
    assert found(scan.head(9).filter(pl.col("id") >= 0)).height == 9
    assert fluss.count(scan) == expected.height


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_of_several_columns_and_kinds(folder: Folder, engine: Engine) -> None:
    columns = {
        "day": pa.date32(),
        "name": pa.string(),
        "price": pa.decimal128(10, 2),
        "bytes": pa.binary(),
        "v": pa.int64(),
    }
    folder.create("t", columns, ["day", "name", "price", "bytes"], bucket_keys=["name"])
    keys = {
        "day": [dt.date(2026, 1, day) for day in (1, 1, 2, 2)],
        "name": ["b", "a", "a", "ä"],
        "price": [Decimal("1.10"), Decimal("1.10"), Decimal("-0.01"), Decimal("1.10")],
        "bytes": [b"", b"\0", b"", b"\xff"],
    }
    schema = {"price": pl.Decimal(10, 2)}
    before = pl.DataFrame({**keys, "v": range(4)}, schema_overrides=schema)
    folder.write("t", before)
    folder.tier("t")
    after = before.with_columns(v=pl.col("v") + 10)
    folder.write("t", after[1:3])
    found = folder.scan("t").collect(engine=engine)
    expected = pl.concat([before[:1], after[1:3], before[3:]])
    assert_frame_equal(found, expected, check_row_order=False)


def test_many_such_tables_in_one_query_on_one_thread(tmp_path: Path) -> None:
    """A query within a query waits for nothing that the outer one has."""
    code = """
import sys
import polars as pl, pyarrow as pa
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.lake.tables_by_hand import Folder
assert pl.thread_pool_size() == 1
options = EngineOptions(lake_tiering=False)
with EmbeddedFluss(sys.argv[1], options=options) as engine, engine.connection() as connection:
    folder = Folder(connection)
    scans = []
    for name in "abcd":
        folder.create(name, {"id": pa.int64(), "v": pa.int64()}, ["id"], buckets=2)
        folder.write(name, pl.DataFrame({"id": range(50_000), "v": range(50_000)}))
        folder.tier(name)
        folder.write(name, pl.DataFrame({"id": range(0, 50_000, 50), "v": [7] * 1000}))
        scans.append(folder.scan(name))
    first, *others = scans
    for other in others:
        first = first.join(other, on="id", suffix=f"_{len(first.collect_schema())}")
    for made in ("in-memory", "streaming"):
        print(first.select(pl.len(), pl.col("v").sum()).collect(engine=made).row(0))
        print(pl.concat(scans).select(pl.len()).collect(engine=made).item())
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "folder")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=100,
    ).stdout
    row = (50_000, sum(range(50_000)) - sum(range(0, 50_000, 50)) + 7000)
    assert said.splitlines() == [str(row), "200000"] * 2


def test_a_lake_without_later_rows_is_read_without_a_reader_of_the_log(folder: Folder) -> None:
    keyed(folder)
    folder.create("log", {"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    before = rows(range(100), "a")
    for name in ("t", "log"):
        folder.write(name, before)
        folder.tier(name)
        query = folder.scan(name).filter(pl.col("id") >= 50).select("v")
        plan = query.explain()
        assert "Parquet SCAN" in plan
        assert "ExternalReader" not in plan
        assert "JOIN" not in plan
        assert "PYTHON[fluss] SCAN" in plan
        # where it is found, too
        assert "0 rows" in fluss.explain(query)
        with fluss.track_scans() as scans:
            assert query.collect().height == 50
        assert [scan.plan.lake.rows for scan in scans if scan.plan.lake is not None] == [100]
        (report,) = fluss.fetched(query)
        assert (report.requests, report.rows) == (0, 0)
        folder.write(name, rows(range(100, 101), "b"))
        assert query.collect().height == 51
        assert fluss.fetched(query)[0].rows == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_functions_of_python_as_conditions(folder: Folder, engine: Engine) -> None:
    """Polars hands conditions to a source that is written in Python as bytes, where it can."""
    lock = threading.Lock()

    def odd(number: int) -> bool:
        with lock:
            return number % 2 == 1

    where = pl.col("id").map_elements(odd, return_dtype=pl.Boolean)
    keyed(folder)
    folder.create("log", {"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    for name in ("t", "log"):

        def found(table: str) -> int:
            return folder.scan(table).filter(where).collect(engine=engine).height

        assert found(name) == 0
        folder.write(name, rows(range(100), "a"))
        folder.tier(name)
        assert found(name) == found(f"{name}$lake") == 50
        folder.write(name, rows(range(101, 102), "b"))
        assert (found(name), found(f"{name}$lake")) == (51, 50)


def test_keys_that_no_iceberg_table_has_are_told(folder: Folder) -> None:
    with pytest.raises(FlussError, match="Iceberg has no keys of double"):
        folder.create("t", {"id": pa.float64()}, ["id"])


def test_many_changes_of_few_keys_are_not_all_held(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overridden, "_FOLDED_ROWS", 100)
    keyed(folder)
    folder.write("t", rows(range(200), "a"))
    folder.tier("t")
    for number in range(12):
        folder.write("t", rows(range(50), f"v{number} "))
        folder.write("t", pl.DataFrame({"id": [number]}), mode="delete")
    held: list[int] = []
    newest = overridden.OverriddenRows._newest

    def noted(self: overridden.OverriddenRows, changes: Sequence[pl.DataFrame]) -> pl.DataFrame:
        held.append(sum(frame.height for frame in changes))
        return newest(self, changes)

    monkeypatch.setattr(overridden.OverriddenRows, "_newest", noted)
    found = folder.scan("t").collect()
    changed = rows(range(50), "v11 ").filter(pl.col("id") != 11)
    expected = pl.concat([changed, rows(range(50, 200), "a")])
    assert_frame_equal(found.sort("id"), expected.sort("id"))
    assert held


@pytest.mark.parametrize("keys", [[], ["id"]])
@pytest.mark.parametrize("changed", [0, 20])
def test_nulls_among_the_values_of_a_filter(folder: Folder, keys: list[str], changed: int) -> None:
    columns = {"id": pa.int64(), "v": pa.string()}
    folder.create("t", columns, keys, buckets=1)
    # the texts differ, so that their pages have no dictionary
    texts = [None if n % 1000 == 1 else f"a{n}" for n in range(100_000)]
    whole = pl.DataFrame({"id": range(100_000), "v": texts})
    folder.write("t", whole)
    folder.tier("t")
    if changed:
        more = pl.DataFrame({"id": range(100_000, 100_000 + changed), "v": ["a7"] * changed})
        folder.write("t", more)
        whole = pl.concat([whole, more])
    for condition in (
        pl.col("v").is_in(["a7", "a70000", None], nulls_equal=True),
        ~pl.col("v").is_in(["a7", "a70000", None], nulls_equal=True),
        pl.col("id").is_in([70_000, None], nulls_equal=True),
    ):
        query = folder.scan("t").filter(condition)
        expected = whole.filter(condition)
        assert_frame_equal(query.collect().sort("id"), expected)
        batches = list(query.collect_batches())
        assert sum(batch.height for batch in batches) == expected.height
        assert fluss.count(query) == expected.height

"""Lake tables that somebody changed by hand: read as they are, or refused with what was changed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, LongType

import fluss_df as fluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.scans import union
from tests.lake.folders import catalog
from tests.lake.tables_by_hand import Folder

KINDS = {"id": pa.int32(), "n": pa.int32(), "x": pa.float32()}
col = pl.col


def rows(ids: range) -> pa.Table:
    columns = {name: pa.array(ids, pa.int64()).cast(kind) for name, kind in KINDS.items()}
    return pa.table(columns)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("change", ["renamed", "dropped"])
def test_a_column_that_is_gone_is_not_taken_for_one_that_was_added(
    folder: Folder, tmp_path: Path, change: str, keyed: bool
) -> None:
    folder.create("t", KINDS, ["id"] if keyed else [])
    folder.write("t", rows(range(10)))
    folder.tier("t")
    with catalog(tmp_path / "folder").load_table(("fluss", "t")).update_schema() as update:
        update.rename_column("n", "m") if change == "renamed" else update.delete_column("n")
    union._opened.cache_clear()
    with pytest.raises(
        FlussError, match=r"lake table fluss\.t has no column 'n': .*by hand"
    ) as told:
        folder.scan("t").collect()
    assert told.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    folder.write("t", rows(range(1)))
    with pytest.raises(FlussError, match=r"has the columns \['n'\], which its lake table lacks"):
        folder.tier("t")
    assert folder.scan("t", lake=False).collect().height == 10 + (not keyed)


@pytest.mark.parametrize("keyed", [False, True])
def test_conditions_that_no_row_fits_on_a_column_that_came_later(
    folder: Folder, keyed: bool
) -> None:
    folder.create("t", KINDS, ["id"] if keyed else [])
    folder.write("t", rows(range(10)))
    folder.tier("t")
    path = fluss.TablePath("fluss", "t")
    folder.connection.get_admin().alter_table(path, add_columns=pa.schema([("later", pa.int32())]))
    scan = folder.scan("t")
    for where in (col("later").is_in([]), col("later").is_in([None])):
        assert scan.filter(where).collect().is_empty()
        assert scan.filter(where | (col("id") == 3)).collect().height == 1


@pytest.mark.parametrize("keyed", [False, True])
def test_columns_that_were_widened(folder: Folder, tmp_path: Path, keyed: bool) -> None:
    folder.create("t", KINDS, ["id"] if keyed else [])
    folder.write("t", rows(range(10)))
    folder.tier("t")
    with catalog(tmp_path / "folder").load_table(("fluss", "t")).update_schema() as update:
        update.update_column("id", field_type=LongType())
        update.update_column("n", field_type=LongType())
        update.update_column("x", field_type=DoubleType())
    union._opened.cache_clear()
    folder.write("t", rows(range(5, 15)))
    for _ in range(2):
        found = folder.scan("t").collect()
        assert found.schema == {"id": pl.Int32, "n": pl.Int32, "x": pl.Float32}
        wanted = [*range(15)] if keyed else [*range(10), *range(5, 15)]
        assert sorted(found["id"]) == sorted(found["n"]) == sorted(wanted)
        for column in KINDS:
            assert folder.scan("t").filter(col(column) > 6).collect().height == sum(
                one > 6 for one in wanted
            )
        folder.tier("t")
    lake = folder.scan("t$lake").collect()
    assert sorted(lake["n"]) == sorted(wanted)


def test_a_size_of_files_that_is_no_number(folder: Folder, tmp_path: Path) -> None:
    folder.create("t", KINDS)
    folder.write("t", rows(range(10)))
    with catalog(tmp_path / "folder").load_table(("fluss", "t")).transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "1 GB"})
    with pytest.raises(FlussError, match="target-file-size-bytes is '1 GB', and not a number"):
        folder.tier("t")

"""What happens between the two halves of a query: tiering, and expiry of the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.scans import union
from fluss_df.io.scans.planning import ask_bounds
from tests.lake.tables_by_hand import Folder

OPTIONS = EngineOptions(lake_tiering=False, segment_bytes=2000)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "folder", options=OPTIONS) as made:
        yield made


@pytest.fixture
def folder(engine: EmbeddedFluss) -> Iterator[Folder]:
    with engine.connection() as connection:
        yield Folder(connection)


@pytest.mark.parametrize("before", [True, False])
def test_a_log_that_expires_after_the_lake_was_asked(
    engine: EmbeddedFluss, folder: Folder, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    folder.create("t", {"id": pa.int64()}, properties={"table.log.ttl": "1ms"})
    written = 0

    def more() -> None:
        nonlocal written
        for _ in range(5):
            rows = pl.DataFrame({"id": range(written, written + 300)})
            folder.write("t", rows)
            written += rows.height
        folder.tier("t")

    if before:
        more()
    asked = 0
    pin = union.pin_lake

    def and_meanwhile(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        found = pin(*given)
        if asked <= 2:
            more()
            assert engine.engine.expire()
        return found

    monkeypatch.setattr(union, "pin_lake", and_meanwhile)
    found = folder.scan("t").collect()
    assert sorted(found["id"]) == list(range(written))
    assert (written, asked) == ((4500, 3) if before else (3000, 3))


def test_partitions_have_one_name_in_both_halves(folder: Folder) -> None:
    columns = {"a": pa.string(), "id": pa.int64(), "b": pa.string()}
    folder.create("t", columns, parts=["b", "a"])
    rows = pl.DataFrame({"a": ["x", "y"], "id": [1, 2], "b": ["p", "q"]})
    folder.write("t", rows, create_partitions=True)
    folder.tier("t")
    folder.write("t", rows)
    found = folder.scan("t", include_metadata=True).collect()
    assert sorted(found["_partition"]) == ["p$x", "p$x", "q$y", "q$y"]


def test_keys_whose_changes_expired_before_the_lake_had_them_are_told(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create("t", {"id": pa.int64()}, ["id"])
    folder.write("t", pl.DataFrame({"id": [1, 2]}))
    folder.tier("t")
    # as of a partition that was written while the lake of its table was switched off
    monkeypatch.setattr(union.PinnedLake, "offset", lambda *_: None)
    assert folder.scan("t").collect().height == 2
    real = ask_bounds

    def expired(*given: Any) -> Any:
        first, *others = real(*given)
        return dict.fromkeys(first, 1), *others

    monkeypatch.setattr(union, "ask_bounds", expired)
    with pytest.raises(FlussError, match="before the offset 1 have expired") as refused:
        folder.scan("t").collect()
    assert refused.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_rows_that_are_in_neither_half_are_told(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create("t", {"id": pa.int64()})
    folder.write("t", pl.DataFrame({"id": [1, 2]}))
    folder.tier("t")
    # as of a log that was put back
    monkeypatch.setattr(union.PinnedLake, "offset", lambda *_: 5)
    with pytest.raises(FlussError, match="rows between are in neither") as refused:
        folder.scan("t").collect()
    assert refused.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION

"""Queries whose batches are taken one by one: their errors, their end, what they hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss_df.errors import FlussError
from fluss_df.io.scans.flow import Flow
from fluss_df.polars_adapter.lake_files import first_unreadable, without_unreadable_filters
from fluss_df.polars_adapter.scans import scan_frames
from tests.waiting import wait_until

# three numbers in a Parquet file, of which one bit is another: the reader of Polars 2.1 panics
PANICS = bytes.fromhex(
    "504152311504153015304c150615001200000100000000000000020000000000000003000000000000001500151415"
    "142c15061550150615061c000000020000000601020324001504192c35001806736368656d61150200150425021801"
    "69001606191c191c26001c15041935000610191801691500160616860116860126542608292c150415001502001500"
    "15101502003c29061926000600000016860116062608168601002820706172717565742d6370702d6172726f772076"
    "657273696f6e2032362e302e31191c1c0000008800000050415231"
)


@pytest.fixture
def panics(tmp_path: Path) -> Path:
    file = tmp_path / "panics.parquet"
    file.write_bytes(PANICS)
    return file


@pytest.fixture
def without_dictionary(tmp_path: Path) -> pl.LazyFrame:
    rows = {"c": [None if n % 50 == 9 else f"c{n % 50}" for n in range(1000)], "n": range(1000)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", use_dictionary=False)
    return pl.scan_parquet(tmp_path / "a.parquet")


def test_a_panic_of_polars_is_an_error_and_no_end(panics: Path) -> None:
    with pytest.raises(FlussError, match="the query was ended by an error within Polars"):
        list(Flow().batches(pl.scan_parquet(panics)))


def test_a_file_at_which_polars_panics_is_unreadable(panics: Path) -> None:
    found = first_unreadable([str(panics)])
    assert found is not None
    assert found[0] == str(panics)


def test_nulls_among_the_values_of_a_filter(without_dictionary: pl.LazyFrame) -> None:
    whole = without_dictionary.collect()
    for values in (["c7", "c8", None], ["c7"], [None]):
        for condition in (
            pl.col("c").is_in(values, nulls_equal=True),
            ~pl.col("c").is_in(values, nulls_equal=True) & (pl.col("n") > 5),
            pl.col("c").is_in(values, nulls_equal=True).map_batches(lambda s: s, pl.Boolean),
        ):
            rows = without_unreadable_filters(without_dictionary, [condition])
            frames = Flow().batches(rows.filter(condition))
            assert pl.concat(frames).sort("n").equals(whole.filter(condition))


def test_other_filters_reach_the_file(without_dictionary: pl.LazyFrame) -> None:
    condition = pl.col("c").is_in(["c7"])
    assert without_unreadable_filters(without_dictionary, [condition]) is without_dictionary


def counted(read: list[int], ended: threading.Event) -> pl.LazyFrame:
    """Return numbers that never end, whose parts are counted as they are read."""

    def parts(names: list[str], rows: int | None) -> Iterator[pl.DataFrame]:
        try:
            while True:
                read.append(1)
                yield pl.DataFrame({"n": range(100_000)}).select(names)
        finally:
            ended.set()

    return scan_frames(parts, {"n": pl.Int64})


def test_what_is_not_taken_is_not_read_and_a_closed_query_ends() -> None:
    read: list[int] = []
    ended = threading.Event()
    batches = Flow().batches(counted(read, ended))
    assert not read
    assert next(batches)["n"].len() > 0
    # Polars has some parts on their way: it stops to read once nobody takes them
    seen = -1
    while seen != (seen := len(read)):
        ended.wait(0.2)
    assert seen < 60
    batches.close()
    assert ended.wait(20)


def test_batches_have_the_rows_asked_for() -> None:
    frame = pl.LazyFrame({"n": range(10_000)})
    batches = list(Flow().batches(frame, chunk_size=3000))
    assert [batch.height for batch in batches] == [3000, 3000, 3000, 1000]
    assert pl.concat(batches).equals(frame.collect())


def test_errors_of_a_source_are_raised_as_they_are() -> None:
    def parts(names: list[str], rows: int | None) -> Iterator[pl.DataFrame]:
        yield pl.DataFrame({"n": [1]})
        raise FlussError("bucket 3 has no leader")

    with pytest.raises((FlussError, pl.exceptions.ComputeError), match="bucket 3 has no leader"):
        list(Flow().batches(scan_frames(parts, {"n": pl.Int64})))
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "fluss-df-query"], 10)

"""What is exported of runs: micro-batches, rows, and how far a run is behind its table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.metrics import start_http_server
from tests.metrics.support import Scrape, Scraper


def test_batches_rows_and_lag(tmp_path: Path) -> None:
    scrape = Scraper()
    checkpoint = str(tmp_path / "run")
    with EmbeddedFluss(tmp_path / "d"), fluss.connect(tmp_path / "d") as connection:
        schema = pa.schema([("n", pa.int64())])
        descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=2)
        connection.get_admin().create_table(fluss.TablePath("fluss", "watched"), descriptor)
        with connection.get_table("watched").new_append().create_writer() as writer:
            for first in range(0, 100, 10):
                writer.write_arrow(pa.table({"n": range(first, first + 10)}, schema=schema))
                writer.flush()
        labels = {"run": checkpoint, "table": "fluss.watched"}
        lags: list[float] = []
        seen: list[Scrape] = []

        def on_batch(number: int, read: int, written: int) -> None:
            seen.append(scrape())
            lags.append(seen[-1]("fluss_run_lag_records", **labels))

        frame = fluss.scan_fluss("watched", connection=connection).filter(pl.col("n") % 2 == 0)
        result = fluss.run(
            frame,
            to=str(tmp_path / "out"),
            checkpoint=checkpoint,
            max_batch_rows=30,
            on_batch=on_batch,
        )
        after = scrape()
    assert (result.batches, result.rows_read, result.rows_written) == (4, 100, 50)
    assert lags == [70, 40, 10, 0]
    assert [s("fluss_run_batches_total", **labels) for s in seen] == [1, 2, 3, 4]
    assert after("fluss_run_batches_total", **labels) == 4
    assert after("fluss_run_records_read_total", **labels) == 100
    assert after("fluss_run_records_written_total", **labels) == 50
    assert after("fluss_run_batch_duration_seconds_count", **labels) == 4
    # one that ended is not behind
    assert "fluss_run_lag_records" not in after.names()


def test_a_batch_that_failed_is_not_counted_and_the_lag_says_so(tmp_path: Path) -> None:
    scrape = Scraper()
    checkpoint = str(tmp_path / "failing")
    with EmbeddedFluss(tmp_path / "d"), fluss.connect(tmp_path / "d") as connection:
        schema = pa.schema([("n", pa.int64())])
        descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1)
        connection.get_admin().create_table(fluss.TablePath("fluss", "watched"), descriptor)
        with connection.get_table("watched").new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"n": range(7)}, schema=schema))
        labels = {"run": checkpoint, "table": "fluss.watched"}
        during: list[float] = []

        def to(frame: pl.DataFrame, number: int) -> None:
            during.append(scrape()("fluss_run_lag_records", **labels))
            raise ValueError("no")

        frame = fluss.scan_fluss("watched", connection=connection)
        for _ in range(2):
            try:
                fluss.run(frame, to=to, checkpoint=checkpoint)
            except ValueError:
                pass
            else:
                raise AssertionError("it did not fail")
        assert during == [7, 7]
        assert scrape()("fluss_run_batches_total", **labels) == 0
        fluss.run(frame, to=lambda frame, number: None, checkpoint=checkpoint)
        assert scrape()("fluss_run_batches_total", **labels) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 on other systems")
def test_a_checkpoint_whose_name_is_not_utf8(tmp_path: Path) -> None:
    checkpoint = tmp_path / os.fsdecode(b"caf\xe9")
    schema = pa.schema([("n", pa.int64())])
    with EmbeddedFluss(tmp_path / "d"), fluss.connect(tmp_path / "d") as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1)
        connection.get_admin().create_table(fluss.TablePath("fluss", "odd"), descriptor)
        with connection.get_table("odd").new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"n": [1, 2]}, schema=schema))
        seen: list[Scrape] = []
        frame = fluss.scan_fluss("odd", connection=connection)
        with start_http_server() as server:
            scrape = Scraper(url=server.url)
            fluss.run(
                frame,
                to=lambda *_: None,
                checkpoint=checkpoint,
                on_batch=lambda *_: seen.append(scrape()),
            )
            after = scrape()
    labels = {"run": rf"{tmp_path}/caf\udce9", "table": "fluss.odd"}
    assert after("fluss_run_records_read_total", **labels) == 2
    assert after("fluss_run_batch_duration_seconds_count", **labels) == 1
    assert ("fluss_run_lag_records", frozenset(labels.items())) in seen[0].samples

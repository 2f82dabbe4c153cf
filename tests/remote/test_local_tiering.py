"""Logs whose older part is in a folder of the cluster, beside the official client."""

from __future__ import annotations

import glob
import os
import threading
import time

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch import remote_segments as remote_log
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode
from tests.client.support import Official, Tables
from tests.client.test_schema_evolution import add_columns
from tests.remote.tiered import (
    DATABASE,
    ROWS_PER_SEGMENT,
    Tiered,
    plain,
    poll_arrow,
    read_all_ways,
    rows,
)


@pytest.fixture(scope="module")
def shared(tiered: Tiered) -> tuple[fluss.FlussTable, pa.Table]:
    """A table that nobody changes: its first segments are remote, its newest are local."""
    return tiered.filled()


Shared = tuple[fluss.FlussTable, pa.Table]


def test_all_ways_give_what_the_official_client_reads(
    tiered: Tiered, official: Official, shared: Shared
) -> None:
    table, data = shared
    expected = plain(data)
    assert plain(official.read(table)) == expected
    for way, (found, metrics) in read_all_ways(tiered, table, 0, None, data.num_rows).items():
        assert plain(found) == expected, way
        if metrics is not None:
            assert metrics.remote_segments >= 3, way
            assert metrics.remote_bytes < metrics.record_bytes, way  # the rest was local
            assert metrics.rows == data.num_rows, way


@pytest.mark.parametrize("columns", [["value"], ["text", "id"], ["id"]])
def test_projections(tiered: Tiered, shared: Shared, columns: list[str]) -> None:
    table, data = shared
    start = ROWS_PER_SEGMENT + 1_234
    expected = plain(data.slice(start).select(columns))
    for way, (found, _) in read_all_ways(tiered, table, start, columns, len(expected)).items():
        assert plain(found) == expected, way


@pytest.mark.parametrize(
    "start", [1, 2_999, 3_000, 3_001, ROWS_PER_SEGMENT - 1, 2 * ROWS_PER_SEGMENT + 17]
)
@pytest.mark.parametrize("length", [1, 10_000, 70_000])
def test_bounds_within_segments(tiered: Tiered, shared: Shared, start: int, length: int) -> None:
    table, data = shared
    stop = min(start + length, data.num_rows)
    frame = tiered.lazy(table, start=start, stop=stop, include_metadata=True).collect()
    assert frame["id"].to_list() == list(range(start, stop))
    assert frame["_log_offset"].to_list() == list(range(start, stop))


def test_single_records(tiered: Tiered, shared: Shared) -> None:
    table, data = shared
    # across the border of the first two segments
    start = data.num_rows // 5 - 700
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe(0, start)
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 20
    while len(found) < 5_000 and time.monotonic() < deadline:
        found += [(record.offset, record.row["id"]) for record in scanner.poll(500)]
    assert found == [(at, at) for at in range(start, start + len(found))]


def test_a_poll_takes_no_more_than_a_piece(
    tiered: Tiered, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", 200_000)
    monkeypatch.setattr(remote_log, "_RANGE_BYTES", 200_000)
    table, data = shared
    scanner = tiered.scanner(table, 0)
    largest, found = 0, 0
    deadline = time.monotonic() + 20
    while found < data.num_rows and time.monotonic() < deadline:
        part = scanner.poll_arrow(500)
        if scanner.metrics.record_bytes == scanner.metrics.remote_bytes:
            largest = max(largest, part.nbytes)
        found += part.num_rows
    assert found == data.num_rows
    assert largest < 600_000


def test_to_arrow_goes_on_where_polling_was(
    tiered: Tiered, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_log, "_FIRST_RANGE_BYTES", 200_000)
    table, data = shared
    scanner = tiered.scanner(table, 5)
    first = poll_arrow(scanner, 1)
    assert first.num_rows < ROWS_PER_SEGMENT
    rest = scanner.to_arrow()
    assert plain(pa.concat_tables([first, rest])) == plain(data.slice(5))


def test_aggregations_stream(tiered: Tiered, shared: Shared) -> None:
    table, data = shared
    lazy = tiered.lazy(table).filter(pl.col("id") % 2 == 1).select(pl.col("value").sum())
    expected = float(np.arange(1, data.num_rows, 2).sum()) / 2
    assert lazy.collect(engine="streaming").item() == expected
    assert tiered.lazy(table).head(3).collect()["id"].to_list() == [0, 1, 2]


def test_polling_while_segments_move(tiered: Tiered) -> None:
    """A reader that starts late meets remote segments, catches up and goes on with what comes."""
    table = tiered.create()
    tiered.write(table, rows(0, 3 * ROWS_PER_SEGMENT))
    tiered.wait(table, 1)
    total = 7 * ROWS_PER_SEGMENT

    def write() -> None:
        for first in range(3 * ROWS_PER_SEGMENT, total, ROWS_PER_SEGMENT // 4):
            tiered.write(table, rows(first, ROWS_PER_SEGMENT // 4))
            time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    scanners = [tiered.scanner(table) for _ in range(2)]
    quick = scanners[0]
    try:
        found = poll_arrow(quick, total)
    finally:
        writer.join()
    assert found["id"].to_pylist() == list(range(total))
    # the second one polled nothing meanwhile, and finds most of it remote
    tiered.wait(table, 4)
    late = poll_arrow(scanners[1], total)
    assert late["id"].to_pylist() == list(range(total))
    assert scanners[1].metrics.remote_segments >= 4


def test_many_buckets(tiered: Tiered) -> None:
    """More buckets than are read from remote storage at a time."""
    buckets = 6
    table = tiered.create(bucket_count=buckets)
    data = rows(0, buckets * 3 * ROWS_PER_SEGMENT)
    tiered.write(table, data, batch=6_000)
    everything = dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET)
    deadline = time.monotonic() + 40
    while True:
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(everything)
        found = scanner.to_arrow()
        assert sorted(found["id"].to_pylist()) == list(range(data.num_rows))
        if scanner.metrics.remote_segments >= buckets:
            break
        assert time.monotonic() < deadline
        time.sleep(0.3)
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(everything)
    polled = poll_arrow(scanner, data.num_rows)
    assert sorted(polled["id"].to_pylist()) == list(range(data.num_rows))


def test_segments_of_several_schemas(tiered: Tiered) -> None:
    """Columns that were added after the first segments had gone are null there."""
    table = tiered.create()
    half = 2 * ROWS_PER_SEGMENT + 500
    tiered.write(table, rows(0, half))
    field = pa.field("extra", pa.int32())
    add_columns(Tables(tiered.connection, DATABASE), table, pa.schema([field]))
    table = tiered.connection.get_table(table.get_table_path())
    newer = rows(half, half).append_column(field, pa.array(range(half), pa.int32()))
    tiered.write(table, newer)
    tiered.wait(table, 3)
    older = rows(0, half).append_column(field, pa.nulls(half, pa.int32()))
    data = pa.concat_tables([older, newer])
    for columns in (None, ["extra"], ["extra", "id"], ["text"]):
        expected = data if columns is None else data.select(columns)
        for way, (found, _) in read_all_ways(tiered, table, 0, columns, 2 * half).items():
            assert found.cast(expected.schema).combine_chunks() == expected.combine_chunks(), way


# ---- what goes wrong


def _segment_files(cluster: LocalCluster, table: fluss.FlussTable) -> list[str]:
    path = table.get_table_path()
    folder = cluster.dir / "remote" / "log" / path.database_name
    name = f"{path.table_name}-{table.get_table_info().table_id}"
    # unlike rglob, it bears folders that vanish under it
    found = glob.glob(str(folder / name / "**" / "*.log"), recursive=True)
    return sorted(found, key=lambda text: text[-24:])


def test_a_corrupt_file_is_never_skipped(tiered: Tiered, tiering_cluster: LocalCluster) -> None:
    table, _ = tiered.filled(3)
    file = _segment_files(tiering_cluster, table)[0]
    with open(file, "r+b") as damaged:
        damaged.seek(-100, 2)
        byte = damaged.read(1)[0]
        damaged.seek(-100, 2)
        damaged.write(bytes([byte ^ 1]))
    with pytest.raises(fluss.FlussError, match="corrupt") as caught:
        tiered.scanner(table).to_arrow()
    assert caught.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    with tiered.scanner(table) as scanner:
        for _ in range(3):
            with pytest.raises(fluss.FlussError, match="corrupt"):
                poll_arrow(scanner, 10**6)


def test_a_missing_file_is_named(tiered: Tiered, tiering_cluster: LocalCluster) -> None:
    table, data = tiered.filled(4)
    file = _segment_files(tiering_cluster, table)[1]
    os.rename(file, f"{file}.hidden")
    scanner = tiered.scanner(table)
    with pytest.raises(fluss.FlussError, match=os.path.basename(file)) as caught:
        scanner.to_arrow()
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert scanner.metrics.retries == 1
    with tiered.scanner(table) as polled:
        with pytest.raises(fluss.FlussError, match=os.path.basename(file)):
            poll_arrow(polled, data.num_rows)
        # it comes back, and so does the reader
        os.rename(f"{file}.hidden", file)
        rest = poll_arrow(polled, 1)
    assert rest["id"][0].as_py() <= int(os.path.basename(file)[:20])


def test_retention_while_reading(tiered: Tiered, tiering_cluster: LocalCluster) -> None:
    """Segments that expire under a reader: it asks again, and is told that they expired."""
    table = tiered.create(properties={"table.log.ttl": "4s"})
    tiered.write(table, rows(0, 6 * ROWS_PER_SEGMENT))
    options = {
        "bootstrap.servers": tiering_cluster.bootstrap_servers,
        "scanner.remote-log.prefetch-num": 1,
        "remote-file.download-thread-num": 1,
    }
    with fluss.connect(options) as connection:
        scanner = tiered.scanner(table, 0, connection=connection)
        deadline = time.monotonic() + 20
        while not scanner.metrics.remote_segments:
            scanner = tiered.scanner(table, 0, connection=connection)
            reader = scanner.to_arrow_batch_reader()
            assert reader.read_next_batch()["id"][0].as_py() == 0
            assert time.monotonic() < deadline
        while _segment_files(tiering_cluster, table):
            time.sleep(0.2)
            assert time.monotonic() < deadline
        with pytest.raises(fluss.FlussError, match="older data has expired") as caught:
            reader.read_all()
    assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    # what is left is read from where it begins
    left = tiered.scanner(table).to_arrow()["id"].to_pylist()
    assert left == list(range(6 * ROWS_PER_SEGMENT - len(left), 6 * ROWS_PER_SEGMENT))
    assert left


def test_retention_before_reading(tiered: Tiered, tiering_cluster: LocalCluster) -> None:
    """Segments that expire before their reader begins: it reads from where the log begins then."""
    table = tiered.create(properties={"table.log.ttl": "4s"})
    tiered.write(table, rows(0, 6 * ROWS_PER_SEGMENT))
    earliest = [tiered.scanner(table) for _ in range(2)]
    named = tiered.scanner(table, 0)
    deadline = time.monotonic() + 30
    while not _segment_files(tiering_cluster, table):
        time.sleep(0.05)
        assert time.monotonic() < deadline
    while _segment_files(tiering_cluster, table):
        time.sleep(0.2)
        assert time.monotonic() < deadline
    left = earliest[0].to_arrow()["id"].to_pylist()
    assert left == list(range(6 * ROWS_PER_SEGMENT - len(left), 6 * ROWS_PER_SEGMENT))
    assert left
    assert poll_arrow(earliest[1], len(left))["id"].to_pylist() == left
    assert tiered.lazy(table).collect()["id"].to_list() == left
    with pytest.raises(fluss.FlussError, match="older data has expired"):
        named.to_arrow()

"""Reads of all that a log has, when its oldest segments expire before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import ErrorCode
from fluss_df.io.scans import planning
from tests.remote.tiered import poll_arrow

BATCHES = 12
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LOG = fluss.TablePath("fluss", "log")
KEYS = fluss.TablePath("fluss", "keys")
BUCKETS = fluss.TablePath("fluss", "buckets")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    options = EngineOptions(segment_bytes=500)
    with EmbeddedFluss(tmp_path / "d", options=options) as engine:
        yield engine


@pytest.fixture
def connection(engine: EmbeddedFluss) -> Iterator[fluss.FlussConnection]:
    """A connection to a folder with a log: all but its last segments expire."""
    with engine.connection() as connection:
        fill(connection, LOG)
        yield connection


def fill(
    connection: fluss.FlussConnection,
    path: fluss.TablePath,
    keys: list[str] | None = None,
    buckets: int = 1,
) -> None:
    """Make a table whose segments expire, and write a row to each of some batches."""
    descriptor = fluss.TableDescriptor(
        fluss.Schema(SCHEMA, keys),
        bucket_count=buckets,
        bucket_keys=None if keys else ["n"],
        properties={"table.log.ttl": "1ms"},
    )
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    made = table.new_upsert() if keys else table.new_append()
    with made.create_writer() as writer:
        for i in range(BATCHES * buckets):
            writer.write_arrow(pa.table([[i], ["x" * 300]], schema=SCHEMA))
            writer.flush()


@pytest.fixture
def expiring(engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have old segments expire as soon as a scan knows where the log begins."""

    def expire_after_planning() -> None:
        bounds = planning._BoundsQuestion.bounds

        def late(self: Any, answers: Any) -> planning.Bounds:
            found = bounds(self, answers)
            assert engine.engine.expire()
            return found

        monkeypatch.setattr(planning._BoundsQuestion, "bounds", late)

    return expire_after_planning


def left(connection: fluss.FlussConnection, path: fluss.TablePath = LOG) -> list[int]:
    """Return the offsets that a log still has, of which some are gone."""
    admin = connection.get_admin()
    first = admin.list_offsets(path, [0], fluss.OffsetSpec.earliest())[0]
    last = admin.list_offsets(path, [0], fluss.OffsetSpec.latest())[0]
    assert 0 < first < last
    return list(range(first, last))


@pytest.mark.parametrize("engine_name", ["in-memory", "streaming"])
@pytest.mark.parametrize("start", ["earliest", 0])
def test_a_scan_begins_where_the_log_does(
    connection: fluss.FlussConnection,
    expiring: Callable[[], None],
    start: str | int,
    engine_name: Literal["in-memory", "streaming"],
) -> None:
    scan = fluss.scan_fluss(LOG, connection=connection, start=start, include_metadata=True)
    assert scan.collect().height == BATCHES
    expiring()
    query = scan.select("n", "_log_offset")
    if start == 0:
        # rows that were asked for are never silently left out
        with pytest.raises(fluss.FlussError, match="older data has expired") as caught:
            query.collect(engine=engine_name)
        assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        return
    rows = query.collect(engine=engine_name)
    assert rows["_log_offset"].to_list() == rows["n"].to_list() == left(connection)


def test_an_offset_given_for_a_bucket_is_kept_to(
    connection: fluss.FlussConnection, expiring: Callable[[], None]
) -> None:
    scan = fluss.scan_fluss(LOG, connection=connection, start={0: 1})
    expiring()
    with pytest.raises(fluss.FlussError, match="offset 1 is out of range"):
        scan.collect()


def test_a_scan_of_which_all_has_expired_is_empty(
    connection: fluss.FlussConnection, expiring: Callable[[], None]
) -> None:
    scan = fluss.scan_fluss(LOG, connection=connection, stop=3)
    assert scan.collect()["n"].to_list() == [0, 1, 2]
    expiring()
    assert scan.collect().shape == (0, 2)


def test_each_bucket_begins_where_its_log_does(
    connection: fluss.FlussConnection, expiring: Callable[[], None]
) -> None:
    fill(connection, BUCKETS, buckets=5)
    scan = fluss.scan_fluss(BUCKETS, connection=connection, include_metadata=True)
    assert scan.collect()["n"].sort().to_list() == list(range(5 * BATCHES))
    expiring()
    found = scan.collect().group_by("_bucket").agg(pl.col("_log_offset").min()).sort("_bucket")
    admin = connection.get_admin()
    first = admin.list_offsets(BUCKETS, list(range(5)), fluss.OffsetSpec.earliest())
    assert dict(found.iter_rows()) == first
    assert min(first.values()) > 0


@pytest.mark.parametrize("kind", ["changelog", "binlog"])
def test_changes_begin_where_the_log_does(
    connection: fluss.FlussConnection, expiring: Callable[[], None], kind: str
) -> None:
    fill(connection, KEYS, ["n"])
    scan = fluss.scan_fluss(f"{KEYS}${kind}", connection=connection)
    assert scan.collect().height == BATCHES
    expiring()
    assert scan.collect()["_log_offset"].to_list() == left(connection, KEYS)


def test_a_filter_and_an_aggregate(
    connection: fluss.FlussConnection, expiring: Callable[[], None]
) -> None:
    scan = fluss.scan_fluss(LOG, connection=connection)
    expiring()
    found = scan.filter(pl.col("n") % 2 == 1).select(pl.col("n").sum(), pl.len().alias("rows"))
    row = found.collect().row(0)
    odd = [n for n in left(connection) if n % 2]
    assert row == (sum(odd), len(odd))


def test_a_scan_that_follows_begins_where_the_log_does(
    engine: EmbeddedFluss, connection: fluss.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = fluss.LogScanner.poll_arrow

    def late(self: fluss.LogScanner, timeout_ms: int) -> pa.Table:
        engine.engine.expire()
        return poll(self, timeout_ms)

    monkeypatch.setattr(fluss.LogScanner, "poll_arrow", late)
    scan = fluss.scan_fluss(LOG, connection=connection, follow=True, max_rows=1)
    found = scan.collect()["n"].to_list()
    assert found == left(connection)[:1]


@pytest.mark.parametrize("way", ["to_arrow", "to_arrow_batch_reader", "poll_arrow"])
def test_a_subscription_from_the_beginning_begins_where_the_log_does(
    engine: EmbeddedFluss, connection: fluss.FlussConnection, way: str
) -> None:
    scanners = []
    for start in (fluss.EARLIEST_OFFSET, 0):
        scanner = connection.get_table(LOG).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, start)
        scanners.append(scanner)
    assert engine.engine.expire()
    expected = left(connection)
    ways: dict[str, Callable[[fluss.LogScanner], pa.Table]] = {
        "to_arrow": lambda scanner: scanner.to_arrow(),
        "to_arrow_batch_reader": lambda scanner: scanner.to_arrow_batch_reader().read_all(),
        "poll_arrow": lambda scanner: poll_arrow(scanner, len(expected)),
    }
    read = ways[way]
    assert read(scanners[0])["n"].to_pylist() == expected
    with pytest.raises(fluss.FlussError, match="older data has expired"):
        read(scanners[1])

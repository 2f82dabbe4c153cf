"""Tables of more buckets than threads, and of more than may be open at once."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.client.runtime.retry import Backoff
from fluss_df.client.scan.bucket_reads import BucketReads
from fluss_df.client.scan.change_fold import ChangeFold
from fluss_df.client.scan.snapshot_offsets import BucketMoment, BucketMoments, Target
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.names import all_exact, exact
from fluss_df.metadata import TableBucket
from tests.io.conftest import Place

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_scan_asks_once_for_all_buckets(place: Place) -> None:
    path = place.make_table(KEYED, primary_keys=["id"], bucket_count=64)
    rows = pl.DataFrame({"id": range(128), "v": [str(n) for n in range(128)]})
    fluss.write_fluss(rows, path, connection=place.connection)
    scanner = place.connection.get_table(path).new_scan().create_snapshot_scanner()
    before = place.connection.metrics.requests
    found = scanner.to_arrow()
    assert pl.DataFrame(found).sort("id").equals(rows)
    # offsets twice and snapshots once; then at most a few for each bucket that has rows
    assert place.connection.metrics.requests - before < 4 * 64
    assert scanner.offsets.keys() == {b for b in scanner.offsets if b.bucket_id < 64}
    assert sum(scanner.offsets.values()) == 128


def test_rows_stand_in_the_order_of_partitions_and_buckets(place: Place) -> None:
    schema = pa.schema([("p", pa.string()), *KEYED])
    path = place.make_table(schema, primary_keys=["p", "id"], partition_keys=["p"], bucket_count=3)
    rows = pl.DataFrame(
        {"p": [f"p{n % 5}" for n in range(200)], "id": range(200), "v": [None] * 200},
        schema={"p": pl.String, "id": pl.Int64, "v": pl.String},
    )
    fluss.write_fluss(rows, path, connection=place.connection, create_partitions=True)
    first = fluss.scan_fluss(path, connection=place.connection).collect()
    assert first["p"].to_list() == sorted(first["p"].to_list())
    assert first.sort("id").equals(rows)
    limited = fluss.scan_fluss(path, connection=place.connection).head(150).collect()
    assert limited.height == 150
    assert limited["id"].n_unique() == 150


def test_more_buckets_than_files(tmp_path: Path) -> None:
    """Scans of stores that rest neither open them nor lose what comes meanwhile."""
    rows = pl.DataFrame({"id": range(300), "v": [str(n) for n in range(300)]})
    with (
        EmbeddedFluss(tmp_path, options=EngineOptions(open_files=40)) as engine,
        engine.connection() as connection,
    ):
        fluss.write_fluss(
            rows,
            "t",
            connection=connection,
            create_if_not_exists=True,
            primary_keys=["id"],
            bucket_count=24,
        )
        for turn in range(3):
            found = fluss.read_fluss("t", connection=connection)
            assert found.sort("id").equals(rows)
            scan = connection.get_table(fluss.TablePath("fluss", "t")).new_scan()
            batches = scan.create_snapshot_scanner().batches()
            first = next(batches)
            rows = rows.with_columns(pl.lit(f"turn {turn}").alias("v"))
            fluss.write_fluss(rows, "t", connection=connection)
            assert first.num_rows + sum(batch.num_rows for batch in batches) == 300


def test_counting_a_log_of_many_buckets_opens_none(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    with (
        EmbeddedFluss(tmp_path, options=EngineOptions(open_files=60)) as engine,
        engine.connection() as connection,
    ):
        path = fluss.TablePath("fluss", "log")
        descriptor = fluss.TableDescriptor(
            fluss.Schema(schema), partition_keys=["p"], bucket_count=10
        )
        connection.get_admin().create_table(path, descriptor)
        rows = pl.DataFrame({"p": [f"p{n}" for n in range(200)], "id": range(200)})
        fluss.write_fluss(rows, path, connection=connection, create_partitions=True)
        scan = fluss.scan_fluss(path, connection=connection).select(pl.len())
        assert scan.collect().item() == 200
        began = time.process_time()
        assert scan.collect().item() == 200
        # 2,000 buckets took 4 s when each was opened, and others closed, to say how many rows
        assert time.process_time() - began < 2


class _Broken:
    """Buckets of ten tables; one of them breaks at its third, for the first time."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, target: int) -> Generator[pa.Table, None, None]:
        for number in range(10):
            if target == 3 and number == 2:
                self.reads += 1
                if self.reads == 1:
                    raise FlussError("gone", ErrorCode.NETWORK_EXCEPTION)
            yield pa.table({"bucket": [target], "n": [number]})

    def pause(self, target: int, error: FlussError, backoff: Backoff) -> None:
        assert (target, error.message) == (3, "gone")

    def interrupted(self, target: int, error: FlussError) -> FlussError:
        return FlussError(f"bucket {target} was interrupted", error.error_code)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("alone", [True, False])
def test_a_broken_bucket_is_read_again_in_its_place(threads: int, alone: bool) -> None:
    broken = _Broken()
    reads = BucketReads(
        range(8),
        broken.read,
        broken.pause,
        broken.interrupted,
        retry_ms=1000,
        threads=threads,
        whole=True,
    )
    tables = list(reads.alone() if alone else reads.together())
    found = [(table["bucket"][0].as_py(), table["n"][0].as_py()) for table in tables]
    assert found == [(bucket, number) for bucket in range(8) for number in range(10)]
    assert broken.reads == 2


def test_a_bucket_that_the_caller_has_in_part_is_not_begun_again() -> None:
    broken = _Broken()
    reads = BucketReads(
        [3], broken.read, broken.pause, broken.interrupted, retry_ms=1000, threads=1
    )
    with pytest.raises(FlussError, match="bucket 3 was interrupted"):
        list(reads.alone())


ODD = ["*", "^a.*$", "ab", "^", "$", "a b", '"', "`", "a.b", "🙂", "select", "0"]


@pytest.mark.parametrize("keys", [None, ["k"], ["*"]])
def test_columns_whose_names_are_patterns(place: Place, keys: list[str] | None) -> None:
    rows = pl.DataFrame(
        {"k": [1, 2, 3], **{n: [10 * i + j for j in range(3)] for i, n in enumerate(ODD)}}
    )
    schema = pa.schema([(name, pa.int64()) for name in rows.columns])
    path = place.make_table(schema, primary_keys=keys, bucket_count=2 if keys else 1)
    fluss.write_fluss(rows, path, connection=place.connection)
    scan = fluss.scan_fluss(path, connection=place.connection)
    assert scan.collect().sort("k").equals(rows)
    for name in ODD:
        assert scan.select(exact(name)).collect().sort(exact(name)).equals(rows.select(exact(name)))
        assert scan.filter(exact(name) == rows[name][1]).collect().equals(rows[1:2])
    some = ["ab", "*", "^a.*$"]
    found = scan.select(all_exact(some)).collect()
    assert found.columns == some


def test_short_changelogs_are_folded_together(place: Place) -> None:
    schema = pa.schema([("p", pa.string()), *KEYED])
    path = place.make_table(schema, primary_keys=["p", "id"], partition_keys=["p"], bucket_count=4)
    # partitions have the same keys
    rows = pl.DataFrame(
        {"p": [f"p{n % 6}" for n in range(240)], "id": [n // 6 for n in range(240)], "v": "old"}
    )
    fluss.write_fluss(rows, path, connection=place.connection, create_partitions=True)
    changed = rows.filter(pl.col("id") % 3 == 0).with_columns(v=pl.lit("new"))
    gone = rows.filter(pl.col("id") % 5 == 0)
    fluss.write_fluss(changed, path, connection=place.connection)
    fluss.write_fluss(gone.select("p", "id"), path, connection=place.connection, mode="delete")
    expected = rows.with_columns(
        v=pl.when(pl.col("id") % 3 == 0).then(pl.lit("new")).otherwise("v")
    ).filter(pl.col("id") % 5 != 0)
    scanner = place.connection.get_table(path).new_scan().create_snapshot_scanner()
    before = place.connection.metrics.requests
    found = pl.DataFrame(scanner.to_arrow())
    requests = place.connection.metrics.requests - before
    assert found.sort("id", "p").equals(expected.sort("id", "p"))
    assert found["p"].to_list() == sorted(found["p"].to_list())
    assert len(scanner.offsets) == 24
    # each update is two changes
    assert sum(scanner.offsets.values()) == 240 + 2 * changed.height + gone.height
    if scanner._servers_scan(Target(next(iter(scanner.offsets)), None)):
        return
    # a snapshot question for each partition, and no fetch for each bucket
    assert requests < 6 + 24
    limited = fluss.scan_fluss(path, connection=place.connection).head(7).collect()
    assert limited.height == 7
    assert limited.join(expected, on=limited.columns, how="anti").is_empty()
    some = (
        place.connection.get_table(path).new_scan().project_by_name(["v"]).create_snapshot_scanner()
    )
    assert pl.DataFrame(some.to_arrow())["v"].sort().equals(expected["v"].sort())


@pytest.mark.parametrize("whole", [True, False])
def test_a_group_that_fails_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    path = place.make_table(KEYED, primary_keys=["id"], bucket_count=16)
    rows = pl.DataFrame({"id": range(500), "v": [str(n) for n in range(500)]})
    fluss.write_fluss(rows, path, connection=place.connection)
    fold, failures = SnapshotScanner._fold, 2

    def failing(self: SnapshotScanner, *args: Any, **options: Any) -> ChangeFold:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise FlussError("the server is gone", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return fold(self, *args, **options)

    monkeypatch.setattr(SnapshotScanner, "_fold", failing)
    scanner = place.connection.get_table(path).new_scan().create_snapshot_scanner()
    found = scanner.to_arrow() if whole else pa.Table.from_batches(scanner.batches())
    assert pl.DataFrame(found).sort("id").equals(rows)
    assert sum(scanner.offsets.values()) == 500
    if not scanner._servers_scan(Target(next(iter(scanner.offsets)), None)):
        assert failures < 0


def test_a_group_of_which_a_changelog_was_cut(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.make_table(KEYED, primary_keys=["id"], bucket_count=4)
    rows = pl.DataFrame({"id": range(500), "v": [str(n) for n in range(500)]})
    fluss.write_fluss(rows, path, connection=place.connection)
    take_all = BucketMoments.take_all

    def cut(self: BucketMoments, targets: Sequence[Target]) -> list[BucketMoment]:
        found = take_all(self, targets)
        return [*found[:-1], BucketMoment(found[-1].snapshot_id, 1, found[-1].latest)]

    monkeypatch.setattr(BucketMoments, "take_all", cut)
    scanner = place.connection.get_table(path).new_scan().create_snapshot_scanner()
    assert pl.DataFrame(scanner.to_arrow()).sort("id").equals(rows)
    assert sum(scanner.offsets.values()) == 500


@dataclass
class Leaders:
    """The cluster of a connection, of which leaders alone are known."""

    of: dict[TableBucket, int]

    @property
    def cluster(self) -> Leaders:
        return self

    def known_leader(self, bucket: TableBucket) -> int | None:
        return self.of.get(bucket)


def test_groups_are_of_short_whole_changelogs() -> None:
    """Long ones, and those that lost their beginning, are read alone and in their place."""
    sizes = [(0, 10), (0, 5000), (0, 0), (0, 2000), (0, 48), (0, 1), (7, 9), (0, 3)]
    targets = [Target(TableBucket(1, n), None) for n in range(len(sizes))]
    moments = BucketMoments.__new__(BucketMoments)
    moments._found = {
        target.bucket: BucketMoment(None, *size)
        for target, size in zip(targets, sizes, strict=True)
    }
    leaders = dict.fromkeys((t.bucket for t in targets), 1)
    moments._connection = cast("FlussConnection", Leaders(leaders))
    places = [[t.bucket.bucket_id for t in group] for group in moments._grouped(targets)]
    assert places == [[0], [1], [2, 3, 4], [5], [6], [7]]
    leaders[targets[3].bucket] = 2
    places = [[t.bucket.bucket_id for t in group] for group in moments._grouped(targets)]
    assert places == [[0], [1], [2], [3], [4, 5], [6], [7]]

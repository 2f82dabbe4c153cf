"""Changes of tables as lazy frames: ``$changelog``, ``$binlog`` and ``mode=``."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import read_fluss, scan_fluss, write_fluss
from fluss_df.io.runs.runner import run
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "day": pa.string()})
KEYS = ["_bucket", "_log_offset"]


def change(connection: FlussConnection, path: TablePath, seed: int, partitioned: bool) -> None:
    """Insert, update and delete at random, a request at a time."""
    rng = random.Random(seed)
    for step in range(6):
        ids = [rng.randrange(40) for _ in range(30)]
        rows = pl.DataFrame({"id": ids, "name": [f"{step}.{i}" for i in range(30)]})
        rows = rows.with_columns(
            day=pl.when(pl.col("id") % 2 == 0).then(pl.lit("mon")).otherwise(pl.lit("tue"))
        )
        write_fluss(rows, path, connection=connection, create_partitions=partitioned)
        keys = rows.sample(8, seed=step).select("id", *(["day"] if partitioned else []))
        write_fluss(keys, path, mode="delete", connection=connection)
    # changes that change nothing take an offset, and have no row
    nobody = pl.DataFrame({"id": [10**6], **({"day": ["mon"]} if partitioned else {})})
    write_fluss(nobody, path, mode="delete", connection=connection)
    write_fluss(rows, path, connection=connection)


@pytest.fixture(scope="module", params=["whole", "partitioned"])
def changed(
    request: pytest.FixtureRequest, make_table: MakeTable, connection: FlussConnection
) -> TablePath:
    partitioned = request.param == "partitioned"
    path = make_table(
        SCHEMA,
        primary_keys=["id", "day"] if partitioned else ["id"],
        partition_keys=["day"] if partitioned else None,
        bucket_keys=["id"],
        bucket_count=3,
    )
    change(connection, path, 5, partitioned)
    return path


@pytest.fixture(scope="module")
def log(changed: TablePath, connection: FlussConnection) -> pl.DataFrame:
    return read_fluss(
        changed, mode="changelog", connection=connection, include_metadata=["_bucket"]
    )


def by_hand(changed: TablePath, connection: FlussConnection, kind: str) -> pl.DataFrame:
    """Return the changes as the client's scanner reads them."""
    table = connection.get_table(f"{changed}{kind}")
    scanner = table.new_scan().create_record_batch_log_scanner()
    if table.get_table_info().is_partitioned():
        infos = connection.get_admin().list_partition_infos(changed)
        scanner.subscribe_partition_buckets(
            {(p.partition_id, bucket): 0 for p in infos for bucket in range(3)}
        )
    else:
        scanner.subscribe_buckets(dict.fromkeys(range(3), 0))
    return pl.DataFrame(scanner.to_arrow())


@pytest.mark.parametrize("kind", ["$changelog", "$binlog"])
@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_a_scan_is_what_the_client_reads(
    changed: TablePath,
    connection: FlussConnection,
    kind: str,
    engine: Literal["streaming", "in-memory"],
) -> None:
    expected = by_hand(changed, connection, kind)
    scan = scan_fluss(f"{changed}{kind}", connection=connection)
    found = scan.collect(engine=engine)
    assert found.columns[:3] == ["_change_type", "_log_offset", "_commit_timestamp"]
    assert_frame_equal(found, expected)
    for name in expected.columns:
        assert_frame_equal(scan.select(name).collect(engine=engine), expected.select(name))
    assert scan.select(pl.len()).collect(engine=engine).item() == expected.height
    assert_frame_equal(scan.head(0).collect(engine=engine), expected.head(0))
    after = pl.col("_log_offset") > 11
    found = scan.filter(after).head(5).collect(engine=engine)
    assert_frame_equal(found, expected.filter(after).head(5))
    found = scan.head(50).filter(after).collect(engine=engine)
    assert_frame_equal(found, expected.head(50).filter(after))
    assert_frame_equal(scan.head(7).collect(engine=engine), expected.head(7))
    assert_frame_equal(scan.tail(9).collect(engine=engine), expected.tail(9))
    assert_frame_equal(scan.slice(20, 11).collect(engine=engine), expected.slice(20, 11))
    window = pl.col("_log_offset").is_between(7, 29)
    assert_frame_equal(scan.filter(window).collect(engine=engine), expected.filter(window))
    assert "[7:30]" in scan.filter(window).fluss.explain()  # type: ignore[attr-defined]
    late = pl.col("_commit_timestamp") > expected["_commit_timestamp"].sort()[100]
    assert_frame_equal(scan.filter(late).collect(engine=engine), expected.filter(late))


def test_the_mode_is_the_same(
    changed: TablePath, connection: FlussConnection, log: pl.DataFrame
) -> None:
    by_name = read_fluss(f"{changed}$changelog", connection=connection)
    assert_frame_equal(by_name, log.drop("_bucket"))
    assert set(log["_change_type"]) == {"insert", "update_before", "update_after", "delete"}
    copy = pickle.loads(pickle.dumps(scan_fluss(changed, mode="changelog", connection=connection)))
    assert copy.collect().height == log.height


def test_changes_of_some_buckets_and_offsets(
    changed: TablePath, connection: FlussConnection, log: pl.DataFrame
) -> None:
    options: dict[str, Any] = {"connection": connection, "include_metadata": ["_bucket"]}
    some = read_fluss(changed, mode="changelog", buckets=[0, 2], **options)
    assert_frame_equal(some, log.filter(pl.col("_bucket") != 1))
    part = read_fluss(changed, mode="changelog", start=5, stop=17, **options)
    assert_frame_equal(part, log.filter(pl.col("_log_offset").is_between(5, 16)))
    query = scan_fluss(changed, mode="changelog", **options).filter(pl.col("_bucket") == 1)
    assert "1 of 3" in query.fluss.explain() or "2 of 6" in query.fluss.explain()  # type: ignore[attr-defined]
    assert_frame_equal(query.collect(), log.filter(pl.col("_bucket") == 1))
    keyed = scan_fluss(changed, mode="changelog", **options).filter(pl.col("id") == 4)
    assert_frame_equal(keyed.collect(), log.filter(pl.col("id") == 4))
    assert "bucket key id: 1 hashed" in keyed.fluss.explain()  # type: ignore[attr-defined]


@pytest.mark.parametrize("start", range(0, 40, 3))
def test_updates_are_whole_wherever_a_range_ends(
    changed: TablePath, connection: FlussConnection, start: int
) -> None:
    options: dict[str, Any] = {"connection": connection, "include_metadata": True}
    whole = read_fluss(f"{changed}$binlog", **options)
    for stop in range(start, start + 9):
        part = read_fluss(f"{changed}$binlog", start=start, stop=stop, **options)
        within = (pl.col("_log_offset") >= start) & (pl.col("_log_offset") < stop)
        assert_frame_equal(part, whole.filter(within))


def test_changes_are_followed(changed: TablePath, connection: FlussConnection) -> None:
    for kind in ("$changelog", "$binlog"):
        expected = read_fluss(f"{changed}{kind}", connection=connection, include_metadata=True)
        scan = scan_fluss(
            f"{changed}{kind}",
            connection=connection,
            include_metadata=True,
            follow=True,
            max_rows=expected.height,
        )
        keys = [name for name in ("_partition", "_bucket", "_log_offset") if name in expected]
        assert_frame_equal(scan.collect().sort(keys), expected.sort(keys))
        names = ["_log_offset", "_change_type"]
        assert_frame_equal(
            scan.select(names).collect().sort(names), expected.select(names).sort(names)
        )


@pytest.mark.parametrize("kind", ["$changelog", "$binlog"])
def test_changes_in_micro_batches(
    changed: TablePath, connection: FlussConnection, kind: str, tmp_path: Path
) -> None:
    scan = scan_fluss(f"{changed}{kind}", connection=connection, include_metadata=True)
    frames: list[pl.DataFrame] = []
    run(
        scan,
        to=lambda frame, number: frames.append(frame),
        checkpoint=tmp_path / kind[1:],
        max_batch_rows=37,
    )
    assert len(frames) > 3
    expected = scan.collect()
    keys = [name for name in ("_partition", "_bucket", "_log_offset") if name in expected]
    assert_frame_equal(pl.concat(frames).sort(keys), expected.sort(keys))


def test_log_tables_have_inserts_only(make_table: MakeTable, connection: FlussConnection) -> None:
    rows = pl.DataFrame({"id": range(10), "name": ["x"] * 10, "day": ["mon"] * 10})
    path = make_table(SCHEMA, rows)
    found = read_fluss(path, mode="changelog", connection=connection)
    assert set(found["_change_type"]) == {"insert"}
    assert_frame_equal(found.select(rows.columns), rows)
    assert_frame_equal(read_fluss(path, mode="log", connection=connection), rows)
    with pytest.raises(FlussError, match=r"no primary key: use .*\$changelog"):
        scan_fluss(f"{path}$binlog", connection=connection)
    with pytest.raises(FlussError, match="no current rows; mode='log'"):
        scan_fluss(path, mode="snapshot", connection=connection)


def test_what_there_is_not(
    changed: TablePath, make_table: MakeTable, connection: FlussConnection
) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (f"{changed}", {"mode": "log"}, "mode='changelog' reads the log of its changes"),
        (f"{changed}", {"mode": "changelgo"}, "did you mean 'changelog'"),
        (f"{changed}$binlog", {"mode": "changelog"}, "is read with mode='auto'"),
        (f"{changed}$changelog", {"mode": "snapshot"}, "is read with mode='auto'"),
        (f"{changed}$nothing", {}, "there are"),
        (f"{changed}$binlog", {"columns": ["id"]}, "'id'"),
    ]
    for source, options, message in wrong:
        with pytest.raises(FlussError, match=message):
            scan_fluss(source, connection=connection, **options)
    snapshot = read_fluss(changed, mode="snapshot", connection=connection)
    assert snapshot["id"].is_unique().all()
    path = make_table(SCHEMA, primary_keys=["id"], properties={"table.changelog.image": "WAL"})
    with pytest.raises(FlussError, match="is WAL") as caught:
        scan_fluss(f"{path}$binlog", connection=connection)
    assert caught.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    clash = make_table(pa.schema({"id": pa.int64(), "_bucket": pa.int64()}), primary_keys=["id"])
    write_fluss(pl.DataFrame({"id": [1], "_bucket": [77]}), clash, connection=connection)
    assert read_fluss(clash, mode="changelog", connection=connection)["_bucket"].to_list() == [77]
    with pytest.raises(FlussError, match="a column '_bucket' of its own"):
        scan_fluss(f"{clash}$binlog", connection=connection)

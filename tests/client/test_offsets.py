"""Offsets: earliest, latest, by timestamp."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, OffsetSpec
from tests.client.support import Official, Tables
from tests.peer import official

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def frame(rows: int, day: str = "a") -> pa.Table:
    return pa.table({"id": list(range(rows)), "day": [day] * rows}, schema=SCHEMA)


@pytest.fixture(scope="module")
def two_batches(tables: Tables) -> tuple[fluss.FlussTable, int]:
    """A table with 3 rows and, after the time that is returned, 4 more."""
    table = tables(SCHEMA)
    tables.write(table, frame(3))
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    tables.write(table, frame(4))
    time.sleep(0.05)
    return table, between


def test_as_the_official_client(
    admin: fluss.FlussAdmin, two_batches: tuple[fluss.FlussTable, int], official_client: Official
) -> None:
    table, between = two_batches
    path, their_path = table.get_table_path(), official_client.path(table)
    now = int(time.time() * 1000) - 1
    for ours, theirs, expected in (
        (OffsetSpec.earliest(), official.OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), official.OffsetSpec.latest(), 7),
        (OffsetSpec.timestamp(0), official.OffsetSpec.timestamp(0), 0),
        (OffsetSpec.timestamp(between), official.OffsetSpec.timestamp(between), 3),
        # behind the last record, not behind now
        (OffsetSpec.timestamp(now), official.OffsetSpec.timestamp(now), 7),
    ):
        assert admin.list_offsets(path, [0], ours) == {0: expected}
        ask = functools.partial(official_client.admin.list_offsets, their_path, [0], theirs)
        assert official_client.run(ask) == {0: expected}


def test_other_ways_to_say_it(
    admin: fluss.FlussAdmin, two_batches: tuple[fluss.FlussTable, int]
) -> None:
    path, between = two_batches[0].get_table_path(), two_batches[1]
    assert admin.list_offsets(path, [0], offset_type="earliest") == {0: 0}
    assert admin.list_offsets(path, [0], offset_type="LATEST") == {0: 7}
    assert admin.list_offsets(path, [0], offset_type="timestamp", timestamp=between) == {0: 3}
    with pytest.raises(FlussError, match="invalid offset 'newest'"):
        admin.list_offsets(path, [0], offset_type="newest")
    with pytest.raises(FlussError, match="invalid offset"):
        admin.list_offsets(path, [0], offset_type="timestamp")


def test_later_than_now(
    admin: fluss.FlussAdmin, two_batches: tuple[fluss.FlussTable, int], official_client: Official
) -> None:
    table = two_batches[0]
    future = int(time.time() * 1000) + 3_600_000
    began = time.monotonic()
    with pytest.raises(FlussError, match=str(table.get_table_path())) as ours:
        admin.list_offsets(table.get_table_path(), [0], OffsetSpec.timestamp(future))
    assert time.monotonic() - began < 20
    with pytest.raises(official.FlussError) as theirs:
        official_client.run(
            lambda: official_client.admin.list_offsets(
                official_client.path(table), [0], official.OffsetSpec.timestamp(future)
            )
        )
    assert ours.value.error_code == theirs.value.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION


def test_buckets_of_partitions(admin: fluss.FlussAdmin, tables: Tables) -> None:
    table = tables(SCHEMA, partition_keys=["day"], bucket_count=2, bucket_keys=["id"])
    tables.write(table, frame(10, "a"), create_partitions=True)
    tables.write(table, frame(4, "b"), create_partitions=True)
    path = table.get_table_path()
    latest = OffsetSpec.latest()
    assert sum(admin.list_partition_offsets(path, "a", [0, 1], latest).values()) == 10
    assert sum(admin.list_partition_offsets(path, "b", [1, 0], latest).values()) == 4
    assert admin.list_partition_offsets(path, "a", [1], OffsetSpec.earliest()) == {1: 0}


def test_what_is_not_there(
    admin: fluss.FlussAdmin, tables: Tables, two_batches: tuple[fluss.FlussTable, int]
) -> None:
    plain = two_batches[0].get_table_path()
    parted = tables(SCHEMA, partition_keys=["day"]).get_table_path()
    latest = OffsetSpec.latest()
    nix = fluss.TablePath(plain.database_name, "nix")
    cases: list[tuple[Callable[[], Any], int, str]] = [
        (lambda: admin.list_offsets(nix, [0], latest), ErrorCode.TABLE_NOT_EXIST, str(nix)),
        (
            lambda: admin.list_offsets(plain, [1], latest),
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            f"{plain} has no bucket 1: its buckets are 0 to 0",
        ),
        (
            lambda: admin.list_offsets(plain, [-1], latest),
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            "has no bucket -1",
        ),
        (
            lambda: admin.list_offsets(parted, [0], latest),
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            "use list_partition_offsets",
        ),
        (
            lambda: admin.list_partition_offsets(parted, "x", [0], latest),
            ErrorCode.PARTITION_NOT_EXISTS,
            f"{parted} has no partition 'x'",
        ),
        (
            lambda: admin.list_partition_offsets(plain, "x", [0], latest),
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
            "",
        ),
    ]
    for call, code, message in cases:
        with pytest.raises(FlussError) as raised:
            call()
        assert raised.value.error_code == code
        assert message in raised.value.message


def test_no_buckets_no_offsets(
    admin: fluss.FlussAdmin, two_batches: tuple[fluss.FlussTable, int]
) -> None:
    assert admin.list_offsets(two_batches[0].get_table_path(), [], OffsetSpec.latest()) == {}

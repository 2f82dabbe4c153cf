"""Values of every type, through the lake and back: tiered by Flink's service, and by ours."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.lake.tiering import TieringService
from tests.lake_tables import create_lake_table

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
# In microseconds where they are finer: the lake has no nanoseconds. Moments before 1970 are whole
# milliseconds: Flink's service ends at others.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False]),
    "i8": (pa.int8(), [1, None, -128]),
    "i16": (pa.int16(), [1, None, -32768]),
    "i32": (pa.int32(), [1, None, -(2**31)]),
    "i64": (pa.int64(), [1, None, -(2**63)]),
    "f32": (pa.float32(), [1.5, None, float("nan")]),
    "f64": (pa.float64(), [1.5, None, float("-inf")]),
    "short": (pa.decimal128(5, 2), [Decimal("1.25"), None, Decimal("-999.99")]),
    "long": (pa.decimal128(38, 10), [Decimal("1.25"), None, Decimal(-(10**27)) / 3 // 1]),
    "text": (pa.string(), ["", None, "é😀"]),
    "bytes": (pa.binary(), [b"", None, b"\0\xff"]),
    "fixed": (pa.binary(4), [b"abcd", None, b"\0\0\0\1"]),
    "date": (pa.date32(), [dt.date(2026, 1, 1), None, dt.date(1, 1, 1)]),
    "time_s": (pa.time32("s"), [dt.time(1, 2, 3), None, dt.time(0)]),
    "time_ms": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), None, dt.time(23, 59, 59, 999000)]),
    "ts_s": (pa.timestamp("s"), [1, None, -5]),
    "ts_ms": (pa.timestamp("ms"), [1, None, -5]),
    "ts_us": (pa.timestamp("us"), [1, None, -5000]),
    "ts_ns": (pa.timestamp("ns"), [1000, None, -5_000_000]),
    "tz_ms": (pa.timestamp("ms", "UTC"), [1, None, -5]),
    "tz_us": (pa.timestamp("us", "UTC"), [1, None, -5000]),
    "a b-é": (pa.string(), ["a", None, "b"]),
    "1st": (pa.int32(), [1, None, 2]),
}
# Flink's service of 0.9.1 writes no nested types into Iceberg
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.int16()), [[1, None], None, []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
    "row": (
        pa.struct([("x", pa.int8()), ("y c", pa.string())]),
        [{"x": 1, "y c": "a"}, None, {"x": None, "y c": None}],
    ),
    "deep": (
        pa.list_(pa.struct([("é", pa.int16()), ("t", pa.timestamp("ms"))])),
        [[{"é": 1, "t": 1}, None], None, []],
    ),
}


def tables(nested: bool) -> tuple[pa.Table, pa.Table]:
    """Return rows, and rows that come later: of three keys, two are there already."""
    of = VALUES | (NESTED if nested else {})
    columns = {name: pa.array(values, kind) for name, (kind, values) in of.items()}
    first = pa.table({"id": pa.array([1, 2, 3]), **columns})
    later = first.take(pa.array([2, 0, 1])).set_column(0, "id", pa.array([2, 3, 4]))
    return first, later


class Tiered:
    """A table that one of the services tiers."""

    def __init__(
        self, cluster: LocalCluster, connection: fluss.FlussConnection, name: str, service: object
    ) -> None:
        self.cluster = cluster
        self.connection = connection
        self.path = fluss.TablePath("fluss", name)
        self._service = service

    def create(self, schema: pa.Schema, keys: list[str] | None) -> None:
        create_lake_table(
            self.cluster,
            self.connection,
            self.path,
            fluss.TableDescriptor(fluss.Schema(schema, keys), bucket_count=1, properties=LAKE),
        )

    def write(self, rows: pa.Table) -> None:
        fluss.write_fluss(rows, self.path, connection=self.connection)
        admin = self.connection.get_admin()
        (end,) = admin.list_offsets(self.path, [0], fluss.OffsetSpec.latest()).values()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if isinstance(self._service, TieringService):
                self._service.run_due()
            try:
                has = admin.get_latest_lake_snapshot(self.path).table_buckets_offset
            except FlussError:
                has = {}  # there is no snapshot yet
            if sum(has.values()) >= end:
                return
            time.sleep(0.1)
        pytest.fail(f"{self.path} was not tiered in two minutes")

    def check(self) -> None:
        log = fluss.read_fluss(self.path, connection=self.connection, lake=False).sort("id", "i8")
        for source in (str(self.path), f"{self.path}$lake"):
            found = fluss.read_fluss(source, connection=self.connection).sort("id", "i8")
            assert found.schema == log.schema
            for name in log.columns:
                assert found[name].equals(log[name]), (source, name)


@pytest.fixture(params=["flink", "paimon", "ours"])
def service(request: pytest.FixtureRequest) -> tuple[LocalCluster, str]:
    fixture = {
        "flink": "fluss_flink_tiering",
        "paimon": "paimon_tiering",
        "ours": "tiering_cluster",
    }[request.param]
    return request.getfixturevalue(fixture), request.param


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "keyed"])
def test_every_type(service: tuple[LocalCluster, str], keys: list[str] | None) -> None:
    cluster, by = service
    first, later = tables(nested=by != "flink")
    with fluss.connect(cluster.bootstrap_servers) as connection:
        kind = "keyed" if keys else "log"
        tier = TieringService(connection, [f"fluss.types_{kind}"]) if by == "ours" else None
        table = Tiered(cluster, connection, f"types_{kind}", tier)
        table.create(first.schema, keys)
        table.write(first)
        table.check()
        # rows of keys are written again, with those that stay
        table.write(later)
        table.check()


def test_keys_in_nanoseconds_are_read_from_fluss(tiering_cluster: LocalCluster) -> None:
    """In Fluss they are equal where their microseconds are, and in the lake they are not."""
    times = pa.array([1_000_001, 1_000_002, 5_000_000], pa.timestamp("ns"))
    rows = pa.table({"at": times, "name": ["a", "b", "c"]})
    with fluss.connect(tiering_cluster.bootstrap_servers) as connection:
        service = TieringService(connection, ["fluss.nanoseconds"])
        table = Tiered(tiering_cluster, connection, "nanoseconds", service)
        table.create(rows.schema, ["at"])
        table.write(rows)
        there = fluss.read_fluss(table.path, connection=connection, lake=False)
        assert there.height == 2
        found = fluss.read_fluss(table.path, connection=connection)
        assert found.sort("at").equals(there.sort("at"))


def tier_for_a_minute(service: TieringService) -> None:
    """Tier until that fails: the coordinator says only after a while that a table is due."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        service.run_due()
        time.sleep(0.1)


def test_keys_in_nanoseconds_beside_others_are_not_tiered(tiering_cluster: LocalCluster) -> None:
    """Fluss keeps them apart, and in the lake they would be one row."""
    path = fluss.TablePath("fluss", "apart")
    times = pa.array([1_000_001, 1_000_002], pa.timestamp("ns"))
    rows = pa.table({"id": [1, 1], "at": times, "name": ["a", "b"]})
    schema = fluss.Schema(rows.schema, ["id", "at"])
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, bucket_keys=["id"], properties=LAKE)
    with fluss.connect(tiering_cluster.bootstrap_servers) as connection:
        create_lake_table(tiering_cluster, connection, path, descriptor)
        fluss.write_fluss(rows, path, connection=connection)
        with (
            TieringService(connection, ["fluss.apart"]) as service,
            pytest.raises(FlussError, match=r"fluss\.apart: column 'at' .* one row in the lake"),
        ):
            tier_for_a_minute(service)
        assert fluss.read_fluss(path, connection=connection).height == 2


def test_names_that_are_patterns(tiering_cluster: LocalCluster) -> None:
    first = pa.table({"^a$": [1, 2, 3], "*": ["x", "y", "z"], "a": [7, 8, 9]})
    later = pa.table({"^a$": [2, 4], "*": ["v", "w"], "a": [5, 6]})
    with fluss.connect(tiering_cluster.bootstrap_servers) as connection:
        service = TieringService(connection, ["fluss.patterns"])
        table = Tiered(tiering_cluster, connection, "patterns", service)
        table.create(first.schema, ["^a$"])
        for rows in (first, later):
            table.write(rows)
        for source in ("patterns", "patterns$lake"):
            found = fluss.read_fluss(source, connection=connection)
            assert sorted(found.rows()) == [(1, "x", 7), (2, "v", 5), (3, "z", 9), (4, "w", 6)]

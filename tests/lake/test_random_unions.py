"""Random histories of lake tables, read as lake and log together, against a frame in memory.

A tiering service runs all the time, so that what is in the lake differs from query to query.
Servers of 0.9.1 add no columns to tables of an Iceberg lake. ``FLUSS_TEST_CASES`` says how many
steps; each is a change of a table, and two queries.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.errors import FlussError
from fluss_df.lake.tiering import TieringService
from tests.lake_tables import create_lake_table

CASES = int(os.environ.get("FLUSS_TEST_CASES", "60"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "1"))
# steps after which a table is left, and another one begun
_LIFE = 40

KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "bucketed": {"bucket_keys": ["id"]},
    "parted": {"partition_keys": ["day"]},
    "keyed": {"keys": ["id"]},
    "keyed_parted": {"keys": ["day", "id"], "partition_keys": ["day"]},
}
DAYS = ["mon", "tue", "wed"]
COLUMNS = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("n", pa.int32()), ("day", pa.string())]
)
col = pl.col


class History:
    """A table, and the rows that it must have."""

    def __init__(
        self,
        cluster: LocalCluster,
        connection: fluss.FlussConnection,
        name: str,
        kind: str,
        choose: random.Random,
    ) -> None:
        self.connection = connection
        self.name = name
        self.choose = choose
        self.keys: list[str] = KINDS[kind].get("keys", [])
        self.parted = "partition_keys" in KINDS[kind]
        self.days = list(DAYS)
        self.log: list[str] = []
        self.path = fluss.TablePath("fluss", name)
        self.rows = pl.DataFrame(COLUMNS.empty_table())
        create_lake_table(
            cluster,
            connection,
            self.path,
            fluss.TableDescriptor(
                fluss.Schema(COLUMNS, self.keys or None),
                bucket_count=choose.choice([1, 2, 3]),
                partition_keys=KINDS[kind].get("partition_keys"),
                bucket_keys=KINDS[kind].get("bucket_keys"),
                properties={"table.datalake.enabled": "true", "table.datalake.freshness": "100ms"},
            ),
        )

    def some_rows(self) -> pl.DataFrame:
        count = self.choose.choice([0, 1, 1, 7, 60, 300])
        ids = [self.choose.randrange(200) for _ in range(count)]
        return pl.DataFrame(
            {
                "id": ids,
                "text": [self.choose.choice([None, "a", f"b{i}", "é"]) for i in ids],
                "n": [self.choose.choice([None, i % 10, -i]) for i in ids],
                "day": [self.choose.choice(self.days) for _ in ids],
            },
            schema=pl.DataFrame(COLUMNS.empty_table()).schema,
        )

    def step(self) -> None:
        what = self.choose.random()
        if what < 0.6:
            rows = self.some_rows()
            options: Any = {"create_partitions": True} if self.parted else {}
            fluss.write_fluss(rows, self.name, connection=self.connection, **options)
            self.rows = pl.concat([self.rows, rows])
            if self.keys:
                self.rows = self.rows.unique(self.keys, keep="last", maintain_order=True)
            self.log.append(f"write {rows.height}")
        elif what < 0.8 and self.keys and not self.rows.is_empty():
            # of a partition that is gone nothing can be deleted
            where = (col("id") % self.choose.randrange(2, 9) == 1) & col("day").is_in(self.days)
            gone = self.rows.filter(where).select(self.keys)
            fluss.write_fluss(gone, self.name, connection=self.connection, mode="delete")
            self.rows = self.rows.filter(~where)
            self.log.append(f"delete {gone.height}")
        elif what < 0.83 and self.parted and len(self.days) > 1:
            self.drop_partition()
        else:
            time.sleep(self.choose.random())
            self.log.append("wait")

    def drop_partition(self) -> None:
        """Have a partition expire that is in the lake as a whole."""
        day = self.choose.choice(self.days)
        admin = self.connection.get_admin()
        there = [p for p in admin.list_partition_infos(self.path) if p.partition_name == day]
        if not there:
            return
        buckets = list(range(admin.get_table_info(self.path).num_buckets))
        ends = admin.list_partition_offsets(self.path, day, buckets, fluss.OffsetSpec.latest())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                has = admin.get_latest_lake_snapshot(self.path).table_buckets_offset
            except FlussError:
                has = {}
            number = there[0].partition_id
            tiered = {b.bucket_id: o for b, o in has.items() if b.partition_id == number}
            if all(tiered.get(bucket, 0) >= end for bucket, end in ends.items()):
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"{self.name}: nothing was tiered in a minute")
        admin.drop_partition(self.path, {"day": day})
        self.days.remove(day)
        self.log.append(f"drop {day}")

    def condition(self) -> pl.Expr:
        number = self.choose.randrange(-10, 210)
        atoms = [
            col("id") > number,
            col("id") == number,
            col("id").is_in([number, 3, 7]),
            col("text") == "a",
            col("text").is_null(),
            col("text").str.starts_with("b"),
            col("n") < number,
            col("n").is_not_null(),
            col("day") == self.choose.choice([*DAYS, "sun"]),
            (col("id") + col("n")) > number,
        ]
        made = self.choose.choice(atoms)
        for _ in range(self.choose.randrange(3)):
            other = self.choose.choice(atoms)
            made = self.choose.choice([made & other, made | other, ~made])
        return made

    def check(self) -> None:
        query = fluss.scan_fluss(self.name, connection=self.connection)
        expected = self.rows.lazy()
        text = "all"
        if self.choose.random() < 0.7:
            where = self.condition()
            query, expected, text = query.filter(where), expected.filter(where), str(where)
        names = self.choose.sample(self.rows.columns, self.choose.randrange(1, 4))
        if self.choose.random() < 0.2:
            totals = [pl.len(), col("id").sum(), col("n").max()]
            query = query.group_by("day").agg(totals)
            expected = expected.group_by("day").agg(totals)
        elif self.choose.random() < 0.6:
            query, expected = query.select(names), expected.select(names)
        engine: Any = self.choose.choice(["in-memory", "streaming"])
        found, wanted = query.collect(engine=engine), expected.collect()
        wanted = wanted.sort(wanted.columns)
        if not found.sort(found.columns).equals(wanted):
            plan = fluss.explain(fluss.scan_fluss(self.name, connection=self.connection))
            pytest.fail(
                f"seed {SEED}, table {self.name}, {self.log}: {text} gives {found.height} rows"
                f" and not {wanted.height}, or others\n{plan}"
            )


@pytest.fixture(scope="module", params=["iceberg", "paimon", "paimon-flink"])
def tiered(
    request: pytest.FixtureRequest, fluss_cluster_factory: ClusterFactory
) -> Iterator[LocalCluster]:
    """Return a cluster with a lake that a tiering service, ours or Flink's, fills all the time."""
    if request.param == "paimon-flink":
        yield request.getfixturevalue("paimon_tiering")
        return
    with fluss_cluster_factory(datalake=request.param) as cluster:
        connection = fluss.connect(cluster.bootstrap_servers)
        service = TieringService(connection)
        thread = threading.Thread(target=service.run)
        thread.start()
        yield cluster
        service.stop()
        thread.join()
        connection.close()


def test_random_histories(tiered: LocalCluster) -> None:
    choose = random.Random(SEED)
    lakes = rows_of_lakes = 0
    with fluss.connect(tiered.bootstrap_servers) as connection:
        histories: dict[str, History] = {}
        for number in range(CASES):
            kind = choose.choice(list(KINDS))
            history = histories.get(kind)
            if history is None or len(history.log) >= _LIFE:
                history = History(tiered, connection, f"random_{kind}_{number}", kind, choose)
                histories[kind] = history
            history.step()
            history.check()
            history.check()
            report = fluss.last_scan()
            if report is not None and report.plan.lake is not None:
                lakes += 1
                rows_of_lakes += report.plan.lake.rows
        for history in histories.values():
            history.check()
    print(
        f"{2 * CASES} queries, {lakes} of {CASES} with rows of the lake, {rows_of_lakes:,} of them"
    )
    assert lakes

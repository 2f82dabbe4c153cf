"""Lake tables of five kinds, a plain model of them, and what the lake has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.table import Table

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.options import lake_options
from fluss_df.lake.paimon.catalog import open_paimon
from fluss_df.lake.rounds.tasks import InThreads
from fluss_df.lake.tiering import TieringService
from fluss_df.lake.tiering.table_round import TableRound, TieringRound
from tests.lake_tables import create_lake_table

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("small", pa.int16()),
        ("day", pa.string()),
    ]
)
KINDS = ("log", "bucketed", "partitioned", "keys", "partitioned_keys")
LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
SYSTEM = ("__bucket", "__offset", "__timestamp")
CURRENT = fluss.TablePath


def rows(ids: list[int], version: int) -> pl.DataFrame:
    """Return rows of a version; the day is a function of the id."""
    return pl.DataFrame({"id": ids}, schema={"id": pl.Int64}).select(
        "id",
        name=pl.format("v{}-{}", pl.lit(version), "id"),
        price=(pl.col("id") * 7 + version).cast(pl.Decimal(10, 2)),
        at=pl.datetime(2026, 1, 1) + pl.duration(seconds=pl.col("id") + version * 1000),
        small=(pl.col("id") % 1000).cast(pl.Int16),
        day=pl.concat_str(pl.lit("d"), (pl.col("id") % 3).cast(pl.String)),
    )


@dataclass
class LakeTable:
    """A table of a kind, and what was written to it."""

    cluster: LocalCluster
    kind: str
    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    written: list[pl.DataFrame] = field(default_factory=list)
    custom: Mapping[str, str] = field(default_factory=dict)

    @property
    def keyed(self) -> bool:
        return self.kind.endswith("keys")

    @property
    def partitioned(self) -> bool:
        return self.kind.startswith("partitioned")

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath("fluss", self.name)

    def create(self) -> LakeTable:
        keys = ["day", "id"] if self.partitioned else ["id"]
        schema = fluss.Schema(COLUMNS, keys) if self.keyed else fluss.Schema(COLUMNS)
        options: dict[str, Any] = {}
        if self.partitioned:
            options["partition_keys"] = ["day"]
        if self.kind == "bucketed":
            options["bucket_keys"] = ["id"]
        with fluss.connect(self.cluster.bootstrap_servers) as connection:
            create_lake_table(
                self.cluster,
                connection,
                self.path,
                fluss.TableDescriptor(
                    schema,
                    bucket_count=2,
                    properties={**LAKE, **self.properties},
                    custom_properties=dict(self.custom),
                    **options,
                ),
            )
        return self

    def write(self, ids: list[int], version: int) -> None:
        frame = rows(ids, version)
        options: dict[str, Any] = {"create_partitions": True} if self.partitioned else {}
        fluss.write_fluss(frame, self.name, connection=self.cluster.bootstrap_servers, **options)
        self.written.append(frame)

    def delete(self, ids: list[int]) -> None:
        frame = rows(ids, 0).select(["day", "id"] if self.partitioned else ["id"])
        fluss.write_fluss(
            frame, self.name, connection=self.cluster.bootstrap_servers, mode="delete"
        )
        self.written.append(frame.select("id").with_columns(name=pl.lit(None, pl.String)))

    def expected(self) -> pl.DataFrame:
        """Return the rows that the table has by a plain model."""
        names = COLUMNS.names
        if not self.keyed:
            return pl.concat([frame.select(names) for frame in self.written]).sort(names)
        model: dict[int, Any] = {}
        for frame in self.written:
            for row in frame.iter_rows(named=True):
                if row["name"] is None:
                    model.pop(row["id"], None)
                else:
                    model[row["id"]] = row
        return pl.DataFrame(list(model.values()), rows([], 0).schema).select(names).sort(names)

    def ends(self) -> dict[tuple[int | None, int], int]:
        """Return the end of each bucket's log in Fluss."""
        with fluss.connect(self.cluster.bootstrap_servers) as connection:
            admin = connection.get_admin()
            ends: dict[tuple[int | None, int], int] = {}
            if not self.partitioned:
                found = admin.list_offsets(self.path, [0, 1], fluss.OffsetSpec.latest())
                ends.update({(None, bucket): end for bucket, end in found.items()})
            else:
                for part in admin.list_partition_infos(self.path):
                    found = admin.list_partition_offsets(
                        self.path, part.partition_name, [0, 1], fluss.OffsetSpec.latest()
                    )
                    ends.update({(part.partition_id, b): end for b, end in found.items()})
        return {key: end for key, end in ends.items() if end}

    def tiered(self) -> dict[tuple[int | None, int], int]:
        """Return the lake's offsets as Fluss knows them."""
        with fluss.connect(self.cluster.bootstrap_servers) as connection:
            try:
                snapshot = connection.get_admin().get_latest_lake_snapshot(self.path)
            except fluss.FlussError:
                return {}
        return {
            (bucket.partition_id, bucket.bucket_id): offset
            for bucket, offset in snapshot.table_buckets_offset.items()
        }

    def iceberg(self) -> Table:
        """Return the lake table."""
        with fluss.connect(self.cluster.bootstrap_servers) as connection:
            return open_table(connection.get_admin().get_table_info(self.path))

    def paimon(self) -> Path:
        """Return the folder of the lake table."""
        return self.cluster.dir / "lake" / "warehouse" / "fluss.db" / self.name

    def lake_rows(self) -> pl.DataFrame:
        """Return the rows of the lake; those of Iceberg are read by pyiceberg."""
        with fluss.connect(self.cluster.bootstrap_servers) as connection:
            options = lake_options(connection.get_admin().get_table_info(self.path))
        if options.format == "iceberg":
            return pl.DataFrame(pl.from_arrow(self.iceberg().scan().to_arrow()))
        numbers = [int(file.name[9:]) for file in self.paimon().glob("snapshot/snapshot-*")]
        snapshot = open_paimon(options, max(numbers))
        return snapshot.frame(snapshot.files).collect()

    def check(self) -> None:
        """Hold the lake against the model: rows, and the offsets of rows."""
        assert self.tiered() == self.ends()
        found = self.lake_rows()
        table = found.with_columns(pl.col("small").cast(pl.Int16)).select(COLUMNS.names)
        assert table.sort(COLUMNS.names).equals(self.expected())
        offsets = found.filter(pl.col("__offset") >= 0).select("day", "__bucket", "__offset")
        if not self.partitioned:
            offsets = offsets.drop("day")
        assert offsets.is_unique().all()
        if not self.keyed:
            counts = (
                found.group_by("day", "__bucket")
                if self.partitioned
                else found.group_by("__bucket")
            )
            for count, low, high in (
                counts.agg(pl.len(), low=pl.col("__offset").min(), high=pl.col("__offset").max())
                .select("len", "low", "high")
                .iter_rows()
            ):
                assert (low, high) == (0, count - 1)


def tier_until_done(service: TieringService, tables: list[LakeTable], seconds: float = 60) -> None:
    """Tier until the lake has everything that Fluss has."""
    deadline = time.monotonic() + seconds
    while True:
        service.run_due()
        behind = [table.name for table in tables if table.tiered() != table.ends()]
        if not behind:
            return
        assert time.monotonic() < deadline, f"not tiered in {seconds} s: {behind}"
        time.sleep(0.1)


def one_round(connection: fluss.FlussConnection, table: LakeTable, **options: Any) -> TableRound:
    info = connection.get_admin().get_table_info(table.path)
    given: dict[str, Any] = {"max_rows": 10_000, "max_changes": 10_000, **options}
    return TableRound(connection, info, run_tasks=InThreads(2), **given)


def run(connection: fluss.FlussConnection, table: LakeTable, **options: Any) -> TieringRound:
    return one_round(connection, table, **options).run(lambda: None)

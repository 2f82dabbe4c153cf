"""Tables of a folder with a lake, which are tiered when a test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.lake.rounds.tasks import InThreads
from fluss_df.lake.tiering import TieringRound
from fluss_df.lake.tiering.table_round import TableRound

MANY = 10**6


@dataclass
class Folder:
    """A folder with a lake, whose tables are tiered when a test says so."""

    connection: fluss.FlussConnection

    def create(
        self,
        name: str,
        columns: Mapping[str, pa.DataType] | Sequence[tuple[str, pa.DataType]],
        keys: Sequence[str] = (),
        *,
        parts: Sequence[str] = (),
        bucket_keys: Sequence[str] = (),
        buckets: int = 1,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        schema = pa.schema(columns)
        for key in keys:
            at = schema.get_field_index(key)
            schema = schema.set(at, schema.field(at).with_nullable(False))
        self.connection.get_admin().create_table(
            fluss.TablePath("fluss", name),
            fluss.TableDescriptor(
                fluss.Schema(schema, list(keys) or None),
                bucket_count=buckets,
                bucket_keys=list(bucket_keys) or None,
                partition_keys=list(parts) or None,
                properties={"table.datalake.enabled": "true", **(properties or {})},
            ),
        )

    def write(self, name: str, rows: pa.Table | pl.DataFrame, **options: Any) -> None:
        fluss.write_fluss(rows, name, connection=self.connection, **options)

    def tier(self, name: str, most: int = MANY) -> TieringRound:
        info = self.connection.get_admin().get_table_info(fluss.TablePath("fluss", name))
        done = TableRound(
            self.connection, info, max_rows=most, max_changes=most, run_tasks=InThreads(1)
        )
        return done.run(lambda: None)

    def scan(self, name: str, **options: Any) -> pl.LazyFrame:
        return fluss.scan_fluss(name, connection=self.connection, **options)

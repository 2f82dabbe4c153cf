"""The limits: decoding the very same bytes from memory, and making Polars' frames of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.io.base.arrow import to_polars
from fluss_df.metadata import OffsetSpec, TableBucket


class InMemory:
    """The log batches of a table as servers send them."""

    def __init__(self, table: fluss.FlussTable, connection: fluss.FlussConnection) -> None:
        info = table.get_table_info()
        columns = info.get_column_names()
        buckets = list(range(info.num_buckets))
        ends = connection.get_admin().list_offsets(info.table_path, buckets, OffsetSpec.latest())
        positions = [Position(TableBucket(info.table_id, b), None, 0, ends[b]) for b in buckets]
        metrics = ScanMetrics()
        self._chunks = list(ChunkRead(connection, info, None, positions, metrics))
        self._decoder = TableDecoder(connection, info, columns, (), metrics)
        self._of_views = TableDecoder(connection, info, columns, (), metrics, views=True)

    @property
    def nbytes(self) -> int:
        return sum(len(chunk.records) for _, chunk in self._chunks)

    def decode(self) -> pa.Table:
        """Decode everything with two threads."""
        with ThreadPoolExecutor(2) as pool:
            parts = pool.map(lambda kept: [*self._decoder.tables(*kept)], self._chunks)
            return pa.concat_tables(table for part in parts for table in part)

    def frames(self) -> pl.DataFrame:
        """The same, to frames, as a scan makes them: strings as Polars lays them out."""
        with ThreadPoolExecutor(2) as pool:
            parts = pool.map(
                lambda kept: [*map(to_polars, self._of_views.tables(*kept))], self._chunks
            )
            return pl.concat((frame for part in parts for frame in part), rechunk=False)

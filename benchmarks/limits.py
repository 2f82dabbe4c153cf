"""The limits: decoding the very same bytes from memory, and making Polars' strings of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import fluss_df as fluss
from fluss_df.client.log_decode import TableDecoder
from fluss_df.client.log_fetch import Chunk, Position
from fluss_df.client.metrics import ScanMetrics
from fluss_df.client.reader import OrderedRead
from fluss_df.metadata import OffsetSpec, TableBucket


class _Keep(TableDecoder):
    """Keeps what was fetched rather than decoding it."""

    kept: list[tuple[Position, Chunk]]

    def decode(self, position: Position, chunk: Chunk) -> Iterator[pa.Table]:
        self.kept.append((position, chunk))
        return iter(())


class InMemory:
    """The log batches of a table as servers send them."""

    def __init__(self, table: fluss.FlussTable, connection: fluss.FlussConnection) -> None:
        info = table.get_table_info()
        columns = info.get_column_names()
        buckets = list(range(info.num_buckets))
        ends = connection.get_admin().list_offsets(info.table_path, buckets, OffsetSpec.latest())
        positions = [Position(TableBucket(info.table_id, b), None, 0, ends[b]) for b in buckets]
        metrics = ScanMetrics()
        keep = _Keep(connection, info, columns, (), metrics)
        keep.kept = []
        list(OrderedRead(connection, info, keep, positions, metrics))
        self._chunks = keep.kept
        self._decoder = TableDecoder(connection, info, columns, (), metrics)

    @property
    def nbytes(self) -> int:
        return sum(len(chunk.records) for _, chunk in self._chunks)

    def decode(self, *, views: bool = False) -> pa.Table:
        """Decode everything with two threads; with views, to the layout that Polars has."""

        def decoded(kept: tuple[Position, Chunk]) -> list[pa.Table]:
            tables = list(self._decoder.decode(*kept))
            return [_with_views(table) for table in tables] if views else tables

        with ThreadPoolExecutor(2) as pool:
            return pa.concat_tables(t for part in pool.map(decoded, self._chunks) for t in part)


def _with_views(table: pa.Table) -> pa.Table:
    """Return strings as views of 16 bytes each, by Arrow's own cast, the quickest that there is."""
    made = [
        pa.field(f.name, pa.string_view()) if pa.types.is_string(f.type) else f
        for f in table.schema
    ]
    return table.cast(pa.schema(made))

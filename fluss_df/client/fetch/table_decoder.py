"""Fetched log batches of one table as Arrow: columns, metadata columns, schemas by their id."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.position import Chunk, Position
from fluss_df.client.fetch.small_chunks import joined, wanted_rows
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError, ProtocolError
from fluss_df.metadata import (
    BUCKET_COLUMN,
    CHANGE_TYPE_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    PARTITION_COLUMN,
    ChangeType,
    TableBucket,
    require_columns,
)
from fluss_df.record.layout.columns import without_columns
from fluss_df.record.layout.headers import LogHeaders, byte_view, verify_crcs
from fluss_df.record.log.cut import decompressed_size, read_message
from fluss_df.record.log.log_decode import DecodedBatch, LogDecoder
from fluss_df.record.log.row_log import RowLogDecoder, require_log_format
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext
    from fluss_df.pushdown.server_filter import ServerFilter

_Decoder: TypeAlias = LogDecoder | RowLogDecoder

METADATA_FIELDS = {
    PARTITION_COLUMN: pa.field(PARTITION_COLUMN, pa.string()),
    BUCKET_COLUMN: pa.field(BUCKET_COLUMN, pa.int32(), nullable=False),
    CHANGE_TYPE_COLUMN: pa.field(
        CHANGE_TYPE_COLUMN, pa.dictionary(pa.int8(), pa.string()), nullable=False
    ),
    LOG_OFFSET_COLUMN: pa.field(LOG_OFFSET_COLUMN, pa.int64(), nullable=False),
    COMMIT_TIMESTAMP_COLUMN: pa.field(
        COMMIT_TIMESTAMP_COLUMN, pa.timestamp("ms", "UTC"), nullable=False
    ),
}

# The most received bytes, and the most rows, of one decoded table. Rows have a limit of their own:
# batches of few distinct values are tiny on the wire and large when decoded.
PIECE_BYTES = 4 << 20
# Up to this number of log batches, one of them tells how large all are when decompressed. To look
# into each takes as long as a part of decoding a column of it, and a wrong guess puts only these
# few together.
_FEW_BATCHES = 8
_PIECE_ROWS = 1 << 19


@functools.cache
def _change_names() -> pa.Array:
    """Return the names of change types; made when needed, since it imports pandas."""
    return pa.array([kind.short_string() for kind in ChangeType])


def projection_of(info: TableInfo, columns: Sequence[str]) -> list[int] | None:
    """Return the indexes of columns to ask servers for, ascending; None for all of them."""
    names = info.get_column_names()
    place = {name: number for number, name in enumerate(names)}
    # without a column nothing can be counted: the first one is fetched in their place
    wanted = sorted(place[name] for name in columns) or [0]
    # servers leave out columns only in the log format Arrow
    whole = len(wanted) == len(names) or info.log_format != "arrow"
    return None if whole else wanted


_Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Log batches that are decoded at once: ``first`` to ``last`` (exclusive) of a chunk.

    Rows from the offset ``stop`` on are not wanted. Where chunks of several buckets were joined,
    ``rows`` has how many rows each of ``positions`` has, else it is empty.
    """

    chunk: Chunk
    stop: int | None
    first: int
    last: int
    positions: Sequence[Position]
    rows: Sequence[int] = ()

    def wanted(self) -> tuple[_Int64s, _Int64s, _Int64s]:
        """Return the base offset, the first wanted row and the wanted rows of each batch."""
        part = slice(self.first, self.last)
        low, lengths = self.chunk.wanted(self.stop)
        return self.chunk.headers.base_offset[part], low[part], lengths[part]

    def offset_of(self, row: int) -> int:
        """Return the offset of a row of what is decoded."""
        base, low, lengths = self.wanted()
        ends = np.cumsum(lengths)
        batch = int(np.searchsorted(ends, row, "right"))
        return int(base[batch] + low[batch] + row - ends[batch] + lengths[batch])

    def by_bucket(self, values: Sequence[object], kind: pa.DataType, rows: int) -> pa.Array:
        """Return a column of ``rows`` rows that has one value for each bucket."""
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), rows)
        return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(values)), self.rows)))


class TableDecoder:
    """Decodes what was fetched of a table; for any number of threads.

    The result has ``columns`` in their order, then ``metadata_columns``: any of ``_partition``,
    ``_bucket``, ``_change_type``, ``_log_offset`` and ``_commit_timestamp``. ``schema`` is its
    schema.

    With ``views``, strings and binary data of Arrow batches come as views, for Polars. About
    ``piece_bytes`` received bytes are decoded at once, but never less than one log batch.

    ``projection`` is the indexes of the columns to ask servers for, ascending; None for all.

    ``rows_by_bucket`` is None, or a dict in which decoded rows are counted; not those of
    :meth:`decode_batches`.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[str],
        metadata_columns: Sequence[str],
        metrics: Metrics,
        *,
        views: bool = False,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._views = views
        self._piece_bytes = piece_bytes
        require_log_format(info.log_format, info.table_path)
        self._row_format = None if info.log_format == "arrow" else info.log_format
        names = info.get_column_names()
        require_columns(columns, names, f"table {info.table_path}:")
        self._connection = connection
        self._info = info
        self._metrics = metrics
        self._of_table = connection.metrics.of_table(info.table_path)
        self._metadata_columns = tuple(metadata_columns)
        self._check_crc = connection.config.scanner_log_check_crc
        self._target = pa.schema([info.schema.arrow_schema.field(name) for name in columns])
        self._lock = threading.Lock()
        self._schemas = {info.schema_id: info.schema}
        self.projection = projection_of(info, columns)
        # fetched batches of other schemas may lack a column: what is null then must be nullable
        fields = [field.with_nullable(True) for field in self._target]
        self._target = pa.schema(fields)
        self.schema = pa.schema([*fields, *(METADATA_FIELDS[name] for name in metadata_columns)])
        self._projected_decoder: _Decoder | None = None
        self._whole_decoder: _Decoder | None = None
        self.rows_by_bucket: dict[TableBucket, int] | None = None

    def _decoder(self, projected: bool, headers: LogHeaders) -> _Decoder:
        missing = [i for i in set(headers.schema_id.tolist()) if i not in self._schemas]
        for schema_id in missing:
            self._learn_schema(schema_id)
        with self._lock:
            made = self._projected_decoder if projected else self._whole_decoder
            if made is not None:
                return made
            if self._row_format is not None:
                columns = {key: schema.columns for key, schema in self._schemas.items()}
                self._whole_decoder = RowLogDecoder(columns, self._target, self._row_format)
                return self._whole_decoder
            payload = {key: schema.arrow_schema for key, schema in self._schemas.items()}
            if projected and self.projection is not None:
                indexes = self.projection
                payload = {
                    key: pa.schema([schema.field(i) for i in indexes if i < len(schema)])
                    for key, schema in payload.items()
                }
            payload = {
                key: pa.schema([field.with_nullable(True) for field in schema])
                for key, schema in payload.items()
            }
            made = LogDecoder(payload, self._target, views=self._views)
            if projected:
                self._projected_decoder = made
            else:
                self._whole_decoder = made
            return made

    def _learn_schema(self, schema_id: int) -> None:
        schema = self._connection.io.run(
            TableQuestions(self._connection).table_schema(self._info.table_path, schema_id)
        )
        with self._lock:
            self._schemas[schema_id] = schema
            self._projected_decoder = self._whole_decoder = None

    def tables(self, position: Position, chunk: Chunk) -> Iterator[pa.Table]:
        """Decode a chunk, a few MB at a time."""
        for part in self._cut(position, chunk):
            table = self._decode(part)
            if table.num_rows:
                yield table

    def read(
        self, positions: Sequence[Position], server_filter: ServerFilter | None = None
    ) -> Iterator[pa.Table]:
        """Fetch positions one after the other and decode them, on the thread that iterates."""
        with contextlib.closing(self._fetched(positions, server_filter).steps()) as steps:
            for chunks in steps:
                for decode in self.pieces(chunks):
                    table = decode()
                    if table.num_rows:
                        yield table

    def read_located(
        self, positions: Sequence[Position], server_filter: ServerFilter | None = None
    ) -> Iterator[tuple[Position, Callable[[int], int], pa.Table]]:
        """As :meth:`read`, with the offsets of rows.

        Yields the position, a function from the index of a row in the table to its offset, and the
        table.
        """
        for position, chunk in self._fetched(positions, server_filter):
            for part in self._cut(position, chunk):
                table = self._decode(part)
                if table.num_rows:
                    yield position, part.offset_of, table

    def _fetched(
        self, positions: Sequence[Position], server_filter: ServerFilter | None
    ) -> ChunkRead:
        return ChunkRead(
            self._connection,
            self._info,
            self.projection,
            positions,
            self._metrics,
            server_filter=server_filter,
        )

    def pieces(self, chunks: Sequence[tuple[Position, Chunk]]) -> list[Callable[[], pa.Table]]:
        """Verify chunks, and return functions that each decode one part of them.

        Each function is to be called once, on any thread. Several chunks become one part: the
        caller has made sure that they are small, and all projected or none of them.
        """
        size = sum(chunk.headers.consumed * self._swelling(chunk) for _, chunk in chunks[1:])
        if size > 2 * self._piece_bytes or len(chunks) == 1:
            return [
                functools.partial(self._decode, part)
                for each in chunks
                for part in self._cut(*each)
            ]
        for _, chunk in chunks:
            self._verify(chunk)
        return [functools.partial(self._decode_joined, chunks)] if chunks else []

    def _decode_joined(self, chunks: Sequence[tuple[Position, Chunk]]) -> pa.Table:
        """Decode small chunks as one; where that fails, one by one, so that the error tells where.

        Rows outside starts and stops are decoded, and left out behind that.
        """
        whole = joined([chunk for _, chunk in chunks])
        positions = [position for position, _ in chunks]
        rows = [chunk.headers.rows for _, chunk in chunks]
        try:
            table = self._table(_Part(whole, None, 0, len(whole.headers), positions, rows))
        except FlussError:
            tables = [table for each in chunks for table in self.tables(*each)]
            if not self.schema.names:
                return without_columns(sum(table.num_rows for table in tables))
            return pa.concat_tables(tables) if tables else pa.Table.from_batches([], self.schema)
        wanted = wanted_rows(chunks)
        if wanted is not None and table.num_columns:
            # slices, as Arrow cannot filter views
            edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
            parts = [table.slice(start, stop - start) for start, stop in edges.tolist()]
            table = pa.concat_tables([table.slice(0, 0), *parts]).combine_chunks()
        elif wanted is not None:
            table = without_columns(int(wanted.sum()))
        self._count(table.num_rows, len(whole.headers))
        for position, chunk in chunks if self.rows_by_bucket is not None else ():
            self._count_of(position, int(chunk.wanted(position.stop)[1].sum()))
        return table

    def _cut(self, position: Position, chunk: Chunk) -> list[_Part]:
        """Verify a chunk; return the parts that are decoded at once."""
        self._verify(chunk)
        return [
            _Part(chunk, position.stop, first, last, [position])
            for first, last in itertools.pairwise(self._cuts(chunk))
        ]

    def _cuts(self, chunk: Chunk) -> list[int]:
        """Return the indexes of the log batches at which a chunk is cut.

        0 and the number of the batches are among them.
        """
        headers = chunk.headers
        # decompressed, a piece may have twice as many bytes as it may have on the wire
        share = max(1.0, self._swelling(chunk) / 2)
        if chunk.wanted_bytes is not None:
            # assume that the wanted columns are the same share of every batch
            share *= chunk.wanted_bytes / max(1, headers.consumed)
        sizes = np.cumsum(headers.size) * share // self._piece_bytes
        rows = np.cumsum(headers.record_count) // _PIECE_ROWS
        cuts = np.flatnonzero((sizes[1:] != sizes[:-1]) | (rows[1:] != rows[:-1])) + 1
        return [0, *cuts.tolist(), len(headers)]

    def _swelling(self, chunk: Chunk) -> float:
        """Return how many times as many bytes a chunk has decompressed, by some of its batches."""
        if self._row_format is not None:
            return 1.0
        headers, count, ratio = chunk.headers, len(chunk.headers), 1.0
        data, begins = byte_view(chunk.records), headers.messages
        for i in {0, count // 2, count - 1} if count > _FEW_BATCHES else {count // 2}:
            begin = int(begins[i])
            end = int(headers.position[i] + headers.size[i])
            try:
                message = read_message(data, begin, end)
            except ProtocolError:
                # a batch of changes without effect has no message; of others the decoder will tell
                continue
            ratio = max(ratio, decompressed_size(data, message) / (end - begin))
        return ratio

    def _verify(self, chunk: Chunk) -> None:
        """Compare checksums, unless that was done before.

        Where a server left out columns they cannot match: they are those of the whole batches.
        """
        if self._check_crc and not chunk.projected and chunk.checked is None:
            verify_crcs(chunk.records, chunk.headers)

    def _decode(self, part: _Part) -> pa.Table:
        table = self._table(part)
        self._count(table.num_rows, part.last - part.first)
        self._count_of(part.positions[0], table.num_rows)
        return table

    def _table(self, part: _Part) -> pa.Table:
        chunk = part.chunk
        decoder = self._decoder(chunk.projected, chunk.headers)
        table = decoder.decode_table(
            chunk.records,
            chunk.headers,
            part.first,
            part.last,
            start_offset=chunk.start,
            stop_offset=part.stop,
            checked=chunk.checked,
        )
        if not table.num_rows:
            # the batches have no rows, as those of changes without effect
            return pa.Table.from_batches([], self.schema)
        return self._with_metadata(table, decoder, part) if self._metadata_columns else table

    def _with_metadata(self, table: pa.Table, decoder: _Decoder, part: _Part) -> pa.Table:
        """Append metadata columns, computed for all batches of the part at once."""
        chunk, rows = part.chunk, table.num_rows
        base, low, lengths = part.wanted()
        # the place of each row in its batch
        begins = np.cumsum(lengths) - lengths
        within = np.arange(rows) - np.repeat(begins - low, lengths)
        columns = table.columns
        # not self.schema, which has no views: columns of views would be converted back
        added = [METADATA_FIELDS[name] for name in self._metadata_columns]
        schema = pa.schema([*table.schema, *added])
        for name in self._metadata_columns:
            column: pa.Array
            if name == PARTITION_COLUMN:
                names = [position.partition_name for position in part.positions]
                column = part.by_bucket(names, pa.string(), rows)
            elif name == BUCKET_COLUMN:
                ids = [position.bucket.bucket_id for position in part.positions]
                column = part.by_bucket(ids, pa.int32(), rows)
            elif name == LOG_OFFSET_COLUMN:
                column = pa.array(np.repeat(base, lengths) + within)
            elif name == CHANGE_TYPE_COLUMN:
                kinds = decoder.change_types(
                    chunk.records,
                    chunk.headers,
                    part.first,
                    part.last,
                    start_offset=chunk.start,
                    stop_offset=part.stop,
                )
                column = self._changes(kinds)
            else:
                times = np.repeat(chunk.headers.timestamp[part.first : part.last], lengths)
                column = pa.array(times).cast(METADATA_FIELDS[name].type)
            columns.append(pa.chunked_array([column]))
        return pa.Table.from_arrays(columns, schema=schema)

    def _changes(self, kinds: npt.NDArray[np.uint8]) -> pa.DictionaryArray:
        """Return change types as a column."""
        if len(kinds) and int(kinds.max()) >= len(ChangeType):
            raise ProtocolError(
                f"a log batch of table {self._info.table_path} has the change type"
                f" {int(kinds.max())}, which does not exist"
            )
        return pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int8)), _change_names())

    def decode_batches(self, position: Position, chunk: Chunk) -> list[DecodedBatch]:
        """Decode a chunk log batch by log batch, each with its offsets and timestamp."""
        self._verify(chunk)
        decoder = self._decoder(chunk.projected, chunk.headers)
        batches = decoder.decode(
            chunk.records, chunk.headers, start_offset=chunk.start, stop_offset=position.stop
        )
        self._count(sum(b.batch.num_rows for b in batches), len(batches))
        return [self._batch_with_metadata(batch, position) for batch in batches]

    def _count_of(self, position: Position, rows: int) -> None:
        counts = self.rows_by_bucket
        if counts is not None:
            with self._lock:
                counts[position.bucket] = counts.get(position.bucket, 0) + rows

    def _count(self, rows: int, batches: int) -> None:
        self._metrics.add(rows=rows, batches=batches)
        self._of_table.add(records_read=rows, batches_read=batches)

    def _batch_with_metadata(self, decoded: DecodedBatch, position: Position) -> DecodedBatch:
        """Append metadata columns to a single batch, and check its change types."""
        rows = decoded.batch.num_rows
        if decoded.change_types is None:
            kinds = np.zeros(rows, np.uint8)
        else:
            kinds = decoded.change_types.to_numpy()
        changes = self._changes(kinds)
        if not self._metadata_columns:
            return decoded
        offsets = np.arange(decoded.base_offset, decoded.base_offset + rows)
        time = pa.scalar(decoded.timestamp, METADATA_FIELDS[COMMIT_TIMESTAMP_COLUMN].type)
        made = {
            PARTITION_COLUMN: lambda: pa.repeat(
                pa.scalar(position.partition_name, pa.string()), rows
            ),
            BUCKET_COLUMN: lambda: pa.repeat(
                pa.scalar(position.bucket.bucket_id, pa.int32()), rows
            ),
            CHANGE_TYPE_COLUMN: lambda: changes,
            LOG_OFFSET_COLUMN: lambda: pa.array(offsets),
            COMMIT_TIMESTAMP_COLUMN: lambda: pa.repeat(time, rows),
        }
        columns = [*decoded.batch.columns, *(made[name]() for name in self._metadata_columns)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return replace(decoded, batch=batch)

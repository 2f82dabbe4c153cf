"""Log batches of rows: the log formats ``indexed`` and ``compacted``.

All log batches have the same header. Behind it the records follow one another. A record is its
length in bytes (int32; the length itself not counted), its change type (the lower four bits of a
byte), and its row in the format (``record/rows/indexed.py``, ``record/rows/compacted.py``). These
batches are not compressed, and servers cannot project them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.chain import LENGTH_SIZE, Chain, walk_chain
from fluss_df.record.layout.columns import with_columns, without_columns
from fluss_df.record.layout.headers import Bytes, LogHeaders, byte_view
from fluss_df.record.layout.unaligned import Words, assemble, join, word_view
from fluss_df.record.log.checked import CheckedColumns
from fluss_df.record.log.log_batch import EncodedLogBatch, log_header
from fluss_df.record.log.log_decode import DecodedBatch, LogDecoder, Run, runs
from fluss_df.record.rows.compacted import RowDecoder, RowEncoder, pieces
from fluss_df.record.rows.row_formats import decoder_of
from fluss_df.types import Column, arrow_schema

_CHANGE_SIZE: Final = 1
_CHANGE_BITS: Final = 0x0F
#: the log formats whose batches hold rows, and not Arrow columns
ROW_LOG_FORMATS: Final = ("indexed", "compacted")


def require_log_format(name: str, table: object) -> None:
    """Raise ``UNSUPPORTED_VERSION`` for the log format of a table that is not known here."""
    if name not in ("arrow", *ROW_LOG_FORMATS):
        raise FlussError(
            f"table {table} has the log format '{name}', which is not known here; known are arrow,"
            f" {', '.join(ROW_LOG_FORMATS)}",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def encode_row_log_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int,
    rows: RowEncoder,
    change_types: npt.NDArray[np.uint8] | None = None,
) -> EncodedLogBatch:
    """Encode rows as an append-only log batch of magic 0; thread safe.

    ``batch`` has at least one row, of the table's Arrow types in the table's order.
    ``change_types`` has the change type of each row, for a changelog; its header is written by the
    server.

    Raises SchemaMismatchError for a value that the format cannot hold. Raises FlussError for a
    batch without rows, or with more bytes than its length field can hold (2 GiB).
    """
    made = []
    first = 0
    for piece in pieces(pa.Table.from_batches([batch])):
        n = piece.num_rows
        kinds = np.zeros(n, np.uint64)
        if change_types is not None:
            kinds += change_types[first : first + n]
        head = [Words(np.zeros(n, np.uint64), LENGTH_SIZE), Words(kinds, _CHANGE_SIZE)]
        records = assemble([*head, *rows.parts(piece, first)], n)
        word_view(records.data, 4)[records.offsets[:-1]] = np.diff(records.offsets) - LENGTH_SIZE
        made.append(records)
        first += n
    body = pa.py_buffer(join(made).data)
    return EncodedLogBatch(log_header(schema_id, batch.num_rows, body.size), body, batch.num_rows)


class RowLogDecoder:
    """Decodes log batches of rows to Arrow, with the methods of :class:`LogDecoder`.

    ``schemas`` has the columns of each schema id. The result has the columns of ``target``. A
    column that was added after a batch was written is null. ``row_format`` is ``indexed`` or
    ``compacted``.
    """

    def __init__(
        self, schemas: Mapping[int, Sequence[Column]], target: pa.Schema, row_format: str
    ) -> None:
        self.target = target
        make = decoder_of(row_format)
        self._decoders: dict[int, RowDecoder] = {}
        for schema_id, columns in schemas.items():
            names = {column.name for column in columns}
            self._decoders[schema_id] = make(columns, [n for n in target.names if n in names])

    def decode(
        self,
        records: Bytes,
        headers: LogHeaders,
        first: int = 0,
        last: int | None = None,
        *,
        start_offset: int = 0,
        stop_offset: int | None = None,
    ) -> list[DecodedBatch]:
        """Decode batches one by one, as :meth:`LogDecoder.decode`."""
        result = []
        for run in runs(headers, first, last, start_offset, stop_offset):
            chain = _records(records, headers, run)
            table = self._rows(chain, headers, run).combine_chunks()
            kinds = None if run.append_only else _change_types(chain)
            counts = headers.record_count[run.index]
            starts = np.cumsum(counts) - counts + run.lo
            for i, lo, start, n in zip(
                run.index.tolist(),
                run.lo.tolist(),
                starts.tolist(),
                (run.hi - run.lo).tolist(),
                strict=True,
            ):
                if self.target.names:
                    part = table.slice(start, n).to_batches()[0]
                else:
                    part = without_columns(n).to_batches()[0]
                changes = None if kinds is None else pa.array(kinds[start : start + n])
                base = int(headers.base_offset[i]) + lo
                result.append(DecodedBatch(part, base, int(headers.timestamp[i]), changes))
        return result

    def decode_table(
        self,
        records: Bytes,
        headers: LogHeaders,
        first: int = 0,
        last: int | None = None,
        *,
        start_offset: int = 0,
        stop_offset: int | None = None,
        checked: CheckedColumns | None = None,
    ) -> pa.Table:
        """Decode batches to one table, as :meth:`LogDecoder.decode_table`.

        ``checked`` is not used: decoding rows always checks them.
        """
        tables = []
        for run in runs(headers, first, last, start_offset, stop_offset):
            chain = _wanted(_records(records, headers, run), headers, run)
            tables.append(self._rows(chain, headers, run))
        if not self.target.names:
            # tables without columns lose their rows when they are put together
            return without_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables([pa.Table.from_batches([], self.target), *tables])

    def change_types(
        self,
        records: Bytes,
        headers: LogHeaders,
        first: int = 0,
        last: int | None = None,
        *,
        start_offset: int = 0,
        stop_offset: int | None = None,
    ) -> npt.NDArray[np.uint8]:
        """Return the change types of the rows that :meth:`decode_table` gives."""
        found = [
            _change_types(_wanted(_records(records, headers, run), headers, run))
            for run in runs(headers, first, last, start_offset, stop_offset)
        ]
        return np.concatenate([np.zeros(0, np.uint8), *found])

    def _rows(self, chain: Chain, headers: LogHeaders, run: Run) -> pa.Table:
        decoder = self._decoders.get(run.schema_id)
        if decoder is None:
            raise FlussError(
                f"a log batch has schema {run.schema_id}, which is not known here",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        rows = decoder.decode_padded(chain.data, chain.starts + _CHANGE_SIZE, chain.ends)
        if not self.target.names:
            return without_columns(len(chain.starts))
        made: pa.Table = with_columns(rows, self.target)
        return made


def decoder_of_log(
    schemas: Mapping[int, Sequence[Column]], target: pa.Schema, log_format: str
) -> LogDecoder | RowLogDecoder:
    """Return what decodes whole log batches of any format, by the columns of each schema id."""
    if log_format != "arrow":
        return RowLogDecoder(schemas, target, log_format)
    payload = {schema_id: arrow_schema(columns) for schema_id, columns in schemas.items()}
    return LogDecoder(payload, target)


def _records(records: Bytes, headers: LogHeaders, run: Run) -> Chain:
    """Return where the records of consecutive batches are."""
    view = byte_view(records)
    starts = headers.payload[run.index]
    ends = headers.position[run.index] + headers.size[run.index]
    counts = headers.record_count[run.index]
    parts = zip(starts.tolist(), ends.tolist(), strict=True)
    data = b"".join([view[start:end] for start, end in parts])
    where = f"records of the log batches from offset {int(headers.base_offset[run.index[0]])} on"
    chain = walk_chain(data, 0, int(counts.sum()), least=_CHANGE_SIZE, what=where)
    # records must begin where batches begin: else a batch has another number than its header says
    begins = chain.starts + chain.moved - LENGTH_SIZE
    borders = np.cumsum(ends - starts)[:-1]
    if (begins[np.cumsum(counts)[:-1]] != borders).any():
        raise ProtocolError(f"{where}: the number of rows differs from that in the headers")
    return chain


def _wanted(chain: Chain, headers: LogHeaders, run: Run) -> Chain:
    """Leave out the records at the beginning and the end of a run that were not asked for."""
    head = int(run.lo[0])
    tail = int(headers.record_count[run.index[-1]] - run.hi[-1])
    part = slice(head, len(chain.starts) - tail)
    moved = chain.moved if isinstance(chain.moved, int) else chain.moved[part]
    return Chain(chain.data, chain.starts[part], chain.ends[part], moved)


def _change_types(chain: Chain) -> npt.NDArray[np.uint8]:
    kinds: npt.NDArray[np.uint8] = chain.data[chain.starts] & np.uint8(_CHANGE_BITS)
    return kinds

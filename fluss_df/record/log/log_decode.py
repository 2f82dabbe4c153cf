"""Log batches of a fetch response into Arrow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.memory import allocate, data_pool
from fluss_df.record.layout.columns import without_columns
from fluss_df.record.layout.headers import Bytes, LogHeaders
from fluss_df.record.layout.views import ViewLayout
from fluss_df.record.log.checked import CheckedColumns, RunKey

# Arrow has a fixed price for each stream, and messages read one by one cost about 100 us each;
# batches are therefore joined to streams of about this many bytes.
_STREAM_BYTES = 1 << 20
# But where messages are read where they are, nothing is copied that a cache could hold.
_IN_PLACE_STREAM_BYTES = 64 << 20
# From how many rows on the strings of a chunk are checked in bulk.
_BULK_ROWS = 4096
# Messages that may be referred to are read where they are, if they are as large as this on average:
# below, the price of each is above that of a copy.
_IN_PLACE_BYTES = 1 << 16
# more batches than this in a stream are put together to one chunk: small ones cost every reader
_COMBINE_BATCHES = 4
# but chunks of this number of rows are not small
_LARGE_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The rows of one log batch that were asked for.

    Attributes
    ----------
    batch
        The rows, with the columns of the decoder's target.
    base_offset
        The log offset of the first row; that of row i is ``base_offset + i``, unless there are
        ``offsets``.
    timestamp
        The commit timestamp of all rows, in milliseconds since the epoch.
    change_types
        One ``uint8`` per row for a changelog (0 append, 1 +I, 2 -U, 3 +U, 4 -D); None where the
        batch is append only.
    offsets
        The log offset of each row, where rows between them were filtered out.
    """

    batch: pa.RecordBatch
    base_offset: int
    timestamp: int
    change_types: pa.Array | None
    offsets: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches that share a schema and are decoded as one stream."""

    index: npt.NDArray[np.int64]
    lo: npt.NDArray[np.int64]
    hi: npt.NDArray[np.int64]
    schema_id: int
    append_only: bool

    def key(self, headers: LogHeaders) -> RunKey | None:
        """Return what tells it from all other runs of its log.

        None where batches between its own are missing, as a filter leaves them out: runs of other
        batches may begin and end at the same offsets.
        """
        first, last = self.index[0], self.index[-1]
        begin = int(headers.base_offset[first])
        end = int(headers.base_offset[last] + headers.last_offset_delta[last]) + 1
        if sum(headers.last_offset_delta[self.index].tolist()) + len(self.index) != end - begin:
            return None
        return begin, end, sum(headers.size[self.index].tolist())


class _Parts:
    """Buffers as a file that Arrow reads from front to back, without a copy within one of them."""

    closed = False

    def __init__(self, parts: list[pa.Buffer]) -> None:
        self._parts = parts
        self._part = 0
        self._at = 0

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return the next bytes: fewer at the end, and where a part ends."""
        while self._part < len(self._parts):
            part = self._parts[self._part]
            taken = part.slice(self._at, min(size, part.size - self._at))
            if taken.size or not size:
                self._at += taken.size
                return taken
            self._part += 1
            self._at = 0
        return pa.py_buffer(b"")

    def read(self, size: int) -> bytes:
        """Return the next bytes as a copy, for what Arrow reads into memory of its own."""
        found = b""
        while len(found) < size:
            more = self.read_buffer(size - len(found)).to_pybytes()
            if not more:
                break
            found += more
        return found

    def close(self) -> None:
        """Do nothing: buffers are not closed."""


class LogDecoder:
    """Decodes log batches to Arrow, column for column as asked.

    Immutable and thread safe; Arrow works without the GIL.

    What comes from a peer is checked before anyone sees it: that Arrow can read the messages, that
    each holds as many rows as its header says, and all that Arrow's full validation knows (offsets
    in order and in range, UTF-8, decimals within their precision), at a price of about 5 ms for a
    million rows of six columns. Not checked: NOT NULL, and how much memory the data decompresses to
    (a small batch of equal values is rightly large), beyond what can be allocated.

    ``payload`` has, for each schema id, the columns that stand in a payload, in their order there
    and as types that users see. These are the whole schema of that id, or under a projection the
    columns of it that the server was asked for.

    The result has the columns of ``target``. A column that a payload lacks (it was added to the
    table later) is null. With ``views``, strings and binary data come as views; see
    :mod:`fluss_df.record.layout.views`.

    Examples
    --------
    >>> schema = pa.schema([("id", pa.int64())])
    >>> decoder = LogDecoder({1: schema}, schema)
    """

    def __init__(
        self, payload: Mapping[int, pa.Schema], target: pa.Schema, *, views: bool = False
    ) -> None:
        self.target = target
        self._views = ViewLayout(target) if views else None
        self._payload = dict(payload)
        self._pool = data_pool()
        self._messages = {key: schema.serialize() for key, schema in self._payload.items()}
        self._options = {
            key: pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=_wanted_fields(schema, target)
            )
            for key, schema in self._payload.items()
        }
        for key, schema in self._payload.items():
            for field in target:
                at = schema.get_field_index(field.name)
                if at >= 0 and schema.field(at).type != field.type:
                    raise FlussError(
                        f"column '{field.name}' is {schema.field(at).type} in schema {key}, "
                        f"not {field.type}"
                    )

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
        """Decode batches one by one, with their offsets, timestamps and change types.

        ``headers`` are what :func:`scan_headers` found in ``records``. Decoded are the batches
        ``first`` to ``last`` (exclusive). Rows below ``start_offset``, and from ``stop_offset`` on,
        are left out. Batches without a wanted row are not decoded and not returned.

        The result is in the order of the log. It never refers to ``records``: that memory may be
        reused.

        Raises ProtocolError for bytes that are not the batches that the headers speak of. Raises
        ``SCHEMA_NOT_EXIST`` for a schema id that the decoder was not given.
        """
        result = []
        for run in runs(headers, first, last, start_offset, stop_offset):
            batches = self._table(records, headers, run).to_batches()
            changes = None if run.append_only else np.frombuffer(records, np.uint8)
            rows = zip(run.index.tolist(), run.lo.tolist(), run.hi.tolist(), strict=True)
            for batch, (i, lo, hi) in zip(batches, rows, strict=True):
                part = batch if hi - lo == batch.num_rows else batch.slice(lo, hi - lo)
                if not self.target.names:
                    part = part.select([])
                kinds = None
                if changes is not None:
                    at = int(headers.payload[i])
                    kinds = pa.array(changes[at + lo : at + hi].copy())
                base = int(headers.base_offset[i]) + lo
                result.append(DecodedBatch(part, base, int(headers.timestamp[i]), kinds))
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
        """Decode batches to one table of few chunks; the quickest way where only rows count.

        Parameters, guarantees and errors are those of :meth:`decode`, but for ``checked``, which is
        given where the memory of ``records`` never changes and is never used for anything else:
        then the table may refer to it, and values that were validated before are not again.
        """
        tables = []
        rows = 0
        size = _STREAM_BYTES if checked is None else _IN_PLACE_STREAM_BYTES
        for run in runs(headers, first, last, start_offset, stop_offset, size):
            table = self._table(records, headers, run, combine=True, checked=checked)
            # only the outer batches of a run can be wanted in part
            head = int(run.lo[0])
            tail = int(headers.record_count[run.index[-1]] - run.hi[-1])
            if not self.target.names:
                rows += int((run.hi - run.lo).sum())
            if head or tail:
                table = table.slice(head, table.num_rows - head - tail)
            tables.append(table)
        if not self.target.names:
            return without_columns(rows)
        if not tables:
            return pa.Table.from_batches([], self.target)
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

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
        data = np.frombuffer(records, np.uint8)
        found = []
        for run in runs(headers, first, last, start_offset, stop_offset):
            # one byte for each row, at the beginning of its batch's payload
            lengths = run.hi - run.lo
            if run.append_only:
                found.append(np.zeros(int(lengths.sum()), np.uint8))
                continue
            begins = headers.payload[run.index] + run.lo
            at = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            found.append(data[np.repeat(begins, lengths) + at])
        return np.concatenate([np.zeros(0, np.uint8), *found])

    def _table(
        self,
        records: Bytes,
        headers: LogHeaders,
        run: Run,
        *,
        combine: bool = False,
        checked: CheckedColumns | None = None,
    ) -> pa.Table:
        message = self._messages.get(run.schema_id)
        if message is None:
            raise FlussError(
                f"a log batch has schema {run.schema_id}, which is not known here",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        rows = headers.record_count[run.index]
        starts = headers.payload[run.index]
        if not run.append_only:
            starts = starts + rows
        ends = headers.position[run.index] + headers.size[run.index]
        # as lists, because most runs are of one batch or a few, and each call of NumPy takes as
        # long as ten numbers
        counts = rows.tolist()
        try:
            stream = self._stream(message, records, starts, ends, keep=checked is not None)
            options = self._options[run.schema_id]
            reader = pa.ipc.open_stream(stream, options=options, memory_pool=self._pool)
            table = reader.read_all()
            chunks = [len(c) for c in table.column(0).chunks] if table.num_columns else []
            small = table.num_rows < len(chunks) * _LARGE_ROWS
            if combine and small and len(chunks) > _COMBINE_BATCHES:
                # The outer bounds of the arrays, which is all that putting them together relies
                # on; what is within is then validated once rather than for each small batch.
                table.validate()
                table = table.combine_chunks(memory_pool=self._pool)
            _validate(table, checked, run.key(headers))
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise self._bad(headers, run, str(error)) from None
        if table.num_rows != sum(counts):
            raise self._bad(headers, run, f"{table.num_rows} rows, not {sum(counts)}")
        if table.num_columns and chunks != counts:
            raise self._bad(headers, run, "other numbers of rows than the headers say")
        table = self._select(table)
        return table if self._views is None else self._views.of(table)

    @classmethod
    def _stream(
        cls,
        message: pa.Buffer,
        records: Bytes,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        *,
        keep: bool,
    ) -> pa.Buffer | pa.NativeFile:
        """Return schema and messages as one stream, which refers to them if it may."""
        sizes = (ends - starts).tolist()
        if keep and sum(sizes) >= len(starts) * _IN_PLACE_BYTES:
            data = records if isinstance(records, pa.Buffer) else pa.py_buffer(records)
            # what Arrow does not decompress it uses in place: at multiples of its items' width
            if not np.bitwise_or.reduce(data.address + starts) % 8:
                spans = zip(starts.tolist(), sizes, strict=True)
                parts = [message, *(data.slice(start, length) for start, length in spans)]
                return pa.PythonFile(_Parts(parts), mode="r")
        return cls._join(message, records, starts, ends)

    @staticmethod
    def _join(
        message: pa.Buffer,
        records: Bytes,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> pa.Buffer:
        """Copy schema and messages into one stream.

        NumPy lets go of the interpreter lock while it copies, so that other threads decode
        meanwhile; assigning to a slice of a memoryview keeps it.
        """
        data = np.frombuffer(records, np.uint8)
        total = message.size + int((ends - starts).sum())
        stream = allocate(total)
        out = np.frombuffer(stream, np.uint8)
        at = message.size
        out[:at] = np.frombuffer(message, np.uint8)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            stop = at + end - start
            out[at:stop] = data[start:end]
            at = stop
        return stream

    def _select(self, table: pa.Table) -> pa.Table:
        # tables without columns forget their rows: the callers see to those
        if table.schema.equals(self.target) or not self.target.names:
            return table
        columns = []
        names = frozenset(table.schema.names)
        for field in self.target:
            if field.name in names:
                columns.append(table.column(field.name))
            else:
                # chunks as the other columns have them: decode() takes batch by batch
                chunks = table.column(0).chunks if table.num_columns else []
                nulls = [pa.nulls(len(chunk), field.type) for chunk in chunks]
                columns.append(pa.chunked_array(nulls, field.type))
        return pa.Table.from_arrays(columns, schema=self.target)

    @staticmethod
    def _bad(headers: LogHeaders, run: Run, why: str) -> ProtocolError:
        first, last = run.index[0], run.index[-1]
        end = headers.base_offset[last] + headers.last_offset_delta[last]
        return ProtocolError(
            f"the log batches at offsets {headers.base_offset[first]} to {end} (schema "
            f"{run.schema_id}) do not hold the columns expected: {why}"
        )


def runs(
    headers: LogHeaders,
    first: int,
    last: int | None,
    start_offset: int,
    stop_offset: int | None,
    stream_bytes: int = _STREAM_BYTES,
) -> Iterator[Run]:
    """Split the batches that hold wanted rows into streams."""
    part = slice(first, len(headers) if last is None else last)
    count, base = headers.record_count[part], headers.base_offset[part]
    # not np.clip and np.flatnonzero, which take three times as long for a few batches
    lo = np.minimum(np.maximum(start_offset - base, 0), count)
    hi = count if stop_offset is None else np.minimum(np.maximum(stop_offset - base, 0), count)
    (wanted,) = (hi > lo).nonzero()
    if not len(wanted):
        return
    lo, hi, index = lo[wanted], hi[wanted], wanted + first
    ids, plain = headers.schema_id[index], headers.append_only[index]
    bounds = [0, len(index)]
    if len(index) > 1:
        sizes = headers.size[index]
        streams = (sizes.cumsum() - sizes) // stream_bytes
        cut = (ids[1:] != ids[:-1]) | (plain[1:] != plain[:-1]) | (streams[1:] != streams[:-1])
        bounds[1:1] = (cut.nonzero()[0] + 1).tolist()
    for a, b in itertools.pairwise(bounds):
        yield Run(index[a:b], lo[a:b], hi[a:b], int(ids[a]), bool(plain[a]))


def _validate(table: pa.Table, checked: CheckedColumns | None, run: RunKey | None) -> None:
    """Check all that Arrow's full validation checks, of columns that were not checked before.

    It looks at strings one by one, which is a tenth of the time of a scan. The bytes of many are
    first looked at as one: where all are ASCII, only the offsets are left to check.
    """
    known = frozenset() if checked is None or run is None else checked.of(run)
    names = table.schema.names
    if known.issuperset(names):
        return
    for name, column in zip(names, table.columns, strict=True):
        if name in known:
            continue
        if column.type == pa.string():
            for chunk in column.chunks:
                if len(chunk) >= _BULK_ROWS:
                    as_bytes = chunk.view(pa.binary())
                    as_bytes.validate(full=True)
                    if _is_ascii(as_bytes):
                        continue
                chunk.validate(full=True)
        else:
            column.validate(full=True)
    if checked is not None and run is not None:
        checked.add(run, names)


def _is_ascii(array: pa.BinaryArray) -> bool:
    """Whether no byte of an array of valid offsets is above 127."""
    _, offsets, data = array.buffers()
    if data is None:
        return True
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return not len(used) or int(used.max()) < 128


def _wanted_fields(payload: pa.Schema, target: pa.Schema) -> list[int] | None:
    """Return the indexes of the columns to decompress; None for all.

    Batches from remote storage hold all columns whatever is wanted.
    """
    names, asked = payload.names, frozenset(target.names)
    wanted = [i for i, name in enumerate(names) if name in asked]
    if len(wanted) == len(names):
        return None
    # one is needed to count rows, and no index at all would mean all
    return wanted or [0]

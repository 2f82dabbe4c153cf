"""Writing Polars frames to Fluss tables: :func:`sink_fluss` and :func:`write_fluss`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import polars as pl
import pyarrow as pa

from fluss_df.client.append import AppendWriter
from fluss_df.client.connection import resolve_connection
from fluss_df.client.write_batch import BucketResult
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.target import TableLayout, Target, arrow_types, find_target
from fluss_df.metadata import TablePath
from fluss_df.record.coerce import coerce
from fluss_df.record.partitions import partition_names

if TYPE_CHECKING:
    from polars._typing import EngineType

Progress: TypeAlias = Callable[[int], object]

# a frame is handed to the writer in slices of about so many bytes
_SLICE_BYTES = 16 << 20
# so many buckets or partitions are listed in a message
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class SinkResult:
    """What a sink wrote; every row of it is acknowledged by the cluster.

    Parameters
    ----------
    table
        The table.
    rows
        How many rows were written.
    buckets
        What each bucket got, ordered by partition and bucket.
    table_created
        Whether the sink made the table.
    partitions_created
        The partitions that came with this sink.
    seconds
        How long it took.
    """

    table: TablePath
    rows: int
    buckets: tuple[BucketResult, ...]
    table_created: bool
    partitions_created: tuple[str, ...]
    seconds: float

    def to_frame(self) -> pl.DataFrame:
        """Return the buckets as a frame, a row for each."""
        schema = {
            "partition_name": pl.String,
            "bucket_id": pl.Int32,
            "base_offset": pl.Int64,
            "end_offset": pl.Int64,
            "rows": pl.Int64,
        }
        columns = [[getattr(bucket, name) for bucket in self.buckets] for name in schema]
        return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)

    def __repr__(self) -> str:
        created = ["table created"] if self.table_created else []
        if self.partitions_created:
            created.append(f"partitions created: {', '.join(self.partitions_created)}")
        parts = [f"{self.rows:,} rows", f"{len(self.buckets)} buckets", *created]
        return f"SinkResult({self.table}: {'; '.join(parts)}; {self.seconds:.2f} s)"


def sink_fluss(
    frame: pl.LazyFrame,
    target: str | TablePath,
    *,
    mode: str = "auto",
    connection: object | None = None,
    create_if_not_exists: bool = False,
    create_partitions: bool = False,
    primary_keys: Sequence[str] | None = None,
    partition_keys: Sequence[str] | None = None,
    bucket_keys: Sequence[str] | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    engine: EngineType = "auto",
) -> SinkResult:
    """Run a query, and append its rows to a log table as they come.

    Columns are matched by name and converted to the table's types where nothing is lost, as the
    module :mod:`fluss_df.record.coerce` says. Names, types, and what else can be known without the
    rows is checked before the query starts.

    The query runs in bounded memory, and its rows are written while it runs. When it fails, or a
    value does not fit, what was written before stays, and the error says how many rows that are and
    up to which offsets. To check all values before the first is sent, collect the frame and use
    :func:`write_fluss`.

    Parameters
    ----------
    frame
        The query.
    target
        ``"table"``, ``"database.table"`` or a :class:`TablePath`.
    mode
        ``"auto"`` and ``"append"`` append to log tables.
    connection
        As for :func:`scan_fluss`.
    create_if_not_exists
        Create the table with the columns of the frame where it does not exist.
    create_partitions
        Create the partitions of the rows that do not exist; an error otherwise.
    primary_keys, partition_keys, bucket_keys, bucket_count, properties
        Of the table to create. An existing table must have them as given.
    progress
        Called with the number of rows that are acknowledged, as it grows.
    engine
        The engine of Polars to run the query with.

    Returns
    -------
    SinkResult
        Rows, and offsets by bucket.

    Raises
    ------
    SchemaMismatchError
        For columns, types or values that do not fit; names column, types and row.
    FlussError
        When the table, a partition, or the mode for this table does not exist, or rows could not
        be written.

    Examples
    --------
    >>> pl.scan_parquet("flights/*.parquet").sink_fluss("flights")  # doctest: +SKIP
    SinkResult(fluss.flights: 336,776 rows; 3 buckets; 1.40 s)
    """
    schema = frame.collect_schema()
    table = find_target(
        resolve_connection(connection),
        target,
        schema,
        TableLayout(primary_keys, partition_keys, bucket_keys, bucket_count, properties),
        mode=mode,
        create_if_not_exists=create_if_not_exists,
    )
    nothing = pa.Table.from_batches([], arrow_types(table.path, schema))
    coerce(nothing, table.columns, table=str(table.path))
    with _Writing(table, create_partitions=create_partitions, progress=progress) as writing:
        frame.sink_batches(writing.write, engine=engine)
    return writing.result()


def write_fluss(
    frame: pl.DataFrame,
    target: str | TablePath,
    *,
    mode: str = "auto",
    connection: object | None = None,
    create_if_not_exists: bool = False,
    create_partitions: bool = False,
    primary_keys: Sequence[str] | None = None,
    partition_keys: Sequence[str] | None = None,
    bucket_keys: Sequence[str] | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> SinkResult:
    """Append a frame to a log table.

    Everything is checked before the first row is sent: each value fits its column, and each
    partition exists (or may be created). A frame that does not fit leaves nothing behind.

    Parameters
    ----------
    frame
        The rows.
    target, mode, connection, create_if_not_exists, create_partitions, primary_keys, \
partition_keys, bucket_keys, bucket_count, properties, progress
        As for :func:`sink_fluss`.

    Returns
    -------
    SinkResult
        Rows, and offsets by bucket.

    Raises
    ------
    SchemaMismatchError
        For columns, types or values that do not fit; names column, types and row.
    FlussError
        When the table, a partition, or the mode for this table does not exist, or rows could not
        be written.

    Examples
    --------
    >>> flights.write_fluss("flights", create_partitions=True)  # doctest: +SKIP
    SinkResult(fluss.flights: 336,776 rows; 3 buckets; partitions created: EWR, JFK, LGA; 0.61 s)
    """
    table = find_target(
        resolve_connection(connection),
        target,
        frame.schema,
        TableLayout(primary_keys, partition_keys, bucket_keys, bucket_count, properties),
        mode=mode,
        create_if_not_exists=create_if_not_exists,
    )
    arrow_types(table.path, frame.schema)
    rows = coerce(frame.to_arrow(), table.columns, table=str(table.path))
    if not create_partitions:
        _require_partitions(table, rows)
    with _Writing(table, create_partitions=create_partitions, progress=progress) as writing:
        writing.write_arrow(rows)
    return writing.result()


def _require_partitions(target: Target, rows: pa.Table) -> None:
    """Raise when rows belong to partitions that do not exist."""
    columns = target.partition_columns()
    if not columns or not rows.num_rows:
        return
    names = [column.name for column in columns]
    wanted = partition_names(
        [rows.column(name) for name in names],
        [column.type for column in columns],
        names=names,
        table=str(target.path),
    ).dictionary.to_pylist()
    missing = sorted(set(wanted) - target.partitions())
    if missing:
        shown = ", ".join(f"'{name}'" for name in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise FlussError(
            f"table {target.path} has no partition {shown}{more}: nothing was written;"
            " create_partitions=True creates what is missing",
            ErrorCode.PARTITION_NOT_EXISTS,
        )


class _Writing:
    """Writes frames to a table; in a ``with`` statement, whose end waits for acknowledgements.

    Parameters
    ----------
    target
        The table.
    create_partitions
        Whether to create partitions.
    progress
        Called with the rows acknowledged so far.
    """

    def __init__(
        self, target: Target, *, create_partitions: bool, progress: Progress | None
    ) -> None:
        self._target = target
        self._progress = progress
        self._began = time.monotonic()
        self._partitions = target.partitions()
        self._writer = AppendWriter(
            target.connection, target.create(), create_partitions=create_partitions
        )
        self._given = 0
        self._told = 0

    def write(self, frame: pl.DataFrame) -> None:
        """Hand a frame to the writer, which sends it in the background."""
        self.write_arrow(frame.to_arrow())

    def write_arrow(self, rows: pa.Table) -> None:
        """Hand Arrow data to the writer, in slices that keep memory bounded."""
        step = max(1, rows.num_rows * _SLICE_BYTES // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            self._writer.write_arrow(part)
            self._given += part.num_rows
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            written = sum(bucket.rows for bucket in self._writer.offsets())
            if written > self._told:
                self._told = written
                self._progress(written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._writer.close()
        except FlussError as error:
            if exc_value is None:
                self._explain(error)
                raise
        if exc_value is not None:
            self._explain(exc_value)
        self._tell()

    def _explain(self, error: BaseException) -> None:
        """Say in an error what was written before it."""
        buckets = self.buckets()
        rows = sum(bucket.rows for bucket in buckets)
        text = f"table {self._target.path}: nothing was written before"
        if rows:
            shown = ", ".join(map(str, buckets[:_SHOWN]))
            more = f", ... {len(buckets) - _SHOWN} more" if len(buckets) > _SHOWN else ""
            text = f"{rows} rows were written to {self._target.path} before: {shown}{more}"
        if not isinstance(error, FlussError):
            error.add_note(text)
            return
        if isinstance(error, SchemaMismatchError) and self._given:
            text = f"rows count from row {self._given} of the frame here; {text}"
        error.message = f"{error.message}; {text}"
        error.args = (error.message, error.error_code)

    def buckets(self) -> tuple[BucketResult, ...]:
        """Return what is acknowledged, by partition and bucket."""
        return tuple(self._writer.offsets())

    def result(self) -> SinkResult:
        """Return what was written."""
        buckets = self.buckets()
        there = {b.partition_name for b in buckets if b.partition_name is not None}
        return SinkResult(
            table=self._target.path,
            rows=sum(bucket.rows for bucket in buckets),
            buckets=buckets,
            table_created=self._target.info is None,
            partitions_created=tuple(sorted(there - self._partitions)),
            seconds=time.monotonic() - self._began,
        )

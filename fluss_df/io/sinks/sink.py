"""Writing Polars frames to Fluss tables: :func:`sink_fluss` and :func:`write_fluss`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.connection import resolve_connection
from fluss_df.client.send.batch import BucketResult
from fluss_df.client.write.key_codec import changed_rows
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.base.arrow import to_table
from fluss_df.io.sinks.target import TableLayout, Target, arrow_types, find_target
from fluss_df.io.sinks.writing import SHOWN, Progress, Writing
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.plans import run_into
from fluss_df.polars_adapter.scans import lazy_frames
from fluss_df.record.keys.partition_names import names_of_rows
from fluss_df.record.log.row_log import ROW_LOG_FORMATS
from fluss_df.record.python.coerce import coerce
from fluss_df.record.rows.row_formats import require_milliseconds, require_padded
from fluss_df.texts.html_tables import pairs, table

if TYPE_CHECKING:
    from fluss_df.polars_adapter.scans import EngineType


_BUCKETS = pl.Schema(
    {
        "partition_name": pl.String,
        "bucket_id": pl.Int32,
        "base_offset": pl.Int64,
        "end_offset": pl.Int64,
        "rows": pl.Int64,
    }
)


class ArrowData(Protocol):
    """What gives its rows as Arrow data: ``pandas.DataFrame``, ``pyarrow.Table``, and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with a stream of record batches."""


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
        columns = {name: [getattr(b, name) for b in self.buckets] for name in _BUCKETS}
        return pl.DataFrame(columns, schema=_BUCKETS)

    def __repr__(self) -> str:
        created = ["table created"] if self.table_created else []
        if self.partitions_created:
            created.append(f"partitions created: {', '.join(self.partitions_created)}")
        parts = [f"{self.rows:,} rows", f"{len(self.buckets)} buckets", *created]
        return f"SinkResult({self.table}: {'; '.join(parts)}; {self.seconds:.2f} s)"

    def _repr_html_(self) -> str:
        about = {
            "rows": self.rows,
            "table created": self.table_created,
            "partitions created": len(self.partitions_created),
            "seconds": self.seconds,
        }
        rows = ([getattr(bucket, name) for name in _BUCKETS] for bucket in self.buckets)
        return pairs(f"Written into {self.table}", about) + table(
            None, list(_BUCKETS), rows, len(self.buckets)
        )


@overload
def sink_fluss(
    frame: pl.LazyFrame,
    target: str | TablePath,
    *,
    mode: str = ...,
    schema_mode: str | None = ...,
    connection: object | None = ...,
    create_if_not_exists: bool = ...,
    create_partitions: bool = ...,
    primary_keys: str | Sequence[str] | None = ...,
    partition_keys: str | Sequence[str] | None = ...,
    bucket_keys: str | Sequence[str] | None = ...,
    bucket_count: int | None = ...,
    properties: Mapping[str, str] | None = ...,
    change_type_column: str | None = ...,
    progress: Progress | None = ...,
    engine: EngineType = ...,
    lazy: Literal[False] = ...,
) -> SinkResult: ...


@overload
def sink_fluss(
    frame: pl.LazyFrame,
    target: str | TablePath,
    *,
    mode: str = ...,
    schema_mode: str | None = ...,
    connection: object | None = ...,
    create_if_not_exists: bool = ...,
    create_partitions: bool = ...,
    primary_keys: str | Sequence[str] | None = ...,
    partition_keys: str | Sequence[str] | None = ...,
    bucket_keys: str | Sequence[str] | None = ...,
    bucket_count: int | None = ...,
    properties: Mapping[str, str] | None = ...,
    change_type_column: str | None = ...,
    progress: Progress | None = ...,
    engine: EngineType = ...,
    lazy: Literal[True],
) -> pl.LazyFrame: ...


def sink_fluss(
    frame: pl.LazyFrame,
    target: str | TablePath,
    *,
    mode: str = "auto",
    schema_mode: str | None = None,
    connection: object | None = None,
    create_if_not_exists: bool = False,
    create_partitions: bool = False,
    primary_keys: str | Sequence[str] | None = None,
    partition_keys: str | Sequence[str] | None = None,
    bucket_keys: str | Sequence[str] | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    change_type_column: str | None = None,
    progress: Progress | None = None,
    engine: EngineType = "auto",
    lazy: bool = False,
) -> SinkResult | pl.LazyFrame:
    """Run a query, and write its rows to a table as they come.

    Columns are matched by name and converted to the table's types where nothing is lost, as the
    module :mod:`fluss_df.record.python.coerce` says. Names, types, and what else can be known
    without the rows is checked before the query starts.

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
        ``"auto"`` appends to log tables and upserts into primary-key tables; ``"append"`` and
        ``"upsert"`` say which. ``"delete"`` deletes the rows whose primary keys the frame has;
        ``"partial_update"`` writes the columns that the frame has, the primary key among them, and
        keeps the others. Rows count in their order: the last one of a key wins.
    schema_mode
        ``"merge"`` adds the columns that the frame has and the table has not, nullable and behind
        the others, before the first row is written; their types are those that
        ``create_if_not_exists`` gives. Nullable columns that the frame lacks are null. By default
        the frame has the columns of the table.
    connection
        As for :func:`scan_fluss`.
    create_if_not_exists
        Create the table with the columns of the frame where it does not exist.
    create_partitions
        Create the partitions of the rows that do not exist; an error otherwise.
    primary_keys, partition_keys, bucket_keys, bucket_count, properties
        Of the table to create. An existing table must have them as given. A single name may be
        given as it is: ``primary_keys="id"``.
    change_type_column
        A column that says what each row does to a primary-key table: ``"+I"`` and ``"+U"`` upsert
        it, ``"-D"`` deletes it, ``"-U"`` is passed over. What a scan of a changelog returns can be
        written so.
    progress
        Called with the number of rows that are acknowledged, as it grows.
    engine
        The engine of Polars to run the query with.
    lazy
        Return a lazy frame that writes when it is collected, with others in ``pl.collect_all`` for
        one, and that then has what :meth:`SinkResult.to_frame` returns. Every time it is collected
        it writes, once for each place where a query has it, and not where the query needs nothing
        of it.

    Returns
    -------
    SinkResult
        Rows, and offsets by bucket; or, with ``lazy``, the lazy frame.

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
    frame = frame if isinstance(frame, pl.LazyFrame) else polars_frame(frame).lazy()
    schema = frame.collect_schema()

    def checked() -> Target:
        table = find_target(
            resolve_connection(connection),
            target,
            schema,
            TableLayout(primary_keys, partition_keys, bucket_keys, bucket_count, properties),
            mode=mode,
            create_if_not_exists=create_if_not_exists,
            change_type_column=change_type_column,
            schema_mode=schema_mode,
        )
        # a table with a chunk: types are not looked at where there is none
        _checked(table, arrow_types(table.path, schema).empty_table())
        return table

    def run() -> SinkResult:
        table = checked()
        with Writing(table, create_partitions=create_partitions, progress=progress) as writing:
            run_into(frame, writing.write, engine=engine)
        return _result(table, writing)

    if not lazy:
        return run()
    checked()
    return lazy_frames(lambda: [run().to_frame()], _BUCKETS)


def write_fluss(
    frame: pl.DataFrame | ArrowData,
    target: str | TablePath,
    *,
    mode: str = "auto",
    schema_mode: str | None = None,
    connection: object | None = None,
    create_if_not_exists: bool = False,
    create_partitions: bool = False,
    primary_keys: str | Sequence[str] | None = None,
    partition_keys: str | Sequence[str] | None = None,
    bucket_keys: str | Sequence[str] | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    change_type_column: str | None = None,
    progress: Progress | None = None,
) -> SinkResult:
    """Write a frame to a table.

    Everything is checked before the first row is sent: each value fits its column, and each
    partition exists (or may be created). A frame that does not fit leaves nothing behind.

    Parameters
    ----------
    frame
        The rows: a Polars frame, or what others can read as Arrow data, as pandas frames, tables
        and record batches of PyArrow, relations of DuckDB. An index of pandas is not written.
    target, mode, schema_mode, connection, create_if_not_exists, create_partitions, primary_keys, \
partition_keys, bucket_keys, bucket_count, properties, change_type_column, progress
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
    frame = polars_frame(frame)
    table = find_target(
        resolve_connection(connection),
        target,
        frame.schema,
        TableLayout(primary_keys, partition_keys, bucket_keys, bucket_count, properties),
        mode=mode,
        create_if_not_exists=create_if_not_exists,
        change_type_column=change_type_column,
        schema_mode=schema_mode,
    )
    arrow_types(table.path, frame.schema)
    rows = to_table(frame)
    whole = _checked(table, rows)
    if table.change_type_column is None:
        rows = whole
    if create_partitions:
        names_of_partitions(table, whole)
    else:
        require_partitions(table, whole)
    with Writing(table, create_partitions=create_partitions, progress=progress) as writing:
        writing.write_arrow(rows)
    return _result(table, writing)


def _checked(target: Target, rows: pa.Table) -> pa.Table:
    """Return rows as the table has them; of changes those that do something."""
    path, columns, descriptor = str(target.path), target.columns, target.descriptor
    if target.change_type_column is None:
        upserts = target.mode == "upsert"
        rows = coerce(rows, columns, table=path, allow_missing=target.merges, upserts=upserts)
    else:
        if target.merges:
            there = frozenset(rows.column_names)
            columns = tuple(c for c in columns if c.name in there or not c.type.nullable)
        keys = descriptor.schema.primary_keys
        rows, _ = changed_rows(rows, target.change_type_column, columns, keys, path)
    require_encodable(target, rows)
    return rows


def require_encodable(target: Target, rows: pa.Table) -> None:
    """Raise for values that fit their columns, but not the keys and the formats of the table."""
    path, descriptor = str(target.path), target.descriptor
    columns = [column for column in target.columns if column.name in rows.column_names]
    for name in descriptor.bucket_keys:
        if name in rows.column_names and rows.column(name).null_count:
            row = pc.index(rows.column(name).is_null(), True).as_py()
            raise SchemaMismatchError(
                f"table {path}: bucket key column '{name}' is null in row {row}: it says which"
                " bucket a row is in, so rows need a value for it"
            )
    keyed = bool(descriptor.schema.primary_keys)
    log_format = descriptor.properties.get("table.log.format", "arrow").lower()
    if keyed or log_format in ROW_LOG_FORMATS:
        require_milliseconds(rows, columns, path)
    kv_format = descriptor.properties.get("table.kv.format", "compacted").lower()
    if (kv_format if keyed else log_format) == "indexed":
        require_padded(rows, columns, path)


def polars_frame(rows: Any) -> pl.DataFrame:
    """Return rows as a Polars frame, without a copy where their layout is that of Arrow.

    Raises FlussError for what is no frame, naming what can be written.
    """
    if isinstance(rows, pl.DataFrame):
        return rows
    if isinstance(rows, pl.LazyFrame):
        raise FlussError("write_fluss takes rows, not a query: sink_fluss runs and writes it")
    streams = hasattr(rows, "__arrow_c_stream__") and not isinstance(rows, pl.Series)
    if streams or isinstance(rows, pa.RecordBatch):
        try:
            return pl.DataFrame(rows)
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
            raise FlussError(
                f"rows of {type(rows).__module__}.{type(rows).__qualname__} cannot be read as a"
                f" frame: {error}"
            ) from error
    raise FlussError(
        f"rows are expected as a frame of Polars or pandas, a table of PyArrow, or what has"
        f" __arrow_c_stream__, not as {type(rows).__module__}.{type(rows).__qualname__}"
    )


def names_of_partitions(target: Target, rows: pa.Table) -> list[str]:
    """Return the names of the partitions of rows; none where there are none.

    Raises SchemaMismatchError for a value that can name no partition.
    """
    columns = target.partition_columns()
    if not columns or not rows.num_rows:
        return []
    return names_of_rows(rows, columns, table=str(target.path))


def require_partitions(
    target: Target,
    rows: pa.Table,
    way_out: str = "create_partitions=True",
    there: Collection[str] | None = None,
) -> None:
    """Raise when rows belong to partitions that do not exist."""
    wanted = names_of_partitions(target, rows)
    if not wanted:
        return
    missing = sorted(set(wanted) - set(target.partitions() if there is None else there))
    if missing:
        shown = ", ".join(f"'{name}'" for name in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise FlussError(
            f"table {target.path} has no partition {shown}{more}: nothing was written;"
            f" {way_out} creates what is missing",
            ErrorCode.PARTITION_NOT_EXISTS,
        )


def _result(target: Target, writing: Writing) -> SinkResult:
    buckets = writing.buckets()
    return SinkResult(
        table=target.path,
        rows=sum(bucket.rows for bucket in buckets),
        buckets=buckets,
        table_created=target.info is None,
        partitions_created=writing.partitions_created(),
        seconds=writing.seconds,
    )

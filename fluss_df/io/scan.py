"""Reading Fluss tables with Polars: :func:`scan_fluss` and :func:`read_fluss`."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable

import polars as pl

from fluss_df.client.connection import resolve_connection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.durations import parse_duration
from fluss_df.io.follow import BoundedFollow, FlussFollow, FollowOptions
from fluss_df.io.lookup_join import lookup_joins
from fluss_df.io.polars_reader import FlussScan, planned_scans
from fluss_df.io.scans.changes import changes_schema, check_changes, table_columns
from fluss_df.io.scans.known import KnownTable, Moment
from fluss_df.io.scans.planning import check_offset_partitions, frame_schema
from fluss_df.io.scans.report import ScanReports, planned_in
from fluss_df.io.scans.union import damage_named
from fluss_df.io.snapshot import FlussSnapshot
from fluss_df.io.source import (
    BucketBounds,
    Halves,
    Offset,
    PartitionsArgument,
    ScanSource,
    choose_partitions,
    parse_buckets,
    parse_offset,
    parse_partitions,
)
from fluss_df.lake.options import is_lake_table, lake_options
from fluss_df.metadata import METADATA_COLUMNS, TablePath, require_table
from fluss_df.polars_adapter.plans import counts_node
from fluss_df.polars_adapter.scans import with_known_schema
from fluss_df.pushdown.plan import Explanation, bind_columns, bind_metadata
from fluss_df.record.change_tables import LAKE_SUFFIX, ChangeTable, split_virtual
from fluss_df.schema import TableInfo

MODES = ("auto", "log", "snapshot", "changelog")


def scan_fluss(
    source: str | TablePath,
    *,
    connection: object | None = None,
    mode: str = "auto",
    columns: Iterable[str] | None = None,
    partitions: PartitionsArgument | None = None,
    buckets: int | Iterable[int] | None = None,
    start: Offset = "earliest",
    stop: Offset = "latest",
    include_metadata: bool | Iterable[str] = False,
    follow: bool = False,
    max_rows: int | None = None,
    duration: str | float | dt.timedelta | None = None,
    lake: bool | None = None,
) -> pl.LazyFrame:
    """Lazily read a table of a Fluss cluster: a log, current rows of a primary key, or changes.

    The table's schema is looked up now, and stays the schema of the frame: a column that is added
    later shows in a new frame. Which rows there are is decided when a query starts, at each
    ``collect``: rows that are appended meanwhile are not part of its result. Rows come ordered by
    partition name, bucket and offset.

    Of a primary-key table the current rows are read, each bucket as it is at one moment, in no
    order; a filter that names all of the primary key by ``==`` or ``is_in`` looks the rows up
    instead. What concerns offsets (``buckets``, ``start``, ``stop``, ``include_metadata``,
    ``follow``) is for logs: log tables and changes.

    The changes of a table are a log too, that of ``"table$changelog"`` or of
    ``mode="changelog"``: a row for each change, behind the columns ``_change_type``
    (``insert``, ``update_before``, ``update_after``, ``delete``), ``_log_offset`` and
    ``_commit_timestamp``. ``"table$binlog"`` has a row for each insert, update or delete of a
    primary-key table, with the rows ``before`` and ``after`` it as structs.

    Of a log table only the columns that a query needs are fetched, only of the partitions and
    buckets that its filters leave, and only as many rows as ``head`` asks for;
    ``LazyFrame.explain`` and
    :func:`fluss_df.explain` show it, :func:`fluss_df.last_scan` tells what was fetched. Buckets are
    read in parallel. With ``collect(engine="streaming")``, ``sink_parquet`` or another sink, memory
    stays bounded whatever the size of the table.

    Parameters
    ----------
    source
        ``"table"``, ``"database.table"`` or a :class:`TablePath`, for changes with
        ``$changelog`` or ``$binlog`` behind it. Without a database it is the one of the
        connection's URL, else ``fluss``.
    connection
        ``"host:port[,host:port]"``, ``"fluss://host:port/database"``, a :class:`Config`, a dict of
        its properties, or an open connection. By default that of
        :func:`fluss_df.set_default_connection`, else the environment's ``FLUSS_BOOTSTRAP_SERVERS``.
    mode
        ``"auto"`` reads the log of a log table and the current rows of a primary-key table;
        ``"log"`` and ``"snapshot"`` say which is meant, and are refused where there is no such
        thing; ``"changelog"`` reads changes, as ``$changelog`` does.
    columns
        The columns of the frame, in this order; all by default.
    partitions
        The partitions to read: a name (``"JFK"``, ``"JFK$2024-01-01"``), values of partition
        columns (``{"origin": "JFK"}``), or a list of either; all by default.
    buckets
        The buckets to read, by number; all by default.
    start
        Where to begin in each bucket: ``"earliest"``, ``"latest"``, an offset, a datetime with time
        zone (the first rows committed from then on), a timedelta (the same, that long before the
        query starts), or a dict of offsets by bucket number, or by
        ``(partition name, bucket number)``; ``"earliest"`` for buckets that it does not have.
        An offset whose row has expired is an error; ``"earliest"`` and a moment mean what a bucket
        still has when the query comes to it.
    stop
        Where to end, exclusive, in the same forms; never behind the end at the query's start.
    include_metadata
        True to append ``_partition`` (of partitioned tables), ``_bucket``, ``_log_offset`` and
        ``_commit_timestamp``, or the names of some of these.
    follow
        True for a scan without an end, which gives rows as they come into the table, those of new
        partitions too. Take them with ``collect_batches()``, ``sink_batches()`` or
        ``sink_parquet``; a ``collect()`` that would never end is refused. Rows keep the order of
        their offsets within each bucket; buckets are mixed.
    max_rows, duration
        End a scan that follows: after a number of rows of the table, before filters; a time after
        the query starts (``"10s"``, ``"5m"``, seconds, a timedelta).
    lake
        Of a table that is tiered into a data lake (``table.datalake.enabled``): by default its
        whole history, the rows of the newest readable lake snapshot and those behind it, in no
        order; False for what Fluss itself has. With ``follow``, or another ``start`` or ``stop``
        than the defaults, which are about the log, it is the log alone. ``"table$lake"`` is the
        lake alone.

    Returns
    -------
    polars.LazyFrame

    Raises
    ------
    FlussError
        When the cluster cannot be reached, or table, columns, partitions or buckets do not exist:
        the message names them and what there is.

    Examples
    --------
    >>> flights = pl.scan_fluss("flights", connection="127.0.0.1:9123")  # doctest: +SKIP
    >>> flights.filter(pl.col("origin") == "JFK").select("carrier").collect()  # doctest: +SKIP
    """
    node = scan_node(
        source,
        connection=connection,
        mode=mode,
        columns=columns,
        partitions=partitions,
        buckets=buckets,
        start=start,
        stop=stop,
        include_metadata=include_metadata,
        follow=follow,
        max_rows=max_rows,
        duration=duration,
        lake=lake,
    )
    return with_known_schema(node.lazy(), node.source.schema.names)


def scan_node(
    source: str | TablePath,
    *,
    connection: object | None,
    mode: str = "auto",
    columns: Iterable[str] | None = None,
    partitions: PartitionsArgument | None = None,
    buckets: int | Iterable[int] | None = None,
    start: Offset = "earliest",
    stop: Offset = "latest",
    include_metadata: bool | Iterable[str] = False,
    follow: bool = False,
    max_rows: int | None = None,
    duration: str | float | dt.timedelta | None = None,
    lake: bool | None = None,
) -> FlussScan | FlussSnapshot | FlussFollow:
    """Return the node of a plan that :func:`scan_fluss` makes; arguments and errors as there."""
    open_connection = resolve_connection(connection)
    name, suffix = split_virtual(str(source))
    of_lake = suffix == LAKE_SUFFIX
    changes = ChangeTable(suffix) if suffix and not of_lake else None
    path = TablePath.parse(name if suffix else source, open_connection.default_database)
    now = Moment()
    info = open_connection.get_table(path).get_table_info()
    require_table(path, info.descriptor.custom_properties)
    known = KnownTable(info, now)
    changes = _resolve_mode(info, mode, changes)
    of_log = changes is not None or follow or (start, stop) != ("earliest", "latest")
    halves = _halves(info, lake, of_lake=of_lake, of_log=of_log)
    if info.has_primary_key() and changes is None:
        _refuse_log_options(
            path,
            buckets=(buckets, None),
            start=(start, "earliest"),
            stop=(stop, "latest"),
            include_metadata=(include_metadata, False),
            follow=(follow, False),
            max_rows=(max_rows, None),
            duration=(duration, None),
        )
    options = _follow_options(path, follow, stop, max_rows, duration)
    if changes is None:
        names = bind_columns(info, columns)
        metadata_columns = bind_metadata(info, include_metadata)
        schema = frame_schema(info, names, metadata_columns)
    else:
        check_changes(info, changes)
        schema = changes_schema(info, changes, columns, include_metadata)
        names = table_columns(info, changes, schema.names)
        own = info.get_column_names() if changes is ChangeTable.CHANGELOG else []
        metadata_columns = tuple(n for n in METADATA_COLUMNS if n in schema.names and n not in own)
    chosen = parse_partitions(info, partitions)
    bounds = BucketBounds(
        info, lambda: open_connection.get_admin().list_partition_infos(path), chosen
    )
    scan = ScanSource(
        connection=open_connection,
        table=path,
        columns=names,
        metadata_columns=metadata_columns,
        schema=schema,
        partitions=chosen,
        buckets=parse_buckets(info, buckets, bounds),
        start=parse_offset(info, "start", start, bounds),
        stop=parse_offset(info, "stop", stop, bounds),
        keyed=info.has_primary_key(),
        changes=changes,
        halves=halves,
    )
    # the lake may have partitions that are gone from Fluss: they are looked for by each query
    chosen_of_log = scan.partitions is not None and halves is Halves.LOG
    if chosen_of_log or frozenset in (type(scan.start), type(scan.stop)):
        there = (
            open_connection.get_admin().list_partition_infos(path) if info.is_partitioned() else []
        )
        choose_partitions(info, there, scan.partitions)
        check_offset_partitions(info, scan, there)
    if scan.keyed and changes is None:
        return FlussSnapshot(scan, known)
    if options is None:
        return FlussScan(scan, known)
    return (FlussFollow if options.endless else BoundedFollow)(scan, options)


def _halves(info: TableInfo, lake: bool | None, *, of_lake: bool, of_log: bool) -> Halves:
    """Return which halves of a table a scan reads."""
    path = info.table_path
    if of_lake or lake:
        lake_options(info)  # raises where there is none
        asked = f"'{path}{LAKE_SUFFIX}'" if of_lake else "lake=True"
        if of_log or lake is False:
            raise FlussError(
                f"{asked}: the lake has no changes, no offsets to start or stop at, and no end to"
                " follow: leave them out, or read the log with lake=False"
            )
        return Halves.LAKE if of_lake else Halves.BOTH
    return Halves.LOG if of_log or lake is False or not is_lake_table(info) else Halves.BOTH


def _resolve_mode(info: TableInfo, mode: str, changes: ChangeTable | None) -> ChangeTable | None:
    """Return how changes are shown, where a mode means these."""
    if mode not in MODES:
        near = difflib.get_close_matches(str(mode), MODES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise FlussError(f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}{hint}")
    path = info.table_path
    why = None
    if changes is not None:
        if mode not in ("auto", changes.value.removeprefix("$")):
            why = f"{path}{changes.value} is read with mode='auto'"
    elif mode == "changelog":
        return ChangeTable.CHANGELOG
    elif mode == "log" and info.has_primary_key():
        why = f"table {path} has a primary key; mode='changelog' reads the log of its changes"
    elif mode == "snapshot" and not info.has_primary_key():
        why = f"table {path} has no primary key, and so no current rows; mode='log' reads it"
    if why is not None:
        raise FlussError(f"mode={mode!r}: {why}", ErrorCode.INVALID_TABLE_EXCEPTION)
    return changes


def _refuse_log_options(path: TablePath, **options: tuple[object, object]) -> None:
    """Raise for arguments that mean nothing for the current rows of a primary-key table."""
    for name, (given, default) in options.items():
        if given is not default and given != default:
            raise FlussError(
                f"{name}={given!r}: table {path} has a primary key, and scan_fluss reads its"
                " current rows, which are not a log; mode='changelog' reads the log of its changes",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )


def _follow_options(
    path: TablePath,
    follow: bool,
    stop: Offset,
    max_rows: int | None,
    duration: str | float | dt.timedelta | None,
) -> FollowOptions | None:
    if not follow:
        if max_rows is not None or duration is not None:
            raise FlussError("max_rows and duration end a scan that follows: pass follow=True too")
        return None
    if stop != "latest":
        raise FlussError(
            f"follow=True reads what comes into table {path} after the query began too, so that"
            f" stop={stop!r} means nothing: end the scan with max_rows=... or duration=..."
        )
    if max_rows is not None and (isinstance(max_rows, bool) or max_rows < 1):
        raise FlussError(f"max_rows={max_rows!r}: expected at least 1")
    seconds = None if duration is None else parse_duration("duration", duration)
    return FollowOptions(max_rows, seconds)


def read_fluss(
    source: str | TablePath,
    *,
    connection: object | None = None,
    mode: str = "auto",
    columns: Iterable[str] | None = None,
    partitions: PartitionsArgument | None = None,
    buckets: int | Iterable[int] | None = None,
    start: Offset = "earliest",
    stop: Offset = "latest",
    include_metadata: bool | Iterable[str] = False,
    follow: bool = False,
    max_rows: int | None = None,
    duration: str | float | dt.timedelta | None = None,
    lake: bool | None = None,
) -> pl.DataFrame:
    """Read a table of a Fluss cluster into memory.

    Parameters
    ----------
    source, connection, mode, columns, partitions, buckets, start, stop, include_metadata, \
follow, max_rows, duration, lake
        As for :func:`scan_fluss`; with ``follow`` the rows that come until one of the two ends it.

    Returns
    -------
    polars.DataFrame

    Examples
    --------
    >>> pl.read_fluss("flights", columns=["carrier", "origin"])  # doctest: +SKIP
    """
    node = scan_node(
        source,
        connection=connection,
        mode=mode,
        columns=columns,
        partitions=partitions,
        buckets=buckets,
        start=start,
        stop=stop,
        include_metadata=include_metadata,
        follow=follow,
        max_rows=max_rows,
        duration=duration,
        lake=lake,
    )
    frame = with_known_schema(node.lazy(), node.source.schema.names)
    with damage_named(node.source.connection, node.source.table):
        return frame.collect()


def explain(frame: pl.LazyFrame) -> Explanation:
    """Return what a query would read of Fluss now: a text with a paragraph for each scan in it.

    Columns, partitions, buckets and offsets that would be fetched, the conditions that chose them
    (pushed), those that Polars evaluates on rows (residual), and the limit. No credentials.
    ``LazyFrame.explain`` shows the same within the whole plan. A notebook shows the text as tables.

    Examples
    --------
    >>> print(fluss_df.explain(flights.filter(pl.col("origin") == "JFK")))  # doctest: +SKIP
    FLUSS SCAN fluss.flights
      columns    19 of 19: year, month, ...
      partitions 1 of 3: JFK
      buckets    1 of 3
      offsets    111279 rows: JFK/0[0:111279]
      pushed     origin == 'JFK'
      residual   none
    """
    plans = [scan.plan for scan in planned_in(frame)]
    plans += [join.plan for join in lookup_joins(frame)]
    return Explanation(plans)


def count(frame: pl.LazyFrame) -> int:
    """Return the number of rows of a query; also ``lf.fluss.count()``.

    Those of a log table, or of its partitions, buckets and offsets that filters choose exactly, are
    counted from offsets, without reading a batch. ``frame.select(pl.len())`` answers the same, and
    reads a column: Polars does not tell a scan that only the number of its rows is wanted.

    Examples
    --------
    >>> fluss_df.count(flights.filter(pl.col("origin") == "JFK"))  # doctest: +SKIP
    111279
    """
    counted = frame.select(pl.len())
    if counts_node(counted, FlussScan.__name__):
        scans = planned_scans(counted)
        alone = len(scans) == 1 and scans[0].source.changes is None
        if alone and not scans[0].plan.residual and scans[0].plan.lake is None:
            return scans[0].plan.rows
    found: int = counted.collect().item()
    return found


def fetched(frame: pl.LazyFrame) -> ScanReports:
    """Return what the scans of a query fetched when the query last ran in this process.

    Those of the plan, in its order, and then those of lookup joins, of which each batch of the
    left side is a scan of its own: the last one.

    Examples
    --------
    >>> query = flights.filter(pl.col("origin") == "JFK").select("carrier")  # doctest: +SKIP
    >>> query.collect()  # doctest: +SKIP
    >>> fluss_df.fetched(query)[0].bytes  # doctest: +SKIP
    24316
    """
    runs = [scan.runs.last(scan.plan) for scan in planned_in(frame)]
    runs += [join.runs.last(join.plan) for join in lookup_joins(frame)]
    return ScanReports(run.report() for run in runs if run is not None)

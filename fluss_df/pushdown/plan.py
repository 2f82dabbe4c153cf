"""The scan plan: what is read of a table, as plain values to pickle, compare and show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from fluss_df.errors import FlussError
from fluss_df.metadata import METADATA_COLUMNS, TableBucket, TablePath, require_columns
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.schema import TableInfo
from fluss_df.texts.html_tables import pairs as html_pairs

# how many names or splits an explanation lists
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a table, or of a partition of it.

    ``count`` is how many buckets its partition has, where partitions differ; else None.
    """

    partition_id: int | None
    partition_name: str | None
    bucket_id: int
    count: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        name = "" if self.partition_name is None else f"{self.partition_name}/"
        return f"{name}{self.bucket_id}"

    def of(self, table_id: int) -> TableBucket:
        """Return this bucket of the table with an id."""
        return TableBucket(table_id, self.bucket_id, self.partition_id)


@dataclass(frozen=True, slots=True)
class Split:
    """The log offsets from ``start`` up to, not including, ``stop`` of a bucket."""

    partition_id: int | None
    partition_name: str | None
    bucket_id: int
    start: int
    stop: int

    @property
    def bucket(self) -> Bucket:
        """Of which bucket."""
        return Bucket(self.partition_id, self.partition_name, self.bucket_id)

    @property
    def rows(self) -> int:
        """How many rows that is: in the log of a table without primary key, one per offset."""
        return max(0, self.stop - self.start)

    def slice(self, offset: int, length: int) -> Split:
        """Return ``length`` rows from the row ``offset`` of the split on, as far as there are."""
        start = min(self.start + offset, self.stop)
        stop = min(start + length, self.stop)
        return Split(self.partition_id, self.partition_name, self.bucket_id, start, stop)

    def __str__(self) -> str:
        name = "" if self.partition_name is None else f"{self.partition_name}/"
        return f"{name}{self.bucket_id}[{self.start}:{self.stop}]"


@dataclass(frozen=True, slots=True)
class LakePlan:
    """The part of a scan that reads the data lake.

    Parameters
    ----------
    snapshot_id
        The snapshot of the lake table.
    files, of_files
        Files with rows that are read, and how many the snapshot has.
    delete_files
        Files of the snapshot that say which rows are deleted.
    rows, bytes
        Rows of the data files that are read, before deletes and filters, and the sizes of the files
        in bytes. Of each file only the columns and row groups that a query needs are read.
    """

    snapshot_id: int
    files: int
    of_files: int
    delete_files: int
    rows: int
    bytes: int

    def __str__(self) -> str:
        deletes = f", {self.delete_files} with deletes" if self.delete_files else ""
        return (
            f"snapshot {self.snapshot_id}: {self.files} of {self.of_files} files{deletes},"
            f" {self.rows:,} rows, {self.bytes:,} bytes"
        )


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The plan of a scan, frozen when its query starts.

    Parameters
    ----------
    table, table_id, schema_id
        The table, and its newest schema when planning.
    columns
        The columns to fetch, in the table's order.
    metadata_columns
        Which of ``_partition``, ``_bucket``, ``_log_offset``, ``_commit_timestamp`` are added.
    splits
        Ranges of offsets in the order of the rows: partition name, bucket. Empty ones are left out.
    limit
        How many rows are wanted, from the first; None for all.
    pushed
        The conditions that decided which splits are read, as text.
    residual
        The conditions that are left for the query engine to evaluate on rows.
    server_filter
        The filter by which servers leave out log batches; None where there is none.
    of_columns, of_partitions, of_buckets
        How many the table has. ``of_partitions`` is None where it has no partitions.
    reads
        In words, what is read where ``splits`` does not say it: current rows, keys that are looked
        up, a log without an end.
    lookups
        How many keys or prefixes of keys are looked up, where that is known before.
    chosen
        The names of the partitions that are read then.
    buckets
        How many buckets are read then; None where the keys decide.
    lake
        What is read of the data lake besides; None where nothing is.
    """

    table: TablePath
    table_id: int
    schema_id: int
    columns: tuple[str, ...]
    metadata_columns: tuple[str, ...]
    splits: tuple[Split, ...]
    limit: int | None = None
    pushed: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()
    server_filter: ServerFilter | None = None
    of_columns: int = 0
    of_partitions: int | None = None
    of_buckets: int = 0
    reads: str | None = None
    lookups: int | None = None
    chosen: tuple[str, ...] | None = None
    buckets: int | None = None
    lake: LakePlan | None = None

    @property
    def rows(self) -> int:
        """The rows of all splits."""
        return sum(split.rows for split in self.splits)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partitions that are read."""
        if self.chosen is not None:
            return self.chosen
        names = (split.partition_name for split in self.splits)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def properties(self) -> dict[str, str]:
        """Return what is read as pairs of a heading and a text, without credentials."""
        columns = f"{len(self.columns)} of {self.of_columns}: {_listed(self.columns)}"
        found = {"table": str(self.table), "columns": columns}
        if self.metadata_columns:
            found["metadata"] = ", ".join(self.metadata_columns)
        if self.reads is not None:
            found["reads"] = self.reads
        if self.of_partitions is not None and (self.reads is None or self.chosen is not None):
            names = f": {_listed(self.partitions)}" if self.partitions else ""
            found["partitions"] = f"{len(self.partitions)} of {self.of_partitions}{names}"
        if self.reads is None:
            found["buckets"] = f"{len(self.splits)} of {self.of_buckets}"
            splits = f": {_listed(self.splits)}" if self.splits else ""
            found["offsets"] = f"{self.rows} rows{splits}"
        elif self.buckets is not None:
            found["buckets"] = f"{self.buckets} of {self.of_buckets}"
        if self.lake is not None:
            found["lake"] = str(self.lake)
        found["pushed"] = "; ".join(self.pushed) or "none"
        if self.server_filter is not None:
            found["batches"] = f"skipped by statistics unless {self.server_filter.text}"
        found["residual"] = "; ".join(self.residual) or "none"
        if self.limit is not None:
            found["limit"] = str(self.limit)
        return found

    def explain(self) -> str:
        """Return :meth:`properties` as lines of text."""
        pairs = self.properties()
        table = pairs.pop("table")
        return "\n".join(
            [f"FLUSS SCAN {table}", *(f"  {key:<11}{value}" for key, value in pairs.items())]
        )

    def _repr_html_(self) -> str:
        properties = self.properties()
        return html_pairs(f"Scan of {properties.pop('table')}", properties)


class Explanation(str):
    """What the scans of a query read, as text; a notebook shows a table for each scan."""

    __slots__ = ("_plans",)
    _plans: tuple[ScanPlan, ...]

    def __new__(cls, plans: Iterable[ScanPlan]) -> Self:
        """Put the texts of the plans together."""
        plans = tuple(plans)
        made = super().__new__(cls, "\n".join(plan.explain() for plan in plans))
        made._plans = plans
        return made

    def __getnewargs__(self) -> tuple[tuple[ScanPlan, ...]]:  # type: ignore[override]
        return (self._plans,)

    def __repr__(self) -> str:
        # as lines, where it is the result of a cell or at a prompt
        return str(self)

    def _repr_html_(self) -> str:
        tables = [plan._repr_html_() for plan in self._plans[:_SHOWN]]
        more = len(self._plans) - _SHOWN
        if more > 0:
            tables.append(f"<p>… {more:,} more scans</p>")
        return "".join(tables) or "<p>no scans</p>"


def _listed(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[:_SHOWN]))
    more = len(items) - _SHOWN
    return f"{shown}, ... {more} more" if more > 0 else shown


def bind_columns(info: TableInfo, columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names as a tuple; all columns of the table for None.

    Raises FlussError for a column that the table does not have, naming those of similar names, and
    for a column that is given twice.
    """
    return bind_names(columns, info.get_column_names(), f"table {info.table_path}:")


def bind_names(
    columns: Iterable[str] | None, existing: Sequence[str], what: str
) -> tuple[str, ...]:
    """As :func:`bind_columns`; errors begin with ``what``, such as ``table db.t:``."""
    if columns is None:
        return tuple(existing)
    if isinstance(columns, str):
        raise FlussError(f"columns={columns!r}: expected a list of names, as in [{columns!r}]")
    names = tuple(columns)
    strangers = [name for name in names if not isinstance(name, str)]
    if strangers:
        raise FlussError(f"columns: expected names, not {strangers[0]!r}")
    require_columns(names, existing, what)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FlussError(f"columns: '{twice}' is named more than once")
    return names


def bind_metadata(info: TableInfo, wanted: bool | Iterable[str]) -> tuple[str, ...]:
    """Return the metadata columns that are asked for; for ``True`` all that the table has.

    Raises FlussError for a name that is no metadata column, ``_partition`` of a table without
    partitions, or a column of the table with the same name.
    """
    offered = tuple(
        name for name in METADATA_COLUMNS if name != "_partition" or info.is_partitioned()
    )
    if isinstance(wanted, bool):
        names = offered if wanted else ()
    else:
        given = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        for name in given:
            if name not in METADATA_COLUMNS:
                raise FlussError(
                    f"include_metadata: {name!r} is no metadata column;"
                    f" there are {', '.join(METADATA_COLUMNS)}"
                )
            if name not in offered:
                raise FlussError(
                    f"include_metadata: table {info.table_path} has no partitions,"
                    f" and therefore no {name}"
                )
        names = tuple(name for name in offered if name in given)
    clash = [name for name in names if name in info.get_column_names()]
    if clash:
        others = [name for name in names if name not in clash]
        raise FlussError(
            f"include_metadata: table {info.table_path} has a column '{clash[0]}' of its own;"
            f" leave it out, as in include_metadata={others}"
        )
    return names


def slice_splits(splits: Sequence[Split], offset: int, length: int) -> tuple[Split, ...]:
    """Return the splits that hold ``length`` rows from the row ``offset`` on.

    Examples
    --------
    >>> splits = [Split(None, None, 0, 10, 20), Split(None, None, 1, 0, 5)]
    >>> [str(split) for split in slice_splits(splits, 8, 4)]
    ['0[18:20]', '1[0:2]']
    """
    found: list[Split] = []
    for split in splits:
        part = split.slice(offset, length)
        offset = max(0, offset - split.rows)
        if part.rows:
            found.append(part)
            length -= part.rows
        if length <= 0:
            break
    return tuple(found)

"""Tasks that read files of the data lake: which there are, and what one reads."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.scans.flow import Flow
from fluss_df.io.scans.known import KnownTable, Moment
from fluss_df.io.scans.planning import frame_schema
from fluss_df.io.scans.union import (
    PinnedLake,
    choices_there,
    halves_of,
    lake_half,
    lake_partition_of,
    opened_lake,
    pin_lake,
    wanted_files,
)
from fluss_df.io.source import Halves, PartitionChoice, ScanSource, choose_partitions
from fluss_df.lake.snapshot import DataFile
from fluss_df.metadata import LakeSnapshot, PartitionInfo
from fluss_df.pushdown.prune import Conjunct
from fluss_df.schema import TableInfo

# small files are read together up to this number of bytes; a larger file is a task of its own
_TASK_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """Files of a lake snapshot that one task reads; plain values that pickle.

    ``paths`` are files with rows. A file may have rows of several partitions: only those of
    ``partitions`` are wanted, None for all.
    """

    snapshot_id: int
    paths: tuple[str, ...]
    partitions: tuple[PartitionChoice, ...] | None


def lake_and_log(
    info: TableInfo, source: ScanSource, conditions: Sequence[Conjunct]
) -> tuple[ScanSource, list[LakeFiles]]:
    """Return the scan of what is only in the log of a log table, and the files of the lake."""
    both = dataclasses.replace(source, halves=Halves.BOTH)
    log, lake, _ = halves_of(both, KnownTable(info, Moment()))
    return log, [] if lake is None else _tasks(info, source, lake, conditions, set())


def lake_and_rows(
    info: TableInfo,
    source: ScanSource,
    there: Sequence[PartitionInfo],
    conditions: Sequence[Conjunct],
) -> tuple[ScanSource, list[LakeFiles]]:
    """Return the scan of what Fluss has of a primary-key table, and the files of the lake.

    The files are of partitions that only the lake has, because of the others Fluss itself has all
    current rows. ``there`` are the partitions that Fluss has: no file of these is read.
    """
    lake = pin_lake(source, info) if info.is_partitioned() else None
    if lake is None:
        return source, []
    names = {partition.partition_name for partition in there}
    files = _tasks(info, source, lake, conditions, names)
    return dataclasses.replace(source, partitions=choices_there(info, source, there, lake)), files


def _tasks(
    info: TableInfo,
    source: ScanSource,
    lake: PinnedLake,
    conditions: Sequence[Conjunct],
    without: set[str],
) -> list[LakeFiles]:
    files = wanted_files(info, lake, conditions)
    if info.is_partitioned():
        of = {id(file): lake_partition_of(info, file) for file in files}
        chosen = _chosen(info, source, of.values())
        files = [f for f in files if of[id(f)].partition_name in chosen - without]
    return [
        LakeFiles(lake.snapshot.snapshot_id, paths, source.partitions)
        for paths in _paths(lake.files.groups(files))
    ]


def _chosen(info: TableInfo, source: ScanSource, partitions: Iterable[PartitionInfo]) -> set[str]:
    """Return the names of the partitions that a scan asks for, of those of the lake."""
    there = list(partitions)
    if source.partitions is None:
        return {partition.partition_name for partition in there}
    found: set[str] = set()
    for choice in source.partitions:
        # a choice that is not in the lake may be in Fluss: choices_there refuses what neither has
        with contextlib.suppress(FlussError):
            found.update(p.partition_name for p in choose_partitions(info, there, (choice,)))
    return found


def _paths(groups: Iterable[Sequence[DataFile]]) -> Iterator[tuple[str, ...]]:
    paths: list[str] = []
    size = 0
    for group in groups:
        more = sum(file.size for file in group)
        if paths and size + more > _TASK_BYTES:
            yield tuple(paths)
            paths, size = [], 0
        paths += [file.path for file in group]
        size += more
    if paths:
        yield tuple(paths)


def lake_rows(
    connection: FlussConnection,
    info: TableInfo,
    files: LakeFiles,
    columns: Sequence[str],
    metadata_columns: Sequence[str],
    buckets: Sequence[int] | None,
) -> Iterator[pa.Table]:
    """Yield the rows of files of the lake, in bounded memory."""
    if not columns and not metadata_columns:
        # at least one column, to count rows
        columns = info.get_column_names()[:1]
    snapshot = opened_lake(info, files.snapshot_id)
    lake = PinnedLake(LakeSnapshot(files.snapshot_id), snapshot)
    schema = frame_schema(info, columns, metadata_columns)
    source = ScanSource(
        connection,
        info.table_path,
        tuple(columns),
        tuple(metadata_columns),
        schema,
        buckets=None if buckets is None else tuple(buckets),
        partitions=files.partitions,
    )
    frame, _ = lake_half(source, info, lake, snapshot.at(set(files.paths)))
    for batch in Flow().batches(frame):
        yield batch.to_arrow().cast(schema)

"""Many small files of a bucket become one, and files of a primary-key table are merged by key."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from fluss_df.lake.paimon.binary_rows import value_at
from fluss_df.lake.paimon.manifests import live_entries, schema_of
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.commit import commit_snapshot, newest_base, read_said
from fluss_df.lake.paimon_writing.files import (
    LogWriter,
    MergedWriter,
    NewFile,
    PaimonFiles,
    discard,
)
from fluss_df.lake.paimon_writing.manifests import Entry
from fluss_df.lake.paimon_writing.merging import file_batches, merged
from fluss_df.lake.paimon_writing.schema import WriteSchema
from fluss_df.lake.rounds.lake_rows import has_nanoseconds
from fluss_df.lake.rounds.offsets import COMMIT_USER
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, NotCommittedError

logger = logging.getLogger("fluss_df.lake.tiering")

# as for Iceberg: a file of fewer bytes is small, and this number of small files is merged
_SMALL_BYTES: Final = 16 << 20
_SMALL_FILES: Final = 8
# Merging by key writes the whole bucket again. So it is done when the new files have at least 1/8
# of its bytes, or when there are 64 of them, which makes readers slow.
_PART: Final = 8
_MANY_FILES: Final = 64
_ROWS: Final = 1 << 16
# Paimon's own default of the option, from which the number of levels follows
_TRIGGER: Final = "5"


def compact(table: TableFiles, schema: WriteSchema, properties: Mapping[str, str]) -> int | None:
    """Merge files where it is worth it; return the snapshot that has the merged ones.

    ``schema`` is the table's after this service's commit, and ``properties`` are those of that
    commit, because merging does not change how far the table is tiered. Returns None where there
    was nothing to merge, another writer committed meanwhile, or the table's options leave merging
    to others.
    """
    base = newest_base(table)
    said = read_said(table, base.number)
    # after another service's commit, these properties would say less than is tiered
    own = said.get("commitUser") == COMMIT_USER and said.get("properties") == dict(properties)
    if not own or _left_alone(schema, said):
        return None
    buckets: dict[tuple[bytes, int], list[Entry]] = defaultdict(list)
    for _, entry in live_entries(table, said):
        buckets[entry["_PARTITION"], entry["_BUCKET"]].append(entry)
    files = PaimonFiles(table, schema)
    added: list[NewFile] = []
    removed: list[Entry] = []
    try:
        for (partition, bucket), entries in buckets.items():
            if not _readable(table, schema, entries):
                continue
            for chosen in _chosen(files, entries):
                added += _rewritten(files, partition, bucket, chosen)
                removed += chosen
    except BaseException:
        discard(added)
        raise
    if not removed:
        return None
    try:
        return commit_snapshot(table, schema, base, added, properties, removed)
    except LakeMovedError:
        logger.info("table %s: small files are merged later", table.path)
        discard(added)
        return None
    except NotCommittedError:
        discard(added)
        raise
    # after another error the files stay: a storage that fails may have the snapshot


def _left_alone(schema: WriteSchema, said: Mapping[str, Any]) -> bool:
    """Whether others compact the table, or its rows cannot be written again as they are."""
    options = schema.lake.options
    return (
        options.get("write-only", "false").lower() == "true"
        or options.get("deletion-vectors.enabled", "false").lower() == "true"
        or bool(said.get("indexManifest"))
        # Parquet's timestamps of 12 bytes (INT96): Arrow reads only those in the range of
        # nanoseconds, and gives wrong values for others without an error
        or has_nanoseconds(pa.struct(schema.rows))
        # the changelogs of these tables are made by Paimon's own compaction
        or (schema.keyed and options.get("changelog-producer", "none") not in ("none", "input"))
    )


def _readable(table: TableFiles, schema: WriteSchema, entries: Sequence[Entry]) -> bool:
    """Whether the files of a bucket may be written again as they are, with null for new columns."""
    now = {field.id: field for field in schema.lake.fields}
    for number in {entry["_FILE"]["_SCHEMA_ID"] for entry in entries} - {schema.lake.id}:
        if any(now.get(field.id) != field for field in schema_of(table, number).fields):
            return False
    return all(
        entry["_TOTAL_BUCKETS"] == schema.buckets
        and entry["_FILE"]["_FILE_NAME"].endswith(".parquet")
        and not entry["_FILE"]["_EXTRA_FILES"]
        and not entry["_FILE"].get("_EXTERNAL_PATH")
        for entry in entries
    )


def _chosen(files: PaimonFiles, entries: list[Entry]) -> list[list[Entry]]:
    """Return the files of a bucket that become one, or a few, in groups."""
    if files.schema.keyed:
        top = _top(files.schema)
        new = [entry["_FILE"]["_FILE_SIZE"] for entry in entries if _level(entry) < top]
        whole = sum(entry["_FILE"]["_FILE_SIZE"] for entry in entries)
        many = len(new) >= _SMALL_FILES and sum(new) * _PART >= whole
        return [entries] if many or len(new) >= _MANY_FILES else []
    # only neighbours are merged: a large file between small ones has rows between theirs
    small = min(_SMALL_BYTES, files.target // 2)
    groups: list[list[Entry]] = [[]]
    for entry in sorted(entries, key=lambda one: _sequences(one)[0]):
        if entry["_FILE"]["_FILE_SIZE"] < small:
            groups[-1].append(entry)
        elif groups[-1]:
            groups.append([])
    return [group for group in groups if len(group) >= _SMALL_FILES]


def _rewritten(
    files: PaimonFiles, partition: bytes, bucket: int, entries: Sequence[Entry]
) -> list[NewFile]:
    """Write the rows of files of a bucket again."""
    schema = files.schema
    partitions = Partitions(files.table, schema.lake)

    def path(entry: Entry) -> str:
        name = entry["_FILE"]["_FILE_NAME"]
        return files.table.at(partitions.path(partition, bucket, name))

    writer: LogWriter | MergedWriter
    try:
        if schema.keyed:
            writer = MergedWriter(files, partition, bucket, _top(schema))
            runs = [
                (sum(entry["_FILE"]["_ROW_COUNT"] for entry in run), [path(one) for one in run])
                for run in _runs(schema, entries)
            ]
            for rows in merged(runs, schema, files.table.path):
                writer.write(rows)
        else:
            writer = LogWriter(files, partition, bucket, compacted=True)
            last = 0
            for entry in entries:
                first, end = _sequences(entry)
                # without buckets, files of all of Fluss's buckets are in one folder, so offsets may
                # not rise
                last = max(last, end)
                for rows in file_batches(path(entry), schema, _ROWS):
                    writer.write(rows, first, last)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _runs(schema: WriteSchema, entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return files in runs within which keys rise: those of a level, but for the lowest."""
    kinds = schema.kinds(schema.keys)
    levels: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        levels[_level(entry)].append(entry)
    runs = [[entry] for entry in levels.pop(0, [])]

    def least(entry: Entry) -> list[Any]:
        return [value_at(entry["_FILE"]["_MIN_KEY"], at, kind) for at, kind in enumerate(kinds)]

    return runs + [sorted(level, key=least) for level in levels.values()]


def _level(entry: Entry) -> int:
    return int(entry["_FILE"]["_LEVEL"])


def _sequences(entry: Entry) -> tuple[int, int]:
    return entry["_FILE"]["_MIN_SEQUENCE_NUMBER"], entry["_FILE"]["_MAX_SEQUENCE_NUMBER"]


def _top(schema: WriteSchema) -> int:
    """Return the highest level of a bucket."""
    options = schema.lake.options
    trigger = int(options.get("num-sorted-run.compaction-trigger", _TRIGGER))
    return int(options.get("num-levels", trigger + 1)) - 1

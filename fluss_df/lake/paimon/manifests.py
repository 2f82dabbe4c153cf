"""Which files a snapshot of a Paimon table has, by its manifests."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import fastavro

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.offsets import Offsets, offsets_in
from fluss_df.lake.paimon.partitions import Partitions
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import LakeSchema, read_schema
from fluss_df.lake.snapshot import DataFile

T = TypeVar("T")
_DELETE: Final = 1
_LISTS: Final = ("baseManifestList", "deltaManifestList")
# what reading a damaged file may raise
NOT_UNDERSTOOD: Final = (ValueError, KeyError, TypeError, IndexError, EOFError, StopIteration)


@dataclass(frozen=True, slots=True)
class PaimonFile(DataFile):
    """A file with rows, as its manifest has it.

    Attributes
    ----------
    name
        Its name, by which deletion vectors speak of it.
    bucket, level
        Its bucket, and the level there: 0 for what was not compacted yet.
    schema_id
        The schema that it was written with.
    deletes
        How many of its rows are deletes of keys.
    first, last
        The least and greatest sequence number of its rows.
    keys
        The least and greatest key, as binary rows.
    least, greatest
        The least and greatest value of each column in ``stats_columns``, as binary rows.
    nulls
        How many of each of these are null.
    stats_columns
        Names of columns; None for all of the file's schema.
    """

    name: str
    bucket: int
    level: int
    schema_id: int
    deletes: int
    first: int
    last: int
    keys: tuple[bytes, bytes]
    least: bytes
    greatest: bytes
    nulls: tuple[int | None, ...]
    stats_columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the positions of deleted rows of a file stand."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot is made of."""

    schema: LakeSchema
    files: tuple[PaimonFile, ...]
    # by the name of the file that has the rows
    vectors: dict[str, DeletionVector]
    # how far buckets are in it, where a service of fluss_df made it
    offsets: Offsets | None


def read_snapshot(table: TableFiles, number: int) -> Snapshot:
    """Return what a snapshot is made of.

    Raises FlussError where it is not there, is damaged, or has what is not read.
    """
    name = f"snapshot/snapshot-{number}"
    if not table.there(name):
        raise FlussError(
            f"lake table {table.path}: the snapshot {number}, which the cluster says is the newest"
            f" that can be read, is not in its catalog ({table.at(name)}): was it expired, or the"
            " table made again by hand? lake=False reads what Fluss itself has",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    said = _understood(table, name, _snapshot)
    schema = schema_of(table, int(said["schemaId"]))
    require_known(table, schema)
    partitions = Partitions(table, schema)
    found = []
    for place, entry in live_entries(table, said):
        try:
            found.append(_file(table, partitions, entry))
        except NOT_UNDERSTOOD as error:
            raise table.damaged(place, error) from error
    vectors = _vectors(table, said.get("indexManifest"))
    try:
        offsets = offsets_in(said.get("properties") or {})
    except FlussError as error:
        raise table.damaged(name, error) from error
    return Snapshot(schema, tuple(found), vectors, offsets)


def _snapshot(content: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(content)
    int(said["schemaId"])
    for name in _LISTS:
        said[name]
    return said


def schema_of(table: TableFiles, number: int) -> LakeSchema:
    """Return a version of the table's schema."""
    return _understood(table, f"schema/schema-{number}", read_schema)


def _understood(table: TableFiles, name: str, read: Callable[[bytes], T]) -> T:
    content = table.read(name)
    try:
        return read(content)
    except Exception as error:
        # codecs and Avro raise errors of many types
        raise table.damaged(name, error) from error


def read_avro(table: TableFiles, name: str) -> list[dict[str, Any]]:
    """Return the records of a manifest, or of a list of manifests.

    Raises FlussError where the file is missing or damaged.
    """

    def read(content: bytes) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(content)))

    return _understood(table, name, read)


def require_known(table: TableFiles, schema: LakeSchema) -> None:
    """Refuse a table whose rows are not what its files say, for a reason that is not known here."""
    options = schema.options
    engine = options.get("merge-engine", "deduplicate")
    refused = [
        text
        for text, there in (
            (f"the merge engine {engine!r}", engine != "deduplicate"),
            ("the option 'sequence.field'", "sequence.field" in options),
            ("the option 'ignore-delete'", options.get("ignore-delete") == "true"),
            ("the option 'record-level.expire-time'", "record-level.expire-time" in options),
            (
                "the option 'data-evolution.enabled'",
                options.get("data-evolution.enabled") == "true",
            ),
        )
        if there and (schema.primary_keys or "evolution" in text)
    ]
    if refused:
        raise FlussError(
            f"lake table {table.path} has {' and '.join(refused)}, which fluss_df does not read;"
            " lake=False reads what Fluss itself has",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def live_entries(table: TableFiles, said: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return what manifests say of the files of a snapshot, each with the manifest's name.

    ``said`` is the content of the snapshot's own file. Raises FlussError where a manifest is
    missing or damaged.
    """
    found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for name in _LISTS:
        place = f"manifest/{said[name]}"
        try:
            manifests = [f"manifest/{entry['_FILE_NAME']}" for entry in read_avro(table, place)]
        except NOT_UNDERSTOOD as error:
            raise table.damaged(place, error) from error
        for place in manifests:
            for entry in read_avro(table, place):
                try:
                    file = entry["_FILE"]
                    place_of = entry["_PARTITION"], entry["_BUCKET"]
                    key = (*place_of, file["_LEVEL"], file["_FILE_NAME"])
                    if entry["_KIND"] == _DELETE:
                        found.pop(key, None)
                    else:
                        found[key] = place, entry
                except NOT_UNDERSTOOD as error:
                    raise table.damaged(place, error) from error
    return list(found.values())


def _file(table: TableFiles, partitions: Partitions, entry: dict[str, Any]) -> PaimonFile:
    said = entry["_FILE"]
    name = said["_FILE_NAME"]
    row, bucket = entry["_PARTITION"], entry["_BUCKET"]
    path = said.get("_EXTERNAL_PATH") or partitions.path(row, bucket, name)
    kind = name.rsplit(".", 1)[-1]
    if kind != "parquet":
        raise FlussError(
            f"lake table {table.path}: {table.at(path)} is {kind.upper()}, and only Parquet is"
            " read (option 'file.format' of the lake table); lake=False reads what Fluss itself"
            " has",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    stats = said["_VALUE_STATS"]
    columns = said.get("_VALUE_STATS_COLS")
    return PaimonFile(
        path=table.at(path),
        rows=said["_ROW_COUNT"],
        size=said["_FILE_SIZE"],
        partition=partitions.texts(row),
        name=name,
        bucket=bucket,
        level=said["_LEVEL"],
        schema_id=said["_SCHEMA_ID"],
        # writers of old releases do not say whether there are deletes: assume one
        deletes=1 if said.get("_DELETE_ROW_COUNT") is None else said["_DELETE_ROW_COUNT"],
        first=said["_MIN_SEQUENCE_NUMBER"],
        last=said["_MAX_SEQUENCE_NUMBER"],
        keys=(said["_MIN_KEY"], said["_MAX_KEY"]),
        least=stats["_MIN_VALUES"],
        greatest=stats["_MAX_VALUES"],
        nulls=tuple(stats["_NULL_COUNTS"] or ()),
        stats_columns=None if columns is None else tuple(columns),
    )


def _vectors(table: TableFiles, manifest: str | None) -> dict[str, DeletionVector]:
    if not manifest:
        return {}
    place = f"manifest/{manifest}"
    try:
        return dict(_vectors_of(read_avro(table, place)))
    except NOT_UNDERSTOOD as error:
        raise table.damaged(place, error) from error


def _vectors_of(entries: list[dict[str, Any]]) -> Iterator[tuple[str, DeletionVector]]:
    gone = {entry["_FILE_NAME"] for entry in entries if entry["_KIND"] == _DELETE}
    for entry in entries:
        name = entry["_FILE_NAME"]
        if entry["_INDEX_TYPE"] != "DELETION_VECTORS" or name in gone:
            continue
        place = entry.get("_EXTERNAL_PATH") or f"index/{name}"
        for vector in entry["_DELETIONS_VECTORS_RANGES"] or ():
            yield vector["f0"], DeletionVector(place, vector["f1"], vector["f2"])

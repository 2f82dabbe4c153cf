"""Writes manifests, which name the files of a snapshot, and lists of them."""

from __future__ import annotations

import io
import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fastavro

from fluss_df.lake.paimon.binary_rows import value_at
from fluss_df.lake.paimon.manifests import read_avro
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon_writing.files import NewFile
from fluss_df.lake.paimon_writing.rows import binary_row
from fluss_df.lake.paimon_writing.schema import WriteSchema

_VERSION: Final = 2
_ADD: Final = 0
_DELETE: Final = 1
_CODEC: Final = "zstandard"
_RECORD: Final = "org.apache.paimon.avro.generated.record"
# by Paimon's defaults, this number of manifests that are smaller than these bytes is merged
_MERGED: Final = 30
_SMALL_BYTES: Final = 8 << 20


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


def _record(name: str, fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: list[dict[str, Any]] = []
    for one, kind in fields:
        more = {"default": None} if isinstance(kind, list) else {}
        made.append({"name": one, "type": kind, **more})
    return {"type": "record", "name": name, "fields": made}


def _stats(name: str) -> dict[str, Any]:
    counts = _optional({"type": "array", "items": ["null", "long"]})
    return _record(
        name, [("_MIN_VALUES", "bytes"), ("_MAX_VALUES", "bytes"), ("_NULL_COUNTS", counts)]
    )


_TEXTS: Final = {"type": "array", "items": "string"}
_FILE: Final = _record(
    f"{_RECORD}__FILE",
    [
        ("_FILE_NAME", "string"),
        ("_FILE_SIZE", "long"),
        ("_ROW_COUNT", "long"),
        ("_MIN_KEY", "bytes"),
        ("_MAX_KEY", "bytes"),
        ("_KEY_STATS", _stats(f"{_RECORD}__FILE__KEY_STATS")),
        ("_VALUE_STATS", _stats(f"{_RECORD}__FILE__VALUE_STATS")),
        ("_MIN_SEQUENCE_NUMBER", "long"),
        ("_MAX_SEQUENCE_NUMBER", "long"),
        ("_SCHEMA_ID", "long"),
        ("_LEVEL", "int"),
        ("_EXTRA_FILES", _TEXTS),
        ("_CREATION_TIME", _optional({"logicalType": "timestamp-millis", "type": "long"})),
        ("_DELETE_ROW_COUNT", _optional("long")),
        ("_EMBEDDED_FILE_INDEX", _optional("bytes")),
        ("_FILE_SOURCE", _optional("int")),
        ("_VALUE_STATS_COLS", _optional(_TEXTS)),
        ("_EXTERNAL_PATH", _optional("string")),
        ("_FIRST_ROW_ID", _optional("long")),
        ("_WRITE_COLS", _optional(_TEXTS)),
    ],
)
_MANIFEST: Final = fastavro.parse_schema(
    _record(
        _RECORD,
        [
            ("_VERSION", "int"),
            ("_KIND", "int"),
            ("_PARTITION", "bytes"),
            ("_BUCKET", "int"),
            ("_TOTAL_BUCKETS", "int"),
            ("_FILE", _FILE),
        ],
    )
)
_LIST: Final = fastavro.parse_schema(
    _record(
        _RECORD,
        [
            ("_VERSION", "int"),
            ("_FILE_NAME", "string"),
            ("_FILE_SIZE", "long"),
            ("_NUM_ADDED_FILES", "long"),
            ("_NUM_DELETED_FILES", "long"),
            ("_PARTITION_STATS", _stats(f"{_RECORD}__PARTITION_STATS")),
            ("_SCHEMA_ID", "long"),
            ("_MIN_BUCKET", _optional("int")),
            ("_MAX_BUCKET", _optional("int")),
            ("_MIN_LEVEL", _optional("int")),
            ("_MAX_LEVEL", _optional("int")),
        ],
    )
)
Entry = dict[str, Any]


@dataclass(slots=True)
class ManifestWriter:
    """Writes the manifests of one snapshot.

    ``made`` has the paths of the files that it wrote. They are deleted where the snapshot is not
    committed.
    """

    table: TableFiles
    schema: WriteSchema
    made: list[Path] = field(default_factory=list)
    _id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def changed(self, added: Iterable[NewFile], removed: Iterable[Entry] = ()) -> list[Entry]:
        """Write a manifest of files that go and come; return the lines for a list, one or none."""
        entries = [{**entry, "_KIND": _DELETE} for entry in removed]
        entries += [
            {
                "_VERSION": _VERSION,
                "_KIND": _ADD,
                "_PARTITION": file.partition,
                "_BUCKET": file.bucket,
                "_TOTAL_BUCKETS": self.schema.buckets,
                "_FILE": file.entry,
            }
            for file in added
        ]
        return [self._manifest(entries)] if entries else []

    def merged(self, lines: Sequence[Entry]) -> list[Entry]:
        """Return the lines of a list, many small manifests that follow each other as one.

        A file that one of them adds and another removes is in none then. The order of the others
        stays: a file that is removed must not be added behind that.
        """
        runs = [(small, list(run)) for small, run in itertools.groupby(lines, _is_small)]
        if sum(len(run) for small, run in runs if small) < _MERGED:
            return list(lines)
        return [
            line
            for small, run in runs
            for line in (self._joined(run) if small and len(run) > 1 else run)
        ]

    def _joined(self, lines: Sequence[Entry]) -> list[Entry]:
        """Write one manifest of several, where any of their files is left."""
        found: dict[tuple[Any, ...], Entry] = {}
        for line in lines:
            for entry in read_avro(self.table, f"manifest/{line['_FILE_NAME']}"):
                file = entry["_FILE"]
                key = (entry["_PARTITION"], entry["_BUCKET"], file["_LEVEL"], file["_FILE_NAME"])
                if entry["_KIND"] != _ADD and key in found:
                    del found[key]
                else:
                    found[key] = entry
        return [self._manifest(list(found.values()))] if found else []

    def list_of(self, lines: Sequence[Entry]) -> tuple[str, int]:
        """Write a list of manifests; return its name and its size."""
        name = f"manifest-list-{self._id}-{len(self.made)}"
        return name, self._write(name, _LIST, lines)

    def _manifest(self, entries: list[Entry]) -> Entry:
        name = f"manifest-{self._id}-{len(self.made)}"
        size = self._write(name, _MANIFEST, entries)
        added = sum(entry["_KIND"] == _ADD for entry in entries)
        buckets = [entry["_BUCKET"] for entry in entries]
        levels = [entry["_FILE"]["_LEVEL"] for entry in entries]
        return {
            "_VERSION": _VERSION,
            "_FILE_NAME": name,
            "_FILE_SIZE": size,
            "_NUM_ADDED_FILES": added,
            "_NUM_DELETED_FILES": len(entries) - added,
            "_PARTITION_STATS": self._partitions({entry["_PARTITION"] for entry in entries}),
            "_SCHEMA_ID": self.schema.lake.id,
            "_MIN_BUCKET": min(buckets),
            "_MAX_BUCKET": max(buckets),
            "_MIN_LEVEL": min(levels),
            "_MAX_LEVEL": max(levels),
        }

    def _partitions(self, rows: set[bytes]) -> Entry:
        kinds = self.schema.kinds(self.schema.lake.partition_keys)
        columns = [
            [value_at(row, position, kind) for row in rows] for position, kind in enumerate(kinds)
        ]
        there = [[value for value in column if value is not None] for column in columns]
        return {
            "_MIN_VALUES": binary_row([min(values, default=None) for values in there], kinds),
            "_MAX_VALUES": binary_row([max(values, default=None) for values in there], kinds),
            "_NULL_COUNTS": [
                len(column) - len(values) for column, values in zip(columns, there, strict=True)
            ],
        }

    def _write(self, name: str, schema: Any, records: Iterable[Entry]) -> int:
        buffer = io.BytesIO()
        fastavro.writer(buffer, schema, records, codec=_CODEC)
        path = Path(self.table.at(f"manifest/{name}"))
        path.parent.mkdir(exist_ok=True)
        self.made.append(path)
        with path.open("xb") as stream:
            stream.write(buffer.getvalue())
        return len(buffer.getvalue())


def _is_small(line: Entry) -> bool:
    return bool(line["_FILE_SIZE"] < _SMALL_BYTES)

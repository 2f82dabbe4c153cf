"""Where files of a folder's lake are: by Iceberg's metadata, with its whole paths, and here."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StructType

from fluss_df.embedded.lake_layout import RUN_AS_CODE
from fluss_df.engine.files.files import DamagedError, read_bytes
from fluss_df.hooks import Closing
from fluss_df.lake.iceberg.whole_avro import require_whole
from fluss_df.lake.options import WRITTEN_TO
from fluss_df.lake.snapshot import local_path

WAREHOUSE: Final = "warehouse"

# ids of fields, by Iceberg's specification
MANIFEST_PATH: Final = 500
MANIFEST_LENGTH: Final = 501
MANIFEST_COUNTS: Final = (504, 505, 506)
DATA_FILE: Final = 2
FILE_PATH: Final = 100
FILE_SIZE: Final = 104
SPLIT_OFFSETS: Final = 132
CONTENT: Final = 134
REFERENCED: Final = 143
COLUMN_SIZES: Final = 108
BOUNDS: Final = (125, 128)
STATUS: Final = 0
DELETED: Final = 2
POSITION_DELETES: Final = 1
# the column of a file of deleted positions that names the file with the rows
DELETED_IN: Final = 2147483546

# the most bytes of a table's metadata: a backup from elsewhere may be made to unpack to far more
_MOST_BYTES: Final = 256 << 20


def read_file(path: Path) -> bytes:
    """Return the bytes of a file of the lake.

    Raises FileNotFoundError where there is none. Raises FlussError as
    :func:`~fluss_df.engine.files.files.read_bytes`: what cannot be opened now is not damaged.
    """
    data = read_bytes(path)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


class LakePaths:
    """The paths of one lake table, made at one place and found at another."""

    def __init__(self, made: str, here: Path) -> None:
        self.made = made
        self.here = here

    def relative(self, path: str) -> str | None:
        """Return the path below the lake; None for a file that is elsewhere."""
        local = local_path(path)
        below = local.removeprefix(f"{self.made}/")
        return None if below == local or ".." in below.split("/") else below

    def moved(self, path: str) -> str:
        """Return where a file is now, as Iceberg writes it."""
        below = self.relative(path)
        return path if below is None else self.at(below)

    def at(self, below: str) -> str:
        """Return the whole path of a file, as Iceberg writes it."""
        return f"file://{self.here}/{below}"

    @classmethod
    def of(cls, metadata: str, here: Path) -> tuple[LakePaths, str] | None:
        """Return the paths of a table, and its metadata's path relative to the lake's folder.

        ``metadata`` is the whole path by the catalog, ``here`` the folder of the lake. None where
        the metadata is not in the lake.
        """
        local = local_path(metadata)
        wanted = f"/{WAREHOUSE}/"
        at = len(local)
        candidates = []
        # a database may have this name: the next match may begin with the slash that ends this
        while (at := local.rfind(wanted, 0, at - 1 + len(wanted))) >= 0:
            candidates.append((local[:at], local[at + 1 :]))
        for made, below in candidates:
            if (here / below).is_file():
                return cls(made, here), below
        return (cls(candidates[0][0], here), candidates[0][1]) if candidates else None


def read_metadata(data: bytes, below: str) -> dict[str, Any]:
    """Return the metadata of a table from its file."""
    try:
        text = _unpacked(data, below) if data[:2] == b"\x1f\x8b" else data
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value.get("location"), str):
            raise ValueError("it is no metadata of a table")
        return value
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise DamagedError(f"{below} is damaged: {error}") from error


def _unpacked(data: bytes, below: str) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise DamagedError(f"{below} has more than {_MOST_BYTES:,} bytes unpacked")
    return text


def require_inside(metadata: Mapping[str, Any], paths: LakePaths) -> None:
    """Raise where the files of a table would be written to another place than its lake."""
    properties = metadata.get("properties", {})
    for name in RUN_AS_CODE:
        if name in properties:
            raise DamagedError(f"its property {name} names a program: {properties[name]}")
    for place in (metadata["location"], *(properties.get(name) for name in WRITTEN_TO)):
        below = None if place is None else paths.relative(str(place))
        if place is not None and (below is None or not below.startswith(f"{WAREHOUSE}/")):
            raise DamagedError(f"its files would be written to {place}, outside of the lake")


class _Bytes(Closing):
    """A file in memory, as pyiceberg reads and writes them."""

    def __init__(self, data: bytes = b"") -> None:
        self.stream = io.BytesIO(data)

    def open(self) -> Self:
        return self

    def create(self, overwrite: bool = False) -> Self:
        return self

    def read(self) -> bytes:
        return self.stream.read()

    def write(self, data: bytes) -> int:
        return self.stream.write(data)

    def tell(self) -> int:
        return self.stream.tell()

    def close(self) -> None:
        """Keep the bytes."""


@dataclass(frozen=True, slots=True)
class AvroRows:
    """The content of an Avro file of Iceberg, as it was written: schema, header and records."""

    schema: Schema
    header: dict[str, str]
    rows: list[Record]

    @classmethod
    def read(cls, data: bytes, below: str) -> AvroRows:
        """Read a file; raise where it is not whole."""
        try:
            schema = require_whole(data)
            with AvroFile[Record](cast(Any, _Bytes(data)), schema) as file:
                rows = list(file)
                return cls(file.schema, dict(file.header.meta), rows)
        # pyiceberg raises errors of many types for bytes that it did not write
        except Exception as error:
            raise DamagedError(f"{below} is damaged: {type(error).__name__}: {error}") from error

    def written(self, name: str) -> bytes:
        """Return the bytes of a file with the same header."""
        header = {key: text for key, text in self.header.items() if key != "avro.schema"}
        target = _Bytes()
        with AvroOutputFile[Record](cast(Any, target), self.schema, name, metadata=header) as file:
            file.write_block(self.rows)
        return target.stream.getvalue()

    def places(self, *ids: int) -> dict[int, int]:
        """Return at which place of a record the fields with some ids are, where there are any."""
        return places(self.schema.fields, ids)

    def file_fields(self) -> tuple[NestedField, ...]:
        """Return the fields of what a manifest says of a file."""
        found = self.schema.find_field(DATA_FILE).field_type
        assert isinstance(found, StructType)
        return found.fields


def places(fields: Any, ids: tuple[int, ...]) -> dict[int, int]:
    """Return at which place the fields with some ids are."""
    return {f.field_id: at for at, f in enumerate(fields) if f.field_id in ids}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A line of a manifest list.

    ``path`` is as the list has it, ``size`` in bytes. ``entries`` is how many the manifest has,
    None where the list does not say.
    """

    path: str
    size: int
    entries: int | None


def manifests(rows: AvroRows) -> Iterator[Manifest]:
    """Iterate over a manifest list."""
    at = rows.places(MANIFEST_PATH, MANIFEST_LENGTH, *MANIFEST_COUNTS)
    for row in rows.rows:
        counts = [row[at[number]] for number in MANIFEST_COUNTS if number in at]
        whole = len(counts) == len(MANIFEST_COUNTS) and None not in counts
        yield Manifest(
            str(row[at[MANIFEST_PATH]]),
            int(row[at[MANIFEST_LENGTH]]),
            sum(map(int, counts)) if whole else None,
        )


def read_manifest(data: bytes, below: str, manifest: Manifest) -> AvroRows:
    """Return the entries of a manifest; raise where they are not those that the list says."""
    if len(data) != manifest.size:
        raise DamagedError(f"{below} has {len(data):,} bytes and not {manifest.size:,}")
    found = AvroRows.read(data, below)
    # a file that is cut off between two blocks can be read without an error
    if manifest.entries is not None and len(found.rows) != manifest.entries:
        raise DamagedError(f"{below} has {len(found.rows)} entries and not {manifest.entries}")
    return found


def used_snapshots(metadata: Mapping[str, Any], known: int | None) -> list[int]:
    """Return the snapshots that are in use: Fluss's, the newest, those between, and named ones."""
    snapshots = {int(one["snapshot-id"]): one for one in metadata.get("snapshots", [])}
    at = metadata.get("current-snapshot-id")
    used: list[int] = []
    while at in snapshots and at not in used:
        used.append(int(at))
        if known is None or at == known:
            break
        at = snapshots[at].get("parent-snapshot-id")
    else:
        # where Fluss's snapshot is not among those before the newest, the newest alone is used
        used = used[:1] if known not in used else used
    named = (int(ref["snapshot-id"]) for ref in metadata.get("refs", {}).values())
    others = (one for one in (known, *named) if one is not None and one in snapshots)
    return list(dict.fromkeys((*used, *others)))

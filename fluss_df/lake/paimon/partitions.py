"""Partitions of a Paimon table: by which names Fluss knows them, and in which folders they are."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.paimon.binary_rows import BYTES, TEXTS, TIMES, value_at
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.paimon.types import FieldType, LakeSchema
from fluss_df.record.keys.partition_names import partition_names
from fluss_df.types import from_arrow

# as Paimon escapes names and values of partitions in paths
_ESCAPED: Final = re.compile(r'["#%\'*/:=?\\{}\[\]^\x00-\x1f\x7f]')
_NO_VALUE: Final = "__DEFAULT_PARTITION__"
_WHOLE: Final = frozenset({"TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT"})
_SIMPLE: Final = {
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    **dict.fromkeys(BYTES, pa.binary()),
}


class Partitions:
    """The partitions of a table."""

    def __init__(self, table: TableFiles, schema: LakeSchema) -> None:
        self._table = table
        self._kinds = {key: schema.field(key).type for key in schema.partition_keys}
        self._no_value = schema.options.get("partition.default-name", _NO_VALUE)
        # a folder of a date is named by its days since 1970, or as 2026-11-21
        self._iso_dates = schema.options.get("partition.legacy-name", "true") == "false"
        top = schema.options.get("data-file.path-directory", "").strip("/")
        self._top = f"{top}/" if top else ""
        self.texts = functools.lru_cache(maxsize=None)(self._texts)
        self._there: dict[str, str] | None = None

    def _texts(self, row: bytes) -> dict[str, str]:
        """Return the texts of partition values, as they are in Fluss's names of partitions."""
        return {
            key: self._text(key, kind, value_at(row, position, kind))
            for position, (key, kind) in enumerate(self._kinds.items())
        }

    def path(self, row: bytes, bucket: int, name: str) -> str:
        """Return the path of a file of a partition, within the folder of the table."""
        folder, known = "", True
        for position, (key, text) in enumerate(self.texts(row).items()):
            kind = self._kinds[key]
            if kind.root == "DATE" and not self._iso_dates:
                day = value_at(row, position, kind)
                text = text if day is None else str(day)
            elif kind.root not in TEXTS | _WHOLE | {"BOOLEAN", "DATE"}:
                known = False
            folder += f"{_escaped(key)}={_escaped(text)}/"
        path = f"{self._top}{folder}bucket-{bucket}/{name}"
        if known:
            return path
        # Paimon writes such values differently by release, time zone and option: the folder is
        # found by the name of the file, which nobody else has
        if self._there is None:
            try:
                self._there = self._found()
            except OSError as error:
                raise FlussError(
                    f"lake table {self._table.path}: the folders of its partitions cannot be read:"
                    f" {error}; lake=False reads what Fluss itself has",
                    ErrorCode.NETWORK_EXCEPTION,
                ) from error
        return self._there.get(f"bucket-{bucket}/{name}", path)

    def _found(self) -> dict[str, str]:
        """Return where each file of a partition is, by its bucket and name."""
        top = Path(self._table.at(self._top))
        levels = [top]
        for key in self._kinds:
            start = f"{_escaped(key)}="
            levels = [
                Path(entry.path)
                for level in levels
                for entry in os.scandir(level)
                if entry.name.startswith(start)
            ]
        return {
            f"{bucket.name}/{file.name}": f"{bucket.path}/{file.name}"
            for level in levels
            for bucket in os.scandir(level)
            if bucket.name.startswith("bucket-")
            for file in os.scandir(bucket)
        }

    def _text(self, key: str, kind: FieldType, value: Any) -> str:
        if value is None:
            return self._no_value
        if kind.root in TEXTS:
            return str(value)
        if kind.root in _WHOLE:
            return str(value)
        if kind.root == "BOOLEAN":
            return "true" if value else "false"
        if kind.root in TIMES:
            unit, of = ("ms", 10**6) if kind.precision <= 3 else ("us", 10**3)
            if kind.precision > 6:
                unit, of = "ns", 1
            zone = "UTC" if kind.root == "TIMESTAMP_LTZ" else None
            values = pa.array([value // of], pa.int64()).cast(pa.timestamp(unit, zone))
        elif kind.root in _SIMPLE:
            wanted = _SIMPLE[kind.root]
            whole = pa.int32() if kind.root in ("DATE", "TIME") else wanted
            values = pa.array([value], whole).cast(wanted)
        else:
            raise FlussError(
                f"lake table {self._table.path}: the partition column {key!r} is of type"
                f" {kind.root}, which no partition of Fluss has; lake=False reads what Fluss itself"
                " has",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        (text,) = partition_names([values], [from_arrow(values.type)], names=[key]).to_pylist()
        return str(text)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)

"""The statistics of a file in its manifest: the least and greatest value of each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.lake.paimon.binary_rows import BYTES, TEXTS
from fluss_df.lake.paimon.types import FieldType
from fluss_df.lake.paimon_writing.rows import KNOWN, binary_row
from fluss_df.lake.paimon_writing.schema import WriteSchema

# as Paimon's default, "truncate(16)"
_LENGTH: Final = 16
_LAST_CHARACTER: Final = 0x10FFFF
# those before and behind the surrogates, which are no characters
_BEFORE_SURROGATES: Final = 0xD7FF
_BEHIND_SURROGATES: Final = 0xE000
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def row_value(scalar: pa.Scalar) -> Any:
    """Return a value of Arrow as binary rows have it."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        return scalar.value * _NANOSECONDS[kind.unit]
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return scalar.value
    return scalar.as_py()


@dataclass(slots=True)
class _Range:
    least: Any = None
    greatest: Any = None
    nulls: int = 0


@dataclass(slots=True)
class Statistics:
    """The least and greatest values of the rows of a file.

    Columns of fractions and nested ones have no statistics.
    """

    schema: WriteSchema
    _ranges: dict[str, _Range] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Take note of rows with the columns of the table."""
        for one in self.schema.lake.fields:
            if one.type.root not in KNOWN:
                continue
            column = rows.column(one.name)
            found = self._ranges.setdefault(one.name, _Range())
            found.nulls += column.null_count
            if column.null_count == len(column):
                continue
            both = pc.min_max(column)
            least, greatest = row_value(both["min"]), row_value(both["max"])
            found.least = least if found.least is None else min(found.least, least)
            found.greatest = greatest if found.greatest is None else max(found.greatest, greatest)

    def of(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the statistics of columns, as manifests have them; of keys they are not cut."""
        ranges = [self._ranges[name] for name in names]
        kinds = self.schema.kinds(tuple(names))
        return _stats(
            [one.least for one in ranges],
            [one.greatest for one in ranges],
            [one.nulls for one in ranges],
            kinds,
        )

    def of_all(self) -> tuple[dict[str, Any], list[str]]:
        """Return the statistics of all columns that have some, and which these are."""
        lows: list[Any] = []
        highs: list[Any] = []
        nulls: list[int] = []
        kinds: list[FieldType] = []
        names: list[str] = []
        for one in self.schema.lake.fields:
            found = self._ranges.get(one.name)
            if found is None:
                continue
            low, high = cut(found.least), found.greatest
            if one.type.root in TEXTS | BYTES and high is not None:
                high = cut_above(high)
                if high is None:
                    continue
            lows.append(low)
            highs.append(high)
            nulls.append(found.nulls)
            kinds.append(one.type)
            names.append(one.name)
        return _stats(lows, highs, nulls, kinds), names


def _stats(
    lows: Sequence[Any], highs: Sequence[Any], nulls: Sequence[int], kinds: Sequence[FieldType]
) -> dict[str, Any]:
    return {
        "_MIN_VALUES": binary_row(lows, kinds),
        "_MAX_VALUES": binary_row(highs, kinds),
        "_NULL_COUNTS": list(nulls),
    }


def cut(value: Any) -> Any:
    """Return a long text, or long bytes, cut off: it is not greater."""
    return value[:_LENGTH] if isinstance(value, str | bytes) else value


def cut_above(value: str | bytes) -> str | bytes | None:
    """Return a value of few characters or bytes that is not less; None where there is none."""
    if len(value) <= _LENGTH:
        return value
    if isinstance(value, bytes):
        short = value[:_LENGTH].rstrip(b"\xff")
        return short[:-1] + bytes([short[-1] + 1]) if short else None
    text = value[:_LENGTH].rstrip(chr(_LAST_CHARACTER))
    if not text:
        return None
    last = ord(text[-1])
    following = _BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1
    return text[:-1] + chr(following)

"""Lists of BINARY(n): an element that is null has eight bytes in a row, and n bytes in Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from fluss_df.record.kv.values import ValueDecoder
from fluss_df.record.layout.headers import Bytes
from fluss_df.record.layout.unaligned import Int64s
from fluss_df.types import Column, DataType, TypeRoot, arrow_schema

# of an element in a row, at least
_SLOT_BYTES: Final = 8


class WideLists:
    """How much such lists of a table take in Arrow, known before they are decoded.

    Parameters
    ----------
    schemas
        The columns of each schema id.
    schema_id
        The newest.
    kv_format
        The table's ``table.kv.format``.

    Attributes
    ----------
    widths
        Of each column: the bytes of an element in Arrow; 0 where it has no such lists.
    """

    def __init__(
        self, schemas: Mapping[int, Sequence[Column]], schema_id: int, kv_format: str
    ) -> None:
        widths = {column.name: _width(column.type, False) for column in schemas[schema_id]}
        self.widths = widths
        self._width = sum(widths.values())
        self._columns = [column for column in schemas[schema_id] if widths[column.name]]
        self._decoder: ValueDecoder | None = None
        if self._columns:
            loose = {
                key: [
                    replace(column, type=_loose(column.type)) if widths.get(column.name) else column
                    for column in columns
                ]
                for key, columns in schemas.items()
            }
            target = arrow_schema([column for column in loose[schema_id] if widths[column.name]])
            self._decoder = ValueDecoder(loose, target, kv_format)

    def most_bytes(self, size: int) -> int:
        """Return what rows of some bytes take at the most, besides what all rows take."""
        return size // _SLOT_BYTES * self._width

    def bytes_of(self, values: tuple[Bytes, Int64s, Int64s]) -> int:
        """Return what values take, see :meth:`ValueDecoder.decode_values`; 0 without such lists.

        They are decoded with BYTES in the place of BINARY, which are the same in a row.
        """
        if self._decoder is None:
            return 0
        rows = self._decoder.decode_values(values)
        return sum(
            _taken(chunk, column.type)
            for column in self._columns
            for chunk in rows.column(column.name).chunks
        )


def _width(kind: DataType, listed: bool) -> int:
    """Return the bytes of the BINARY types in lists in a type."""
    if kind.root is TypeRoot.BINARY:
        return (kind.length or 0) if listed else 0
    within = listed or kind.root is not TypeRoot.ROW
    return sum(_width(part, within) for part in _parts(kind))


def _parts(kind: DataType) -> list[DataType]:
    parts = [kind.element, kind.key, kind.value, *(field.type for field in kind.fields)]
    return [part for part in parts if part is not None]


def _loose(kind: DataType) -> DataType:
    """Return a type with BYTES for each BINARY in it."""
    if kind.root is TypeRoot.BINARY:
        return DataType(TypeRoot.BYTES, kind.nullable)
    return replace(
        kind,
        element=kind.element and _loose(kind.element),
        key=kind.key and _loose(kind.key),
        value=kind.value and _loose(kind.value),
        fields=tuple(replace(field, type=_loose(field.type)) for field in kind.fields),
    )


def _taken(array: pa.Array, kind: DataType) -> int:
    """Return what an array of loose values takes as one of a type, where it is BINARY."""
    if kind.root is TypeRoot.BINARY:
        return len(array) * (kind.length or 0)
    if kind.element is not None:
        return _taken(array.flatten(), kind.element)
    if kind.key is not None and kind.value is not None:
        return _taken(array.keys, kind.key) + _taken(array.items, kind.value)
    return sum(_taken(array.field(i), field.type) for i, field in enumerate(kind.fields))

"""The row formats by the names that table properties have for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.rows import compacted, indexed
from fluss_df.types import Column, DataType, TypeRoot

T = TypeVar("T")

_ENCODERS: dict[str, type[compacted.RowEncoder]] = {
    "compacted": compacted.RowEncoder,
    "indexed": indexed.RowEncoder,
}
_DECODERS: dict[str, type[compacted.RowDecoder]] = {
    "compacted": compacted.RowDecoder,
    "indexed": indexed.RowDecoder,
}


def encoder_of(row_format: str) -> type[compacted.RowEncoder]:
    """Return the encoder of a format: ``compacted`` or ``indexed``.

    Raises FlussError for another one.
    """
    return _of(_ENCODERS, row_format)


def decoder_of(row_format: str) -> type[compacted.RowDecoder]:
    """Return the decoder of a format; errors are those of :func:`encoder_of`."""
    return _of(_DECODERS, row_format)


def _of(kinds: Mapping[str, T], row_format: str) -> T:
    try:
        return kinds[row_format.lower()]
    except KeyError:
        raise FlussError(f"unknown row format {row_format!r}: compacted or indexed") from None


def require_milliseconds(
    data: pa.Table | pa.RecordBatch, columns: Sequence[Column], table: str
) -> None:
    """Refuse digits of a TIME that rows cannot hold.

    Raises SchemaMismatchError, naming table and column.
    """
    for column in columns:
        if not _has_fine_times(column.type):
            continue
        data_column = data.column(column.name)
        chunks = data_column.chunks if isinstance(data_column, pa.ChunkedArray) else [data_column]
        for chunk in chunks:
            for values, t, path in _leaves(chunk, column.type, column.name):
                if not _has_fine_times(t):
                    continue
                whole = pc.equal(values, values.cast(pa.time32("ms"), safe=False))
                if pc.all(whole).as_py() is False:
                    raise SchemaMismatchError(
                        f"table {table}, column '{path}' ({t}): its rows hold times in whole"
                        " milliseconds (primary-key tables and the log formats indexed and"
                        " compacted do): round them first"
                    )


def _has_fine_times(t: DataType) -> bool:
    """Whether values have times of the day of more digits than milliseconds."""
    if t.root is TypeRoot.TIME_WITHOUT_TIME_ZONE:
        return (t.precision or 0) > 3
    children = [child for child in (t.element, t.key, t.value) if child is not None]
    return any(map(_has_fine_times, [*children, *(field.type for field in t.fields)]))


def _leaves(array: pa.Array, t: DataType, path: str) -> Iterator[tuple[pa.Array, DataType, str]]:
    """Yield the arrays of scalars that an array consists of, without what null parents hide."""
    if t.element is not None:
        yield from _leaves(array.flatten(), t.element, f"{path}[]")
    elif t.key is not None and t.value is not None:
        entry = pa.struct([array.type.key_field, array.type.item_field])
        entries = array.cast(pa.list_(pa.field("entries", entry, nullable=False))).flatten()
        keys, values = entries.flatten()
        yield from _leaves(keys, t.key, f"{path}[].key")
        yield from _leaves(values, t.value, f"{path}[].value")
    elif t.fields:
        for field, child in zip(t.fields, array.flatten(), strict=True):
            yield from _leaves(child, field.type, f"{path}.{field.name}")
    else:
        yield array, t, path


def require_padded(data: pa.Table | pa.RecordBatch, columns: Sequence[Column], table: str) -> None:
    """Refuse CHAR and BINARY that indexed rows cannot hold, before any row is encoded.

    Servers strip zero bytes at the end of CHAR(n) and BINARY(n), as they take them for padding.

    Raises SchemaMismatchError, naming table, column and row.
    """
    for column in columns:
        t = column.type
        if t.root not in (TypeRoot.CHAR, TypeRoot.BINARY):
            continue
        values = data.column(column.name).cast(pa.binary())
        long = pc.greater(pc.binary_length(values), t.length or 0)
        bad = pc.or_(long, pc.ends_with(values, "\0"))
        if pc.any(bad).as_py():
            row = pc.index(bad, True).as_py()
            what = (
                f"the text in row {row} takes more than {t.length} bytes of UTF-8, or ends with a"
                " zero character"
                if t.root is TypeRoot.CHAR
                else f"the value in row {row} ends with a zero byte"
            )
            raise SchemaMismatchError(
                f"table {table}, column '{column.name}' ({t}): {what}: indexed rows cannot hold it,"
                " compacted ones can"
            )

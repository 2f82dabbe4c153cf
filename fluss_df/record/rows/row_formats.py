"""The row formats by the names that table properties have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.rows import compacted, indexed
from fluss_df.types import Column, TypeRoot

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
        t = column.type
        if t.root is not TypeRoot.TIME_WITHOUT_TIME_ZONE or (t.precision or 0) <= 3:
            continue
        values = data.column(column.name)
        whole = pc.equal(values, values.cast(pa.time32("ms"), safe=False))
        if pc.all(whole).as_py() is False:
            raise SchemaMismatchError(
                f"table {table}, column '{column.name}' ({t}): its rows hold times in whole"
                " milliseconds (primary-key tables and the log formats indexed and compacted do):"
                " round them first"
            )


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

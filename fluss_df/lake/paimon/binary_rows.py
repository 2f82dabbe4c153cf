"""Values of Paimon's binary rows, which manifests have for partitions, keys and statistics.

A row begins with its number of fields (4 bytes, big-endian). Then come a byte for the row kind and
a bit for each field, which is 1 where the field is null. Both together are padded to a multiple of
8 bytes. Then come 8 bytes for each field, little-endian. A value that needs more stands behind the
fields. Its field has ``offset << 32 | length``, and the offset is counted from the row kind. For a
precise TIMESTAMP, the low half has the nanoseconds of the millisecond in place of a length.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any, Final

from fluss_df.lake.paimon.types import FieldType

# decimals of no more digits, and times of no more digits of a second, stand in the field itself
LONGEST_COMPACT_DECIMAL: Final = 18
MILLISECONDS: Final = 3
FIXED: Final = {
    "BOOLEAN": "<?",
    "TINYINT": "<b",
    "SMALLINT": "<h",
    "INT": "<i",
    "INTEGER": "<i",
    "BIGINT": "<q",
    "FLOAT": "<f",
    "DOUBLE": "<d",
    "DATE": "<i",
    "TIME": "<i",
}
TEXTS: Final = frozenset({"CHAR", "VARCHAR", "STRING"})
BYTES: Final = frozenset({"BINARY", "VARBINARY", "BYTES"})
TIMES: Final = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ"})


def value_at(row: bytes, position: int, kind: FieldType) -> Any:
    """Return a value of a row, None for null.

    A DATE is a whole number of days since 1970, a TIME of milliseconds, a TIMESTAMP of nanoseconds
    since 1970. Other values are as Python has them.

    Raises ValueError for a type that is not read, as nested ones, or a row that is too short.
    """
    try:
        (arity,) = struct.unpack_from(">i", row)
        if not 0 <= position < arity:
            raise ValueError(f"a row of {arity} fields has none at {position}")
        bit = 8 + position
        if row[4 + bit // 8] >> bit % 8 & 1:
            return None
        at = 4 + (arity + 63 + 8) // 64 * 8 + 8 * position
        if kind.root in FIXED:
            return struct.unpack_from(FIXED[kind.root], row, at)[0]
        if kind.root in TEXTS:
            return _bytes_at(row, at).decode()
        if kind.root in BYTES:
            return _bytes_at(row, at)
        if kind.root == "DECIMAL":
            if kind.precision <= LONGEST_COMPACT_DECIMAL:
                unscaled = struct.unpack_from("<q", row, at)[0]
            else:
                unscaled = int.from_bytes(_bytes_at(row, at, compact=False), "big", signed=True)
            sign, digits, _ = Decimal(unscaled).as_tuple()
            return Decimal((sign, digits, -kind.scale))
        if kind.root in TIMES:
            if kind.precision <= MILLISECONDS:
                return struct.unpack_from("<q", row, at)[0] * 1_000_000
            (found,) = struct.unpack_from("<Q", row, at)
            (millis,) = struct.unpack_from("<q", row, 4 + (found >> 32))
            return millis * 1_000_000 + (found & 0xFFFFFFFF)
    except (struct.error, IndexError) as error:
        raise ValueError(f"a row of {len(row)} bytes is cut off: {error}") from error
    raise ValueError(f"no values of type {kind.root} in rows")


def _bytes_at(row: bytes, at: int, *, compact: bool = True) -> bytes:
    (field,) = struct.unpack_from("<Q", row, at)
    if compact and field >> 63:
        # up to seven bytes stand in the field itself
        return row[at : at + (field >> 56 & 0x7F)]
    start, length = 4 + (field >> 32), field & 0xFFFFFFFF
    if start + length > len(row):
        raise ValueError(f"a row of {len(row)} bytes is cut off")
    return row[start : start + length]

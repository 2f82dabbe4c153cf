"""One row as an Arrow message: what Arrow's writer does for many, without what it costs at least.

To make arrays of one item each, and to have them compressed and framed, takes 0.2 ms. But for a few
numbers the message of a single row is the same for all rows of a table: so one is made by Arrow,
and then gets its numbers and its body replaced. Everything here is for plain values only and gives
up (None) on all others: the vectorised codecs are asked then, and have the errors.

Buffers stand in the message as they are, also where the table compresses: short ones only grow by
it. Arrow's format has a mark for those.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from fluss_df.record.layout.flat_table import FlatTable
from fluss_df.record.log.cut import NOT_COMPRESSED
from fluss_df.record.log.log_batch import Compression, arrow_message
from fluss_df.record.rows.single_numbers import EPOCH_DAY, Number, since_epoch_of, unscaled_of
from fluss_df.types import Column, DataType, TypeRoot, arrow_schema

_R = TypeRoot
# longer values are worth compressing
_LONGEST: Final = 1024
_PADDING: Final = tuple(bytes(size) for size in range(8))
_NULL_BIT: Final = b"\0"
_OFFSETS: Final = struct.Struct("<ii")
_INT32: Final = struct.Struct("<i")

# the buffers of a value, which stand behind its validity bits
Buffers = tuple[bytes, ...]
Encode = Callable[[Any], Buffers | None]


# ---- values


def _number(size: int, number: Number) -> Encode:
    def encode(value: Any) -> Buffers | None:
        found = number(value)
        return None if found is None else (found.to_bytes(size, "little", signed=True),)

    return encode


def _integer(size: int) -> Encode:
    # what does not fit raises OverflowError
    return _number(size, lambda value: value if type(value) is int else None)


def _floating(form: str) -> Encode:
    pack = struct.Struct(form).pack

    def encode(value: Any) -> Buffers | None:
        # a NaN has payload bits, which Python does not keep
        return (pack(value),) if type(value) is float and value == value else None

    return encode


def _bool(value: Any) -> Buffers | None:
    return (bytes((value,)),) if type(value) is bool else None


def _sized(raw: bytes) -> Buffers | None:
    return (_OFFSETS.pack(0, len(raw)), raw) if len(raw) <= _LONGEST else None


def _text(value: Any) -> Buffers | None:
    return _sized(value.encode()) if type(value) is str else None


def _binary(value: Any) -> Buffers | None:
    return _sized(value) if type(value) is bytes else None


def _days(value: Any) -> int | None:
    return value.toordinal() - EPOCH_DAY if type(value) is dt.date else None


# by type: what makes the encoder of its values, and the buffers of a null
_PLAIN: Final[Mapping[TypeRoot, tuple[Callable[[DataType], Encode], Buffers]]] = {
    _R.BOOLEAN: (lambda _: _bool, (bytes(1),)),
    _R.TINYINT: (lambda _: _integer(1), (bytes(1),)),
    _R.SMALLINT: (lambda _: _integer(2), (bytes(2),)),
    _R.INTEGER: (lambda _: _integer(4), (bytes(4),)),
    _R.BIGINT: (lambda _: _integer(8), (bytes(8),)),
    _R.FLOAT: (lambda _: _floating("<f"), (bytes(4),)),
    _R.DOUBLE: (lambda _: _floating("<d"), (bytes(8),)),
    _R.STRING: (lambda _: _text, (bytes(8), b"")),
    _R.BYTES: (lambda _: _binary, (bytes(8), b"")),
    _R.DATE: (lambda _: _number(4, _days), (bytes(4),)),
    _R.DECIMAL: (lambda t: _number(16, unscaled_of(t)), (bytes(16),)),
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: (lambda t: _number(8, since_epoch_of(t)), (bytes(8),)),
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: (lambda t: _number(8, since_epoch_of(t)), (bytes(8),)),
}


# ---- messages


class _Template:
    """The metadata of the message of any one row, and where its numbers stand."""

    def __init__(self, message: bytes) -> None:
        size = 8 + _INT32.unpack_from(message, 4)[0]
        self._metadata = message[:size]
        metadata = memoryview(message)[8:size]
        table = FlatTable(metadata, _INT32.unpack_from(metadata)[0])
        batch, length_at = table.table(2), table.place(3)
        assert batch is not None
        assert length_at is not None
        self._length_at = 8 + length_at
        self._nodes_at, self._nodes = self._vector(batch, 1)
        self._places_at, self._places = self._vector(batch, 2)

    @staticmethod
    def _vector(batch: FlatTable, field: int) -> tuple[int, struct.Struct]:
        """Return where a vector of pairs of int64 stands, behind its length, and its form."""
        at = batch.target(field)
        assert at is not None
        return 8 + at + 4, struct.Struct(f"<{2 * len(batch.pairs(field))}q")

    def filled(self, nodes: Sequence[int], places: Sequence[int], length: int) -> bytes:
        """Return the metadata with row and null counts, places of buffers, length of the body."""
        metadata = bytearray(self._metadata)
        self._nodes.pack_into(metadata, self._nodes_at, *nodes)
        self._places.pack_into(metadata, self._places_at, *places)
        metadata[self._length_at : self._length_at + 8] = length.to_bytes(8, "little")
        return bytes(metadata)


def arrow_row_encoder(
    columns: Sequence[Column], compression: Compression
) -> Callable[[Sequence[Any]], bytes | None] | None:
    """Return what makes the Arrow message of one row; None where that takes Arrow's writer.

    Examples
    --------
    >>> encode = arrow_row_encoder([Column("id", DataType(TypeRoot.BIGINT))], Compression())
    >>> type(encode([300])), encode(["no number"])
    (<class 'bytes'>, None)
    """
    if not columns:
        return None  # its message lacks the length of a body, which the template is to hold
    encoders: list[tuple[Encode, bool, Buffers]] = []
    for column in columns:
        make, of_null = _PLAIN.get(column.type.root, (None, ()))
        encode_value = None if make is None else make(column.type)
        if encode_value is None:
            return None
        encoders.append((encode_value, column.type.nullable, (_NULL_BIT, *of_null)))
    schema = arrow_schema(columns)
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    template = _Template(arrow_message(row, compression).to_pybytes())
    mark = b"" if compression.codec == "none" else NOT_COMPRESSED

    def encode(values: Sequence[Any]) -> bytes | None:
        nodes: list[int] = []
        places: list[int] = []
        body = [b""]
        length = 0
        for (encode_value, nullable, of_null), value in zip(encoders, values, strict=True):
            buffers: Buffers
            if value is None:
                if not nullable:
                    return None
                nodes += (1, 1)
                buffers = of_null
            else:
                try:
                    found = encode_value(value)
                except (UnicodeEncodeError, OverflowError):
                    return None
                if found is None:
                    return None
                nodes += (1, 0)
                buffers = (b"", *found)
            for data in buffers:
                size = len(data) + len(mark) if data else 0
                places += (length, size)
                if size:
                    body += (mark, data, _PADDING[-size % 8])
                    length += size + -size % 8
        body[0] = template.filled(nodes, places, length)
        return b"".join(body)

    return encode

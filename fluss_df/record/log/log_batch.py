"""Log batches out of Arrow record batches, ready to be sent.

Only append-only batches are written: the change types of a primary-key table are the server's to
write. They are of magic 0, which every server reads, unless they have statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.layout.headers import (
    APPEND_ONLY,
    CRC_START,
    HEADER_SIZE,
    NO_SEQUENCE,
    NO_WRITER_ID,
    OVERHEAD,
)
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.record.log.cut import uncompressed
from fluss_df.record.log.statistics import encode_statistics
from fluss_df.types import Column

Codec = Literal["none", "lz4_frame", "zstd"]

_HEADER: Final = struct.Struct("<qiBqIhBiqii")
_STATISTICS_LENGTH: Final = struct.Struct("<i")
_CRC_AT: Final = 21
_WRITER_AT: Final = 32
_TYPE_KEY: Final = "table.log.arrow.compression.type"
# Rows of up to this number of bytes, or of this for each column, are not compressed,
# also where the table compresses by zstd: each buffer costs its reader 10 to 20 us to decompress,
# however short it is. LZ4 costs no more than to leave the buffers as they are.
_SMALL: Final = 4096
_SMALL_COLUMN: Final = 128
# the number of zstd in Arrow's format
_ZSTD: Final = 1
_LEVEL_KEY: Final = "table.log.arrow.compression.zstd.level"


@dataclass(frozen=True, slots=True)
class Compression:
    """How the buffers of a batch are compressed; ``level`` (1 to 22) is zstd's.

    Examples
    --------
    >>> Compression.from_properties({})
    Compression(codec='zstd', level=3)
    """

    codec: Codec = "zstd"
    level: int | None = 3

    def __post_init__(self) -> None:
        if self.codec not in ("none", "lz4_frame", "zstd"):
            raise FlussError(
                f"compression {self.codec!r}: it is none, lz4_frame or zstd",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        if self.codec != "zstd":
            object.__setattr__(self, "level", None)
        elif self.level is None:
            object.__setattr__(self, "level", 3)
        elif not 1 <= self.level <= 22:
            raise FlussError(
                f"{_LEVEL_KEY} is {self.level}: a zstd level is between 1 and 22",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Compression:
        """Return what a table's properties ask for; without any, zstd at level 3.

        Raises ``INVALID_CONFIG_EXCEPTION`` for an unknown type or a level out of range.
        """
        name = properties.get(_TYPE_KEY, "ZSTD").lower()
        text = properties.get(_LEVEL_KEY, "3")
        try:
            level = int(text)
        except ValueError:
            raise FlussError(
                f"{_LEVEL_KEY} is {text!r}, not a number", ErrorCode.INVALID_CONFIG_EXCEPTION
            ) from None
        return cls(name, level)  # type: ignore[arg-type]

    def options(self) -> pa.ipc.IpcWriteOptions:
        """Return Arrow's write options; one thread, as callers encode in threads of their own."""
        codec = None
        if self.codec == "zstd":
            codec = pa.Codec("zstd", compression_level=self.level)
        elif self.codec == "lz4_frame":
            codec = pa.Codec("lz4")
        return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


class EncodedLogBatch(StampedBatch):
    """A log batch as it is sent: 48 bytes of header, and the Arrow message or records."""

    __slots__ = ()

    _crc_at = _CRC_AT
    _crc_start = CRC_START
    _writer_at = _WRITER_AT


def encode_log_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int,
    compression: Compression,
    statistics: Sequence[Column] = (),
) -> EncodedLogBatch:
    """Encode rows as an append-only log batch: of magic 0, or of 1 with statistics.

    Thread safe; Arrow compresses without the GIL. The rows must have the table's Arrow types in the
    table's order (:func:`fluss_df.record.python.coerce.coerce` sees to that). There has to be at
    least one row, as servers ignore a batch without rows. Rows of at most 4 KiB are not compressed
    by zstd: the message of such a batch says so for each buffer. ``statistics`` are the columns
    that the batch gets statistics of; for servers from 1.0 on.

    Raises FlussError for no rows, or a batch that does not fit the 2 GiB that the length field can
    say.
    """
    known = encode_statistics(batch, statistics) if statistics else b""
    small = max(_SMALL, _SMALL_COLUMN * batch.num_columns)
    if compression.codec != "zstd" or batch.nbytes > small:
        message = arrow_message(batch, compression)
    else:
        plain = arrow_message(batch, Compression("none"))
        message = pa.py_buffer(uncompressed(memoryview(plain), _ZSTD))
    return log_batch(message, batch.num_rows, schema_id, known)


def arrow_message(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    """Return rows as Arrow writes them in a stream: metadata and buffers, without the schema."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=compression.options())
    writer.write_batch(batch)
    # not closed: the message is wanted without an end of stream
    stream = sink.getvalue()
    head = np.frombuffer(stream, "<i4", 2)
    return stream.slice(8 + int(head[1]))


def log_batch(
    message: pa.Buffer, rows: int, schema_id: int, statistics: bytes = b""
) -> EncodedLogBatch:
    """Return the batch of rows that are encoded; see :func:`encode_log_batch`."""
    return EncodedLogBatch(log_header(schema_id, rows, message.size, statistics), message, rows)


def log_header(schema_id: int, rows: int, body_size: int, statistics: bytes = b"") -> bytearray:
    """Return the header of an append-only batch, without writer and sequence.

    Raises FlussError for no rows, or more bytes than the length field can say.
    """
    if not rows:
        raise FlussError("a log batch needs at least one row")
    if not 0 <= schema_id < 2**15:
        raise FlussError(f"schema id {schema_id} does not fit a log batch")
    behind = _STATISTICS_LENGTH.pack(len(statistics)) + statistics if statistics else b""
    length = HEADER_SIZE + len(behind) + body_size - OVERHEAD
    if length >= 2**31:
        raise FlussError(
            f"a batch of {body_size} bytes is larger than a log batch can be: send fewer rows",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    header = bytearray(HEADER_SIZE)
    magic = 1 if statistics else 0
    writer = (NO_WRITER_ID, NO_SEQUENCE)
    _HEADER.pack_into(
        header, 0, 0, length, magic, 0, 0, schema_id, APPEND_ONLY, rows - 1, *writer, rows
    )
    return header + behind

"""Writer id, sequence and checksum, which log batches and kv batches get when they are sent."""

from __future__ import annotations

import struct
from typing import ClassVar, Final

import google_crc32c
import pyarrow as pa

from fluss_df.record.layout.headers import byte_view

_CRC: Final = struct.Struct("<I")
_WRITER: Final = struct.Struct("<qi")


class StampedBatch:
    """A batch in the form that is sent, once :meth:`stamp` gave it writer and checksum.

    ``nbytes`` counts the header too.
    """

    __slots__ = ("_body", "_header", "nbytes", "num_rows")

    # where in the header the checksum is, where what it covers begins, and where the writer is
    _crc_at: ClassVar[int]
    _crc_start: ClassVar[int]
    _writer_at: ClassVar[int]

    def __init__(self, header: bytearray, body: pa.Buffer, num_rows: int) -> None:
        self._header = header
        self._body = body
        self.num_rows = num_rows
        self.nbytes = len(header) + body.size

    def stamp(self, writer_id: int, sequence: int) -> None:
        """Write the writer and the sequence, and the CRC32C over them; may be called again.

        Both are -1 where the writer is not idempotent.
        """
        header = bytearray(self._header)
        _WRITER.pack_into(header, self._writer_at, writer_id, sequence)
        crc = google_crc32c.value(bytes(header[self._crc_start :]))
        _CRC.pack_into(header, self._crc_at, google_crc32c.extend(crc, self._body))
        # a new header, so that a send under way with the old stamp keeps its bytes
        self._header = header

    @property
    def buffers(self) -> list[memoryview]:
        """The bytes in order, without a copy: the header, then what follows it."""
        return [memoryview(self._header), byte_view(self._body)]

    def to_bytes(self) -> bytes:
        """Return a copy of the whole batch."""
        return b"".join(self.buffers)

"""Key-value batches: changes of a primary-key table as they are put."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.bytes_columns import Field, Keys, as_array, concat, fixed, of_numbers, varint
from fluss_df.record.keys import compacted, encode_keys
from fluss_df.types import Column, TypeRoot

# length, magic, crc, schema id, attributes, writer id, sequence, count
_HEADER: Final = struct.Struct("<ibIhbqii")
_CRC_AT: Final = 5
_CRC_START: Final = 9
_WRITER: Final = struct.Struct("<qi")
_WRITER_AT: Final = 12
_NESTED: Final = frozenset({TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})

EncodedRows = Keys


class EncodedKvBatch:
    """A key-value batch in the form that is sent, once :meth:`stamp` was called.

    Attributes
    ----------
    num_rows
        Its changes.
    nbytes
        Its bytes, header included.
    """

    __slots__ = ("_body", "_header", "nbytes", "num_rows")

    def __init__(self, header: bytearray, body: npt.NDArray[np.uint8], num_rows: int) -> None:
        self._header = header
        self._body = body
        self.num_rows = num_rows
        self.nbytes = len(header) + len(body)

    def stamp(self, writer_id: int, sequence: int) -> None:
        """Write the writer and the sequence, and the CRC32C over them; may be called again.

        Parameters
        ----------
        writer_id, sequence
            -1 and -1 where the writer is not idempotent.
        """
        header = bytearray(self._header)
        _WRITER.pack_into(header, _WRITER_AT, writer_id, sequence)
        crc = google_crc32c.value(bytes(header[_CRC_START:]))
        struct.pack_into("<I", header, _CRC_AT, google_crc32c.extend(crc, self._body))
        # a new one, so that a send under way with the old stamp keeps its bytes
        self._header = header

    @property
    def buffers(self) -> list[memoryview]:
        """The bytes in order, without a copy."""
        return [memoryview(self._header), self._body.data]

    def to_bytes(self) -> bytes:
        """Return a copy of the whole batch."""
        return b"".join(self.buffers)


class KvEncoder:
    """Encodes changes of one table; immutable and thread safe.

    Parameters
    ----------
    schema_id
        The id of the table's schema.
    columns
        The table's columns.
    key_columns
        The names of the columns that name a row within its partition.
    kv_format
        The table's ``table.kv.format``; ``"compacted"`` only.
    target_columns
        The columns of a partial update; the others are null in what is sent. None for all.
    lake_format
        How keys are encoded, see :func:`fluss_df.record.keys.encode_keys`.
    """

    def __init__(
        self,
        schema_id: int,
        columns: Sequence[Column],
        key_columns: Sequence[str],
        *,
        kv_format: str = "compacted",
        target_columns: Sequence[str] | None = None,
        lake_format: str | None = None,
    ) -> None:
        if kv_format != "compacted":
            raise FlussError(
                f"the kv format '{kv_format}' cannot be written", ErrorCode.UNSUPPORTED_VERSION
            )
        by_name = {column.name: column for column in columns}
        self._schema_id = schema_id
        self._columns = columns
        self._keys = [by_name[name] for name in key_columns]
        self._targets = set(by_name if target_columns is None else target_columns)
        self._lake_format = lake_format
        for column in columns:
            if column.type.root in _NESTED and column.name in self._targets:
                raise FlussError(
                    f"column '{column.name}' of type {column.type} cannot be written to a"
                    " primary-key table",
                    ErrorCode.UNSUPPORTED_VERSION,
                )

    def keys(self, table: pa.Table) -> EncodedRows:
        """Return the key of each row."""
        return encode_keys(
            [table.column(column.name) for column in self._keys],
            [column.type for column in self._keys],
            self._lake_format,
            names=[column.name for column in self._keys],
        )

    def encode(
        self, table: pa.Table, deletes: npt.NDArray[np.bool_] | bool | None = None
    ) -> EncodedKvBatch:
        """Encode changes as a batch.

        Parameters
        ----------
        table
            The rows: the target columns, or for deletes those of the key, with the table's Arrow
            types.
        deletes
            Which of the rows are deletes.

        Raises
        ------
        FlussError
            For no rows, or a batch that does not fit its length field.
        """
        n = table.num_rows
        if not n:
            raise FlussError("a key-value batch needs at least one row")
        alive = np.ones(n, np.bool_)
        if deletes is not None:
            alive = ~np.broadcast_to(np.asarray(deletes, np.bool_), n)
        keys = self.keys(table)
        key_lengths = np.diff(keys.offsets)
        row = self._row(table, alive)
        size = varint(key_lengths, 32)
        total = size.lengths + key_lengths
        for field in row:
            total = total + field.lengths
        head = of_numbers(total.astype("<i4"))
        key = Field(keys.data[: keys.offsets[-1]], key_lengths)
        body = concat([head, size, key, *row], n).data
        if _HEADER.size + len(body) >= 2**31:
            raise FlussError(
                f"a batch of {len(body)} bytes is larger than a batch can be: send fewer rows",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        header = bytearray(_HEADER.size)
        length = _HEADER.size - 4 + len(body)
        _HEADER.pack_into(header, 0, length, 0, 0, self._schema_id, 0, -1, -1, n)
        return EncodedKvBatch(header, body, n)

    def _row(self, table: pa.Table, alive: npt.NDArray[np.bool_]) -> list[Field]:
        """Return the fields of compacted rows, empty where there is no row."""
        n = table.num_rows
        bits = np.zeros((n, -(-len(self._columns) // 8)), np.uint8)
        fields: list[Field] = []
        for i, column in enumerate(self._columns):
            if column.name not in self._targets:
                bits[:, i >> 3] |= np.uint8(1 << (i & 7))
                continue
            array = as_array(table.column(column.name))
            present = alive
            if array.null_count:
                valid = array.is_valid().to_numpy(zero_copy_only=False)
                bits[~valid, i >> 3] |= np.uint8(1 << (i & 7))
                present = alive & valid
            if not present.all():
                array = pc.filter(array, pa.array(present))
            fields += [_spread(field, present) for field in compacted(array, column.type)]
        return [_spread(fixed(bits[alive]), alive), *fields]


def _spread(field: Field, present: npt.NDArray[np.bool_]) -> Field:
    """Return a field of all rows out of one of some of them."""
    if present.all():
        return field
    lengths = np.zeros(len(present), np.int64)
    lengths[present] = field.lengths
    return Field(field.data, lengths)

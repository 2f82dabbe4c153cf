"""Columns cut out of log batches as they are stored, without decoding them.

A batch holds one Arrow message: metadata that lists the buffers of all columns, and a body with
these buffers. A projection keeps some of the buffers and writes new metadata; the buffers stay
compressed, and are handed on as slices. The metadata is a flatbuffer of a fixed shape, read and
written here by hand: it takes a few microseconds where building it by a library takes many.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss_df.errors import ProtocolError
from fluss_df.record.layout.flat_table import FlatTable

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_V5: Final = 4

# root; vtable and table of Message; of RecordBatch; of BodyCompression; length of the nodes
_METADATA: Final = struct.Struct(
    "<I"
    "HHHHHH"  # vtable of Message at 4
    "iIqhBx"  # Message at 16
    "HHHHHH"  # vtable of RecordBatch at 36
    "iIqII"  # RecordBatch at 48
    "HHHH"  # vtable of BodyCompression at 72
    "ibbxx"  # BodyCompression at 80
    "xxxxI"  # nodes at 92
)
_NODES_AT: Final = 92
_PADDING: Final = bytes(8)
_VALIDITY: Final = -1
_OFFSETS: Final = 1
# how many bytes of metadata a message may have besides its nodes and buffers
_MORE_METADATA: Final = 64 << 10
# the size that stands before a compressed buffer
_SIZE: Final = struct.Struct("<q")
# the bytes of a message besides its nodes, buffers and body
_CUT_HEAD: Final = 8 + _METADATA.size + 8


@dataclass(frozen=True, slots=True)
class ArrowMessage:
    """The metadata of one Arrow record batch, checked against its size.

    Attributes
    ----------
    rows
        Its number of rows.
    nodes, buffers
        (length, nulls) of each field, and (offset in the body, length) of each buffer, depth first.
    compression
        (codec, method) or None.
    body
        Where the body begins, as a position in the scanned bytes.
    """

    rows: int
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]
    compression: tuple[int, int] | None
    body: int


def read_message(
    data: memoryview, start: int, end: int, layout: ColumnLayout | None = None
) -> ArrowMessage:
    """Read the metadata of the Arrow message in ``data[start:end]``.

    ``layout`` has the columns that the message should have, where it may be hostile: more metadata
    than they need is not read.

    Raises ProtocolError when it is no record batch, or speaks of more than the bytes that are
    there.
    """
    try:
        first, second = struct.unpack_from("<II", data, start)
        prefix, size = (8, second) if first == _CONTINUATION else (4, first)
        body = start + prefix + size
        if size < 8 or body > end:
            raise struct.error("the metadata is longer than the message")
        if layout is not None and size > _MORE_METADATA + layout.metadata:
            raise struct.error(f"its metadata has {size:,} bytes")
        metadata = data[start + prefix : body]
        message = FlatTable(metadata, struct.unpack_from("<I", metadata)[0])
        batch = message.table(2)
        if message.number(1, "<B") != _RECORD_BATCH or batch is None:
            raise struct.error("it is no record batch")
        body_length = message.number(3, "<q")
        packed = batch.table(3)
        read = ArrowMessage(
            rows=batch.number(0, "<q"),
            nodes=batch.pairs(1),
            buffers=batch.pairs(2),
            compression=None
            if packed is None
            else (packed.number(0, "<b"), packed.number(1, "<b")),
            body=body,
        )
    except struct.error as error:
        raise ProtocolError(f"an Arrow message that cannot be read: {error}") from None
    if not 0 <= body_length <= end - body:
        raise ProtocolError(f"an Arrow message whose body of {body_length} bytes is not there")
    for offset, length in read.buffers:
        if offset < 0 or length < 0 or offset > body_length or length > body_length - offset:
            raise ProtocolError(f"an Arrow buffer at {offset} of {length} bytes is not in its body")
    for length, nulls in read.nodes:
        if length < 0 or not 0 <= nulls <= length:
            raise ProtocolError(f"an Arrow field of {length} rows with {nulls} nulls")
    return read


def decompressed_size(data: memoryview, message: ArrowMessage) -> int:
    """Return how many bytes the buffers of a message say that they have when decompressed.

    What a peer says may be wrong: :mod:`fluss_df.record.log.claims` compares it.
    """
    size = 0
    for offset, length in message.buffers:
        if message.compression is not None and length >= _SIZE.size:
            # -1 stands before a buffer that was left as it is
            claim = _SIZE.unpack_from(data, message.body + offset)[0]
            length = claim if claim >= 0 else length
        size += length
    return size


class ColumnLayout:
    """Where the nodes and buffers of each column of a schema stand in its messages.

    ``needs`` has, for each buffer: its node, the bits of an item, and what it is. That is 1 for
    offsets (one more than rows), -1 for the bits that say what is null, 0 for values.

    Examples
    --------
    >>> ColumnLayout(pa.schema([("a", pa.int32()), ("b", pa.string())])).buffers
    [0, 2, 5]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.nodes = [0]
        self.buffers = [0]
        self.needs: list[tuple[int, int, int]] = []
        for field in schema:
            nodes, buffers = _shape(field.type)
            self.needs += _needs(field.type, self.nodes[-1])
            self.nodes.append(self.nodes[-1] + nodes)
            self.buffers.append(self.buffers[-1] + buffers)
        self.columns = len(schema)
        # 16 bytes are a node or a buffer; a message may have twice that
        self.metadata = 32 * (self.nodes[-1] + self.buffers[-1])

    def check(self, message: ArrowMessage, rows: int) -> None:
        """Raise a ProtocolError where a message is not one of this schema, or has other rows."""
        if message.rows != rows:
            raise ProtocolError(f"an Arrow message of {message.rows} rows in a batch of {rows}")
        found = len(message.nodes), len(message.buffers)
        if found != (self.nodes[-1], self.buffers[-1]):
            raise ProtocolError(
                f"an Arrow message of {found[0]} fields and {found[1]} buffers, where the table's "
                f"columns have {self.nodes[-1]} and {self.buffers[-1]}"
            )


def _shape(kind: pa.DataType) -> tuple[int, int]:
    """Return how many nodes and buffers a column of a type has."""
    nodes, buffers = 1, 2
    if pa.types.is_struct(kind):
        buffers = 1
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        # fixed-size binary is another type
        buffers = 3
    for i in range(kind.num_fields):
        child = kind.field(i).type
        if pa.types.is_map(kind):
            # a map is a list of structs of its key and its item
            child = pa.struct([kind.key_field, kind.item_field])
        more_nodes, more_buffers = _shape(child)
        nodes += more_nodes
        buffers += more_buffers
        if pa.types.is_map(kind):
            break
    return nodes, buffers


_OFFSET_BITS: Final = 32


def _needs(kind: pa.DataType, node: int) -> list[tuple[int, int, int]]:
    """Return what the buffers of a column need, see :attr:`ColumnLayout.needs`."""
    needs = [(node, 1, _VALIDITY)]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # how many bytes there are of texts is known only when the offsets are read
        needs += [(node, _OFFSET_BITS, _OFFSETS), (node, 0, 0)]
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        needs.append((node, _OFFSET_BITS, _OFFSETS))
    elif not pa.types.is_struct(kind):
        needs.append((node, kind.bit_width, 0))
    node += 1
    for i in range(kind.num_fields):
        child = kind.field(i).type
        if pa.types.is_map(kind):
            child = pa.struct([kind.key_field, kind.item_field])
        needs += _needs(child, node)
        node += _shape(child)[0]
        if pa.types.is_map(kind):
            break
    return needs


def cut_columns(
    data: memoryview, start: int, end: int, layout: ColumnLayout, columns: Sequence[int]
) -> list[bytes | memoryview]:
    """Return the Arrow message in ``data[start:end]`` with some of its columns.

    ``columns`` are those wanted, ascending. Returns new metadata, then slices of ``data``: nothing
    of the body is copied.

    Raises ProtocolError when the message is not one of the layout.
    """
    message = read_message(data, start, end)
    layout.check(message, message.rows)
    nodes: list[int] = []
    buffers: list[int] = []
    body: list[bytes | memoryview] = []
    at = 0
    for column in columns:
        for length, nulls in message.nodes[layout.nodes[column] : layout.nodes[column + 1]]:
            nodes += (length, nulls)
        for offset, length in message.buffers[layout.buffers[column] : layout.buffers[column + 1]]:
            buffers += (at, length)
            if length:
                first = message.body + offset
                body.append(data[first : first + length])
                padding = -length % 8
                if padding:
                    body.append(_PADDING[:padding])
                at += length + padding
    return [_metadata(message, nodes, buffers, at), *body]


def cut_size(
    data: memoryview, start: int, end: int, layout: ColumnLayout, columns: Sequence[int]
) -> int:
    """Return the bytes of what :func:`cut_columns` returns, without columns that are not there."""
    message = read_message(data, start, end)
    layout.check(message, message.rows)
    size = _CUT_HEAD
    for column in columns:
        if column < layout.columns:
            buffers = message.buffers[layout.buffers[column] : layout.buffers[column + 1]]
            size += 16 * (layout.nodes[column + 1] - layout.nodes[column] + len(buffers))
            size += sum(length + -length % 8 for _, length in buffers)
    return size


def _metadata(message: ArrowMessage, nodes: list[int], buffers: list[int], body: int) -> bytes:
    nodes_end = _NODES_AT + 4 + 8 * len(nodes)
    packed = message.compression
    head = _METADATA.pack(
        16,
        *(12, 20, 16, 18, 4, 8),
        *(12, 48 - 20, body, _V5, _RECORD_BATCH),
        *(12, 24, 8, 4, 16, 20 if packed else 0),
        *(12, _NODES_AT - 52, message.rows, nodes_end + 4 - 64, 80 - 68),
        *(8, 6, 4, 5),
        *(8, *(packed or (0, 0))),
        len(nodes) // 2,
    )
    tail = struct.pack(f"<{len(nodes)}q4xI{len(buffers)}q", *nodes, len(buffers) // 2, *buffers)
    size = len(head) + len(tail)
    return struct.pack("<II", _CONTINUATION, size) + head + tail

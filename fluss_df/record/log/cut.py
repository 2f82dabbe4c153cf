"""Columns cut out of log batches as they are stored, without decoding them.

A batch holds one Arrow message: metadata that lists the buffers of all columns, and a body with
these buffers. A projection keeps some of the buffers and writes new metadata; the buffers stay
compressed, and are handed on as slices. The metadata is a flatbuffer of a fixed shape, read and
written here by hand: it takes a few microseconds where building it by a library takes many.
"""

from __future__ import annotations

import itertools
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
#: The mark in front of a buffer that is left as it is, in the place of its size.
NOT_COMPRESSED: Final = _SIZE.pack(-1)
# the method of compression: each buffer by itself
_BUFFERS: Final = 0
# what stands before the metadata: a mark, and its size
_PREFIX: Final = struct.Struct("<II")
# A cutter keeps the plans of this many messages, each of at most this many bytes. The metadata of
# longer messages rarely repeats: the lengths of compressed buffers differ.
_KEPT_PLANS: Final = 256
_KEPT_MESSAGE: Final = 8192


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

    ``layout`` is given for messages of peers that are not trusted: metadata far larger than its
    columns need is refused.

    Raises ProtocolError when it is no record batch, or speaks of more than the bytes that are
    there.
    """
    try:
        first, second = _PREFIX.unpack_from(data, start)
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

    ``needs`` has (node, bits of an item, kind) of each buffer. The kind is 1 for offsets, of which
    there is one more than rows, -1 for the validity bitmap, and 0 for values.

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
        # A node or a buffer takes 16 bytes of metadata. Twice that is allowed.
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


@dataclass(slots=True)
class _Plan:
    """What is cut out of messages that have the same metadata.

    ``buffers`` has (offset in the old body, length) of each buffer that is kept.
    """

    rows: int
    compression: tuple[int, int] | None
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]
    metadata: bytes | None = None

    def size(self) -> int:
        """Return the bytes of the new message."""
        body = sum(length + -length % 8 for _, length in self.buffers)
        return _CUT_HEAD + 16 * (len(self.nodes) + len(self.buffers)) + body

    def written(self) -> bytes:
        """Return the new metadata."""
        if self.metadata is None:
            at = 0
            places: list[tuple[int, int]] = []
            for _, length in self.buffers:
                places.append((at, length))
                at += length + -length % 8
            self.metadata = written_metadata(self.rows, self.nodes, places, self.compression, at)
        return self.metadata


class Cutter:
    """Cuts some columns out of Arrow messages of one schema.

    Messages with few rows often have equal metadata. It is parsed once, and its plan kept.
    ``columns`` are those wanted, ascending; what the schema lacks is left out.

    Examples
    --------
    >>> schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    >>> data = pa.record_batch([[1], [2]], schema=schema).serialize()
    >>> cutter = Cutter(ColumnLayout(schema), [1])
    >>> message = b"".join(cutter.cut(memoryview(data), 0, data.size))
    >>> pa.ipc.read_record_batch(message, pa.schema([schema.field(1)])).to_pydict()
    {'b': [2]}
    """

    def __init__(self, layout: ColumnLayout, columns: Sequence[int]) -> None:
        self._layout = layout
        self._columns = [column for column in columns if column < layout.columns]
        # (metadata, size of the body) -> (plan, where the body begins in the message)
        self._plans: dict[tuple[bytes, int], tuple[_Plan, int]] = {}

    def cut(self, data: memoryview, start: int, end: int) -> list[bytes | memoryview]:
        """Return the columns of the Arrow message in ``data[start:end]`` as a message.

        That is new metadata, then slices of ``data``: nothing of the body is copied.

        Raises ProtocolError when the message is not one of the layout.
        """
        plan, body = self._plan(data, start, end)
        parts: list[bytes | memoryview] = [plan.written()]
        for offset, length in plan.buffers:
            if length:
                parts.append(data[body + offset : body + offset + length])
                if length % 8:
                    parts.append(_PADDING[: -length % 8])
        return parts

    def size(self, data: memoryview, start: int, end: int) -> int:
        """Return the bytes of what :meth:`cut` returns; raises as it does."""
        return self._plan(data, start, end)[0].size()

    def _plan(self, data: memoryview, start: int, end: int) -> tuple[_Plan, int]:
        """Return the plan of a message, and where its body begins in the data."""
        if not _PREFIX.size <= end - start <= _KEPT_MESSAGE:
            return self._made(data, start, end)
        first, second = _PREFIX.unpack_from(data, start)
        size = 8 + second if first == _CONTINUATION else 4 + first
        if size > end - start:
            return self._made(data, start, end)
        key = bytes(data[start : start + size]), end - start - size
        found = self._plans.get(key)
        if found is None:
            plan, body = self._made(data, start, end)
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            found = self._plans[key] = plan, body - start
        return found[0], start + found[1]

    def _made(self, data: memoryview, start: int, end: int) -> tuple[_Plan, int]:
        layout = self._layout
        message = read_message(data, start, end)
        layout.check(message, message.rows)
        plan = _Plan(message.rows, message.compression, [], [])
        for column in self._columns:
            plan.nodes += message.nodes[layout.nodes[column] : layout.nodes[column + 1]]
            plan.buffers += message.buffers[layout.buffers[column] : layout.buffers[column + 1]]
        return plan, message.body


def written_metadata(
    rows: int,
    nodes: Sequence[tuple[int, int]],
    buffers: Sequence[tuple[int, int]],
    packed: tuple[int, int] | None,
    body: int,
) -> bytes:
    """Return the metadata of a message, as :class:`ArrowMessage` has it; of a body of that size."""
    nodes_end = _NODES_AT + 4 + 16 * len(nodes)
    head = _METADATA.pack(
        16,
        *(12, 20, 16, 18, 4, 8),
        *(12, 48 - 20, body, _V5, _RECORD_BATCH),
        *(12, 24, 8, 4, 16, 20 if packed else 0),
        *(12, _NODES_AT - 52, rows, nodes_end + 4 - 64, 80 - 68),
        *(8, 6, 4, 5),
        *(8, *(packed or (0, 0))),
        len(nodes),
    )
    form = f"<{2 * len(nodes)}q4xI{2 * len(buffers)}q"
    pairs = itertools.chain.from_iterable
    tail = struct.pack(form, *pairs(nodes), len(buffers), *pairs(buffers))
    size = len(head) + len(tail)
    return _PREFIX.pack(_CONTINUATION, size) + head + tail


def uncompressed(data: memoryview, codec: int) -> bytes:
    """Return an Arrow message without compression as one of compressed buffers; none of them is.

    Arrow has a mark for buffers that are left as they are. The message says which codec it is of,
    as others of its table do: servers go by that when they cut columns out.
    """
    message = read_message(data, 0, len(data))
    buffers: list[tuple[int, int]] = []
    parts: list[bytes | memoryview] = [b""]
    at = 0
    for offset, length in message.buffers:
        size = length + len(NOT_COMPRESSED) if length else 0
        buffers.append((at, size))
        if size:
            first = message.body + offset
            parts += (NOT_COMPRESSED, data[first : first + length], _PADDING[: -size % 8])
            at += size + -size % 8
    parts[0] = written_metadata(message.rows, message.nodes, buffers, (codec, _BUFFERS), at)
    return b"".join(parts)

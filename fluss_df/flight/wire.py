"""Messages of Flight as bytes: batches out with few copies, batches in with their limits."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError, Message

from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.refusals import invalid
from fluss_df.protocol.wire import encode_varint
from fluss_df.record.layout.flat_table import FlatTable

MessageT = TypeVar("MessageT", bound=Message)

_SQL: Final = "type.googleapis.com/arrow.flight.protocol.sql."
# the keys of the fields 2 and 1000 of FlightData
_HEADER: Final = b"\x12"
_BODY: Final = b"\xc2\x3e"
# limits rows, because a client can claim any number of rows without bytes, such as nulls
_MOST_ROWS: Final = 1 << 22
# the most bytes of a batch with its values written out, as a dictionary may have few bytes for many
_MOST_BYTES: Final = 256 << 20


def parse(kind: type[MessageT], data: bytes) -> MessageT:
    """Read a message.

    Raises RefusalError for bytes that are not such a message.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise invalid(f"the {name} cannot be read: it is no message of that form") from None


def unpacked(data: bytes) -> Message:
    """Return the command of Flight SQL in a descriptor, ticket or action.

    Raises RefusalError for bytes that are not a command.
    """
    packed = parse(pb.Packed, data)
    name = packed.type_url.removeprefix(_SQL)
    kind = getattr(pb, name, None) if packed.type_url.startswith(_SQL) else None
    if not isinstance(kind, type) or not issubclass(kind, Message):
        raise invalid(f"{packed.type_url[:80]!r} is no command of Flight SQL that there is here")
    return parse(kind, packed.value)


def packed(message: Message) -> bytes:
    """Return a message of Flight SQL with its name."""
    url = _SQL + message.DESCRIPTOR.name
    return pb.Packed(type_url=url, value=message.SerializeToString()).SerializeToString()


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as infos and results have it."""
    return bytes(schema.serialize())


def flight_data(message: Any) -> bytes:
    """Return a message of Arrow's IPC, as ``serialize()`` gives it, as one of Flight."""
    return _flight_data([memoryview(message)])


def _flight_data(parts: list[memoryview]) -> bytes:
    """Return a message of Arrow's IPC, in parts, as one of Flight: its body is copied once."""
    # the length comes after four bytes that are always the same
    (length,) = struct.unpack_from("<i", _taken(parts, 8), 4)
    header = _taken(parts, length)
    size = sum(map(len, parts))
    message: list[bytes | memoryview] = [_HEADER, encode_varint(length), header]
    if size:
        message += [_BODY, encode_varint(size), *parts]
    return b"".join(message)


def _taken(parts: list[memoryview], size: int) -> bytes:
    """Take the first bytes of parts away, and return them."""
    taken = b""
    while len(taken) < size:
        part = parts.pop(0)
        wanted = size - len(taken)
        taken += part[:wanted]
        if len(part) > wanted:
            parts.insert(0, part[wanted:])
    return taken


class _Written(io.RawIOBase):
    """Takes what Arrow writes, as it is given, without copying it."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(memoryview(data))
        return len(data)


def stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Return the messages of a schema and its batches."""
    begin = schema.serialize()
    yield flight_data(begin)
    written = _Written()
    with pa.ipc.new_stream(pa.PythonFile(written, mode="w"), schema) as writer:
        # the writer writes the schema together with its first batch
        behind = len(begin)
        for batch in batches:
            writer.write_batch(batch)
            parts, written.parts = written.parts, []
            _taken(parts, behind)
            behind = 0
            yield _flight_data(parts)


class _Source(io.RawIOBase):
    """A stream of Arrow's IPC, made of the messages of a client as they are asked for.

    What is read at once ends with its message, whatever length a header claims: nothing is
    gathered, or made room for, that did not come.
    """

    def __init__(self, first: pb.FlightData, messages: Iterator[bytes]) -> None:
        self._first: pb.FlightData | None = first
        self._messages = messages
        self._parts: list[memoryview] = []

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._parts:
            if self._first is not None:
                data, self._first = self._first, None
            else:
                message = next(self._messages, None)
                if message is None:
                    return b""
                data = parse(pb.FlightData, message)
            self._take(data)
        part = self._parts.pop(0)
        if size < 0 or size >= len(part):
            return bytes(part)
        self._parts.insert(0, part[size:])
        return bytes(part[:size])

    def _take(self, data: pb.FlightData) -> None:
        header, body = data.data_header, data.data_body
        if not header:
            if body:
                raise invalid("a batch has a body and no header")
            return  # a message with the application's metadata alone
        if is_compressed(header):
            raise invalid("compressed batches are not taken: send them as they are")
        padding = -len(header) % 8
        begin = struct.pack("<Ii", 0xFFFFFFFF, len(header) + padding)
        self._parts = [memoryview(begin + header + bytes(padding))]
        if body:
            self._parts.append(memoryview(body))


def is_compressed(header: bytes) -> bool:
    """Whether the metadata of a record batch says that its body is compressed.

    A few bytes would become as many as they claim.
    """
    try:
        message = FlatTable(memoryview(header), struct.unpack_from("<I", header)[0])
        kind = message.place(1)
        batch = message.table(2)
        # 2 is a dictionary batch, which has the record batch within; 3 is a record batch
        if kind is not None and header[kind] == 2 and batch is not None:
            batch = batch.table(1)
        elif kind is None or header[kind] != 3:
            return False
        return batch is not None and batch.place(3) is not None
    except (struct.error, IndexError):
        raise invalid("the header of a batch cannot be read") from None


class Upload:
    """The batches that a client sends after the first message, which has their schema.

    Raises RefusalError for what is no stream of Arrow's IPC.
    """

    def __init__(self, first: pb.FlightData, messages: Iterator[bytes]) -> None:
        source = pa.PythonFile(_Source(first, messages), mode="r")
        with _unreadable():
            self._reader = pa.ipc.open_stream(source)
        self.schema: pa.Schema = self._reader.schema
        for field in self.schema:
            _require_taken(field.type, field.name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            with _unreadable():
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    return
                if batch.num_rows > _MOST_ROWS:
                    raise invalid(
                        f"a batch has {batch.num_rows:,} rows: send at most {_MOST_ROWS:,} at once"
                    )
                batch.validate(full=True)
            size = sum(map(written_out, batch.columns))
            if size > _MOST_BYTES:
                raise invalid(
                    f"a batch has {size:,} bytes when its values are written out: send at most"
                    f" {_MOST_BYTES >> 20} MB at once"
                )
            yield batch


def _require_taken(kind: pa.DataType, name: str) -> None:
    """Raise for types by which values share bytes, and which tables of Fluss do not take."""
    taken = kind
    if pa.types.is_dictionary(kind):
        taken = kind.value_type
        if taken.num_fields or pa.types.is_dictionary(taken):
            raise _untaken(kind, name)
    shared = pa.types.is_run_end_encoded(taken) or pa.types.is_union(taken)
    if shared or pa.types.is_list_view(taken) or pa.types.is_large_list_view(taken):
        raise _untaken(kind, name)
    for number in range(taken.num_fields):
        _require_taken(taken.field(number).type, name)


def _untaken(kind: pa.DataType, name: str) -> Exception:
    return invalid(f"column '{name}' is {kind}, which is not taken: send plain values")


def written_out(array: pa.Array) -> int:
    """Return how many bytes values take that do not share any."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return len(array) * _width(kind.value_type)
        # the length of each value to which an index refers
        lengths = _lengths(array.dictionary)
        return int(lengths[array.indices.drop_null().to_numpy(zero_copy_only=False)].sum())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return int(_lengths(array).sum())
    if isinstance(kind, pa.BaseExtensionType):
        return written_out(array.storage)
    if pa.types.is_struct(kind):
        return sum(written_out(array.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return written_out(array.keys) + written_out(array.items)
    if kind.num_fields:
        return written_out(array.values)
    return int(array.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    of = pa.types
    views = of.is_string_view(kind) or of.is_binary_view(kind)
    large = of.is_large_string(kind) or of.is_large_binary(kind)
    return bool(views or large or of.is_string(kind) or of.is_binary(kind))


def _width(kind: pa.DataType) -> int:
    return 0 if pa.types.is_null(kind) else -(-int(kind.bit_width) // 8)


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return how long texts, or binary values, are."""
    kind = values.type
    found: npt.NDArray[np.int64]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # each view begins with the length; that of a null may be any number
        views = np.frombuffer(values.buffers()[1], np.int32)[::4]
        found = views[values.offset : values.offset + len(values)].astype(np.int64)
        found *= values.is_valid().to_numpy(zero_copy_only=False)
    else:
        found = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return found


class _unreadable:  # noqa: N801 - it is used as a function
    """Makes a refusal of what Arrow says of bytes."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Arrow raises OSError when it cannot read bytes
        if isinstance(error, pa.ArrowException | OSError):
            cause = error.__cause__
            if isinstance(cause, BaseException) and not isinstance(cause, pa.ArrowException):
                raise cause from None
            raise invalid(f"the rows cannot be read: {str(error)[:200]}") from None

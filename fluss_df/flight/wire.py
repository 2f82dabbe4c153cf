"""Messages of Flight as bytes: batches out with few copies, batches in with their limits."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.refusals import invalid

MessageT = TypeVar("MessageT", bound=Message)

_SQL: Final = "type.googleapis.com/arrow.flight.protocol.sql."
# fields 2 and 1000 of FlightData
_HEADER: Final = b"\x12"
_BODY: Final = b"\xc2\x3e"
# rows without bytes, as those of nulls, cost nothing to claim
_MOST_ROWS: Final = 1 << 22


def parse(kind: type[MessageT], data: bytes) -> MessageT:
    """Read a message.

    Raises
    ------
    RefusalError
        For other bytes.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise invalid(f"the {name} cannot be read: it is no message of that form") from None


def unpacked(data: bytes) -> Message:
    """Return the command of Flight SQL in a descriptor, ticket or action.

    Raises
    ------
    RefusalError
        For what is none.
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
    view = memoryview(message)
    (length,) = struct.unpack_from("<i", view, 4)
    header, body = view[8 : 8 + length], view[8 + length :]
    parts: list[Any] = [_HEADER, _varint(length), header]
    if len(body):
        parts += [_BODY, _varint(len(body)), body]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Return the messages of a schema and its batches."""
    yield flight_data(schema.serialize())
    for batch in batches:
        yield flight_data(batch.serialize())


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
            return  # metadata of the application alone
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
        message = _Table(header, struct.unpack_from("<I", header, 0)[0])
        kind = message.at(1)
        batch = message.table(2)
        # of a dictionary batch (2), the record batch is within; 3 is a record batch
        if kind is not None and header[kind] == 2 and batch is not None:
            batch = batch.table(1)
        elif kind is None or header[kind] != 3:
            return False
        return batch is not None and batch.at(3) is not None
    except (struct.error, IndexError):
        raise invalid("the header of a batch cannot be read") from None


class _Table:
    """A table of a flatbuffer: where its fields are."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - struct.unpack_from("<i", data, place)[0]
        if self._fields < 0:
            raise IndexError
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def at(self, field: int) -> int | None:
        """Return where a field is; None where it has no value."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._place + offset if offset else None

    def table(self, field: int) -> _Table | None:
        """Return a field that is a table."""
        place = self.at(field)
        if place is None:
            return None
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])


class Upload:
    """The batches that a client sends behind the first message.

    Attributes
    ----------
    schema
        Their columns.

    Raises
    ------
    RefusalError
        For what is no stream of Arrow's IPC.
    """

    def __init__(self, first: pb.FlightData, messages: Iterator[bytes]) -> None:
        source = pa.PythonFile(_Source(first, messages), mode="r")
        with _unreadable():
            self._reader = pa.ipc.open_stream(source)
        self.schema: pa.Schema = self._reader.schema

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
            yield batch


class _unreadable:  # noqa: N801 - it is used as a function
    """Makes a refusal of what Arrow says of bytes."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # of Arrow, errors of reading are those of the system
        if isinstance(error, pa.ArrowException | OSError):
            cause = error.__cause__
            if isinstance(cause, BaseException) and not isinstance(cause, pa.ArrowException):
                raise cause from None
            raise invalid(f"the rows cannot be read: {str(error)[:200]}") from None

"""Looks whether an Avro file of Iceberg is whole, before pyiceberg reads it.

The decoder of pyiceberg (0.12, ``decoder_fast.pyx``) trusts each length that a file has: where a
damaged one is too large, it reads memory that is not the file's, and the process may end with a
segmentation fault. So each length is held against the bytes that are there, by the readers that
pyiceberg makes of the schema in the file. A value that is damaged is not seen, nor a file that is
cut off between two blocks.
"""

from __future__ import annotations

import bz2
import functools
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyiceberg.avro import reader as readers
from pyiceberg.avro.codecs.bzip2 import BZip2Codec
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.codecs.zstandard_codec import ZStandardCodec
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, ListType, MapType, NestedField, StructType

from fluss_df.record.layout.unaligned import read_varint

# the most bytes of all blocks together: a file from elsewhere may be made to unpack to far more
_MOST_BYTES: Final = 256 << 20
_MAGIC: Final = b"Obj\x01"
_SCHEMA: Final = "avro.schema"
_SYNC_BYTES: Final = 16
_RAW_DEFLATE: Final = -15
# ids of fields by Iceberg's specification: what a manifest says of a file, and its partition there
_DATA_FILE: Final = 2
_PARTITION: Final = 102

# (bytes, where a value begins in them) -> where it ends
_End = Callable[[bytes, int], int]


def require_whole(data: bytes) -> Schema:
    """Return the schema of an Avro file; raise ValueError where its parts do not add up.

    Also where its blocks have more than 256 MiB together when they are unpacked. Files with the
    same schema give the same object: pyiceberg keeps what it makes of a schema for good.
    """
    try:
        return _walk(data)
    except ValueError:
        raise
    except IndexError as error:
        raise ValueError("it is cut off") from error
    except Exception as error:
        # codecs and damaged schemas raise errors of many types
        raise ValueError(f"{type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=64)
def _known(text: str) -> tuple[Schema, _End]:
    """Return the schema that a file has as text, and where its records end."""
    schema = AvroFileHeader(_MAGIC, {_SCHEMA: text}, b"").get_schema()
    for field in schema.fields:
        parts: tuple[NestedField, ...] = (field,)
        if field.field_id == _DATA_FILE and isinstance(field.field_type, StructType):
            parts = tuple(f for f in field.field_type.fields if f.field_id != _PARTITION)
        for part in parts:
            _require_no_decimal(part)
    return schema, _end_of(construct_reader(schema))


def _walk(data: bytes) -> Schema:
    header, said, at = _header(data)
    codec = header.compression_codec()
    schema, end_of = _known(said[_SCHEMA])
    left = _MOST_BYTES
    while at < len(data):
        records, at = _long(data, at)
        size, at = _long(data, at)
        if not 0 <= size <= len(data) - at - _SYNC_BYTES:
            raise ValueError("a block is cut off")
        block = data[at : at + size]
        at += size + _SYNC_BYTES
        if data[at - _SYNC_BYTES : at] != header.sync:
            raise ValueError("a block does not end where it should")
        if codec is not None:
            left -= _size(codec, block, left + 1)
            if left < 0:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes unpacked")
            block = codec.decompress(block)
        # pyiceberg stops reading at a block without records, so that must be the last one
        if not 0 <= records <= len(block) or (not records and at < len(data)):
            raise ValueError(f"a block of {len(block):,} bytes cannot have {records:,} records")
        place = 0
        for _ in range(records):
            place = end_of(block, place)
        if place != len(block):
            raise ValueError("a block has other bytes than those of its records")
    return schema


def _header(data: bytes) -> tuple[AvroFileHeader, dict[str, str], int]:
    """Return what a file says of itself, also by its names, and where its first block begins."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no Avro file")
    said: dict[str, str] = {}
    at = len(_MAGIC)
    while True:
        count, at = _long(data, at)
        if not count:
            sync = data[at : at + _SYNC_BYTES]
            if len(sync) < _SYNC_BYTES:
                raise ValueError("its header is cut off")
            return AvroFileHeader(_MAGIC, said, sync), said, at + _SYNC_BYTES
        if count < 0:
            # after a negative count comes the size of the entries in bytes
            count, (_, at) = -count, _long(data, at)
        for _ in range(count):
            middle = _end_of_bytes(data, at)
            end = _end_of_bytes(data, middle)
            said[_text(data, at, middle)] = _text(data, middle, end)
            at = end


def _text(data: bytes, at: int, end: int) -> str:
    _, at = _long(data, at)
    return data[at:end].decode()


def _size(codec: Any, block: bytes, most: int) -> int:
    """Return how large a block becomes; no more than ``most`` of it is unpacked."""
    if codec is DeflateCodec:
        return len(zlib.decompressobj(_RAW_DEFLATE).decompress(block, most))
    if codec is BZip2Codec:
        unpacker = bz2.BZ2Decompressor()
        size = len(unpacker.decompress(block, most))
        if unpacker.unused_data:
            raise ValueError("a block is more than one of bzip2")
        return size
    if codec is ZStandardCodec:
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            return len(stream.read(most))
    # snappy unpacks to some twenty times the size at most
    return len(block)


def _require_no_decimal(field: NestedField) -> None:
    """Refuse a decimal that is no partition value, of which no manifest has one.

    pyiceberg reads a decimal by its size, but where nobody asked for it takes its bytes for a
    length, and goes on behind that many bytes.
    """
    kind = field.field_type
    if isinstance(kind, DecimalType):
        raise ValueError(f"it has a decimal, {field.name}, where manifests have none")
    if isinstance(kind, StructType):
        for inner in kind.fields:
            _require_no_decimal(inner)
    elif isinstance(kind, ListType):
        _require_no_decimal(kind.element_field)
    elif isinstance(kind, MapType):
        _require_no_decimal(kind.key_field)
        _require_no_decimal(kind.value_field)


# ---- where values end


def _end_of(reader: Any) -> _End:
    """Return a function that says where a value ends which a reader of pyiceberg would read."""
    if isinstance(reader, readers.IntegerReader):
        return _end_of_number
    if isinstance(reader, readers.StringReader | readers.BinaryReader):
        return _end_of_bytes
    if isinstance(reader, readers.OptionReader):
        return _end_of_option(_end_of(reader.option))
    if isinstance(reader, readers.StructReader):
        return _end_of_all([_end_of(field) for _, field in reader.field_readers])
    if isinstance(reader, readers.ListReader):
        return _end_of_items([_end_of(reader.element)])
    if isinstance(reader, readers.MapReader):
        return _end_of_items([_end_of(reader.key), _end_of(reader.value)])
    size = _SIZES.get(type(reader))
    if size is None:
        size = reader._length if isinstance(reader, readers.DecimalReader) else len(reader)
    return _end_of_bytes_of(size)


# the size of a value in bytes; readers of fixed and decimal values know their own
_SIZES: Final[dict[type, int]] = {
    readers.BooleanReader: 1,
    readers.FloatReader: 4,
    readers.DoubleReader: 8,
    readers.UUIDReader: 16,
    readers.UnknownReader: 0,
}


def _end_of_number(data: bytes, at: int) -> int:
    while data[at] >= 0x80:
        at += 1
    return at + 1


@functools.lru_cache(maxsize=256)
def _numbers(count: int) -> re.Pattern[bytes]:
    # most of a manifest is numbers, and a loop over them in Python is slow
    return re.compile(rb"(?:[\x80-\xff]*[\x00-\x7f]){%d}" % count)


def _end_of_numbers(data: bytes, at: int, count: int) -> int:
    found = _numbers(count).match(data, at)
    if found is None:
        raise ValueError("a number is cut off")
    return found.end()


def _end_of_bytes(data: bytes, at: int) -> int:
    size = data[at]
    if size < 0x80 and not size & 1:
        size, at = size >> 1, at + 1
    else:
        size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("a text is cut off")
    return at + size


def _end_of_bytes_of(size: int) -> _End:
    def end(data: bytes, at: int) -> int:
        if size > len(data) - at:
            raise ValueError("a value is cut off")
        return at + size

    return end


def _end_of_option(end_of: _End) -> _End:
    def end(data: bytes, at: int) -> int:
        there = data[at]
        # zero or one, as numbers are written
        if there not in (0, 2):
            raise ValueError("a value is neither there nor not")
        return end_of(data, at + 1) if there else at + 1

    return end


def _end_of_all(ends: list[_End]) -> _End:
    def end(data: bytes, at: int) -> int:
        for end_of in ends:
            at = end_of(data, at)
        return at

    return end


def _end_of_items(ends: list[_End]) -> _End:
    numbers = all(end_of is _end_of_number for end_of in ends)

    def end(data: bytes, at: int) -> int:
        while True:
            count, at = _long(data, at)
            if not count:
                return at
            bytes_of = None
            if count < 0:
                count, (bytes_of, at) = -count, _long(data, at)
            if count > len(data) - at:
                raise ValueError(f"a list cannot have {count:,} items")
            begin = at
            if numbers:
                at = _end_of_numbers(data, at, count * len(ends))
            else:
                for _ in range(count):
                    for end_of in ends:
                        at = end_of(data, at)
                    if at == begin:
                        raise ValueError("a list has items of no bytes")
            if bytes_of not in (None, at - begin):
                raise ValueError("a list has another length than it says")

    return end


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number as Avro writes it, and where it ends."""
    value, at = read_varint(data, at)
    return value >> 1 ^ -(value & 1), at

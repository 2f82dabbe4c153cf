"""The lake of a folder: files that it has open, and metadata that somebody else made."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.embedded import EmbeddedFluss, EngineOptions

pytest.importorskip("pyiceberg")

from fluss_df.embedded import lake_paths
from fluss_df.embedded.lake_paths import AvroRows, read_metadata
from fluss_df.engine.files.files import DamagedError
from fluss_df.lake.iceberg import whole_avro

DESCRIPTORS = Path("/proc/self/fd")


def test_metadata_that_unpacks_to_more_than_it_may_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = {"location": "file:///lake", "properties": {"a": "b" * 1000}}
    packed = gzip.compress(json.dumps(metadata).encode())
    assert read_metadata(packed, "m.gz.metadata.json") == metadata
    monkeypatch.setattr(lake_paths, "_MOST_BYTES", 1000)
    with pytest.raises(DamagedError, match=r"m\.gz has more than 1,000 bytes unpacked"):
        read_metadata(packed, "m.gz")
    with pytest.raises(DamagedError, match="is damaged"):
        read_metadata(packed[:-20], "m.gz")
    nested = b'{"location": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(DamagedError, match="is damaged"):
        read_metadata(nested, "m")


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="the system does not tell what is open")
def test_the_catalog_is_closed_after_use(tmp_path: Path) -> None:
    path = TablePath("fluss", "tiered")
    descriptor = TableDescriptor(
        Schema(pa.schema([("id", pa.int64())])), properties={"table.datalake.enabled": "true"}
    )
    with (
        EmbeddedFluss(tmp_path / "data", options=EngineOptions(lake_tiering=False)) as engine,
        engine.connection() as connection,
    ):
        admin = connection.get_admin()
        for _ in range(2):
            admin.create_table(path, descriptor)
            admin.alter_table(path, add_columns=pa.schema([("more", pa.string())]))
            admin.drop_table(path)
        open_files = []
        for each in DESCRIPTORS.iterdir():
            try:
                open_files.append(os.readlink(each))
            except FileNotFoundError:  # of the listing itself
                continue
        # other tests of this process have catalogs of their own
        place = str(tmp_path)
        assert not [n for n in open_files if n.startswith(place) and "catalog.db" in n]


def text(value: bytes) -> bytes:
    """Return bytes as Avro writes them."""
    size = len(value) << 1
    made = b""
    while size > 0x7F:
        made += bytes([size & 0x7F | 0x80])
        size >>= 7
    return made + bytes([size]) + value


def avro(codec: str, blocks: list[bytes]) -> bytes:
    """Return an Avro file of a text in each block; the blocks are compressed already."""
    field = {"name": "name", "type": "string", "field-id": 1}
    schema = json.dumps({"type": "record", "name": "row", "fields": [field]}).encode()
    header = b"\4" + text(b"avro.codec") + text(codec.encode())
    header += text(b"avro.schema") + text(schema) + b"\0"
    sync = bytes(range(16))
    body = b"".join(b"\2" + text(block) + sync for block in blocks)
    return b"Obj\x01" + header + sync + body


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    made: bytes = sink.getvalue().to_pybytes()
    return made


@pytest.mark.parametrize(
    ("codec", "packed", "behind"),
    [
        # what is behind the end of a block's stream is not looked at
        ("deflate", deflated, None),
        ("bzip2", bz2.compress, "a block is more than one of bzip2"),
        # frames that follow each other are one stream, and count together
        ("zstandard", zstandard, "more than 1,000 bytes unpacked"),
    ],
)
def test_lists_of_files_that_are_bombs_are_refused(
    codec: str,
    packed: Callable[[bytes], bytes],
    behind: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_avro, "_MOST_BYTES", 1000)
    some = packed(text(b"x" * 400))
    assert [str(row[0]) for row in AvroRows.read(avro(codec, [some] * 2), "m").rows] == [
        "x" * 400
    ] * 2
    for blocks in ([packed(bytes(1001))], [some] * 3, [packed(bytes(10**7))]):
        with pytest.raises(
            DamagedError, match=r"m\.avro is damaged: .*more than 1,000 bytes unpacked"
        ):
            AvroRows.read(avro(codec, blocks), "m.avro")
    with pytest.raises(DamagedError, match="is damaged"):
        AvroRows.read(avro(codec, [b"no such thing"]), "m.avro")
    bomb = avro(codec, [some + packed(bytes(10**7))])
    if behind is None:
        [row] = AvroRows.read(bomb, "m.avro").rows
        assert str(row[0]) == "x" * 400
    else:
        with pytest.raises(DamagedError, match=behind):
            AvroRows.read(bomb, "m.avro")


@pytest.mark.parametrize(
    "data",
    [b"", b"Obj", b"Obj\x01", b"Obj\x01\xff", b"Obj\x01" + b"\xff" * 20, b"Obj\x01" + b"\x80" * 20]
    + [avro("null", [text(b"x" * 50)])[:-end] for end in (1, 20, 60)]
    + [avro("null", [block]) for block in (b"", b"\xff", b"\xfe" * 9 + b"\1xx", b"\4x", b"\2xx")]
    + [avro("null", [text(b"x")]).replace(b"string", b"strong")],
)
def test_what_is_no_list_of_files_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError, match="is damaged"):
        AvroRows.read(data, "m.avro")


def test_a_whole_file_is_read() -> None:
    assert AvroRows.read(avro("null", []), "m.avro").rows == []
    names = [b"x" * 5000, b"", b"y" * 64, b"z" * 63]
    found = AvroRows.read(avro("null", [text(name) for name in names]), "m.avro").rows
    assert [row[0] for row in found] == [name.decode() for name in names]

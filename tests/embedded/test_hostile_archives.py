"""Archives that are no backups: refused whole, and nothing is written elsewhere or left behind."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss_df.client.transport.folders import back_up_folder
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.files import format_file
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import FlussError
from tests.embedded.golden import fill

CASES = int(os.environ.get("FLUSS_TEST_CASES", "150"))
Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """Return what a good backup has."""
    root = tmp_path_factory.mktemp("archive")
    with EmbeddedFluss(root / "d") as engine, engine.connection() as connection:
        fill(connection)
    back_up_folder(root / "d", root / "b.tar.zst")
    found = []
    with (
        pa.OSFile(str(root / "b.tar.zst"), "r") as stream,
        pa.CompressedInputStream(stream, "zstd") as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as archive,
    ):
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found.append((tarfile.TarInfo(member.name), content.read()))
    return found


def pack(file: Path, members: Members) -> Path:
    with (
        pa.OSFile(str(file), "w") as stream,
        pa.CompressedOutputStream(stream, "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(file: Path, folder: Path) -> str:
    """Restore what is to be refused; return the message, when nothing was left or touched."""
    victim = folder.parent / "victim"
    victim.mkdir(exist_ok=True)
    (victim / "mine.txt").write_text("mine")
    before = everything(folder.parent)
    with pytest.raises(FlussError, match="cannot restore") as caught:
        restore(file, folder)
    assert everything(folder.parent) == before
    return caught.value.message


def test_a_good_one(tmp_path: Path, members: Members) -> None:
    restore(pack(tmp_path / "b.tar.zst", members), tmp_path / "d")
    assert check_folder(tmp_path / "d").findings == []


@pytest.mark.parametrize(
    "name",
    [
        "../victim/more.txt",
        "/tmp/fluss-df-outside",
        "data/../../victim/more.txt",
        "data/0/table/0/log/../../../../../victim/x",
        "data/0/table/0/kv/../synced",
        "LOCK",
        "owner.sock",
        "catalog/table--1.json",
        "data/0/0",
        "data/0/table/0/log/" + "a" * 300,
        "data/" + "1/" * 200 + "x",
        "FORMAT/x",
        "",
    ],
)
def test_names_that_no_backup_has(tmp_path: Path, members: Members, name: str) -> None:
    bad = [*members[:3], (tarfile.TarInfo(name), b"x"), *members[3:]]
    assert "no file of a backup" in refused(pack(tmp_path / "b.tar.zst", bad), tmp_path / "d")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_what_is_no_file(tmp_path: Path, members: Members, kind: bytes) -> None:
    info = tarfile.TarInfo("data/0/table/0/log/synced")
    info.type = kind
    info.linkname = "../../../../../victim/mine.txt"
    bad = [(info, b""), *members]
    assert "that is no file" in refused(pack(tmp_path / "b.tar.zst", bad), tmp_path / "d")


def test_a_file_that_comes_twice(tmp_path: Path, members: Members) -> None:
    refused(pack(tmp_path / "b.tar.zst", [*members, members[0]]), tmp_path / "d")


def with_catalog(
    members: Members, change: Callable[[dict[str, Any]], None], part: str = "table-"
) -> Members:
    """Return a backup with another catalog, whose files have no checksums, as in format 1."""
    changed = []
    for info, data in members:
        name = info.name
        if name.startswith("catalog/"):
            value = json.loads(data.splitlines()[0])["value"]
            if name.startswith(f"catalog/{part}"):
                change(value)
            data = json.dumps(value).encode()
        elif name == "FORMAT":
            data = format_file(1)
        changed.append((tarfile.TarInfo(name), data))
    return changed


def test_a_folder_that_is_a_link(tmp_path: Path, members: Members) -> None:
    """The folder that it leads to is as it was."""
    (tmp_path / "real").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "real")
    bad = [*members, (tarfile.TarInfo("x"), b"x")]
    refused(pack(tmp_path / "b.tar.zst", bad), tmp_path / "d")
    assert (tmp_path / "d").is_symlink()
    restore(pack(tmp_path / "b.tar.zst", members), tmp_path / "d")
    assert check_folder(tmp_path / "real").findings == []


NO_IDS = ["../../victim", "/victim", -1, 1.5, None, True, [0], 2**70]
NO_COUNTS = ["../../victim", -1, 1.5, [0], 2**30]


@pytest.mark.parametrize(
    ("where", "bad"),
    [
        *((where, bad) for where in ("id", "partition", "dropped") for bad in NO_IDS),
        *(("buckets", bad) for bad in NO_COUNTS),
    ],
)
def test_ids_that_are_no_ids(tmp_path: Path, members: Members, where: str, bad: Any) -> None:
    def change(value: dict[str, Any]) -> None:
        if where == "id":
            value["id"] = bad
        elif where == "partition":
            value["partitions"] = [[bad, "day0"]]
        elif where == "dropped":
            value["dropped"] = [bad]
        else:
            value["descriptor"]["bucket_count"] = bad

    file = pack(tmp_path / "b.tar.zst", with_catalog(members, change))
    refused(file, tmp_path / "d")


NO_NAMES = ["../../victim", "/victim", "a/b", ".", "..", "", "x" * 201]


@pytest.mark.parametrize("bad", NO_NAMES)
@pytest.mark.parametrize("where", ["name", "database", "partitions", "databases"])
def test_names_that_nothing_has(tmp_path: Path, members: Members, where: str, bad: str) -> None:
    """The folders of the lake are named by them, and are removed with their tables."""

    def change(value: dict[str, Any]) -> None:
        if where == "partitions":
            value["partitions"] = [[0, bad]]
        elif where == "databases":
            value["databases"][bad] = value["databases"].pop("fluss")
        else:
            value[where] = bad

    part = "databases" if where == "databases" else "table-"
    said = refused(
        pack(tmp_path / "b.tar.zst", with_catalog(members, change, part)), tmp_path / "d"
    )
    assert f"/catalog/{part}" in said
    assert f"{bad!r} is no name: " in said


@pytest.mark.parametrize("key", ["iceberg.py-io-impl", "iceberg.uri", "paimon.warehouse", "x"])
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_tables_that_say_where_the_lake_is(
    tmp_path: Path, members: Members, key: str, enabled: str
) -> None:
    """A client would import and call what they name; the server says where its lake is."""

    def change(value: dict[str, Any]) -> None:
        value["descriptor"]["properties"] |= {
            "table.datalake.enabled": enabled,
            f"table.datalake.{key}": "evil.Run",
        }

    file = pack(tmp_path / "b.tar.zst", with_catalog(members, change))
    said = refused(file, tmp_path / "d")
    assert re.search(rf"/catalog/table-\d+\.json .*'table\.datalake\.{re.escape(key)}'", said)


def test_a_bomb(tmp_path: Path, members: Members) -> None:
    """A gigabyte of zeros is 30 kB: it is not unpacked, or only as far as there is room."""
    file = tmp_path / "b.tar.zst"

    class Zeros(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with (
        pa.OSFile(str(file), "w") as stream,
        pa.CompressedOutputStream(stream, "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        info = tarfile.TarInfo("data/0/table/0/log/00000000000000000000.log")
        info.size = 1 << 30
        archive.addfile(info, Zeros())
    with pytest.raises(FlussError, match="larger than the room"):
        restore(file, tmp_path / "d", max_bytes=1 << 29)
    tracemalloc.start()
    with pytest.raises(FlussError, match="cut off"):
        # there is room for this file, and for no more
        restore(file, tmp_path / "d", max_bytes=1 << 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_headers_that_are_read_whole(tmp_path: Path, kind: bytes) -> None:
    """Python reads extended headers into memory, whatever size they say."""
    info = tarfile.TarInfo("x")
    info.type = kind
    info.size = 1 << 32
    file = tmp_path / "b.tar.zst"
    with pa.OSFile(str(file), "w") as stream, pa.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            packed.write(bytes(1 << 20))
    tracemalloc.start()
    refused(file, tmp_path / "d")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


LOG = "data/0/table/0/log/00000000000000000000.log"
MIB = 1 << 20


def compress(file: Path, *parts: bytes) -> Path:
    with pa.OSFile(str(file), "w") as stream, pa.CompressedOutputStream(stream, "zstd") as packed:
        for part in parts:
            packed.write(part)
    return file


def with_checksum(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def extended(fields: bytes) -> bytes:
    """Return an extended header and the header of an empty file behind it."""
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = len(fields)
    first = info.tobuf(tarfile.USTAR_FORMAT)
    return first + fields.ljust(-(-len(fields) // 512) * 512, b"\0") + plain()


def plain(size: int = 0) -> bytes:
    info = tarfile.TarInfo(LOG)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def record(name: str, value: str) -> bytes:
    rest = f" {name}={value}\n".encode()
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest


def sparse_header() -> bytes:
    header = bytearray(plain())
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"00000000001\0" * 2
    header[482] = 1
    return with_checksum(header)


SPARSE = {
    "a header of GNU": (
        sparse_header(),
        ((b"00000000001\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)) * 2048,
    ),
    "a map in the file": (
        extended(
            record("GNU.sparse.major", "1")
            + record("GNU.sparse.minor", "0")
            + record("size", str(1 << 30))
        )
        + b"999999999\n",
        b"1\n" * (MIB // 2),
    ),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_maps_of_sparse_files(tmp_path: Path, kind: str) -> None:
    """Python reads them into memory, as long as they are: an archive of 10 kB has 32 MB of them."""
    first, more = SPARSE[kind]
    file = compress(tmp_path / "b.tar.zst", first, *[more] * 32)
    assert file.stat().st_size < 1 << 16
    tracemalloc.start()
    try:
        refused(file, tmp_path / "d")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "fields",
    [
        record("GNU.sparse.map", "1,2,3"),
        record("GNU.sparse.map", "1" * 5000),
        record("GNU.sparse.size", "10") + record("GNU.sparse.name", "x"),
        record("hdrcharset", "BINARY"),
        record("linkpath", "/etc/passwd"),
        record("size", "-1"),
        record("size", "9" * 30),
        record("size", ""),
        record("path", "../victim/x"),
        b"99999999999999 path=x\n",
        b"0 path=x\n",
        b"3 path=x\n",
        b"no record",
        b"11 path=\xff\xfe\n",
    ],
)
def test_extended_headers_that_no_backup_has(tmp_path: Path, fields: bytes) -> None:
    refused(compress(tmp_path / "b.tar.zst", extended(fields), bytes(4096)), tmp_path / "d")


def test_extended_headers_of_extended_headers(tmp_path: Path) -> None:
    """Each is read within the one before it: the second one is refused."""
    one = extended(record("path", "y" * 60_000))[: -len(plain())]
    file = compress(tmp_path / "b.tar.zst", *[one] * 2000)
    tracemalloc.start()
    try:
        assert "that is no file" in refused(file, tmp_path / "d")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_extended_headers_that_backups_may_have(tmp_path: Path, members: Members) -> None:
    """Names and sizes of any length, times and owners; as of a file with more than 8 GB."""
    changed = []
    for info, data in members:
        new = tarfile.TarInfo("other")
        new.mtime = 1.5
        new.uname = "ü"
        new.pax_headers = {"path": info.name, "size": str(len(data)), "comment": "x" * 1000}
        changed.append((new, data))
    restore(pack(tmp_path / "b.tar.zst", changed), tmp_path / "d")
    assert check_folder(tmp_path / "d").findings == []
    for info, data in members:
        assert (tmp_path / "d" / info.name).read_bytes() == data


SIZES = [b"\x80" + bytes(10) + b"\1", b"\xff" * 12, b"77777777777\0", b"-0000000001\0", b"zzz"]
FIELDS = [
    b"27 GNU.sparse.map=1,2,3,4,5\n",
    b"22 GNU.sparse.size=10\n",
    b"11 size=-1\n",
    b"0 a=b\n",
    b"19 mtime=nan000000\n",
]


def test_mutated_headers(tmp_path: Path, members: Members) -> None:
    """With checksums that are right: refused with nothing left, or restored."""
    choose = random.Random(CASES)
    times = [(tarfile.TarInfo(info.name), data) for info, data in members]
    for info, _ in times:
        info.mtime = 1.5
    good = pack(tmp_path / "b.tar.zst", times)
    with pa.OSFile(str(good), "r") as stream, pa.CompressedInputStream(stream, "zstd") as unpacked:
        raw = unpacked.read()
    headers = [at for at in range(0, len(raw), 512) if raw[at + 257 : at + 262] == b"ustar"]
    restore(good, tmp_path / "d")
    wanted = contents(tmp_path / "d")
    assert wanted.items() >= {(info.name, data) for info, data in members}
    shutil.rmtree(tmp_path / "d")
    restored = refusals = 0
    for _ in range(CASES):
        bad = bytearray(raw)
        at = choose.choice(headers)
        what = choose.randrange(4)
        if what == 0:
            bad[at + 156] = choose.choice(b"01234567xgXLKSDNVM\0")
        elif what == 1:
            bad[at + 124 : at + 136] = choose.choice(SIZES).ljust(12, b"\0")
        elif what == 2:
            bad[at + choose.randrange(512)] = choose.randrange(256)
        else:
            at = choose.choice([at for at in headers if raw[at + 156 : at + 157] == b"x"])
            fields = choose.choice(FIELDS)
            bad[at + 512 : at + 512 + len(fields)] = fields
            bad[at + 124 : at + 136] = b"%011o\0" % len(fields)
        bad[at : at + 512] = with_checksum(bad[at : at + 512])
        file = compress(tmp_path / "b.tar.zst", bytes(bad))
        try:
            restore(file, tmp_path / "d")
        except FlussError:
            refusals += 1
        else:
            restored += 1
            # Most damage is to what is of no use, such as a time. A header may also name its file
            # otherwise, or cut it off: no file but that one is another.
            assert len(wanted.items() ^ contents(tmp_path / "d").items()) <= 2
            shutil.rmtree(tmp_path / "d")
        assert everything(tmp_path) == ["b.tar.zst"]
    # each of the two is what becomes of a good part of them
    assert min(restored, refusals) > CASES // 10


def mutations(members: Members, choose: random.Random) -> Iterator[Members]:
    """Iterate over backups in which one thing is another."""
    names = ["..", "/", "data", "\0", "a" * 200, "0", "-1", "catalog", "kv", ".", "é", "FORMAT"]
    while True:
        changed = [(tarfile.TarInfo(info.name), data) for info, data in members]
        place = choose.randrange(len(changed))
        info, data = changed[place]
        what = choose.randrange(6)
        if what == 0:
            parts = info.name.split("/")
            parts[choose.randrange(len(parts))] = choose.choice(names)
            info.name = "/".join(parts)
        elif what == 1:
            info.type = bytes([choose.randrange(256)])
        elif what == 2 and data:
            bad = bytearray(data)
            bad[choose.randrange(len(bad))] ^= 1 << choose.randrange(8)
            changed[place] = info, bytes(bad)
        elif what == 3:
            changed[place] = info, choose.randbytes(choose.randrange(2000))
        elif what == 4:
            del changed[place]
        else:
            other = changed[choose.randrange(len(changed))]
            changed[place] = info, other[1]
        yield changed


def test_mutated_archives(tmp_path: Path, members: Members) -> None:
    """Whatever is restored stays inside, also when it is opened and its tables are dropped."""
    choose = random.Random(CASES)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "mine.txt").write_text("mine")
    made = mutations(members, choose)
    restored = 0
    for number in range(CASES):
        file = tmp_path / "b.tar.zst"
        folder = tmp_path / "d"
        data = pack(file, next(made)).read_bytes()
        if choose.random() < 0.2:
            bad = bytearray(data)
            bad[choose.randrange(len(bad))] ^= 1 << choose.randrange(8)
            file.write_bytes(bytes(bad))
        try:
            restore(file, folder)
        except FlussError:
            assert everything(tmp_path) == ["b.tar.zst", "victim", "victim/mine.txt"], number
            continue
        restored += 1
        try:
            engine = Engine(folder)
        except FlussError:
            pass
        else:
            for table in engine.catalog.all_tables():
                engine.catalog.drop_table(table.path, False)
                engine.drop_table(table)
            engine.close()
        shutil.rmtree(folder)
        assert everything(tmp_path) == ["b.tar.zst", "victim", "victim/mine.txt"], number
    assert restored

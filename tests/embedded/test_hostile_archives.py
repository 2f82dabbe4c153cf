"""Archives that are no backups: refused whole, and nothing is written elsewhere or left behind."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss_df.client.embedded import back_up_folder
from fluss_df.embedded import EmbeddedFluss
from fluss_df.embedded.check import check_folder
from fluss_df.embedded.engine import Engine
from fluss_df.embedded.restore import restore
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


def with_catalog(members: Members, change: Callable[[dict[str, Any]], None]) -> Members:
    """Return a backup with another catalog, whose files have no checksums, as in format 1."""
    changed = []
    for info, data in members:
        name = info.name
        if name.startswith("catalog/"):
            value = json.loads(data.splitlines()[0])["value"]
            if name.startswith("catalog/table-"):
                change(value)
            data = json.dumps(value).encode()
        elif name == "FORMAT":
            data = json.dumps({"format": 1}).encode()
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
        restore(file, tmp_path / "d", max_bytes=1 << 31)
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

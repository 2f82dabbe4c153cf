"""Files of snapshots as remote storage gives them: damaged ones are told, never read in part.

A server names the files: whatever it says, no file of the user's is changed, and no disk is filled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import rocksdict

import fluss_df as fluss
from fluss_df.client.scan.snapshot_files import KvSnapshot, snapshot_entries
from fluss_df.errors import FlussError, ProtocolError

ROWS = 20_000


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> fluss.FlussConnection:
    return fluss.connect(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A RocksDB of one SST with hundreds of blocks."""
    folder = tmp_path / "snapshot"
    database = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True))
    batch = rocksdict.WriteBatch(raw_mode=True)
    for number in range(ROWS):
        batch.put(b"%08d" % number, b"value of %08d" % number)
    database.write(batch)
    database.flush()
    database.close()
    return folder


def snapshot_of(folder: Path) -> KvSnapshot:
    files = tuple((file.as_uri(), file.name) for file in folder.iterdir() if file.suffix != ".log")
    return KvSnapshot(fluss.TableBucket(1, 0), 7, ROWS, files)


@pytest.mark.parametrize("keys", [True, False])
def test_all_rows_of_a_snapshot(
    connection: fluss.FlussConnection, folder: Path, keys: bool
) -> None:
    found_keys: list[bytes] = []
    found: list[bytes] = []
    for some, values in snapshot_entries(connection, snapshot_of(folder), keys=keys):
        found_keys += [] if some is None else some.to_pylist()
        found += values
    assert found == [b"value of %08d" % number for number in range(ROWS)]
    assert found_keys == ([b"%08d" % number for number in range(ROWS)] if keys else [])


@pytest.mark.parametrize("keys", [True, False])
def test_a_damaged_block_is_told(
    connection: fluss.FlussConnection, folder: Path, keys: bool
) -> None:
    file = next(folder.glob("*.sst"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ProtocolError, match=r"snapshot 7 of .*bucket=0.* is damaged"):
        list(snapshot_entries(connection, snapshot_of(folder), keys=keys))


def test_a_damaged_manifest_is_told(folder: Path) -> None:
    manifest = next(folder.glob("MANIFEST-*"))
    data = bytearray(manifest.read_bytes())
    # behind the checksum and the length of the second record: its kind
    second = 7 + int.from_bytes(data[4:6], "little")
    data[second + 6] ^= 4
    manifest.write_bytes(bytes(data))
    # RocksDB's reader never returned, and nothing else of its process ran
    program = (
        "import sys; from pathlib import Path; import fluss_df as fluss;"
        "from fluss_df.client.scan.snapshot_files import snapshot_entries;"
        "from tests.client.test_snapshot_files import snapshot_of;"
        "list(snapshot_entries(fluss.connect(':memory:'), snapshot_of(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 1
    found = r"ProtocolError: .*snapshot 7 of .*bucket=0.* cannot be opened: .*damaged at byte 46"
    assert re.search(found, done.stderr)


def refused(connection: fluss.FlussConnection, *files: tuple[str, str]) -> str:
    """Read a snapshot that is to be refused; return the message, when no folder was left."""
    before = set(Path(tempfile.gettempdir()).glob("fluss-df-snapshot-*"))
    with pytest.raises(FlussError, match=r"(?=.*snapshot 7)(?=.*bucket=0)") as caught:
        list(snapshot_entries(connection, KvSnapshot(fluss.TableBucket(1, 0), 7, ROWS, files)))
    assert set(Path(tempfile.gettempdir()).glob("fluss-df-snapshot-*")) <= before
    return caught.value.message


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders on the disk of the user's files, where hard links to them are possible."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return tmp_path


def test_a_name_that_comes_twice(connection: fluss.FlussConnection, beside: Path) -> None:
    """The second file is not written through the first one into what the user has."""
    (beside / "mine.sst").write_text("mine")
    (beside / "other.sst").write_text("of the server")
    files = [(str(beside / name), "1.sst") for name in ("mine.sst", "other.sst")]
    assert "'1.sst' twice" in refused(connection, *files)
    assert (beside / "mine.sst").read_text() == "mine"


def test_files_of_a_disk_are_copied(
    connection: fluss.FlussConnection, folder: Path, beside: Path
) -> None:
    """What is read is another file than the one that the server names."""
    rows = snapshot_entries(connection, snapshot_of(folder))
    next(rows)
    (copy,) = (beside / "temporary").glob("*/*.sst")
    assert os.stat(copy).st_nlink == 1
    rows.close()  # type: ignore[attr-defined]
    assert list((beside / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/tmp/x", "../x", "a\0b", "a\n", "a b", "é", "~", "a\\b", "x" * 300],
)
def test_names_that_no_snapshot_has(
    connection: fluss.FlussConnection, beside: Path, name: str
) -> None:
    (beside / "one.sst").write_text("x")
    assert repr(name) in refused(connection, (str(beside / "one.sst"), name))
    assert sorted(path.name for path in beside.iterdir()) == ["one.sst", "temporary"]


def test_what_is_no_regular_file(connection: fluss.FlussConnection, beside: Path) -> None:
    """A device without an end fills no disk, and a FIFO without a writer is not waited for."""
    os.mkfifo(beside / "fifo.sst")
    (beside / "folder.sst").mkdir()
    (beside / "link.sst").symlink_to("/dev/zero")
    for path in (
        "/dev/null",
        *(str(beside / f"{kind}.sst") for kind in ("fifo", "folder", "link")),
    ):
        message = refused(connection, (path, "1.sst"))
        assert path in message
        assert "no regular file" in message


def test_a_file_without_an_end(connection: fluss.FlussConnection, beside: Path) -> None:
    """The bytes that a file has by its inode are copied: files of /proc have none, and no end."""
    pages = Path("/proc/self/pagemap")
    if not pages.exists():
        pages = beside / "empty.sst"
        pages.touch()
    assert "cannot be opened" in refused(connection, (str(pages), "1.sst"))


@pytest.mark.parametrize("uri", ["", "a\0b.sst", "file:///a\0b.sst", "no/such/file.sst"])
def test_paths_that_lead_nowhere(connection: fluss.FlussConnection, beside: Path, uri: str) -> None:
    assert repr(uri)[1:-1] in refused(connection, (uri, "1.sst"))

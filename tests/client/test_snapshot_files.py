"""Files of snapshots as remote storage gives them: damaged ones are told, never read in part."""

from __future__ import annotations

from pathlib import Path

import pytest
import rocksdict

import fluss_df as fluss
from fluss_df.client.kv_snapshots import KvSnapshot, snapshot_entries
from fluss_df.errors import ProtocolError

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

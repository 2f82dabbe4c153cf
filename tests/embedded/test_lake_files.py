"""The lake of a folder: files that it has open, and metadata that somebody else made."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from fluss_df import Schema, TableDescriptor, TablePath
from fluss_df.embedded import EmbeddedFluss, EngineOptions

pytest.importorskip("pyiceberg")

from fluss_df.embedded import lake_paths
from fluss_df.embedded.lake_paths import read_metadata
from fluss_df.engine.files.files import DamagedError

DESCRIPTORS = Path("/proc/self/fd")


def test_metadata_that_unpacks_to_more_than_it_may_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = {"location": "file:///lake", "properties": {"a": "b" * 1000}}
    packed = gzip.compress(json.dumps(metadata).encode())
    assert read_metadata(packed, "m.gz.metadata.json") == metadata
    monkeypatch.setattr(lake_paths, "_MOST_METADATA_BYTES", 1000)
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
        assert not [name for name in open_files if "catalog.db" in name]

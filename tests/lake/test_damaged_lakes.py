"""Lake files that are not what they should be: errors name the table, and nothing is removed."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.embedded.lake_paths import AvroRows
from fluss_df.errors import FlussError
from fluss_df.io.scans import union
from fluss_df.lake.iceberg.pruning import file_filter
from fluss_df.lake.iceberg_upkeep import orphans
from fluss_df.lake.iceberg_upkeep.orphans import remove_orphans
from fluss_df.lake.options import LakeOptions
from fluss_df.lake.paimon import manifests
from fluss_df.lake.paimon.storage import TableFiles
from fluss_df.lake.snapshot import DataFile, LakeSnapshotFiles
from fluss_df.pushdown.predicate import Comparison, Op
from tests.lake.folders import BY_HAND, table, tier


def damaged(good: bytes, choose: random.Random) -> bytes:
    """Return what is left of a file that was cut, or of which a bit was turned over."""
    if choose.random() < 0.5:
        return good[: choose.randrange(len(good))]
    made = bytearray(good)
    made[choose.randrange(len(made))] ^= 1 << choose.randrange(8)
    return bytes(made)


def uncompressed(data: bytes) -> bytes:
    rows = AvroRows.read(data, "a file")
    rows.header["avro.codec"] = "null"
    return rows.written("rows")


class Files(LakeSnapshotFiles[DataFile]):
    """Files whose rows nobody reads."""

    def wanted(self, predicates: Any) -> list[DataFile]:
        raise NotImplementedError

    def frame(self, files: Any) -> pl.LazyFrame:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["/there/is\0none", "/there/is-none"])
def test_files_that_are_nowhere_are_gone(name: str) -> None:
    file = DataFile(name, 1, 1, {})
    with pytest.raises(FlussError, match=r"lake table db\.t: the file .* is gone.*lake=False"):
        Files(fluss.TablePath("db", "t"), [file], 0).require_there([file])


def test_damaged_manifests_are_told_with_their_table(tmp_path: Path) -> None:
    choose = random.Random(1)
    with EmbeddedFluss(tmp_path / "folder", port=0, options=BY_HAND) as engine:
        lake_table = table(engine, "log")
        lake_table.write(list(range(10)), 1)
        tier(engine)
        refused: list[str] = []
        for file in (tmp_path / "folder" / "lake").rglob("*.avro"):
            good = file.read_bytes()
            # of what is not compressed, what is damaged is what the file says
            plain = uncompressed(good)
            made = [damaged(content, choose) for content in (good, plain) for _ in range(12)]
            for content in (b"", b"text", b"\0" * 99, *made):
                file.write_bytes(content)
                union._opened.cache_clear()
                try:
                    fluss.scan_fluss("log", connection=engine.address).collect()
                except FlussError as error:
                    refused.append(str(error))
                except pl.exceptions.PolarsError:
                    # a name of a file of rows is another one
                    continue
            file.write_bytes(good)
        assert len(refused) > 20
        assert all("table fluss.log" in text and "lake=False" in text for text in refused)
        union._opened.cache_clear()
        assert fluss.scan_fluss("log", connection=engine.address).collect().height == 10


def test_damaged_data_files_are_told_with_their_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = LakeSnapshotFiles.require_there
    with EmbeddedFluss(tmp_path, port=0, options=BY_HAND) as engine:
        history = table(engine, "log")
        history.write(list(range(500)), 1)
        tier(engine)
        files = sorted(tmp_path.glob("lake/warehouse/**/*.parquet"))
        assert files
        whole = fluss.read_fluss("log", connection=engine.address)
        for file in files:
            good = file.read_bytes()
            said = rf"lake table fluss\.log: the file {file} of its snapshot is "
            for cut in (b"", good[: len(good) // 2], good + b"x"):
                file.write_bytes(cut)
                query = fluss.scan_fluss("log", connection=engine.address)
                with pytest.raises(FlussError, match=f"{said}damaged: it has {len(cut):,} bytes"):
                    query.collect()
            # of what is in a file of the right size, Polars names neither
            for content in (bytes(len(good)), good[:-12] + b"1234" + good[-8:]):
                file.write_bytes(content)
                with pytest.raises(FlussError, match=f"{said}damaged: .*lake=False"):
                    fluss.read_fluss("log", connection=engine.address)
            file.write_bytes(good)

            def and_then_it_goes(self: Any, *of: Any, file: Path = file, **more: Any) -> None:
                look(self, *of, **more)
                file.unlink()

            with monkeypatch.context() as patched:
                patched.setattr(LakeSnapshotFiles, "require_there", and_then_it_goes)
                with pytest.raises(FlussError, match=f"{said}gone .*Run the query again"):
                    fluss.read_fluss("log", connection=engine.address)
            file.write_bytes(good)
        assert fluss.read_fluss("log", connection=engine.address).equals(whole)


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_damaged_manifests_of_paimon(tmp_path: Path, codec: str) -> None:
    choose = random.Random(1)
    schema = {
        "type": "record",
        "name": "entry",
        "fields": [{"name": "file", "type": "string"}, {"name": "row", "type": "bytes"}],
    }
    stream = io.BytesIO()
    entries = [{"file": "x" * number, "row": b"z" * number} for number in range(50)]
    fastavro.writer(stream, schema, entries, codec=codec)
    place = tmp_path / "db.db" / "t" / "manifest"
    place.mkdir(parents=True)
    options = LakeOptions(fluss.TablePath("db", "t"), "paimon", {"warehouse": str(tmp_path)})
    files = TableFiles(options)
    refused: list[str] = []
    for _ in range(300):
        (place / "m").write_bytes(damaged(stream.getvalue(), choose))
        try:
            manifests.read_avro(files, "manifest/m")
        except FlussError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all("lake table db.t" in text and "m cannot be understood" in text for text in refused)
    (place / "m").write_bytes(stream.getvalue())
    assert manifests.read_avro(files, "manifest/m") == entries


def test_files_that_another_writer_names_otherwise_are_no_orphans(tmp_path: Path) -> None:
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}//w"
    )
    catalog.create_namespace("db")
    # as Java's file systems write paths: each separator once
    data = {"write.data.path": f"file://{tmp_path}/w/db/t/data"}
    lake = catalog.create_table("db.t", pa.schema([("n", pa.int64())]), properties=data)
    lake.append(pa.table({"n": [1, 2]}))
    assert remove_orphans(lake, -10.0) == 0
    assert lake.scan().to_arrow().num_rows == 2
    (tmp_path / "w/db/t/data/left.parquet").write_bytes(b"")
    assert remove_orphans(lake, -10.0) == 1
    assert lake.scan().to_arrow().num_rows == 2


def test_no_orphans_are_found_where_the_metadata_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as for a catalog that is no database, which cannot be asked
    monkeypatch.setattr(orphans, "may_delete", lambda table: True)
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    (tmp_path / "w").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "w")
    # the same folder under another name
    data = {"write.data.path": f"file://{tmp_path}/other/db/t/data"}
    data["write.metadata.path"] = f"file://{tmp_path}/other/db/t/metadata"
    lake = catalog.create_table("db.t", pa.schema([("n", pa.int64())]), properties=data)
    lake.append(pa.table({"n": [1, 2]}))
    assert remove_orphans(lake, -10.0) == 0
    assert "its metadata is not among the files" in caplog.text
    assert lake.scan().to_arrow().num_rows == 2


def test_a_file_with_bounds_of_another_type_is_read(tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    lake = catalog.create_table("db.t", pa.schema([("n", pa.int64())]))
    lake.append(pa.table({"n": [1, 2]}))
    [planned] = lake.scan().plan_files()
    for op, value, kept in ((Op.GT, 1, True), (Op.GT, 2, False)):
        assert file_filter(lake, [Comparison("n", op, pa.scalar(value))])(planned.file) is kept
    for bounds in planned.file.lower_bounds, planned.file.upper_bounds:
        bounds[1] = b"\1"
    assert file_filter(lake, [Comparison("n", Op.GT, pa.scalar(2))])(planned.file)

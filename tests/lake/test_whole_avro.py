"""Whether Avro files are whole: as pyiceberg's decoder in Python finds, which cannot crash."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa
import pyiceberg.avro.file
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from fluss_df.embedded.lake_paths import AvroRows
from fluss_df.lake.iceberg.checked_files import FILE_IO, CheckedFileIO, manifests_of
from fluss_df.lake.iceberg.whole_avro import require_whole

COLUMNS = {
    "number": pa.array([1, None]),
    "text": pa.array(["a", "b" * 90]),
    "list": pa.array([[1, 2, 3], []]),
    "yes": pa.array([True, None]),
    "day": pa.array([0, 1], pa.date32()),
    "amount": pa.array([1, 2], pa.decimal128(20, 2)),
}


def lake(folder: Path, **properties: str) -> Table:
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/w", **properties
    )
    catalog.create_namespace("db")
    rows = pa.table(COLUMNS)
    table = catalog.create_table("db.t", rows.schema)
    with table.update_spec() as spec:
        for name in ("text", "yes", "day", "amount"):
            spec.add_identity(name)
    for _ in range(2):
        table.append(rows)
    return table


@functools.cache
def whole_files() -> list[bytes]:
    """Return manifests and lists of them as pyiceberg writes them, and uncompressed."""
    with TemporaryDirectory() as folder:
        lake(Path(folder))
        found = [file.read_bytes() for file in sorted(Path(folder).rglob("*.avro"))]
    plain = []
    for data in found:
        rows = AvroRows.read(data, "a file")
        rows.header["avro.codec"] = "null"
        plain.append(rows.written("rows"))
    assert len(found) == 4
    return found + plain


def read(data: bytes, patched: pytest.MonkeyPatch) -> tuple[Schema, list[Record]]:
    patched.setattr(pyiceberg.avro.file, "new_decoder", StreamingBinaryDecoder)
    with pyiceberg.avro.file.AvroFile[Record](cast(InputFile, Opened(data))) as file:
        return file.schema, list(file)


class Opened:
    """Bytes as a file that pyiceberg opens."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self) -> Opened:
        return self

    def read(self) -> bytes:
        return self.data

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_whole_files_are() -> None:
    for data in whole_files():
        require_whole(data)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(whole_files())))
    place = st.integers(0, len(data) - 1)
    for at in draw(st.lists(place, max_size=4)):
        some = draw(
            st.binary(max_size=10) | st.sampled_from([b"\0", b"\1", b"\2", b"\x80", b"\xff"])
        )
        data[at : at + draw(st.integers(0, 8))] = some
    return bytes(data[: draw(place)]) if draw(st.booleans()) else bytes(data)


@given(damaged())
def test_what_is_called_whole_ends_where_its_values_do(data: bytes) -> None:
    try:
        require_whole(data)
    except ValueError:
        return
    with pytest.MonkeyPatch.context() as patched:
        try:
            read(data, patched)
        except EOFError:
            raise
        except Exception:
            # of values that are none: a text that is not UTF-8
            return


@pytest.mark.parametrize("length", [b"\xfe\x7f", b"\x81\x01"])
def test_a_length_that_is_none_is_told(length: bytes) -> None:
    """One that is more than there is, and one below zero."""
    path = b"file:///"
    plain = next(data for data in whole_files() if b"null" in data and path in data)
    # of the first text that is a path; it stands before the text
    at = plain.index(path) - len(length)
    with pytest.raises(ValueError, match="a text is cut off"):
        require_whole(plain[:at] + length + plain[at + len(length) :])


def test_files_are_looked_at_before_they_are_read(tmp_path: Path) -> None:
    table = lake(tmp_path, **FILE_IO)
    assert type(table.io) is CheckedFileIO
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [manifest, *_] = manifests_of(snapshot, table.io)
    assert len(manifest.fetch_manifest_entry(table.io)) == 2
    file = Path(manifest.manifest_path.removeprefix("file://"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{file} is damaged: a block is cut off"):
        manifest.fetch_manifest_entry(table.io)
    # what pyiceberg itself looks at is looked at too
    with pytest.raises(ValueError, match="is damaged"):
        table.scan().to_arrow()


def test_a_manifest_of_another_name_is_refused(tmp_path: Path) -> None:
    table = lake(tmp_path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    renamed = snapshot.model_copy(update={"manifest_list": f"{tmp_path}/list.parquet"})
    with pytest.raises(ValueError, match=r"list\.parquet is no manifest: .*'\.avro'"):
        manifests_of(renamed, cast(Any, PyArrowFileIO()))

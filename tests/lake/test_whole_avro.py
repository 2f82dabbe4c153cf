"""Whether Avro files are whole: as pyiceberg's decoder in Python finds, which cannot crash."""

from __future__ import annotations

import functools
import json
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
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.utils.singleton import Singleton

from fluss_df.embedded.lake_paths import AvroRows
from fluss_df.lake.iceberg.checked_files import entries_of, manifests_of
from fluss_df.lake.iceberg.whole_avro import require_whole
from fluss_df.record.layout.unaligned import varint

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


DECIMAL = {"type": "fixed", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2}


def records(fields: list[dict[str, Any]], record: bytes) -> bytes:
    """Return an Avro file of one record, that is not compressed."""
    schema = json.dumps({"type": "record", "name": "row", "fields": fields}).encode()
    said = ((b"avro.codec", b"null"), (b"avro.schema", schema))
    header = b"".join(varint(len(t) << 1) + t for pair in said for t in pair)
    block = varint(2) + varint(len(record) << 1) + record
    return b"Obj\1" + varint(4) + header + b"\0" + bytes(16) + block + bytes(16)


def record(name: str, number: int, field: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "field-id": number,
        "type": {"type": "record", "name": f"r{number}", "fields": [field]},
    }


def test_decimals_are_those_of_partitions() -> None:
    """Others pyiceberg does not read, and jumps as far as their bytes say."""
    value = {"name": "value", "field-id": 1000, "type": DECIMAL}
    require_whole(records([record("data_file", 2, record("partition", 102, value))], b"\0" * 4))
    for fields in (
        [value],
        [record("data_file", 2, value)],
        [record("more", 3, record("data_file", 2, record("partition", 102, value)))],
    ):
        with pytest.raises(ValueError, match="it has a decimal, value, where"):
            require_whole(records(fields, b"\0" * 4))


def test_what_pyiceberg_makes_of_a_schema_is_made_once() -> None:
    data = whole_files()[0]
    schema = require_whole(data)
    kept = len(Singleton._instances)
    assert require_whole(bytes(data)) is schema
    assert len(AvroRows.read(data, "a file").rows) == len(AvroRows.read(data, "a file").rows) > 0
    assert len(Singleton._instances) == kept


def test_files_are_looked_at_before_they_are_read(tmp_path: Path) -> None:
    # as a table may ask for, whatever its catalog says
    table = lake(tmp_path, **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [manifest, *_] = manifests_of(snapshot, table.io)
    assert len(entries_of(manifest, table.io)) == 2
    file = Path(manifest.manifest_path.removeprefix("file://"))
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    with pytest.raises(ValueError, match=rf"{file} is damaged: a block is cut off"):
        entries_of(manifest, table.io)
    # whatever it is called
    other = file.with_name("rows.parquet")
    other.write_bytes(good[:-1])
    lists = snapshot.model_copy(update={"manifest_list": f"file://{other}"})
    with pytest.raises(ValueError, match=rf"{other} is damaged: a block is cut off"):
        manifests_of(lists, table.io)

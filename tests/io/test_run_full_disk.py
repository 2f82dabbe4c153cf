"""Runs whose disk is full at one moment or another: an error that says so, and no lost row."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.checkpoint import storing_output

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fluss.FlussConnection]:
    folder = tmp_path_factory.mktemp("engine")
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        yield connection


class Disk:
    """A disk that takes a number of things more, below a folder."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = str(root)
        self.left: int | None = None
        self.refused = False
        for module, name, place in (
            (os, "replace", lambda source, target: target),
            (os, "link", lambda source, target: target),
            (tempfile, "mkstemp", lambda *_, dir, **__: dir),
        ):
            patch.setattr(module, name, self.limited(getattr(module, name), place))

    def limited(self, plain: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.left is not None and str(place(*args, **options)).startswith(self.root):
                self.left -= 1
                if self.left < 0:
                    self.refused = True
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return plain(*args, **options)

        return call


@pytest.mark.parametrize("into", ["folder", "table"])
def test_a_run_goes_on_where_the_disk_was_full(
    connection: fluss.FlussConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    disk = Disk(monkeypatch, tmp_path)
    source, target = f"from_{into}", f"to_{into}"
    for name in (source, target):
        path = fluss.TablePath("fluss", name)
        connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
    out = tmp_path / "out"
    query = fluss.scan_fluss(source, connection=connection)
    options: Any = {
        "to": f"fluss.{target}" if into == "table" else out,
        "checkpoint": tmp_path / "checkpoint",
        "max_batch_rows": 5,
    }
    refused = 0
    for number in range(12):
        rows = pl.DataFrame({"id": range(10 * number, 10 * number + 10)})
        fluss.write_fluss(rows, source, connection=connection)
        disk.left, disk.refused = number, False
        try:
            query.fluss.run(**options)  # type: ignore[attr-defined]
        except FlussError as error:
            refused += error.error_code == ErrorCode.STORAGE_EXCEPTION
            continue
        finally:
            disk.left = None
        assert not disk.refused
    assert refused >= 6
    query.fluss.run(**options)  # type: ignore[attr-defined]
    if into == "table":
        found = fluss.scan_fluss(target, connection=connection).collect()
    else:
        found = pl.read_parquet(out / "*.parquet")
        assert {path.name for path in tmp_path.iterdir()} == {"out", "checkpoint"}
    assert sorted(found["id"]) == list(range(120))
    again = query.fluss.run(**options)  # type: ignore[attr-defined]
    assert again.batches == 0


def test_a_copy_of_a_file_in_the_folder_is_told(
    connection: fluss.FlussConnection, tmp_path: Path
) -> None:
    path = fluss.TablePath("fluss", "copied")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
    query = fluss.scan_fluss(path, connection=connection)
    out = tmp_path / "out"
    options: Any = {"to": out, "checkpoint": tmp_path / "checkpoint"}
    fluss.write_fluss(pl.DataFrame({"id": [1]}), path, connection=connection)
    query.fluss.run(**options)  # type: ignore[attr-defined]
    file = out / "batch-0000000000.parquet"
    copy = out / "batch-0000000000_copy.parquet"
    copy.write_bytes(file.read_bytes())
    with pytest.raises(FlussError, match=r"_copy\.parquet is a copy of a file that this run wrote"):
        query.fluss.run(**options)  # type: ignore[attr-defined]
    copy.unlink()
    assert query.fluss.run(**options).batches == 0  # type: ignore[attr-defined]


def test_a_folder_may_have_as_long_a_name_as_there_are(
    connection: fluss.FlussConnection, tmp_path: Path
) -> None:
    path = fluss.TablePath("fluss", "long")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
    fluss.write_fluss(pl.DataFrame({"id": [1]}), path, connection=connection)
    query = fluss.scan_fluss(path, connection=connection)
    for name in ("x" * 255, "\U0001f600" * 63):
        options: Any = {"to": tmp_path / name, "checkpoint": tmp_path / f"c{len(name)}"}
        assert query.fluss.run(**options).rows_written == 1  # type: ignore[attr-defined]


FULL = Path("/dev/full")


def to_parquet() -> None:
    pl.LazyFrame({"id": range(10**5)}).sink_parquet(FULL)


def to_arrow() -> None:
    with pa.OSFile(str(FULL), "wb") as file, pa.ipc.new_file(file, SCHEMA) as stage:
        stage.write_batch(pa.record_batch({"id": pa.array(range(10**5))}))


@pytest.mark.parametrize("write", [to_parquet, to_arrow] if FULL.exists() else [])
def test_a_full_disk_is_known_by_what_libraries_say_of_it(write: Callable[[], None]) -> None:
    with (
        pytest.raises(FlussError, match=r"^x cannot be written: No space left on device; ") as told,
        storing_output(Path("x")),
    ):
        write()
    assert told.value.error_code == ErrorCode.STORAGE_EXCEPTION


@pytest.mark.parametrize(
    ("error", "query"),
    [
        (FileNotFoundError, lambda: pl.scan_csv("nowhere.csv").collect()),
        (pl.exceptions.ColumnNotFoundError, lambda: pl.LazyFrame({"a": [1]}).select("b").collect()),
    ],
)
def test_other_errors_of_a_query_stay_what_they_are(
    error: type[Exception], query: Callable[[], object]
) -> None:
    with pytest.raises(error), storing_output(Path("x")):
        query()

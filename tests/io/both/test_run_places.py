"""Where runs write: folders of this machine, and nothing that only looks like one."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io import run, scan_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable, write


@pytest.fixture
def log(make_table: MakeTable, connection: FlussConnection) -> TablePath:
    path = make_table(pa.schema({"x": pa.int64()}))
    write(connection, path, pl.DataFrame({"x": [1, 2]}))
    return path


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_the_folder_of_the_program(
    log: TablePath,
    connection: FlussConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    query = scan_fluss(log, connection=connection)
    with pytest.raises(FlussError, match=r"checkpoint='.*' is empty: expected the path"):
        run(query, to=print, checkpoint=name)
    with pytest.raises(FlussError, match=r"to='.*' is empty: expected the path of a folder"):
        run(query, to=name, checkpoint=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://bucket/out", "file:///tmp/out", "fluss://host:9123/out"])
def test_a_url_is_no_folder(
    log: TablePath,
    connection: FlussConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    query = scan_fluss(log, connection=connection)
    with pytest.raises(FlussError, match=r"to=.* is a URL: expected the path of a folder"):
        run(query, to=url, checkpoint="cp")
    with pytest.raises(FlussError, match=r"checkpoint=.* is a URL: expected the path"):
        run(query, to="out", checkpoint=url)
    assert {path.name for path in tmp_path.iterdir()} <= {"cp"}
    # what stands in the way is gone: the same checkpoint goes on
    assert run(query, to="out", checkpoint="cp").rows_written == 2


def test_a_folder_that_cannot_be_made(
    log: TablePath, connection: FlussConnection, tmp_path: Path
) -> None:
    query = scan_fluss(log, connection=connection)
    (tmp_path / "file").write_text("")
    with pytest.raises(FlussError, match=r"to=.* cannot be made as a folder"):
        run(query, to=str(tmp_path / "file" / "out"), checkpoint=str(tmp_path / "cp"))


@pytest.mark.parametrize("inner", ["out/cp", "out", "link"])
def test_a_checkpoint_lies_outside_the_folder_that_is_written(
    log: TablePath,
    connection: FlussConnection,
    tmp_path: Path,
    inner: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = scan_fluss(log, connection=connection)
    out = tmp_path / "out"
    (out / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(out / "real")
    with pytest.raises(FlussError, match=r"name a folder outside, such as .*out\.checkpoint"):
        run(query, to=out, checkpoint=tmp_path / inner)
    assert [path.name for path in out.rglob("*")] == ["real"]
    (out / "real").rmdir()
    (tmp_path / "link").unlink()
    # one of an earlier release goes on
    assert run(query, to=out, checkpoint=tmp_path / "cp").rows_written == 2
    (tmp_path / "cp").rename(out / "cp")
    assert run(query, to=out, checkpoint=out / "cp").batches == 0
    assert [("move the checkpoint out" in r.getMessage()) for r in caplog.records] == [True]


def test_the_files_may_lie_in_the_checkpoint(
    log: TablePath, connection: FlussConnection, tmp_path: Path
) -> None:
    query = scan_fluss(log, connection=connection)
    for _ in range(2):
        run(query, to=tmp_path / "cp" / "out", checkpoint=tmp_path / "cp")
    assert pl.read_parquet(tmp_path / "cp" / "out").height == 2

"""Where runs write: folders of this machine, and nothing that only looks like one."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io import MicroBatches, run, scan_fluss
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder; the program is in another one."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(here)
    return home


@pytest.mark.parametrize("kind", [str, Path])
def test_a_tilde_is_the_home_folder(
    log: TablePath, connection: FlussConnection, home: Path, kind: type[str] | type[Path]
) -> None:
    query = scan_fluss(log, connection=connection)
    assert run(query, to=kind("~/out"), checkpoint=kind("~/cp")).rows_written == 2
    assert pl.read_parquet(home / "out").height == 2
    assert list(Path.cwd().iterdir()) == []
    # it is the same place by each of its names
    assert run(query, to=home / "out", checkpoint=str(home / "cp")).batches == 0
    with MicroBatches(query, kind("~/batches")) as batches:
        for batch in batches:
            assert batch.rows == 2
            batch.commit()
        assert batches.progress.name == str(home / "batches")
    assert (home / "batches" / "metadata.json").exists()
    assert list(Path.cwd().iterdir()) == []
    with pytest.raises(FlussError, match="name a folder outside"):
        run(query, to="~/new", checkpoint=home / "new" / "cp")


def test_a_folder_whose_name_is_a_tilde_is_written_with_a_dot(
    log: TablePath, connection: FlussConnection, home: Path
) -> None:
    query = scan_fluss(log, connection=connection)
    assert run(query, to="./~/out", checkpoint="./~/cp").rows_written == 2
    assert run(query, to=Path.cwd() / "~" / "out", checkpoint="./~/cp").batches == 0
    run(query, to="~nobody-of-this-name/out", checkpoint="cp")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["cp", "~", "~nobody-of-this-name"]
    assert list(home.iterdir()) == []


def test_what_an_earlier_release_wrote_below_a_tilde_is_not_left_behind(
    log: TablePath, connection: FlussConnection, home: Path
) -> None:
    query = scan_fluss(log, connection=connection)
    run(query, to="./~/out", checkpoint="./~/cp")
    literal = Path.cwd() / "~"
    with pytest.raises(FlussError, match=r"^checkpoint='~/cp' is .*, and an earlier .*, or say "):
        run(query, to="out", checkpoint="~/cp")
    with pytest.raises(FlussError, match=r"^checkpoint='~/cp' is "):
        MicroBatches(query, "~/cp")
    with pytest.raises(FlussError, match=r"^to='~/out' is .*, and an earlier release wrote to"):
        run(query, to="~/out", checkpoint=literal / "cp")
    assert list(home.iterdir()) == []
    # both ways out
    assert run(query, to=literal / "out", checkpoint=literal / "cp").batches == 0
    for name in ("cp", "out"):
        (literal / name).rename(home / name)
    assert run(query, to="~/out", checkpoint="~/cp").batches == 0

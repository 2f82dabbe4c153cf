"""Opening a log whose files are not as they were left: what is looked at, and what is changed."""

from __future__ import annotations

import ast
import os
import re
import shutil
from pathlib import Path

import pytest

import fluss_df.embedded
from fluss_df.engine.catalog.old_formats import old_point
from fluss_df.engine.engine import Engine
from fluss_df.engine.files import files
from fluss_df.engine.files.files import DamagedError, TooManyFilesError
from fluss_df.engine.log.segment import Segment
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.metadata import TableBucket
from tests.embedded.damage import Contents, make_filled, read_all
from tests.embedded.test_durability import NAME, batch

OWNER = BucketIds(0, -1, 0)


def opened(folder: Path) -> Tablet:
    return Tablet(folder, NAME, segment_bytes=200, owner=OWNER, used=True)


def filled(folder: Path, batches: int = 6) -> list[Path]:
    tablet = Tablet(folder, NAME, segment_bytes=200, owner=OWNER)
    for _ in range(batches):
        tablet.append(batch(20), {1: None})
        tablet.sync()
    tablet.close()
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 3
    return segments


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("damaged", [-1, -2])
def test_nothing_is_changed_where_a_log_is_refused(tmp_path: Path, damaged: int) -> None:
    """Neither expired segments nor indexes nor a torn tail, whatever stands before the damage."""
    folder = tmp_path / "log"
    segments = filled(folder)
    kept = shutil.copy(segments[0], tmp_path / "expired.log")
    tablet = opened(folder)
    # the log begins at its third segment; of those before, one was removed, and then it was killed
    tablet._segments[0].last_timestamp = tablet._segments[1].last_timestamp = 0
    assert tablet.expire(10**15, 10**15 - 1) == 2
    tablet.close()
    shutil.copy(kept, segments[0])
    for index in folder.glob("*.index"):
        index.unlink()
    data = bytearray(segments[damaged].read_bytes())
    data[-1] ^= 1
    segments[damaged].write_bytes(bytes(data))
    before = everything(folder)
    with pytest.raises(DamagedError, match="Nothing was changed"):
        opened(folder)
    assert everything(folder) == before
    data[-1] ^= 1
    segments[damaged].write_bytes(bytes(data))
    opened(folder).close()
    assert segments[0].name not in everything(folder)


def test_a_tail_is_not_cut_off_where_a_log_is_refused(tmp_path: Path) -> None:
    """The digest of the log, which is compared last, says that it is another one."""
    folder, other = tmp_path / "log", tmp_path / "other"
    for each in (folder, other):
        tablet = Tablet(each, NAME, segment_bytes=1 << 20, owner=OWNER)
        tablet.append(batch(20), {1: None})
        tablet.sync()
        tablet.abandon()
    (segment,) = other.glob("*.log")
    (folder / segment.name).write_bytes(segment.read_bytes() + b"torn")
    before = everything(folder)
    with pytest.raises(DamagedError, match="Nothing was changed"):
        opened(folder)
    assert everything(folder) == before


# ---- a folder in place of a file, and a file in place of a folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    root = tmp_path_factory.mktemp("kinds")
    made = make_filled(root / "made", 1, tables={"log": None, "rows": ["n"]})
    return made.folder, made.expected


def read(folder: Path) -> Contents:
    engine = Engine(folder)
    try:
        return read_all(engine)
    finally:
        engine.close()


BUCKET = "data/0/table/0"


@pytest.mark.parametrize(
    "name",
    [
        "FORMAT",
        "catalog/databases.json",
        "catalog/table-0.json",
        "catalog/table-0.buckets",
        "data/databases.json",
        "data/0/table.json",
        "data/0/buckets",
        f"{BUCKET}/log/synced",
        f"{BUCKET}/log/start",
        f"{BUCKET}/log/last.index",
        "data/1/table/0/kv",
    ],
)
def test_a_small_file_that_became_a_folder_is_made_again(
    tmp_path: Path, template: tuple[Path, Contents], name: str
) -> None:
    """As one that is damaged is; what is in the folder is kept beside it."""
    folder = tmp_path / "d"
    shutil.copytree(template[0], folder)
    path = folder / name
    if path.name == "last.index":
        path = sorted((folder / BUCKET / "log").glob("*.index"))[-1]
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("mine")
        mine = path
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "mine").write_text("mine")
        mine = path / "mine"
    assert check_folder(folder).sound
    assert mine.read_text() == "mine"
    for _ in range(2):
        assert read(folder) == template[1]
    assert check_folder(folder).sound
    assert [each.read_text() for each in folder.rglob("mine")] in ([], ["mine"])
    assert name.endswith("kv") or len(list(folder.rglob("mine"))) == 1


@pytest.mark.parametrize("name", [f"{BUCKET}/log", f"{BUCKET}/log/00000000000000000000.log"])
def test_what_cannot_be_made_again_is_named(
    tmp_path: Path, template: tuple[Path, Contents], name: str
) -> None:
    folder = tmp_path / "d"
    shutil.copytree(template[0], folder)
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("mine")
    else:
        path.unlink()
        path.mkdir()
    assert not check_folder(folder).sound
    engine = Engine(folder)
    try:
        with pytest.raises(DamagedError, match=re.escape(str(path))):
            engine.bucket(TableBucket(0, 0))
    finally:
        engine.close()


# ---- reading


def no_descriptors(*_: object, **__: object) -> int:
    raise OSError(24, os.strerror(24))


def test_an_index_that_cannot_be_opened_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = filled(tmp_path / "log")
    segment = Segment(tmp_path / "log", int(segments[0].stem))
    assert segment.read_index(OWNER) is not None
    monkeypatch.setattr(files, "_get", no_descriptors)
    with pytest.raises(TooManyFilesError):
        segment.read_index(OWNER)
    with pytest.raises(TooManyFilesError):
        old_point(tmp_path / "log", OWNER)
    segment.release_files()


# where files may be opened in another way: to write or sync or lock them, to read a part of them
_OPENED = {
    "accepting.py": {"os.open"},
    "backup.py": {"os.open", "tarfile.open"},
    "backup_parts.py": {"os.open"},
    "files.py": {"os.open", "open"},
    "lake_check.py": {"open"},
    "lake_copy.py": {"os.open"},
    "lake_move.py": {"os.open"},
    "lake_rows.py": {"os.open"},
    "lake_sums.py": {"os.open", "open"},
    "ownership.py": {"os.open"},
    "restore.py": {"os.open", "tarfile.open"},
    "runtime_folder.py": {"os.open"},
    "segment.py": {"os.open"},
    "sst_blocks.py": {"os.open"},
    "synced_point.py": {"os.open"},
}
_MODULES = ("os", "tarfile", "io")


def opening(call: ast.Call) -> str | None:
    """Return the name of a function that opens a file, if one is called."""
    function = call.func
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr in ("read_bytes", "read_text"):
        return function.attr
    if function.attr == "open" and isinstance(function.value, ast.Name):
        return f"{function.value.id}.open" if function.value.id in _MODULES else "open"
    return None


def test_small_files_are_read_in_one_way() -> None:
    """Which tells what is damaged from what cannot be read at the moment."""
    found = []
    root = Path(fluss_df.__file__).parent
    for path in sorted([*root.glob("engine/**/*.py"), *root.glob("embedded/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            use = opening(node)
            if use is not None and use not in _OPENED.get(path.name, ()):
                found.append(f"{path.name}:{node.lineno} {use}")
    assert found == []


@pytest.mark.parametrize("gone", [True, False])
def test_the_point_of_a_log_that_was_dropped_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: bool
) -> None:
    tablet = Tablet(tmp_path / "log", NAME, segment_bytes=2000, owner=OWNER)
    tablet.append(batch(20), {1: None})
    tablet.sync()
    tablet.release_files()
    tablet.append(batch(20), {1: None})
    if gone:
        shutil.rmtree(tmp_path / "log")
    else:
        (tmp_path / "log" / "synced").unlink()
        (tmp_path / "log" / "synced").mkdir()
    tablet.sync()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == (0 if gone else 1)
    assert gone or "synced" in told[0]
    tablet.abandon()

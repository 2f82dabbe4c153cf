"""The small files of a folder, damaged, lost and exchanged: the tables and rows are as before."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.engine import Engine
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from tests.embedded.golden import contents, fill

Mutation = Callable[[Path, Path, random.Random], None]
# each file in each way, and not in every second way
EVERY = bool(os.environ.get("FLUSS_TEST_EVERY"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Return a folder with every kind of table, an older version of it, and what it holds."""
    root = tmp_path_factory.mktemp("catalog")
    with (
        EmbeddedFluss(root / "d", options=EngineOptions(segment_bytes=1000)) as engine,
        engine.connection() as connection,
    ):
        fill(connection)
        expected = contents(connection)
    shutil.copytree(root / "d", root / "older")
    with EmbeddedFluss(root / "d") as engine, engine.connection() as connection:
        # nothing of the tables' rows changes, but each small file does
        admin = connection.get_admin()
        admin.create_database("other")
        for path in (fluss.TablePath("fluss", name) for name in ("log", "rows", "parted")):
            admin.alter_table(path, set_properties={"note": "newer"})
    return root / "d", root / "older", expected


def small_files(folder: Path) -> list[Path]:
    return sorted(file.relative_to(folder) for file in folder.rglob("*.json"))


def flip(file: Path, _older: Path, choose: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    file.write_bytes(bytes(data))


def digit(file: Path, _older: Path, choose: random.Random) -> None:
    """Change one digit: the JSON stays JSON."""
    data = bytearray(file.read_bytes())
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()] or [0]
    place = choose.choice(places)
    data[place] = ord(choose.choice([d for d in "0123456789" if ord(d) != data[place]]))
    file.write_bytes(bytes(data))


def cut(file: Path, _older: Path, choose: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: choose.randrange(len(data))])


def zeroed(file: Path, _older: Path, choose: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = choose.randrange(len(data))
    data[at : at + 16] = bytes(len(data[at : at + 16]))
    file.write_bytes(bytes(data))


def appended(file: Path, _older: Path, choose: random.Random) -> None:
    file.write_bytes(file.read_bytes() + choose.randbytes(choose.randrange(1, 100)))


def deleted(file: Path, _older: Path, _choose: random.Random) -> None:
    file.unlink()


def replaced(file: Path, older: Path, _choose: random.Random) -> None:
    if older.exists():
        shutil.copy(older, file)


def exchanged(file: Path, _older: Path, choose: random.Random) -> None:
    others = [other for other in file.parent.glob("*.json") if other != file]
    if others:
        other = choose.choice(others)
        data = other.read_bytes()
        other.write_bytes(file.read_bytes())
        file.write_bytes(data)


MUTATIONS: list[Mutation] = [flip, digit, cut, zeroed, appended, deleted, replaced, exchanged]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_one_small_file_is_not_as_it_was(
    tmp_path: Path, whole: tuple[Path, Path, dict[str, Any]], mutation: Mutation
) -> None:
    folder, older, expected = whole
    choose = random.Random(mutation.__name__)
    for number, name in enumerate(small_files(folder)):
        if (number + MUTATIONS.index(mutation)) % 2 and not EVERY:
            continue
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        mutation(copy / name, older / name, choose)
        assert check_folder(copy).sound, name
        with EmbeddedFluss(copy) as engine, engine.connection() as connection:
            admin = connection.get_admin()
            assert contents(connection) == expected, name
            assert admin.list_databases() == ["fluss", "other"], name
            for path in (fluss.TablePath("fluss", t) for t in ("log", "rows", "parted")):
                assert admin.get_table_info(path).get_custom_properties()["note"] == "newer", name
        report = check_folder(copy)
        assert report.findings == [], name
        assert not (copy / "set-aside").exists(), name


@pytest.mark.parametrize("lost", ["catalog", "FORMAT", "LOCK"])
def test_a_part_of_the_folder_is_lost(
    tmp_path: Path, whole: tuple[Path, Path, dict[str, Any]], lost: str
) -> None:
    folder, _, expected = whole
    shutil.copytree(folder, tmp_path / "d")
    part = tmp_path / "d" / lost
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    assert check_folder(tmp_path / "d").sound
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        assert contents(connection) == expected


def test_both_files_of_a_table_are_lost(
    tmp_path: Path, whole: tuple[Path, Path, dict[str, Any]]
) -> None:
    """Its data is set aside, and its id is not used for another table."""
    folder, _, _ = whole
    shutil.copytree(folder, tmp_path / "d")
    highest = max(int(file.parent.name) for file in (tmp_path / "d/data").glob("*/table.json"))
    (tmp_path / "d" / "catalog" / f"table-{highest}.json").unlink()
    data = tmp_path / "d" / "data" / str(highest)
    (data / "table.json").unlink()
    files = sorted(file.relative_to(data) for file in data.rglob("*") if file.is_file())
    for file in (tmp_path / "d").rglob("databases.json"):
        file.unlink()
    with pytest.raises(FlussError, match=r"databases\.json and its copy .* are lost"):
        Engine(tmp_path / "d")
    for place in ("catalog", "data"):
        shutil.copy(folder / place / "databases.json", tmp_path / "d" / place)
    engine = Engine(tmp_path / "d")
    try:
        assert len(engine.catalog.all_tables()) == 2
    finally:
        engine.close()
    aside = tmp_path / "d" / "set-aside" / f"data-{highest}.0"
    assert sorted(f.relative_to(aside) for f in aside.rglob("*") if f.is_file()) == files
    assert {f.level for f in check_folder(tmp_path / "d").findings} == {"note"}


def test_folders_of_the_user_stay(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d"):
        pass
    for name in ("backup-2026", "data/notes", "catalog/old"):
        (tmp_path / "d" / name).mkdir()
        (tmp_path / "d" / name / "mine.txt").write_text("mine")
    with EmbeddedFluss(tmp_path / "d"):
        pass
    assert len(list((tmp_path / "d").rglob("mine.txt"))) == 3


def test_a_drop_that_was_interrupted(tmp_path: Path) -> None:
    """What was dropped does not come back, wherever the process ended."""
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        fill(connection)
    engine_ = Engine(tmp_path / "d")
    table = engine_.catalog.table(fluss.TablePath("fluss", "log"))
    catalog_file = tmp_path / "d" / "catalog" / f"table-{table.id}.json"
    kept = catalog_file.read_bytes()
    engine_.catalog.drop_table(table.path, False)
    engine_.close()
    # the data was renamed; the file of the catalog was still there
    catalog_file.write_bytes(kept)
    again = Engine(tmp_path / "d")
    try:
        assert not again.catalog.has_table(table.path)
        assert again.catalog.has_table(fluss.TablePath("fluss", "rows"))
    finally:
        again.close()
    assert not catalog_file.exists()
    assert not (tmp_path / "d" / "set-aside").exists()
    assert check_folder(tmp_path / "d").findings == []

"""Offsets of producers: what a peer registers stays within bounds."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from fluss_df.engine.catalog import cluster_state
from fluss_df.engine.engine import Engine
from fluss_df.engine.files.files import DamagedError
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket


def offsets(count: int) -> dict[TableBucket, int]:
    return {TableBucket(1, bucket): bucket for bucket in range(count)}


def test_offsets_of_all_producers_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "_MOST_OFFSETS", 100)
    monkeypatch.setattr(cluster_state, "_MOST_PRODUCERS", 3)
    engine = Engine(tmp_path / "d")
    state = engine.cluster
    assert state.register("a", offsets(60), None)
    with pytest.raises(FlussError, match=r"2 producers with 101 offsets") as refused:
        state.register("b", offsets(41), None)
    assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert state.producer("b") is None
    assert state.register("b", offsets(1), None)
    assert state.register("c", offsets(1), -1)
    # what has expired counts no more
    assert state.register("d", offsets(1), None)
    with pytest.raises(FlussError, match="4 producers"):
        state.register("e", {}, None)
    state.forget("a")
    assert state.register("e", offsets(90), None)
    engine.close()


def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each write of a file, from now on."""
    sizes: list[int] = []
    pwrite = os.pwrite

    def counted(fd: int, data: bytes, at: int) -> int:
        sizes.append(len(data))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    return sizes


def test_a_registration_costs_its_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "d")
    engine.cluster.register("large", offsets(100_000), None)
    sizes = written(monkeypatch)
    for number in range(20):
        assert engine.cluster.register(f"p{number}", offsets(10), None)
        engine.cluster.forget("p0")
        engine.cluster.add_tag(number, 1)
    assert max(sizes) < 1000
    engine.close()


def killed(folder: Path) -> Path:
    """Return a copy of a folder as it is now, as if its process had been killed."""
    copied = folder.with_name(f"{folder.name}-killed")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied)
    return copied


def state_of(folder: Path) -> tuple[dict[str, int], dict[int, int], str | None]:
    engine = Engine(folder)
    try:
        state = engine.cluster._state
        assert engine.cluster._offsets == sum(len(e.offsets) for e in state.producers.values())
        counts = {name: len(entry.offsets) for name, entry in state.producers.items()}
        return counts, dict(state.tags), state.rebalance
    finally:
        engine.close()


def test_each_change_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written again in between, and in whatever order."""
    monkeypatch.setattr(cluster_state, "_COMPACTED_BYTES", 2000)
    engine = Engine(tmp_path / "d")
    state = engine.cluster
    choose = random.Random(1)
    expected: dict[str, int] = {}
    tags: dict[int, int] = {}
    rebalance = None
    for number in range(150):
        kind = choose.randrange(4)
        name = f"p{choose.randrange(8)}"
        if kind == 0:
            state.forget(name)
            expected.pop(name, None)
        elif kind == 1 and state.register(name, offsets(number), None):
            expected[name] = number
        elif kind == 2:
            tags[number % 5] = number
            state.add_tag(number % 5, number)
        elif kind == 3:
            rebalance = str(number)
            state.rebalanced(rebalance)
        if not number % 10:
            assert state_of(killed(tmp_path / "d")) == (expected, tags, rebalance)
    assert check_folder(killed(tmp_path / "d")).findings == []
    engine.close()
    # a version before this one reads the file alone
    (tmp_path / "d" / "catalog" / "cluster.changes").unlink()
    (tmp_path / "d" / "data" / "cluster.changes").unlink()
    assert state_of(tmp_path / "d") == (expected, tags, rebalance)


@pytest.mark.parametrize("file", ["catalog/cluster.changes", "data/cluster.changes"])
@pytest.mark.parametrize("way", ["flip", "cut", "lost", "folder", "more"])
def test_one_damaged_file_of_changes_loses_nothing(tmp_path: Path, file: str, way: str) -> None:
    engine = Engine(tmp_path / "d")
    for number in range(5):
        engine.cluster.register(f"p{number}", offsets(number), None)
    left = killed(tmp_path / "d")
    engine.close()
    expected = {f"p{number}": number for number in range(5)}
    data = (left / file).read_bytes()
    for at in range(0, len(data), 7 if way in ("flip", "cut") else len(data)):
        folder = killed(left)
        path = folder / file
        if way == "flip":
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        elif way == "cut":
            path.write_bytes(data[:at])
        elif way == "more":
            # a record that was not written to the end
            path.write_bytes(data + data[:30])
        else:
            path.unlink()
            if way == "folder":
                path.mkdir()
        report = check_folder(folder)
        assert report.sound
        if file.startswith("catalog") and way != "more":
            assert report.findings
        other = Engine(folder)
        try:
            other.cluster.register("later", offsets(9), None)
        finally:
            again = killed(folder)
            other.close()
        assert state_of(again)[0] == {**expected, "later": 9}
    assert check_folder(folder).findings == []


def test_changes_that_are_lost_are_damage(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "d")
    for number in range(5):
        engine.cluster.register(f"p{number}", offsets(number), None)
    left = killed(tmp_path / "d")
    engine.close()
    first, second = (left / name / "cluster.changes" for name in ("catalog", "data"))
    data = bytearray(first.read_bytes())
    data[20] ^= 1
    first.write_bytes(bytes(data))
    second.write_bytes(bytes(data))
    # the first change of both is damaged: nothing behind it can be found
    assert state_of(killed(left))[0] == {"p0": 0}
    folder = killed(left)
    for name in ("catalog", "data"):
        (folder / name / "cluster.json").unlink()
        (folder / name / "cluster.changes").write_bytes(bytes(data))
    assert not check_folder(folder).sound
    with pytest.raises(DamagedError, match="changes of a file that is lost"):
        Engine(folder)


def test_a_write_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path / "d")
    state = engine.cluster
    state.register("a", offsets(1), None)
    state.register("b", offsets(2), None)

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(FlussError, match="is full"):
            state.register("c", offsets(3), None)
        assert state.producer("c") is None
    assert state_of(killed(tmp_path / "d"))[0] == {"a": 1, "b": 2}
    state.register("d", offsets(4), None)
    assert state_of(killed(tmp_path / "d"))[0] == {"a": 1, "b": 2, "d": 4}
    engine.close()


def test_a_backup_has_every_change(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "d")
    engine.cluster.register("a", offsets(1), None)
    engine.cluster.register("b", offsets(2), None)
    back_up(engine, tmp_path / "b.tar.zst")
    engine.close()
    restore(tmp_path / "b.tar.zst", tmp_path / "again")
    assert state_of(tmp_path / "again")[0] == {"a": 1, "b": 2}

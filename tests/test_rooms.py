"""Rooms and modules stay small enough to be read at once; their order is in .importlinter."""

from __future__ import annotations

from pathlib import Path

import pytest

import fluss_df as fluss

ROOT = Path(fluss.__file__).parent
MODULES = [
    file
    for file in sorted(ROOT.rglob("*.py"))
    # written by a program
    if not file.name.startswith("messages_pb2")
]
ROOMS = sorted({file.parent for file in MODULES})
MOST_MODULES = 12
MOST_LINES = 500


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT.parent)))
def test_a_room_has_a_dozen_modules_at_the_most(room: Path) -> None:
    modules = [file.stem for file in room.glob("*.py") if file.stem != "__init__"]
    assert len(modules) <= MOST_MODULES


def test_modules_are_no_longer_than_can_be_read() -> None:
    lines = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in MODULES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}

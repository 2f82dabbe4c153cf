"""Damaged requests; ``tests.campaigns.embedded_fuzz`` sends many more."""

from __future__ import annotations

from pathlib import Path

from tests.embedded.fuzzing import campaign


def test_damaged_frames_do_no_harm(tmp_path: Path) -> None:
    assert campaign(tmp_path / "d", 3000, seed=3) > 1500

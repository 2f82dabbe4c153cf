"""The loss of power; ``tests.campaigns.embedded_power`` does it some thousand times."""

from __future__ import annotations

from pathlib import Path

from tests.embedded.power import campaign


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert campaign(tmp_path, 60, seed=1) == 60


def test_nothing_acknowledged_is_lost_on_a_disk_that_fails(tmp_path: Path) -> None:
    assert campaign(tmp_path, 80, seed=1, failing=0.02) == 80

"""Damaged folders; ``tests.campaigns.embedded_damage`` damages many more."""

from __future__ import annotations

from pathlib import Path

from tests.embedded.damage import make_templates, run


def test_damage_is_mended_or_told(tmp_path: Path) -> None:
    counts = run(make_templates(tmp_path), tmp_path / "trials", range(105))
    assert counts.failures == []
    assert counts.trials == 105
    assert min(counts.sound, counts.mended, counts.refused) > 10

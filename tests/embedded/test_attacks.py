"""A few of the attacks and losses of the campaigns, for a moment each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.embedded.attacking import ATTACKS, MB, Attack, measure
from tests.embedded.losing import campaign

_SOME = [attack for attack in ATTACKS if attack.name.startswith(("FETCH_LOG, as", "1,500 idle"))]


@pytest.mark.parametrize("attack", _SOME, ids=lambda attack: attack.name)
def test_a_peer_beside_an_attack(tmp_path: Path, attack: Attack) -> None:
    seen = measure(attack, tmp_path / "d", 4)
    assert seen.lookups > 10
    assert seen.refused == 0
    assert seen.peak < 512 * MB


def test_folders_that_are_lost_under_their_writers(tmp_path: Path) -> None:
    outcomes = campaign(tmp_path, 3, 5, lambda number, outcome: None)
    assert [problem for outcome in outcomes for problem in outcome.problems] == []
    assert sum(outcome.acknowledged for outcome in outcomes) > 60

"""Mutated responses of primary-key tables; ``tests.campaigns.hostile`` tries many more."""

from __future__ import annotations

import pytest

from . import hostile

CASES = {case.name: case for case in hostile.cases()}
ROUNDS = 600


@pytest.mark.parametrize("name", CASES)
def test_mutations_are_errors_or_rows(name: str) -> None:
    outcome = hostile.attack(CASES[name], ROUNDS, 1)
    assert outcome.refused > ROUNDS // 10
    assert outcome.slowest < 5
    assert outcome.grown < 256 << 20


@pytest.mark.parametrize("name", CASES)
def test_captured_responses_are_read(name: str) -> None:
    assert CASES[name].expected.num_rows >= 10

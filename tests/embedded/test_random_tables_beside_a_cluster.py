"""Random tables, changes of them and partitions: as a real Fluss server has them."""

from __future__ import annotations

import pytest

from tests.campaigns.ddl_beside import Comparison, Requests, life
from tests.embedded.peers import Peer


def test_random_tables(real: Peer, embedded: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    """More of them, and others: ``python -m tests.campaigns.ddl_beside``."""
    if real.since_1_0:
        pytest.skip("what 1.0 has otherwise stands in docs/embedded.md")
    both = Comparison(real, embedded, verbose=False)
    for number in range(60):
        life(Requests(number), both, number)
    assert not both.different, capsys.readouterr().out
    # most are not refused
    assert both.codes["DROP_TABLE: 0"] >= 15

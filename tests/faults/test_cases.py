"""Broken answers and connections: a program gets over them, or says what is wrong; no row suffers.

What the official client does in the same cases is shown by ``tests/campaigns/faults_beside.py``.
"""

from __future__ import annotations

import pytest

from tests.faults.beside import Beside
from tests.faults.fault_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(server: Beside, case: Case) -> None:
    seen = server.run(case, "ours", timeout_s=40)
    assert seen["hit"]
    if case.ends == "ok":
        assert (seen["outcome"], seen["rows"]) == ("ok", "each once")
    else:
        assert "FlussError" in seen["outcome"] or "ProtocolError" in seen["outcome"], seen
        assert seen["rows"] == "none returned"

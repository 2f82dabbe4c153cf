"""The list of slow tests is of tests that are there, and leaves tests of every kind to the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import slow

ROOT = Path(__file__).parent.parent
PATTERNS = [*(pattern for some in slow.SLOW.values() for pattern in some), *slow.SAMPLED]


@pytest.fixture(scope="module")
def functions() -> list[str]:
    """Return all functions with tests, as ``tests/a/test_b.py::test_c``."""
    found = []
    for file in sorted(ROOT.joinpath("tests").rglob("test_*.py")):
        names = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.M)
        found += [f"{file.relative_to(ROOT).as_posix()}::{name}" for name in names]
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_is_of_tests_that_are_there(pattern: str, functions: list[str]) -> None:
    """Parameters are not looked at: a pattern of some is cut before them."""
    without, _, _ = pattern.partition(r"\[")
    assert any(re.match(without, name) for name in functions)


@pytest.mark.parametrize(
    ("test", "is_slow"),
    [
        ("tests/faults/test_killed_servers_kv.py::test_x", True),
        ("tests/faults/test_cases.py::test_case[a reset]", False),
        ("tests/spark/test_batch_read.py::test_every_type[connect]", True),
        ("tests/spark/test_batch_read.py::test_every_type[classic]", False),
        ("tests/spark/test_engines.py::test_x[connect-folder]", True),
        ("tests/spark/test_lake.py::test_lake_and_log_are_one_table[classic-folder-log]", False),
        ("tests/spark/test_lake.py::test_lake_and_log_are_one_table[classic-paimon-log]", True),
        ("tests/lake/test_union.py::test_a_partition_that_fluss_has_no_more[iceberg]", True),
        ("tests/lake/tiering/test_tiering_service.py::test_x[keys]", False),
        ("tests/backend/test_windows.py::test_frames_of_rows[0]", False),
    ],
)
def test_a_name_tells(test: str, is_slow: bool) -> None:
    assert slow.is_slow(test) is is_slow


def test_of_many_cases_every_fifth_is_not_slow() -> None:
    test = "tests/backend/test_windows.py::test_frames_of_rows[x]"
    assert [case for case in range(11) if not slow.is_left_out(test, case)] == [0, 5, 10]
    other = "tests/pushdown/test_keys.py::test_x[x]"
    assert not any(slow.is_left_out(other, case) for case in range(11))

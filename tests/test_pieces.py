"""Pieces of the tests: which tests are together, and what is known of the time they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pieces

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("test", "piece"),
    [
        ("tests/lake/test_union.py::test_ibis_and_sql_read_both_halves[iceberg-log]", "Iceberg"),
        ("tests/lake/test_union.py::test_ibis_and_sql_read_both_halves[paimon-log]", "Paimon"),
        ("tests/lake/test_union.py::test_a_catalog_that_cannot_be_reached", "Iceberg"),
        ("tests/lake/test_paimon.py::test_columns_that_were_added", "Paimon"),
        ("tests/lake/test_lake_types.py::test_every_type[paimon-log]", "Paimon"),
        ("tests/lake/test_lake_types.py::test_every_type[flink-keyed]", "Iceberg"),
        ("tests/lake/test_lake_types.py::test_every_type[ours-keyed]", "tiering"),
        ("tests/lake/test_lake_types.py::test_names_that_are_patterns", "tiering"),
        ("tests/lake/tiering/test_upkeep.py::test_x", "tiering"),
        ("tests/lake/tiering/test_tiering_parts.py::t", "tests/lake/tiering/test_tiering_parts.py"),
        ("tests/lake/test_frames.py::test_x[paimon::y]", "tests/lake/test_frames.py"),
        ("tests/spark/test_states.py::test_x[classic]", "Spark"),
        ("tests/spark/test_states.py::test_x[connect-1]", "Spark"),
        ("tests/spark/test_lake.py::test_x[iceberg-classic-log]", "Spark"),
        ("tests/spark/test_states.py::test_x", "tests/spark/test_states.py"),
        ("tests/spark/test_sql_text.py::test_x", "Spark"),
        ("tests/spark/test_jvm_kills.py::test_x", "tests/spark/test_jvm_kills.py"),
        ("tests/io/test_run.py::test_x[classic]", "tests/io/test_run.py"),
    ],
)
def test_tests_that_share_a_costly_server_are_one_piece(test: str, piece: str) -> None:
    assert pieces.piece_of(test) == piece


def test_every_piece_that_was_measured_is_there() -> None:
    """What is renamed is measured again, and does not begin last."""
    found = pieces.read_seconds()
    gone = [name for name in found if name not in pieces.TOGETHER and not (ROOT / name).is_file()]
    assert gone == []
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_what_did_not_run_keeps_its_time(tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"
    pieces.write_seconds({"a": 1.4, "b": 7.6, "c": 2}, file)
    pieces.write_seconds({"c": 30, "d": 8}, file)
    assert pieces.read_seconds(file) == {"c": 30, "b": 8, "d": 8, "a": 1}
    assert list(pieces.read_seconds(file)) == ["c", "b", "d", "a"]

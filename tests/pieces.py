"""The pieces in which workers of the tests take them, and how long each takes.

A piece is what one worker runs in sequence. A worker has servers of its own, and keeps them to its
end. So tests that need the same costly server are one piece; other tests are pieces by file. The
longest pieces come first: what begins last should be short.

``make test-all PYTEST_ARGS=--write-piece-seconds`` runs all tests, and notes what each piece took.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Pieces that are no files, by the tests that they have. A test belongs to the first that fits.
TOGETHER: Final[Mapping[str, str]] = {
    # a cluster whose tables Flink tiers into Paimon
    "Paimon": (
        r"tests/lake/(test_(paimon|lake_partition_choice)\.py|tiering/test_paimon_tiering\.py"
        r"|test_(union|lake_types|random_unions)\.py::.*\[paimon)"
    ),
    # a cluster whose tables Flink tiers into Iceberg
    "Iceberg": (
        r"tests/(lake/(test_union\.py|test_lake_types\.py::.*\[flink)|cluster/test_lake_cluster\.py)"
    ),
    # a cluster with a lake, whose tables the tests tier
    "tiering": (
        r"tests/lake/(test_(added_columns|lake_types)"
        r"|tiering/test_(guide|tiering_failures|tiering_leases|tiering_service|upkeep))\.py"
    ),
    # a server that is killed, and started again
    "killed": r"tests/faults/test_killed_servers(_kv)?\.py",
    # a session of Spark, whose kind is a parameter of most tests that have one
    "Spark": r"tests/spark/(.*\[(\w+-)?(classic|connect)\b|test_(sql_text|random_\w+)\.py)",
}
SECONDS_FILE: Final = Path(__file__).with_name("piece_seconds.json")
#: What a piece may take that was not measured: it is not left to the end.
UNKNOWN_S: Final = 20.0

_PATTERNS: Final = {name: re.compile(pattern) for name, pattern in TOGETHER.items()}


def piece_of(nodeid: str) -> str:
    """Return the name of a test's piece: of a file, its path."""
    names = (name for name, pattern in _PATTERNS.items() if pattern.match(nodeid))
    return next(names, nodeid.split("::", 1)[0])


def read_seconds(file: Path = SECONDS_FILE) -> dict[str, float]:
    """Return how long pieces took when they were measured, by name."""
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return found


def write_seconds(seconds: Mapping[str, float], file: Path = SECONDS_FILE) -> None:
    """Note how long pieces took; those of which nothing ran keep what they had."""
    known = read_seconds(file) if file.exists() else {}
    known |= {name: round(taken) for name, taken in seconds.items()}
    ordered = sorted(known.items(), key=lambda item: (-item[1], item[0]))
    file.write_text(json.dumps(dict(ordered), indent=1) + "\n", encoding="utf-8")

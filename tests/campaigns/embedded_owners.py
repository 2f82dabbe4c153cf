"""Folders that are lost under their writers: ``python -m tests.campaigns.embedded_owners``.

``[TRIALS=500] [SEED=0]``; see ``tests/embedded/losing.py``.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.embedded.losing import Outcome, campaign


def report(number: int, outcome: Outcome) -> None:
    for problem in outcome.problems:
        print(f"trial {number}, {outcome.how}: {problem}", flush=True)
    if number % 25 == 0:
        print(f"{number} trials", flush=True)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes = campaign(Path(folder), trials, seed, report)
    kinds = Counter(outcome.how for outcome in outcomes)
    acknowledged = sum(outcome.acknowledged for outcome in outcomes)
    after = sum(outcome.after for outcome in outcomes)
    bad = sum(bool(outcome.problems) for outcome in outcomes)
    print(
        f"{trials} trials, seed {seed} ({', '.join(f'{n} {k}' for k, n in kinds.items())}):"
        f" {acknowledged:,} numbers acknowledged, {after:,} of them afterwards; {bad} trials with"
        " problems"
    )
    if bad:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

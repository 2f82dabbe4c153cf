"""Kills an embedded engine: ``python -m tests.campaigns.embedded_kill [KILLS=500] [SEED=0]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.embedded.crashing import Written, campaign


def report(kills: int, written: Written) -> None:
    if kills % 50 == 0:
        print(f"{kills} kills: {written.log} rows, {written.rows} batches of changes", flush=True)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        written = campaign(Path(folder) / "data", kills, seed, report)
    print(
        f"{kills} kills, seed {seed}: {written.log} rows of a log and {written.rows} batches of"
        " changes, none lost, doubled or torn"
    )


if __name__ == "__main__":
    main()

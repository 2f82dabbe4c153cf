"""Damages folders: ``python -m tests.campaigns.embedded_damage [TRIALS=20000] [SEED=0]``.

A third argument is the number of processes (2). A run that was ended is taken up by the number of
the next trial as its seed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.embedded.damage import Counts, campaign

# what is written to a disk takes ten times as long
_MEMORY = Path("/dev/shm")


def main() -> None:
    trials, seed, workers = (
        int(sys.argv[i]) if len(sys.argv) > i else default
        for i, default in ((1, 20_000), (2, 0), (3, 2))
    )
    began = time.monotonic()
    told = 0

    def report(counts: Counts) -> None:
        nonlocal told
        for failure in counts.failures[told:]:
            print(failure, flush=True)
        told = len(counts.failures)
        if counts.trials % 1000 == 0:
            print(f"{counts.trials} trials, {time.monotonic() - began:.0f} s", flush=True)

    place = _MEMORY if _MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="fluss-damage-", dir=place))
    try:
        counts = campaign(root, trials, seed, workers, report)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{counts.trials} damaged folders, seeds {seed} to {seed + trials - 1}:")
    print(f"  {counts.sound} sound, {counts.mended} mended by opening")
    print(f"  {counts.refused} with an error that says where")
    print(f"  {len(counts.failures)} failures; the longest took {counts.slowest:.2f} s")
    sys.exit(bool(counts.failures))


if __name__ == "__main__":
    main()

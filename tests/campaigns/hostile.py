"""Captured responses with mutations, many: an error or rows, in bounded time and memory.

``python -m tests.campaigns.hostile``; a few are in the suite.
"""

from __future__ import annotations

import argparse
import time

from tests.record.hostile import attack, cases


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    options = parser.parse_args()
    every = list(cases())
    print(f"seed {options.seed}", flush=True)
    for case in every:
        outcome = attack(case, options.mutations // len(every), options.seed)
        print(
            f"{case.name:14} {outcome.refused:7} refused {outcome.same:7} unchanged "
            f"{outcome.others:7} others; slowest {outcome.slowest * 1e3:.0f} ms, "
            f"memory grew by {outcome.grown >> 20} MB",
            flush=True,
        )
        if outcome.slowest > 5 or outcome.grown > 512 << 20:
            raise SystemExit("too slow, or too much memory")


if __name__ == "__main__":
    main()

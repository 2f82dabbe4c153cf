"""Attacks beside a well-behaved peer: ``python -m tests.campaigns.embedded_attacks``.

Prints the peak memory of the server and the times of the peer's lookups beside each attack. Options
name a number of seconds for each (``--seconds 30``) and a part of the names (``--only FETCH``).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from fluss_df.embedded import Limits
from tests.embedded.attacking import ATTACKS, measure

_WANTED_MS = 50.0


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    # requests that wait, and answers that are made in memory; the server's own besides
    most = 2 * Limits().total_bytes
    bad = 0
    for attack in ATTACKS:
        if options.only.lower() not in attack.name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder:
            seen = measure(attack, Path(folder) / "d", options.seconds)
        wrong = seen.p99_ms > _WANTED_MS or seen.peak > most or seen.refused > 0
        bad += wrong
        print(
            f"{'MISSED ' if wrong else ''}{attack.name}: {seen.lookups} lookups, median"
            f" {seen.p50_ms:.1f} ms, 99 % {seen.p99_ms:.1f} ms, slowest {seen.worst_ms:.0f} ms;"
            f" new peers within {seen.new_ms:.0f} ms, {seen.refused} refused; memory"
            f" {seen.peak >> 20} MB at the most, {seen.before >> 20} MB before; load"
            f" {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            flush=True,
        )
    if bad:
        raise SystemExit(f"{bad} attacks: slower than {_WANTED_MS} ms, too much memory, or refused")


if __name__ == "__main__":
    main()

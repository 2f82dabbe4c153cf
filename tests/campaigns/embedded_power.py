"""Loses power: ``python -m tests.campaigns.embedded_power [CUTS=2000] [SEED=0]``."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from tests.embedded.power import campaign


def main() -> None:
    cuts = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    # each torn tail is worth a warning
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        done = campaign(Path(folder) / "sound", cuts, seed)
        # a disk that fails: each recording is another one
        done += campaign(Path(folder) / "failing", cuts // 4, seed, failing=0.03)
    print(f"{done} losses of power, seed {seed}: nothing acknowledged lost, doubled or torn")


if __name__ == "__main__":
    main()

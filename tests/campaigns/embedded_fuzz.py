"""Sends damaged requests: ``python -m tests.campaigns.embedded_fuzz [FRAMES=100000] [SEED=0]``."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from tests.embedded.fuzzing import campaign


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    # each frame that cannot be is worth a warning
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        answered = campaign(Path(folder) / "data", frames, seed)
    print(f"{frames} frames, seed {seed}: {answered} answered, the others ended their connection")


if __name__ == "__main__":
    main()

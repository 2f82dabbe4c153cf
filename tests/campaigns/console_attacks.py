"""Ten thousand hostile inputs for the console: nothing is changed, leaked or run.

``python -m tests.campaigns.console_attacks [NUMBER] [SEED]``: half of them for a console that may
change things, half for one that is read-only, where statements run as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

import fluss_df
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Limits, Settings
from fluss_df.ui.worker import resident
from tests.ui.conftest import PEOPLE
from tests.ui.hostile import hostile_tables, survive


def run(number: int, seed: int) -> int:
    """Return 0 when the consoles withstood."""
    with tempfile.TemporaryDirectory() as folder, fluss_df.connect(folder) as connection:
        fluss_df.write_fluss(
            PEOPLE, "people", connection=connection, create_if_not_exists=True, primary_keys=["id"]
        )
        hostile_tables(connection)
        for read_only in (False, True):
            settings = Settings(read_only=read_only, limits=Limits(query_seconds=10))
            began, memory = time.monotonic(), resident()
            with ConsoleServer(connection, settings, folder) as server:
                counts = survive(server, connection, number // 2, seed + read_only)
            grown = (resident() - memory) / 2**20
            print(
                f"read-only {read_only}: {sum(counts.values()):,} in"
                f" {time.monotonic() - began:.0f} s, nothing changed, leaked or ran;"
                f" memory {grown:+.0f} MB; {dict(counts)}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", nargs="?", type=int, default=10_000)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    given = parser.parse_args()
    sys.exit(run(given.number, given.seed))

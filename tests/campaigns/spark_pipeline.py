"""Kills the pipeline on Spark at random moments, all of its processes at once, and starts it again.

At the end its tables must equal what Polars computes, which the pipeline checks itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

_ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}")
    with LocalCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "examples.flights_pipeline"),
            *("--connection", cluster.bootstrap_servers, "--folder", folder),
            *("--events", str(options.events), "--rate", "3000", "--per-batch", "4000"),
        ]
        for number in range(options.kills):
            process = _start(command)
            # what comes up takes some seconds: kills are to meet batches at work
            delay = random.uniform(20, 70)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(delay)
                print(f"the pipeline ended by itself with {code}, before kill {number}")
                assert code == 0
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"kill {number} after {delay:.1f} s", flush=True)
        process = _start(command)
        if process.wait(900) != 0:
            raise SystemExit("the pipeline failed")
        with fluss.connect(cluster.bootstrap_servers) as connection:
            staged = connection.get_admin().list_partition_infos(
                fluss.TablePath("fluss_df_ledger", "staged")
            )
        print(f"equal after {options.kills} kills; {len(staged)} partitions staged")


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the pipeline in a process group of its own, with the JVM in it."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    return subprocess.Popen(command, cwd=_ROOT, env=environment, start_new_session=True)


if __name__ == "__main__":
    main()

"""Kills the pipeline on Spark amid its batches, all of its processes at once, and starts it again.

The clock of a kill begins when a stream has committed a batch: what comes up takes longer than most
batches. At the end the tables must equal what Polars computes, which the pipeline checks itself.
"""

from __future__ import annotations

import argparse
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
_STREAMS = ("clean", "quarantine", "delays")
_START_S = 180


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--remote", help="run it through Spark Connect: local[2] starts a server")
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}", flush=True)
    with LocalCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "examples.flights_pipeline"),
            *("--connection", cluster.bootstrap_servers, "--folder", folder),
            *("--events", str(options.events), "--rate", "2000", "--per-batch", "1000"),
        ]
        if options.remote is not None:
            command += ["--remote", options.remote]
        amid = 0
        for number in range(1, options.kills + 1):
            before = _batches(Path(folder))
            process = _start(command)
            _wait_for_a_batch(process, Path(folder), before)
            delay = random.uniform(0, 5)
            time.sleep(delay)
            if process.poll() is not None:
                raise SystemExit(f"the pipeline ended before kill {number}: give more --events")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            states = _batches(Path(folder))
            begun = [name for name, (begun, done) in states.items() if begun > done]
            amid += bool(begun)
            print(
                f"kill {number}, {delay:.1f} s after the first batch, amid a batch of"
                f" {' and '.join(begun) or 'none'}; committed: "
                + ", ".join(f"{name} {done}" for name, (_, done) in states.items()),
                flush=True,
            )
        process = _start(command)
        if process.wait(900) != 0:
            raise SystemExit("the pipeline failed")
        with fluss.connect(cluster.bootstrap_servers) as connection:
            staged = connection.get_admin().list_partition_infos(
                fluss.TablePath("fluss_df_ledger", "staged")
            )
        print(
            f"equal after {options.kills} kills"
            f"{'' if options.remote is None else ' over Spark Connect'}, {amid} of them amid a"
            f" batch; {len(staged)} partitions staged"
        )


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the pipeline in a process group of its own, with the JVM in it."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    return subprocess.Popen(command, cwd=_ROOT, env=environment, start_new_session=True)


def _batches(folder: Path) -> dict[str, tuple[int, int]]:
    """Return for each stream how many batches its checkpoint has begun, and committed."""

    def logged(name: str, kind: str) -> int:
        return sum(entry.name.isdigit() for entry in (folder / name).glob(f"{kind}/*"))

    return {name: (logged(name, "offsets"), logged(name, "commits")) for name in _STREAMS}


def _wait_for_a_batch(
    process: subprocess.Popen[bytes], folder: Path, before: dict[str, tuple[int, int]]
) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the pipeline ended by itself with {process.returncode}")
        if any(done > before[name][1] for name, (_, done) in _batches(folder).items()):
            return
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    raise SystemExit(f"no batch was committed in {_START_S} s")


if __name__ == "__main__":
    main()

"""Runs the pipeline on a standalone Spark cluster of a master and two workers on this machine.

Both come from the pip package, by its ``spark-class``. Fluss is a cluster of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from fluss_df.cluster import LocalCluster
from fluss_df.cluster.processes.launcher import Launcher
from fluss_df.cluster.processes.processes import ProcessId, wait_until_gone

_ROOT = Path(__file__).parents[2]
_WORKERS = 2
_START_S = 60


def main() -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=60_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster() as cluster,
        spark_cluster(Path(name)) as master,
    ):
        command = [
            *(sys.executable, "-m", "examples.flights_pipeline", "--master", master),
            *("--connection", cluster.bootstrap_servers, "--folder", str(Path(name) / "data")),
            *("--events", str(options.events)),
        ]
        environment = os.environ | {"PYTHONPATH": str(_ROOT)}
        subprocess.run(command, cwd=_ROOT, env=environment, check=True, timeout=900)
        used = [n for n in range(_WORKERS) if list((Path(name) / f"worker{n}").glob("app-*/*"))]
        if len(used) != _WORKERS:
            raise SystemExit(f"only the workers {used} had executors")
    print(f"equal on a master and {_WORKERS} workers")


@contextlib.contextmanager
def spark_cluster(folder: Path, cores: int = 1) -> Iterator[str]:
    """Start a master and workers, each on a host of its own to Spark; give the master's address.

    They end with this process, however it ends.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    log = folder / "spark.log"
    started: list[ProcessId] = []
    launcher = Launcher(folder / "supervisor.log", detach=False)
    try:
        started.append(_start(launcher, log, "master.Master", *_place(0), "--port", str(port)))
        for number in range(_WORKERS):
            folders = ("--work-dir", str(folder / f"worker{number}"))
            size = ("--cores", str(cores), "--memory", "1g", *folders)
            started.append(_start(launcher, log, "worker.Worker", *_place(number), *size, address))
        deadline = time.monotonic() + _START_S
        while log.read_text().count("Registering worker") < _WORKERS:
            if time.monotonic() > deadline or not all(p.is_alive for p in started):
                raise SystemExit(f"the Spark cluster did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield address
    finally:
        for process in started:
            # a group of its own: executors are in it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        wait_until_gone(started, 30)
        launcher.close()


def _place(number: int) -> tuple[str, ...]:
    return ("--host", f"127.0.0.{1 + number}", "--webui-port", "0")


def _start(launcher: Launcher, log: Path, what: str, *arguments: str) -> ProcessId:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    return launcher.start(command, log, log.parent, environment)


if __name__ == "__main__":
    main()

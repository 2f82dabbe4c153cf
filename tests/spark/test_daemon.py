"""The daemon of Spark's workers, spoken to as Spark does."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path


def test_a_worker_that_is_dismissed_ends_quietly(tmp_path: Path) -> None:
    environ = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "fluss_df.spark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environ,
    ) as daemon:
        assert daemon.stdout is not None
        (size,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(daemon.stdout.read(size).decode())
            (pid,) = struct.unpack(">i", worker.recv(4))
            assert pid > 0
            worker.shutdown(socket.SHUT_WR)
            # its end, without a word
            assert worker.recv(1) == b""
        _, errors = daemon.communicate(timeout=20)
    assert errors == b""

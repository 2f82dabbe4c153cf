import os
import subprocess
import sys
from pathlib import Path

import pytest

from fluss_df.cluster import LocalCluster

ROOT = Path(__file__).parents[2]


@pytest.mark.spark_full  # a minute: a server and a client of their own
def test_everything_over_spark_connect_beside_a_broken_neighbour(
    fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    # one module of this kind that fails has Spark discover none of them
    neighbour = tmp_path / "modules" / "pyspark_broken"
    neighbour.mkdir(parents=True)
    (neighbour / "__init__.py").write_text("raise RuntimeError('broken')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(neighbour.parent)]),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, "-m", "tests.spark.connect_program"]
    done = subprocess.run(
        [*command, fluss_cluster.bootstrap_servers, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all is well" in done.stdout

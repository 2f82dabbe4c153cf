import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from fluss_df.cluster import LocalCluster
from tests.io.conftest import MakeTable

ROOT = Path(__file__).parents[2]


@pytest.mark.spark_full  # a server and a client of its own
def test_a_server_of_spark_connect_beside_a_broken_neighbour(
    fluss_cluster: LocalCluster, make_table: MakeTable, tmp_path: Path
) -> None:
    # one module of this kind that fails has Spark discover none of them
    neighbour = tmp_path / "modules" / "pyspark_broken"
    neighbour.mkdir(parents=True)
    (neighbour / "__init__.py").write_text("raise RuntimeError('broken')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(neighbour.parent)]),
        "PYSPARK_PYTHON": sys.executable,
    }
    table = make_table(pa.schema({"id": pa.int64()}), bucket_count=2)
    command = [sys.executable, "-m", "tests.spark.connect_program"]
    done = subprocess.run(
        [*command, fluss_cluster.bootstrap_servers, str(table)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "499500 is the sum" in done.stdout

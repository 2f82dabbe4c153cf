"""The declarative pipeline, run by Spark's command, makes what Polars computes."""

import pytest

from examples.declarative_pipeline.__main__ import run
from fluss_df.cluster import LocalCluster


@pytest.mark.spark_full
def test_pipeline(fluss_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(fluss_cluster.bootstrap_servers, 3000)
    assert "equal to Polars" in capsys.readouterr().out

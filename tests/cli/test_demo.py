"""The demo: its answers are compared with plain Polars within, or it fails."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fluss_df.cli import app
from fluss_df.cluster import LocalCluster


def test_demo(fluss_cluster: LocalCluster, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    address = fluss_cluster.bootstrap_servers
    result = CliRunner().invoke(app, ["demo", "--connection", address, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "336,776 rows of 19 columns" in result.output
    assert result.output.count("the same answer as plain Polars") == 3
    assert "partitions 1 of 3: JFK" in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_demo_without_a_cluster() -> None:
    result = CliRunner().invoke(app, ["demo", "--connection", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output

"""The demo: its answers are compared with plain Polars within, or it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df.cli import app, tour
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.cut import ColumnLayout, read_message


def _check(arguments: list[str], plot: Path) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "336,776 rows of 19 columns" in result.output
    assert result.output.count("the same answer as plain Polars") == 3
    assert "partitions 1 of 3: JFK" in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    return result.output


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "embedded" in _check([], tmp_path / "plot.png")


def test_demo_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    _check(["--connection", str(folder)], tmp_path / "plot.png")
    with fluss.connect(folder) as connection:
        assert fluss.scan_fluss(tour.TABLE, connection=connection).collect().height == 336_776


def test_demo_on_a_cluster(fluss_cluster: LocalCluster, tmp_path: Path) -> None:
    _check(["--connection", fluss_cluster.bootstrap_servers], tmp_path / "plot.png")


def test_demo_without_a_cluster() -> None:
    result = CliRunner().invoke(app, ["demo", "--connection", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output


def test_demo_takes_one_place() -> None:
    result = CliRunner().invoke(app, ["demo", "--connection", "127.0.0.1:1", "--cluster"])
    assert result.exit_code == 1
    assert "--cluster" in result.output


def _stored_bytes(folder: Path, schema: fluss.Schema, wanted: set[str], partition: int) -> int:
    """Return the bytes of some columns as they are stored in a partition of the only table."""
    layout = ColumnLayout(schema.arrow_schema)
    columns = [i for i, name in enumerate(schema.arrow_schema.names) if name in wanted]
    total = 0
    for file in folder.glob(f"data/*/{partition}/*/log/*.log"):
        data = memoryview(file.read_bytes())
        headers = scan_headers(data)
        ends = (headers.position + headers.size).tolist()
        for start, end in zip(headers.payload.tolist(), ends, strict=True):
            buffers = read_message(data, start, end).buffers
            for i in columns:
                total += sum(size for _, size in buffers[layout.buffers[i] : layout.buffers[i + 1]])
    return total


@pytest.mark.parametrize(
    ("query", "origin", "columns"),
    [
        (tour.worst_carriers, "JFK", {"origin", "carrier", "dep_delay"}),
        (tour.busiest_routes, "EWR", {"origin", "month", "dest"}),
    ],
)
def test_pushdown_fetches_little_besides_the_columns(
    query: Callable[[pl.LazyFrame], pl.LazyFrame], origin: str, columns: set[str], tmp_path: Path
) -> None:
    source = tour.flights()
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        fluss.write_fluss(
            source,
            "flights",
            connection=connection,
            create_if_not_exists=True,
            create_partitions=True,
            partition_keys=["origin"],
            bucket_count=2,
        )
        answer = query(fluss.scan_fluss("flights", connection=connection)).collect()
        report = fluss.last_scan()
        path = fluss.TablePath("fluss", "flights")
        partitions = connection.get_admin().list_partition_infos(path)
        ids = {info.partition_name: info.partition_id for info in partitions}
        schema = connection.get_table(path).get_table_info().schema
    assert answer.equals(query(source.lazy()).collect())
    assert report is not None
    assert report.bytes <= 1.1 * _stored_bytes(tmp_path, schema, columns, ids[origin])

"""The tables of TPC-H as Parquet files, and as tables of a Fluss server."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from benchmarks.lake import LAKE, tier_now
from fluss_df.client.connection import FlussConnection
from fluss_df.io import scan_fluss, sink_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor

NAMES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def generate(folder: Path, scale: float) -> dict[str, Path]:
    """Write the tables into a folder, unless they are there; return their files by name."""
    files = {name: folder / f"{name}.parquet" for name in NAMES}
    if not all(file.exists() for file in files.values()):
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        command = [str(tool), "parquet", "-s", f"{scale:g}", f"--output-dir={folder}"]
        subprocess.run(command, check=True, timeout=600, capture_output=True)
    return files


def load(
    connection: FlussConnection,
    files: Mapping[str, Path],
    database: str,
    buckets: int,
    codec: str = "ZSTD",
    *,
    lake: bool = False,
    lake_codec: str = "zstd",
) -> dict[str, TablePath]:
    """Make a log table of each file, tiered into a lake where asked; return the tables by name."""
    properties = {"table.log.arrow.compression.type": codec}
    if lake:
        properties |= LAKE
    connection.get_admin().create_database(database, ignore_if_exists=True)
    tables = {}
    for name, file in files.items():
        tables[name] = TablePath(database, name)
        columns = pl.DataFrame(schema=pl.scan_parquet(file).collect_schema()).to_arrow().schema
        descriptor = TableDescriptor(
            Schema(columns),
            bucket_count=buckets,
            properties=properties,
            custom_properties={"iceberg.write.parquet.compression-codec": lake_codec},
        )
        connection.get_admin().create_table(tables[name], descriptor)
        sink_fluss(pl.scan_parquet(file), tables[name], connection=connection)
        if lake:
            tier_now(connection, tables[name])
    return tables


def on_files(files: Mapping[str, Path]) -> dict[str, pl.LazyFrame]:
    """Return the tables as scans of their files."""
    return {name: pl.scan_parquet(file) for name, file in files.items()}


def on_fluss(
    connection: FlussConnection, tables: Mapping[str, TablePath]
) -> dict[str, pl.LazyFrame]:
    """Return the tables as scans of Fluss."""
    return {name: scan_fluss(path, connection=connection) for name, path in tables.items()}

"""The same rows in DuckDB, for expressions of Ibis that are computed by both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ibis
import polars as pl


def in_duckdb(folder: Path, frames: Mapping[str, pl.DataFrame]) -> Any:
    """Return a backend of DuckDB with a table for each frame; their files go into a folder."""
    backend = ibis.duckdb.connect()
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet")
        backend.con.execute(f"CREATE TABLE {name} AS SELECT * FROM '{folder / name}.parquet'")
    return backend

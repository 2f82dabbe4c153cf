"""Fluss tables for everything that reads Arrow: DuckDB, Polars, pandas, Narwhals and others."""

from fluss_df.arrow.datasets import FlussDataset, dataset
from fluss_df.arrow.scanners import FlussScanner

__all__ = ["FlussDataset", "FlussScanner", "dataset"]

"""Apache Spark over Fluss tables: the data source ``fluss``, and SQL that reads what it needs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fluss_df.spark.registration import register
from fluss_df.spark.source import FlussDataSource

if TYPE_CHECKING:
    from fluss_df.spark.queries.queries import fluss_views, sql
    from fluss_df.spark.tiering import tier
    from fluss_df.spark.write.forgetting import forget_queries

__all__ = ["FlussDataSource", "fluss_views", "forget_queries", "register", "sql", "tier"]


def __getattr__(name: str) -> Any:
    # sqlglot takes a fifth of a second to import, which workers do without
    if name in ("sql", "fluss_views"):
        return getattr(importlib.import_module("fluss_df.spark.queries.queries"), name)
    if name == "forget_queries":
        return importlib.import_module("fluss_df.spark.write.forgetting").forget_queries
    if name == "tier":
        return importlib.import_module("fluss_df.spark.tiering").tier
    raise AttributeError(f"module 'fluss_df.spark' has no attribute '{name}'")

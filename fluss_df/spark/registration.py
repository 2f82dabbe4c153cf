"""Registers the data source ``fluss`` with a session of Spark."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.spark.source import FlussDataSource
from fluss_df.spark.workers import cannot_import


def register(spark: Any) -> None:
    """Register the data source with a session, classic or of Spark Connect.

    Spark finds it by itself where it is installed, unless another ``pyspark_*`` package is broken.

    Raises
    ------
    FlussError
        Where the Python that Spark's workers on this machine run has no fluss_df.
    """
    _check_workers(spark)
    spark.dataSource.register(FlussDataSource)


# interpreters of workers that were found to have fluss_df
_checked: set[str] = set()


def _check_workers(spark: Any) -> None:
    """Raise where the Python of Spark's workers has no fluss_df: Spark says only "not found"."""
    # a session of Spark Connect does not know the Python of its server
    context = getattr(spark, "_sc", None)
    if context is None or not str(context.master).startswith("local"):
        return
    worker = str(context.pythonExec)
    found = shutil.which(worker)
    if found is None or found == sys.executable or worker in _checked:
        return
    reason = cannot_import(found)
    if reason is not None:
        raise FlussError(
            f"Spark's workers run {found}, which cannot import fluss_df ({reason}): set"
            f" PYSPARK_PYTHON={sys.executable} before the session starts",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    _checked.add(worker)

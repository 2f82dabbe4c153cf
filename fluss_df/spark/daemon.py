"""A daemon of Spark's Python workers that has imported this library once, for all of them.

Workers are forked from a daemon, and import what they need each by itself. With
``spark.python.daemon.module=fluss_df.spark.daemon``, set when the session is made, those that run
tasks are forked from a process that has it all. (Spark plans in workers of its own daemon.)
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401 - for those who are forked
from pyspark.daemon import manager

import fluss_df.spark.queries.queries
import fluss_df.spark.source  # noqa: F401 - for those who are forked

if __name__ == "__main__":
    manager()

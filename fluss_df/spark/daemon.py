"""A daemon of Spark's Python workers that has imported this library once, for all of them.

Workers are forked from a daemon, and import what they need each by itself; queries of this source
start some for planning alone. With ``spark.python.daemon.module=fluss_df.spark.daemon``, set when
the session is made, they are forked from a process that has it all.
"""

from __future__ import annotations

from pyspark.daemon import manager

import fluss_df.spark.queries
import fluss_df.spark.source  # noqa: F401 - for those who are forked

if __name__ == "__main__":
    manager()

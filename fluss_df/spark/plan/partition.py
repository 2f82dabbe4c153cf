"""The partition of Spark that carries a task."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from fluss_df.spark.plan.planning import ReadTask


class FlussPartition(InputPartition):
    """The part of a table that one task of Spark reads."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        return f"FlussPartition({', '.join(map(str, self.task.splits))})"

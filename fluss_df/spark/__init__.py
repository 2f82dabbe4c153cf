"""Apache Spark over Fluss tables: the data source ``fluss``."""

from fluss_df.spark.source import FlussDataSource

__all__ = ["FlussDataSource"]

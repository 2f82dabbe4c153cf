"""Lets Spark find the data source ``fluss`` by itself: it imports modules named ``pyspark_*``."""

from fluss_df.spark import FlussDataSource as DefaultSource

__all__ = ["DefaultSource"]

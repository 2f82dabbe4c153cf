"""A server of Spark Connect as users start it: ``connect_program ADDRESS TABLE``."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from fluss_df import spark as fluss_spark


def main(address: str, table: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    assert "connect" in type(spark).__module__
    fluss_spark.register(spark)
    rows = spark.range(1000)
    rows.write.format("fluss").mode("append").option("connection", address).save(table)
    read = spark.read.format("fluss").option("connection", address).load(table)
    print(f"{read.agg({'id': 'sum'}).collect()[0][0]} is the sum")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

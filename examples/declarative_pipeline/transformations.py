"""What the pipeline is made of; read by ``spark-pipelines``, which runs it.

``flights`` streams out of a Fluss log, ``by_carrier`` is computed of a Fluss table as a whole, and
the sink ``late_flights`` is a Fluss table again. The cluster is that of FLUSS_BOOTSTRAP_SERVERS.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from fluss_df.spark import register

spark = SparkSession.active()
register(spark)


@dp.table
def flights() -> DataFrame:
    """Return the flights as they come."""
    return spark.readStream.format("fluss").load("declarative.flights")


@dp.materialized_view
def by_carrier() -> DataFrame:
    """Return how many flights each carrier has."""
    found = spark.read.format("fluss").load("declarative.flights")
    return found.groupBy("carrier").count()


dp.create_sink("late_flights", "fluss", {"table": "declarative.late_flights"})


@dp.append_flow(target="late_flights")
def late() -> DataFrame:
    """Return flights that arrived late."""
    return spark.readStream.table("flights").where("arr_delay > 0")

"""Batches and streams on a folder of an embedded engine, and on one that is served."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import ibis
import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.embedded import EmbeddedFluss
from fluss_df.io import scan_fluss
from tests.spark.support import assert_same, frame

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
ROWS = pl.DataFrame({"id": range(300), "text": [f"t{i % 9}" for i in range(300)]})


@pytest.fixture(scope="module", params=["folder", "address"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """What the option ``connection`` says."""
    folder = tmp_path_factory.mktemp("embedded")
    with EmbeddedFluss(folder, port=0) as engine:
        yield str(folder) if request.param == "folder" else engine.address


@pytest.mark.over_connect
def test_written_streamed_and_read(spark: SparkSession, place: str, tmp_path: Path) -> None:
    with fluss.connect(place) as connection:
        admin = connection.get_admin()
        admin.create_database("engines", ignore_if_exists=True)
        log, copy, keyed = (
            fluss.TablePath("engines", f"{kind}_{uuid.uuid4().hex[:8]}") for kind in "lck"
        )
        for path, keys in ((log, None), (copy, None), (keyed, ["id"])):
            admin.create_table(
                path, fluss.TableDescriptor(fluss.Schema(SCHEMA, keys), bucket_count=2)
            )
        rows = spark.createDataFrame(ROWS.to_arrow()).coalesce(1)
        for path in (log, keyed):
            writer = rows.write.format("fluss").mode("append").option("connection", place)
            writer.save(str(path))
        assert_same(scan_fluss(log, connection=connection).collect(), ROWS)

        reader = spark.read.format("fluss").option("connection", place)
        assert_same(reader.load(str(log)), ROWS)
        found = frame(reader.load(str(keyed)).where("id IN (3, 7, 7000) AND text <> 't3'"))
        assert found.rows() == [(7, "t7")]

        if not place[0].isdigit():
            # a folder; of addresses there are tests of their own
            con = Backend().connect(connection, database="engines")
            table = con.table(log.table_name)
            counted = con.to_spark(table.filter(table.id < 10).agg(n=ibis._.count()), spark)
            assert counted.collect()[0].n == 10

        stream = spark.readStream.format("fluss").option("connection", place).load(str(log))
        query = (
            stream.writeStream.format("fluss")
            .option("connection", place)
            .option("checkpointLocation", str(tmp_path))
            .option("delivery.guarantee", "exactly-once")
            .trigger(availableNow=True)
            .start(str(copy))
        )
        assert query.awaitTermination(120)
        assert_same(scan_fluss(copy, connection=connection).collect(), ROWS)


def test_a_folder_that_nobody_has_open(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"no process has the folder .* open it in"):
        _ = spark.read.format("fluss").option("connection", str(tmp_path)).load("a.b").schema

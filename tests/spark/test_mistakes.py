"""What users meet first: each mistake is told at the top of what Spark shows of it."""

import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.spark import register, sql
from tests.io.conftest import MakeTable
from tests.spark.support import load, save, upsert

# lines of the exception's text, of which Spark puts one or two before ours
TOP = 9
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "v": pa.int32()})
ROWS = "SELECT id, string(id) AS text, int(id) AS v FROM range(5)"


@dataclass(frozen=True)
class User:
    """Somebody with a session, two tables of five rows, and a table with partitions."""

    spark: SparkSession
    cluster: LocalCluster
    folder: Path
    log: TablePath
    keyed: TablePath
    parts: TablePath

    def read(self, table: TablePath, schema: str = "", **options: str) -> object:
        return load(self.spark, self.cluster, table, schema, **options).collect()

    def write(self, query: str, table: TablePath, spark_mode: str = "append", **o: str) -> None:
        save(self.spark.sql(query).coalesce(1), self.cluster, table, spark_mode, **o)

    def stream(self, source: TablePath, target: TablePath, query: str = "*") -> None:
        address = self.cluster.bootstrap_servers
        reader = self.spark.readStream.format("fluss").option("bootstrap.servers", address)
        stream: DataFrame = reader.load(str(source)).selectExpr(query)
        writer = stream.writeStream.format("fluss").option("bootstrap.servers", address)
        writer = writer.option("checkpointLocation", str(self.folder)).trigger(availableNow=True)
        started = writer.start(str(target))
        try:
            started.awaitTermination(60)
        finally:
            started.stop()


@pytest.fixture(scope="module")
def tables(connection: FlussConnection, make_table: MakeTable) -> list[TablePath]:
    five = range(5)
    rows = pl.DataFrame(
        {"id": five, "text": ["a", None, "c", "d", "e"], "v": five},
        schema_overrides={"v": pl.Int32},
    )
    keyed = make_table(SCHEMA, primary_keys=["id"])
    upsert(connection, keyed, rows)
    return [make_table(SCHEMA, rows), keyed, make_table(SCHEMA, partition_keys=["text"])]


@pytest.fixture
def user(
    spark: SparkSession, fluss_cluster: LocalCluster, tmp_path: Path, tables: list[TablePath]
) -> User:
    return User(spark, fluss_cluster, tmp_path, *tables)


NOTHING = TablePath("io", "nothing")
# one for each thing that Spark calls, in planning, in tasks and in streams
MISTAKES: dict[str, tuple[Callable[[User], object], str]] = {
    "option": (
        lambda u: u.read(u.log, colums="id"),
        "unknown option 'colums'; did you mean 'columns'?",
    ),
    "column": (
        lambda u: u.read(u.log, columns="id,txt"),
        "column 'txt' does not exist; there are id, text, v; did you mean 'text'?",
    ),
    "table": (lambda u: u.read(NOTHING), "table io.nothing does not exist"),
    "type of a schema": (
        lambda u: u.read(u.log, "id string"),
        "column 'id' is bigint, and the schema says string",
    ),
    "nulls": (
        lambda u: u.read(u.log, "id bigint not null, text string not null"),
        "column 'text' has nulls, and the schema says NOT NULL",
    ),
    "overwrite": (
        lambda u: u.write(ROWS, u.log, "overwrite"),
        "cannot be overwritten, because Fluss only adds to tables; use .mode('append')",
    ),
    "table to write": (lambda u: u.write(ROWS, NOTHING), "table io.nothing does not exist"),
    "type to write": (
        lambda u: u.write("SELECT id, string(id) AS text, 'x' AS v FROM range(5)", u.log),
        "column 'v': string does not go into int: cast it to an integer first",
    ),
    "value to write": (
        lambda u: u.write("SELECT nullif(id, 3) AS id, '' AS text, 1 AS v FROM range(5)", u.keyed),
        "column 'id' (bigint NOT NULL): null in row 3",
    ),
    "partition": (
        lambda u: u.write(ROWS, u.parts),
        "or write with option 'create.partitions' with 'true'",
    ),
    "stream of a primary-key table": (
        lambda u: u.stream(u.keyed, u.log),
        "say 'changelog' (all of them) or 'upsert' (without old values)",
    ),
    "stream without a column": (
        lambda u: u.stream(u.log, u.keyed, "id"),
        "column 'text' (string) is missing in the data: an upsert replaces whole rows",
    ),
}


# what others pass through too is left to the campaign
FEW = {"type of a schema", "overwrite", "value to write", "stream without a column"}


@pytest.mark.over_connect
@pytest.mark.parametrize(
    "name",
    [
        name if name in FEW else pytest.param(name, marks=pytest.mark.spark_full)
        for name in MISTAKES
    ],
)
def test_a_mistake_is_told(user: User, name: str) -> None:
    mistake, message = MISTAKES[name]
    with pytest.raises(PySparkException) as raised:
        mistake(user)
    top = str(raised.value).splitlines()[:TOP]
    assert any(message in line for line in top), "\n".join(top)


def test_a_table_in_the_catalog_of_spark(user: User) -> None:
    """Spark would not hand the options of such a table to its scans."""
    options = f"connection '{user.cluster.bootstrap_servers}', `table` '{user.log}'"
    with pytest.raises(PySparkException, match=r"CREATE TEMPORARY VIEW .* does"):
        user.spark.sql(f"CREATE TABLE of_fluss USING fluss OPTIONS ({options})")


def test_a_schema_that_says_not_null(user: User) -> None:
    assert user.read(user.log, "id bigint not null") == [(id,) for id in range(5)]


def test_a_column_that_a_query_has_not(user: User) -> None:
    with pytest.raises(PySparkException, match="`tex` cannot be resolved"):
        sql(user.spark, f"SELECT tex FROM {user.log}", connection=user.cluster.bootstrap_servers)


def test_tables_of_the_catalog_of_spark_are_not_written(user: User) -> None:
    writer = user.spark.range(1).write.format("fluss")
    writer = writer.option("bootstrap.servers", user.cluster.bootstrap_servers)
    with pytest.raises(PySparkException, match=r"\.save\('database\.table'\)"):
        writer.saveAsTable("of_spark")


def test_a_python_of_workers_without_fluss_df(tmp_path: Path) -> None:
    """Spark itself says that there is no such data source."""

    class Context:
        master = "local[2]"
        pythonExec = str(tmp_path / "bin" / "python")  # noqa: N815 - Spark's name

    class Session:
        _sc = Context()

    venv.create(tmp_path, with_pip=False)
    with pytest.raises(FlussError, match=f"PYSPARK_PYTHON={sys.executable}"):
        register(Session())

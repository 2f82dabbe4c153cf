"""What a query needs of its tables, proven by Spark's optimizer.

Each mention of a table is replaced by a relation of the same columns that Spark knows how to prune:
files in Parquet of which there is none. What Spark's plan does not read of it cannot change the
result, whatever the rows are. A condition on the rows is proven by adding it to the relation: when
the plan stays the same, the query has the condition there already.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from fluss_df.spark.mentions import Mention, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LIMIT: Final = "spark.sql.debug.maxToStringFields"
# a plan whose text says these is not shown whole
_CUT: Final = re.compile(r"\.\.\. \d+ more (?:fields|characters)|Truncated plan of|\(redacted\)")
_NUMBER: Final = re.compile(r"#\d+|plan_id=\d+")


def make_stand_in(spark: SparkSession, name: str, schema: StructType) -> None:
    """Make a temporary view without rows, of the columns of a table, as Spark reads from files.

    In Spark's plans its columns are ``<name>c<number>``.
    """
    columns = [
        StructField(f"{name}c{number}", field.dataType) for number, field in enumerate(schema)
    ]
    found = spark.read.schema(StructType(columns)).format("parquet").load(_no_files(spark))
    found.toDF(*schema.names).createOrReplaceTempView(name)


def _no_files(spark: SparkSession) -> list[str]:
    """Return the folders of a relation without files.

    Of none at all Spark logs a warning. A server of Spark Connect has no folder of this process,
    and its log is its own.
    """
    if not hasattr(spark, "_jsparkSession"):
        return []
    folder = Path(tempfile.gettempdir()) / f"fluss_df-no-files-{os.getpid()}"
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return [folder.as_uri()]


class Plan:
    """What Spark plans for a query over stand-ins.

    Parameters
    ----------
    spark
        The session.
    query
        The query.
    mentions, stand_ins
        Its mentions of tables, and the views in their place.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        mentions: Sequence[Mention],
        stand_ins: Sequence[str],
    ) -> None:
        self._spark = spark
        self._query = query
        self._mentions = mentions
        self._stand_ins = stand_ins
        self._text = self._planned({})

    def columns(self, at: int) -> frozenset[int] | None:
        """Return the numbers of the columns that are read of a mention; None where all may be."""
        if self._text is None:
            return None
        name = re.escape(self._stand_ins[at])
        return frozenset(map(int, re.findall(rf"{name}c(\d+)", self._text)))

    def has(self, conditions: Mapping[int, str]) -> bool:
        """Whether rows of mentions for which their conditions are not true change nothing."""
        if self._text is None:
            return False
        found = self._planned(conditions)
        return found is not None and _comparable(found) == _comparable(self._text)

    def _planned(self, conditions: Mapping[int, str]) -> str | None:
        """Return the text of the plan, None where it cannot be had whole."""
        sources = [
            f"(SELECT * FROM {name} WHERE {conditions[at]})" if at in conditions else name
            for at, name in enumerate(self._stand_ins)
        ]
        try:
            found = self._spark.sql(placed(self._query, self._mentions, sources))
            text = _explained(found)
            if _CUT.search(text):
                text = self._whole(found)
        except PySparkException:
            return None
        return None if _CUT.search(text) else text

    def _whole(self, found: DataFrame) -> str:
        before = self._spark.conf.get(_LIMIT, None)
        self._spark.conf.set(_LIMIT, str(1 << 30))
        try:
            return _explained(found)
        finally:
            if before is None:
                self._spark.conf.unset(_LIMIT)
            else:
                self._spark.conf.set(_LIMIT, before)


def _explained(found: DataFrame) -> str:
    """Return the physical plan as ``explain()`` prints it."""
    frame: Any = found
    if hasattr(frame, "_jdf"):
        execution = frame._jdf.queryExecution()
        return str(frame.sparkSession._jvm.PythonSQLUtils.explainString(execution, "simple"))
    return str(frame._explain_string())


def _comparable(text: str) -> list[str]:
    """Return the lines of a plan, without the numbers of its run."""
    seen: dict[str, str] = {}
    plain = _NUMBER.sub(lambda m: seen.setdefault(m[0], f"#{len(seen)}"), text)
    return plain.split("\n")

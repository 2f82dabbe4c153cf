"""Finds the columns and conditions that a query needs of its tables, by Spark's optimizer.

Each mention of a table is replaced by a stand-in: a relation with the same columns over Parquet
files that do not exist, from which Spark's optimizer removes columns. A column that Spark's plan
does not read cannot change the result. A condition on rows is added to the stand-in: if the plan
stays the same, the query applies the condition already, and so rows that fail it need not be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from fluss_df.spark.queries.mentions import Mention, placed
from fluss_df.spark.queries.stand_ins import StandIns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LIMIT: Final = "spark.sql.debug.maxToStringFields"
# texts in a plan by which Spark shows that it left something out
_CUT: Final = re.compile(r"\.\.\. \d+ more (?:fields|characters)|Truncated plan of|\(redacted\)")
_NUMBER: Final = re.compile(r"#\d+|plan_id=\d+")


class Plan:
    """Spark's plan for a query over stand-ins of its tables.

    ``mentions`` are the places in the query that name a table, and ``stand_ins`` the views that are
    put there. ``found`` is the query over the views as a dataframe, None if Spark has not analysed
    it yet.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        mentions: Sequence[Mention],
        stand_ins: StandIns,
        found: DataFrame | None,
    ) -> None:
        self._spark = spark
        self._query = query
        self._mentions = mentions
        self._stand_ins = stand_ins
        self._text = self._planned({}, found)

    def columns(self, at: int) -> frozenset[int] | None:
        """Return the numbers of the columns that a mention of a table reads; None if unknown."""
        if self._text is None:
            return None
        prefix = re.escape(self._stand_ins.prefixes[at])
        return frozenset(map(int, re.findall(rf"{prefix}(\d+)", self._text)))

    def has(self, conditions: Mapping[int, str]) -> bool:
        """Whether the result stays the same without the rows that fail some conditions.

        ``conditions`` maps the number of a mention of a table to its condition.
        """
        if self._text is None:
            return False
        found = self._planned(conditions)
        return found is not None and _comparable(found) == _comparable(self._text)

    def _planned(self, conditions: Mapping[int, str], found: DataFrame | None = None) -> str | None:
        """Return the text of the plan; None if Spark fails, or leaves out a part of it."""
        sources = [
            f"(SELECT * FROM {name} WHERE {conditions[at]})" if at in conditions else name
            for at, name in enumerate(self._stand_ins.names)
        ]
        try:
            if found is None:
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
    """Return the lines of a plan, its ids numbered in the order in which they first appear."""
    seen: dict[str, str] = {}
    plain = _NUMBER.sub(lambda m: seen.setdefault(m[0], f"#{len(seen)}"), text)
    return plain.split("\n")

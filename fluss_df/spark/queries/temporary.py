"""Temporary views of queries: dropped once no query needs them."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fluss_df.spark.queries.analysis import is_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Held:
    """The views of one session, and how many queries need each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needed: Counter[str] = Counter()
        #: Names that a query no longer needs. Garbage is collected at any moment, within a call to
        #: Spark too, and then nothing is asked of it: the next query drops them.
        self.left: deque[tuple[str, ...]] = deque()

    def hold(self, names: Iterable[str]) -> None:
        with self._lock:
            self._needed.update(names)

    def drop(self, spark: SparkSession) -> None:
        """Drop what was left and no other query needs."""
        # locked, so that views which are needed from now on are made only when this is done
        with self._lock:
            while self.left:
                for name in self.left.popleft():
                    self._needed[name] -= 1
                    if not self._needed[name]:
                        del self._needed[name]
                        spark.catalog.dropTempView(name)


_sessions: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()
_sessions_lock = threading.Lock()


class TemporaryViews:
    """Holds the views of a query while it is made; enter it before they are, leave it afterwards.

    A dataframe of a classic session has its plan, and looks at no name again: its views are dropped
    at once. Spark Connect looks for them at each action: there they stay for as long as a dataframe
    does that was made from the one given to :meth:`keep_for`. Queries may share names of views.
    """

    def __init__(self, spark: SparkSession, names: Iterable[str]) -> None:
        self._spark = spark
        self._names = tuple(names)
        self._kept = False
        with _sessions_lock:
            self._held = _sessions.setdefault(spark, _Held())

    def __enter__(self) -> TemporaryViews:
        self._held.hold(self._names)
        self._held.drop(self._spark)
        return self

    def keep_for(self, found: DataFrame) -> None:
        """Keep the views for a dataframe, and those that are made of it."""
        if is_classic(self._spark) or not self._names:
            return
        # dataframes that are made from this one hold its plan, but not the dataframe itself
        plan: Any = found._plan
        weakref.finalize(plan, self._held.left.append, self._names).atexit = False
        self._kept = True

    def __exit__(self, *error: object) -> None:
        if not self._kept:
            self._held.left.append(self._names)
            self._held.drop(self._spark)

"""Asks Spark's parser and analyzer about a query, in the JVM of a classic session.

An error of Spark costs 200 calls between Python and Java, 75 ms. The plan that could not be
resolved says the same of all names at once, for some ten calls each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class UnresolvedName:
    """A name of a relation that Spark does not know, in the text of a query.

    ``start`` and ``stop`` are its place in characters; ``stop`` is one after its last. The parts of
    ``relation`` are in backticks where they need them.
    """

    start: int
    stop: int
    relation: str


def is_classic(spark: SparkSession) -> bool:
    """Whether a session has its JVM beside it; false for Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def require_parsed(spark: SparkSession, text: str) -> None:
    """Parse a statement, and nothing more, in a classic session.

    Raises ParseException when Spark cannot read it.
    """
    session: Any = spark
    with _active(session):
        session._jsparkSession.sessionState().sqlParser().parsePlan(text)


def unresolved(spark: SparkSession, text: str) -> list[UnresolvedName]:
    """Return the names of relations that Spark does not know, in the order of the text.

    None of them where the analysis ends with an error, and for Spark Connect: then errors of
    ``spark.sql`` say them one by one.
    """
    if not is_classic(spark):
        return []
    session: Any = spark
    probe, other = _probe(text)
    try:
        with quietly(), _active(session):
            state = session._jsparkSession.sessionState()
            plan = state.analyzer().execute(state.sqlParser().parsePlan(probe))
            found = _unresolved(plan)
            if other is None:
                return found
            if any(other in name.relation[len(other) :] for name in found):
                # the word follows a catalog: Spark knows the table only by its own name
                return []
            meant = [_meant(name, text, other) for name in found if _begins(name, other)]
            if any(spark.catalog.tableExists(name.relation) for name in meant):
                # Spark could not find it by the other name
                return []
            kept = {name.start: name for name in found} | {name.start: name for name in meant}
            return list(kept.values())
    except (PySparkException, Py4JError):
        return []


def _probe(text: str) -> tuple[str, str | None]:
    """Return a text whose analysis does not end at ``fluss.x``, and the word there.

    Spark takes such a name for files in the format ``fluss`` where no catalog has it, and raises at
    the first one. By another word of the same length, every name stays in its place.
    """
    if not _QUALIFIED.search(text):
        return text, None
    other = next(w for w in _OTHERS if w not in text.lower())
    return _QUALIFIED.sub(other, text), other


_BLANK: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_FORMAT: Final = re.compile(r"fluss", re.IGNORECASE)
_QUALIFIED: Final = re.compile(
    rf"\b{_FORMAT.pattern}(?=[`\"]?{_BLANK}\.)", re.IGNORECASE | re.DOTALL
)
_OTHERS: Final = tuple(f"fl{number:03}" for number in range(1000))


def _begins(name: UnresolvedName, word: str) -> bool:
    return re.match(rf"{word}\b", name.relation) is not None


def _meant(name: UnresolvedName, text: str, other: str) -> UnresolvedName:
    """Return a name with the word that the text has."""
    word = _FORMAT.search(text, name.start, name.stop)
    spelled = word[0] if word else other
    return dataclasses.replace(name, relation=spelled + name.relation[len(other) :])


def _unresolved(plan: Any) -> list[UnresolvedName]:
    found: set[UnresolvedName] = set()
    # plans of subqueries are in the expressions of other plans, however deep
    for part in (plan, *_items(plan.subqueriesAll())):
        for leaf in _items(part.collectLeaves()):
            if leaf.nodeName() != "UnresolvedRelation":
                continue
            origin = leaf.origin()
            # within a view or a function the places are those of another text
            if origin.objectType().isDefined() or not origin.startIndex().isDefined():
                continue
            start, stop = origin.startIndex().get(), origin.stopIndex().get() + 1
            found.add(UnresolvedName(start, stop, leaf.name()))
    return sorted(found, key=lambda name: name.start)


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a sequence of Scala."""
    for number in range(sequence.length()):
        yield sequence.apply(number)


@contextlib.contextmanager
def _active(session: Any) -> Iterator[None]:
    """Have parser and analyzer see the settings of a session, as while it runs a query."""
    sessions = session._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


# ---- what pyspark logs of each error, though it is expected here

_expecting = threading.local()


class _Unexpected:
    """Passes over records of the threads that expect them."""

    def filter(self, _: Any) -> bool:
        return not getattr(_expecting, "errors", False)


_unexpected = _Unexpected()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep pyspark from logging the errors of this thread."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(_unexpected)
    before = getattr(_expecting, "errors", False)
    _expecting.errors = True
    try:
        yield
    finally:
        _expecting.errors = before

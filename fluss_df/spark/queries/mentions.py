"""Finds where a Spark SQL query names tables of Fluss, by Spark's own analysis.

Spark analyses the query, and says of the names that it cannot resolve where they stand: a classic
session of all names at once, in its plan; Spark Connect of the first one, in an error. So views,
common table expressions and whatever else hides a name are Spark's to decide, and of the query's
text nothing changes but the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException

from fluss_df.errors import FlussError
from fluss_df.spark.queries.analysis import is_classic, quietly, require_parsed, unresolved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
# Spark's error for fluss.x, because there is a data source of this name
_NO_FILES: Final = "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
_COMMENT: Final = r"--[^\n]*(?:\n|$)|/\*.*?\*/"
_BLANK: Final = rf"(?:\s|{_COMMENT})*"
_BEGIN: Final = re.compile(rf"(?:\(|\s|{_COMMENT})*(\w*)", re.DOTALL)
_BEHIND_TABLE: Final = re.compile(rf"\bTABLE{_BLANK}\(?{_BLANK}$", re.DOTALL | re.IGNORECASE)
# double quotes enclose names where the session says so
_PART: Final = r"`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s.`()\"]+"
_NAME: Final = re.compile(rf"(?:{_PART})(?:{_BLANK}\.{_BLANK}(?:{_PART}))*", re.DOTALL)
# comments and quoted texts, in which nothing is looked for
_SKIPPED: Final = re.compile(
    r"(?<!\w)[rR](?:'[^']*'|\"[^\"]*\")|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`"
    r"|--(?:\\\n|[^\r\n])*|/\*",
    re.DOTALL,
)
_BRACKET: Final = re.compile(r"/\*|\*/")
# words that begin only queries; others may begin a command
_QUERIES: Final = ("SELECT", "VALUES", "TABLE", "MAP", "REDUCE")
_PERHAPS: Final = ("WITH", "FROM")


@dataclass(frozen=True, slots=True)
class Mention:
    """A name of a table in the text of a query.

    ``start`` and ``stop`` are its place in characters; ``stop`` is one after its last. ``alias`` is
    the name by which columns may be qualified. It is None after ``TABLE``, where none can be given.
    """

    start: int
    stop: int
    table: str
    alias: str | None


def placed(query: str, mentions: Sequence[Mention], sources: Sequence[str]) -> str:
    """Return a query with a relation in the place of each mention.

    An alias that the query gives itself, and whatever else follows a name, stands behind it.
    """
    found, end = [], 0
    for mention, source in sorted(zip(mentions, sources, strict=True), key=lambda m: m[0].start):
        found += [query[end : mention.start], _relation(mention, source)]
        end = mention.stop
    return "".join([*found, query[end:]])


def _relation(mention: Mention, source: str) -> str:
    return source if mention.alias is None else f"({source} AS {quoted(mention.alias)})"


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def find_mentions(
    spark: SparkSession, query: str, stand_in: Callable[[str], str]
) -> tuple[list[Mention], list[str], DataFrame | None]:
    """Return the mentions of tables that Spark does not know, and what stands in for each.

    ``stand_in`` is given the name of a table, makes a relation with its columns, and returns the
    relation's name. The result has the mentions, the relations in their place, and the query over
    these relations. The query is None where Spark analysed it only as a part of another.

    Raises FlussError for what is no query, and for a mention that cannot be placed.
    """
    wrapped = _head(query) in _PERHAPS
    if wrapped and is_classic(spark):
        try:
            require_parsed(spark, _wrapped(query))
        except ParseException as error:
            raise _unread(error, ()) from None
        wrapped = False
    mentions = [
        _mention(name.relation, query, name.start, name.stop) for name in unresolved(spark, query)
    ]
    names = [stand_in(mention.table) for mention in mentions]
    while True:
        text = placed(query, mentions, names)
        try:
            with quietly():
                found = spark.sql(_wrapped(text) if wrapped else text)
            return mentions, names, None if wrapped else found
        except ParseException as error:
            raise _unread(error, mentions) from None
        except AnalysisException as error:
            span = _span(error)
            if span is None:
                raise
            start, stop = span
            if wrapped:
                start, stop = start - len(_OPENING), stop - len(_OPENING)
            named = (error.getMessageParameters() or {}).get("relationName", "")
            there = _mention(named, text, start, stop)
        # how far places here are from those in the query as it was given
        moved = 0
        for m, n in sorted(zip(mentions, names, strict=True), key=lambda pair: pair[0].start):
            if m.start + moved >= start:
                break
            moved += len(_relation(m, n)) - (m.stop - m.start)
        if any(m.start <= start - moved < m.stop for m in mentions):
            raise _unplaced(there.table)
        mentions.append(Mention(there.start - moved, there.stop - moved, there.table, there.alias))
        names.append(stand_in(there.table))


_OPENING: Final = "SELECT * FROM (\n"


def _wrapped(text: str) -> str:
    """Return a query as part of another, which nothing but a query can be."""
    return _OPENING + _without_end(text) + "\n)"


def _without_end(text: str) -> str:
    """Return a query without the semicolons at its end, and the comments behind them."""
    at, stop = 0, 0
    # up to the first character that is not blank, in a comment, or a semicolon
    while at < len(text):
        match = _SKIPPED.match(text, at)
        if match is None:
            at += 1
            if not text[at - 1].isspace() and text[at - 1] != ";":
                stop = at
        elif match[0] == "/*":
            at = _comment_end(text, at)
        else:
            at = match.end()
            if not match[0].startswith("--"):
                stop = at
    return text[:stop] if ";" in text[stop:] else text


def _comment_end(text: str, start: int) -> int:
    """Return the end of a comment in brackets, in which others may stand."""
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "/*" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def _head(query: str) -> str:
    """Return the word that a query begins with.

    Raises FlussError for a statement that Spark might run at once.
    """
    match = _BEGIN.match(query)
    head = match[1].upper() if match else ""
    if head not in _QUERIES + _PERHAPS:
        raise FlussError(f"expected a query (SELECT ...), not {head or 'no text'}")
    return head


def _span(error: AnalysisException) -> tuple[int, int] | None:
    """Return where in the text of the query there is a name that Spark does not know."""
    condition = error.getCondition()
    if condition == _NO_FILES:
        source = (error.getMessageParameters() or {}).get("dataSourceType", "")
        if source.lower() != "fluss":
            return None
    elif condition != _NOT_FOUND:
        return None
    for context in error.getQueryContext():
        # within a view or a function the text is another one
        if context.contextType().name == "SQL" and not context.objectType():
            return context.startIndex(), context.stopIndex() + 1
    return None


def _mention(named: str, text: str, start: int, stop: int) -> Mention:
    """Return the mention at a place of a text, of the relation that Spark says is there."""
    written = text[start:stop]
    match = _NAME.fullmatch(written)
    parts = _parts(named or written)
    if match is None and not (named and written.upper().startswith("IDENTIFIER")):
        raise _unplaced(named or written)
    if match is not None and _parts(written) != parts:
        raise _unplaced(named)
    if any("." in part for part in parts):
        raise FlussError(f"Spark has no table or view {named}, and names in Fluss have no dots")
    alias = None if _BEHIND_TABLE.search(text[:start]) else parts[-1]
    return Mention(start, stop, ".".join(parts), alias)


def _parts(name: str) -> list[str]:
    found: list[str] = []
    for part in re.findall(_PART, re.sub(_COMMENT, "", name, flags=re.DOTALL)):
        quote = part[0]
        found.append(part[1:-1].replace(2 * quote, quote) if quote in '`"' else part)
    return found


def _unplaced(name: str) -> FlussError:
    return FlussError(
        f"table {name} cannot be found in the text of the query: write its name as it is, and"
        " values in the place of ${...}"
    )


def _unread(error: ParseException, mentions: Sequence[Mention]) -> FlussError:
    reason = str(error).split("\n== SQL")[0].strip()
    if mentions:
        # Spark could read the query before the last mention was replaced
        return FlussError(
            f"table {mentions[-1].table}: what follows its name is not for tables of Fluss (a"
            " version, WITH (...)); options of reads are arguments of sql()"
        )
    return FlussError(f"the query cannot be read: {reason}")

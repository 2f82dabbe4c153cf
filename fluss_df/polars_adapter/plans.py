"""Whole queries of Polars: their text and serialized form, their rows batch by batch, their SQL."""

from __future__ import annotations

import gc
import io
import pickle
import re
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl
from polars.lazyframe.engine import _CollectBatches, _LocalEngine

from fluss_df.hooks import ForkStep, after_fork

if TYPE_CHECKING:
    from polars._typing import EngineType

#: What serializing a query may raise that has, for example, a lambda in it.
NOT_SERIALIZED: Final = (pl.exceptions.PolarsError, pickle.PicklingError, AttributeError, TypeError)

# matches where a pickled object begins, as bytes or as a list of numbers
_PICKLED = re.compile(rb"\xcc?\x80[\x04\x05]\xcc?\x95")
_RESOLVED = re.compile(r", cached_resolves: \d+")
_SOURCE = re.compile(r"\bSCAN\b")
_FILTER = re.compile(r"^ *FILTER\b", re.MULTILINE)
# names that Ibis makes up for columns, which differ each time
_MADE_UP = re.compile(rb"(ibis_[^\"\x00\n]{1,255}?_)([a-z2-7]{26})(?![a-z2-7])")
# matches a source that is read, and a source without rows
_OURS = re.compile(r"\bExternalReaderBuilder SCAN\b.*\n\s*name: fluss\n|\bPYTHON\[fluss\] SCAN\b")
# matches a count of the rows of a node (renamed by with_known_schema), with only filters between
_FILTERED = (
    r"SELECT \[len\(\)\]\n( *FILTER [^\n]*\n *FROM\n)*( *SELECT [^\n]*\0[^\n]*\n){2}"
    r" *RESOLVER\[name: %s, [^\n]*"
)
_COUNTED = r"SELECT \[len\(\)\]\n  RESOLVER\[name: %s,(?!(.*\n)* *FILTER )"

# functions in which a thread waits for a query, and their variables that hold the query
_WAITS: Final = {_LocalEngine.collect.__code__: "lf", _CollectBatches.__next__.__code__: "self"}

# names of columns and texts, which may look like anything
_QUOTED = re.compile(r'"[^"]*"')
#: Matches before a function of a column. A function in a namespace, as that of lists or texts,
#: looks at one row only.
OF_COLUMN: Final = (
    r"(?<!\.list)(?<!\.arr)(?<!\.array)(?<!\.str)(?<!\.bin)(?<!\.dt)(?<!\.cat)(?<!\.struct)"
)
# reductions of all rows
_REDUCTION = re.compile(
    OF_COLUMN
    + r"(?:\.(?:sum|mean|median|min|max|count|len|n_unique|approx_n_unique|std|var|quantile|product"
    r"|first|null_count|arg_min|arg_max|implode|any|all|skew|kurtosis|entropy|mode|value_counts"
    r"|cum_sum|cum_count|cum_min|cum_max|cum_prod|cumulative_eval|rank|reduce|over)|(?<![\w.])len)\("
)
# expressions over the elements of one list, and a constant for each row, by the number of rows
_OF_ELEMENTS = re.compile(r"\.(?:list|arr|array)\.(?:eval|agg)\(|(?<!str)\.repeat\(")


def serialized(frame: pl.LazyFrame) -> bytes:
    """Return the serialized form of a query, for which its nodes are pickled.

    Raises PolarsError, PicklingError, AttributeError, TypeError, see :data:`NOT_SERIALIZED`.
    """
    return frame.serialize()


def copied(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return a copy of a query, whose nodes were pickled; raises as :func:`serialized`."""
    return pl.LazyFrame.deserialize(io.BytesIO(frame.serialize()))


def pickled_objects(plan: bytes) -> int:
    """Return how many pickled objects a serialized query has."""
    return len(_PICKLED.findall(plan))


def written_text(frame: pl.LazyFrame) -> str:
    """Return a query as it was written: the same for the same query, in one release of Polars."""
    text = _RESOLVED.sub("", frame.explain(optimized=False).replace("\0", ""))
    return same_names(text.encode()).decode()


def same_names(plan: bytes) -> bytes:
    """Return a text or serialized form with the columns numbered for which Ibis made up names."""
    numbers: dict[bytes, bytes] = {}

    def numbered(name: re.Match[bytes]) -> bytes:
        return name[1] + numbers.setdefault(name[2], b"%026d" % len(numbers))

    return _MADE_UP.sub(numbered, plan)


def plan_text(frame: pl.LazyFrame) -> str:
    """Return the optimized plan of a query, as Polars shows it to users."""
    return frame.explain()


class ShownSources(NamedTuple):
    """What the plan of a query shows of its sources.

    ``numbers`` are those that sources show as ``key: #number``, each once, in the order of the
    plan. ``are_ours`` says whether every source is a Fluss scan or a frame in memory.
    ``filtered_within`` says whether rows are filtered only by sources.
    """

    numbers: list[int]
    are_ours: bool
    filtered_within: bool


def shown_sources(frame: pl.LazyFrame, key: str) -> ShownSources:
    """Return what the plan of a query shows of its sources: it is made once, as it asks servers."""
    plan = frame.explain()
    found = re.findall(rf"^\s+(?:INFO: )?{key}: #(\d+)(?: \||$)", plan, re.MULTILINE)
    alone = len(_SOURCE.findall(plan)) == len(_OURS.findall(plan))
    numbers = [int(number) for number in dict.fromkeys(found)]
    return ShownSources(numbers, alone, not _FILTER.search(plan))


def counts_node(counted: pl.LazyFrame, node: str) -> bool:
    """Whether a query is the number of rows of one such node, whose filters all are in it."""
    # a filter that Polars did not push is above the node, so the texts differ
    written = re.fullmatch(_FILTERED % node, counted.explain(optimized=False))
    return written is not None and re.match(_COUNTED % node, counted.explain()) is not None


def reduction_of_rows(frame: pl.LazyFrame) -> str | None:
    """Return the part of a query that needs all rows for its result; a batch has only some."""
    lines = written_text(frame).splitlines()
    for i, line in enumerate(lines):
        text = line.strip()
        if text.startswith("AGGREGATE["):
            text = lines[i + 1].strip() if i + 1 < len(lines) else text
            aggregates, _, _ = text.rpartition("] BY [")
            # to take the last row of a key is no reduction: it replaces the one before anyway
            if _reduces(aggregates):
                return text[:200]
        elif text.startswith("ROW INDEX"):
            return text[:200]
        elif text.startswith(("SELECT [", "WITH_COLUMNS")):
            text = lines[i + 1].strip() if text.startswith("WITH_COLUMNS") else text
            if _reduces(text):
                return text[:200]
    return None


def _reduces(text: str) -> bool:
    """Return whether expressions have a reduction of all rows."""
    return calls(text, _REDUCTION)


def calls(text: str, functions: re.Pattern[str]) -> bool:
    """Return whether expressions, as a plan shows them, call one of some functions.

    Calls on the elements of one list do not count, nor does what a constant is repeated by.
    """
    plain = _QUOTED.sub("", text)
    while (found := _OF_ELEMENTS.search(plain)) is not None:
        depth, end = 1, found.end()
        while depth and end < len(plain):
            depth += {"(": 1, ")": -1}.get(plain[end], 0)
            end += 1
        if depth:
            # a name with a quote in it: what is not understood counts as a reduction
            break
        plain = plain[: found.start()] + plain[end:]
    return functions.search(plain) is not None


_stacks_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _stacks_lock
    _stacks_lock = threading.RLock()


after_fork(ForkStep.STACKS, _after_fork_in_child)


def _stacks() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its number.

    CPython before 3.11.9 holds a lock of its threads meanwhile, and waits for ever where garbage is
    collected then whose callbacks let a thread run that ends, which needs the lock:
    https://github.com/python/cpython/issues/106883. So no garbage is collected.
    """
    with _stacks_lock:
        collects = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def is_collected_whole(node: str) -> bool:
    """Whether a thread is in a ``collect``, without a ``head``, of a query with such a node.

    Polars does not tell a scan what its rows are for; the thread that collects waits with the
    query in its hands.
    """
    collect = _LocalEngine.collect.__code__
    for thread, frame in _stacks().items():
        if thread == threading.get_ident() or frame.f_code is not collect:
            continue
        query = frame.f_locals.get("lf")
        if isinstance(query, pl.LazyFrame):
            plan = query.explain(optimized=False)
            if node in plan and not re.search("^ *(SLICE|SINK)", plan, re.M):
                return True
    return False


def waited_for() -> object | None:
    """Return the query, or the iterator over its batches, that the main thread waits for."""
    frame = _stacks().get(threading.main_thread().ident or 0)
    name = None if frame is None else _WAITS.get(frame.f_code)
    return None if frame is None or name is None else frame.f_locals.get(name)


def run_into(
    frame: pl.LazyFrame,
    take: Callable[[pl.DataFrame], bool | None],
    *,
    chunk_size: int | None = None,
    engine: EngineType = "auto",
) -> None:
    """Run a query, and call ``take`` with each of its batches, in order.

    The query ends early where ``take`` returns True. ``chunk_size`` is how many rows a batch has;
    None for as many as Polars has at once. ``engine`` is the engine of Polars that runs it. A query
    that fails raises, also where Polars panics: there, an iterator of ``collect_batches`` ends as
    if all rows had come.
    """
    frame.sink_batches(take, chunk_size=chunk_size, engine=engine)


def sql_query(text: str, frames: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Return the query that SQL in the dialect of Polars asks of frames, by their names in it."""
    return sql_context(frames).execute(text, eager=False)


def sql_context(frames: Mapping[str, pl.LazyFrame] | None = None) -> pl.SQLContext[pl.LazyFrame]:
    """Return a context in which Polars' SQL finds frames by their names; empty for None."""
    return pl.SQLContext(frames)


def drop_batches() -> None:
    """Make every iterator of ``collect_batches`` an empty one, which ends its query.

    For the exit of the program alone: what they would still yield, nobody can take. They cannot be
    had from their queries, and to take their batches would wait for every other source of a query.
    """
    for found in gc.get_objects():
        if type(found) is _CollectBatches:
            found.__init__(iter(()))  # type: ignore[misc]

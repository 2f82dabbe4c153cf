"""Whole queries of Polars: their text, their serialized form, and those that are running."""

from __future__ import annotations

import gc
import io
import pickle
import re
import sys
import threading
from typing import Final

import polars as pl
from polars.lazyframe.engine import _CollectBatches, _LocalEngine

#: What serializing a query may raise that has, for example, a lambda in it.
NOT_SERIALIZED: Final = (
    pl.exceptions.PolarsError,
    pickle.PicklingError,
    AttributeError,
    TypeError,
)

# where a pickled object begins, as bytes and as a list of numbers
_PICKLED = re.compile(rb"\xcc?\x80[\x04\x05]\xcc?\x95")
_RESOLVED = re.compile(r", cached_resolves: \d+")
_SOURCE = re.compile(r"\bSCAN\b")
_OURS = re.compile(r"\bExternalReaderBuilder SCAN\b.*\n\s*name: fluss\n")
# a node (and the renaming in with_known_schema), whose rows are filtered at the most
_FILTERED = (
    r"SELECT \[len\(\)\]\n( *FILTER [^\n]*\n *FROM\n)*( *SELECT [^\n]*\0[^\n]*\n){2}"
    r" *RESOLVER\[name: %s, [^\n]*"
)
_COUNTED = r"SELECT \[len\(\)\]\n  RESOLVER\[name: %s,(?!(.*\n)* *FILTER )"


def serialized(frame: pl.LazyFrame) -> bytes:
    """Return the serialized form of a query, for which its nodes are pickled.

    Raises
    ------
    PolarsError, PicklingError, AttributeError, TypeError
        See :data:`NOT_SERIALIZED`.
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
    return _RESOLVED.sub("", frame.explain(optimized=False).replace("\0", ""))


def reads_fluss_alone(plan: str) -> bool:
    """Whether every source in the text of a plan, but for frames in memory, is a Fluss scan."""
    return len(_SOURCE.findall(plan)) == len(_OURS.findall(plan))


def counts_node(counted: pl.LazyFrame, node: str) -> bool:
    """Whether a query is the number of rows of one such node, whose filters all are in it."""
    # what Polars kept to itself is not in the node, but above it
    written = re.fullmatch(_FILTERED % node, counted.explain(optimized=False))
    return written is not None and re.match(_COUNTED % node, counted.explain()) is not None


def is_collected_whole(node: str) -> bool:
    """Whether a thread is in a ``collect``, without a ``head``, of a query with such a node.

    Polars does not tell a scan what its rows are for; the thread that collects waits with the
    query in its hands.
    """
    collect = _LocalEngine.collect.__code__
    for thread, frame in sys._current_frames().items():
        if thread == threading.get_ident() or frame.f_code is not collect:
            continue
        query = frame.f_locals.get("lf")
        if isinstance(query, pl.LazyFrame):
            plan = query.explain(optimized=False)
            if node in plan and not re.search("^ *(SLICE|SINK)", plan, re.M):
                return True
    return False


def drop_batches() -> None:
    """Make every iterator of ``collect_batches`` an empty one, which ends its query.

    For the exit of the program alone: what they would still yield, nobody can take. They cannot be
    had from their queries, and to take their batches would wait for every other source of a query.
    """
    for found in gc.get_objects():
        if type(found) is _CollectBatches:
            found.__init__(iter(()))  # type: ignore[misc]

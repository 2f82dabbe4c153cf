"""A query as text, and whether its results would replace those of earlier batches."""

from __future__ import annotations

import re

import polars as pl

from fluss_df.errors import FlussError
from fluss_df.polars_adapter.plans import written_text
from fluss_df.schema import TableInfo

# names of columns and texts, which may look like anything
_QUOTED = re.compile(r'"[^"]*"')
# reductions of all rows; those of lists and texts are of one row
_REDUCTION = re.compile(
    r"(?<!\.list)(?<!\.arr)(?<!\.array)(?<!\.str)(?<!\.bin)(?<!\.dt)(?<!\.cat)(?<!\.struct)"
    r"(?:\.(?:sum|mean|median|min|max|count|len|n_unique|approx_n_unique|std|var|quantile|product"
    r"|first|null_count|arg_min|arg_max|implode|any|all|skew|kurtosis|entropy|mode|value_counts"
    r"|cum_sum|cum_count|cum_min|cum_max|cum_prod|cumulative_eval|rank|reduce|over)|(?<![\w.])len)\("
)
# what is computed from the elements of one list
_OF_ELEMENTS = re.compile(r"\.(?:list|arr|array)\.(?:eval|agg)\(")
# characters of a query that are kept
_TEXT = 20_000


def query_text(frame: pl.LazyFrame) -> str:
    """Return a query as text: the same for the same query, in one release of Polars."""
    return written_text(frame)[:_TEXT]


def changed_line(before: str, now: str) -> str:
    """Return where two texts begin to differ."""
    old, new = before.splitlines(), now.splitlines()
    for was, found in zip([*old, "(nothing)"], [*new, "(nothing)"], strict=False):
        if was != found:
            return f"{was.strip()[:200]} was, and now there is {found.strip()[:200]}"
    return "one is longer"


def _reduces(text: str) -> bool:
    """Return whether expressions have a reduction of all rows."""
    plain = _QUOTED.sub("", text)
    while (found := _OF_ELEMENTS.search(plain)) is not None:
        depth, end = 1, found.end()
        while depth and end < len(plain):
            depth += {"(": 1, ")": -1}.get(plain[end], 0)
            end += 1
        if depth:
            # a name with a quote in it: what is not understood counts
            break
        plain = plain[: found.start()] + plain[end:]
    return _REDUCTION.search(plain) is not None


def replaced_results(frame: pl.LazyFrame) -> str | None:
    """Return what in a query makes a result of all rows, of which a batch has only some."""
    lines = written_text(frame).splitlines()
    for i, line in enumerate(lines):
        text = line.strip()
        if text.startswith("AGGREGATE["):
            text = lines[i + 1].strip() if i + 1 < len(lines) else text
            aggregates, _, _ = text.rpartition("] BY [")
            # the last row of a key is what replaces the one before
            if _reduces(aggregates):
                return text[:200]
        elif text.startswith("ROW INDEX"):
            return text[:200]
        elif text.startswith(("SELECT [", "WITH_COLUMNS")):
            text = lines[i + 1].strip() if text.startswith("WITH_COLUMNS") else text
            if _reduces(text):
                return text[:200]
    return None


def refuse_replaced_results(frame: pl.LazyFrame, info: TableInfo) -> None:
    """Raise where a run would replace what earlier batches added up.

    Raises
    ------
    FlussError
        For an aggregate into a primary-key table that keeps the newest row of a key.
    """
    engine = info.get_properties().get("table.merge-engine", "").lower()
    if not info.has_primary_key() or engine == "aggregation":
        return
    what = replaced_results(frame)
    if what is None:
        return
    raise FlussError(
        f"the query computes {what} from the rows of one batch, and in table {info.table_path} the"
        " result would replace what earlier batches gave for the same key, not add to it. Add up"
        " in a table with the merge engine 'aggregation' (sums and counts: a mean is one by the"
        " other); or have windows of time computed over all batches, by the Ibis backend's"
        " con.follow(t.group_by(t.at.truncate('s')).agg(...), emit='final'). Where the result of"
        " the newest batch is to replace the others, say replace_aggregates=True"
    )

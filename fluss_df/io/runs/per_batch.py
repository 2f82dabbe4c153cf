"""A query as text, and whether its results would replace those of earlier batches."""

from __future__ import annotations

import polars as pl

from fluss_df.errors import FlussError
from fluss_df.polars_adapter.plans import reduction_of_rows, written_text
from fluss_df.schema import TableInfo

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


def refuse_replaced_results(frame: pl.LazyFrame, info: TableInfo) -> None:
    """Raise where a run would replace what earlier batches added up.

    Raises FlussError for an aggregate into a primary-key table that keeps the newest row of a key.
    """
    engine = info.get_properties().get("table.merge-engine", "").lower()
    if not info.has_primary_key() or engine == "aggregation":
        return
    what = reduction_of_rows(frame)
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

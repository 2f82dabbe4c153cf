"""Whether a query computes each row of one of its sources without the other rows of the source.

Only then is the query over parts of the source, one after the other, the same as the query over all
of it. Its plan is read as text: a plan is indented as a tree, and what stands above the source is
looked at, node by node. A node that is not known here counts as one that needs other rows. So
may a text of several lines, where one of its lines looks like the beginning of a node.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import polars as pl

from fluss_df.polars_adapter.plans import OF_COLUMN, calls

# matches the first line of a node, or of one of the plans below it
_BEGINS: Final = re.compile(
    r"(?P<node>FILTER|SELECT|WITH_COLUMNS|EXPLODE|UNNEST|UNION|AGGREGATE|UNIQUE|SORT|SLICE|CACHE"
    r"|hint\.sorted|RESOLVER|PYTHON|DF|(?:[A-Z]+ )+JOIN(?=:| ON ))(?![\w.])"
    r"|(?P<part>FROM|LEFT PLAN|RIGHT PLAN|PLAN \d+(?=:))(?![\w.])"
    r"|(?P<other>[A-Z]{3,}[A-Z_ ]*)(?:[\[: ]|$)"
)
# nodes that give for each row what follows from this row, where their expressions do
_OF_ROWS: Final = ("FILTER", "SELECT", "WITH_COLUMNS", "EXPLODE", "UNNEST", "CACHE", "hint.sorted")
# join -> the sides that the source may be on: the join keeps a row of the other side only where it
# has a match
_SIDES: Final = {
    "INNER JOIN": ("LEFT PLAN", "RIGHT PLAN"),
    "CROSS JOIN": ("LEFT PLAN", "RIGHT PLAN"),
    "LEFT JOIN": ("LEFT PLAN",),
    "SEMI JOIN": ("LEFT PLAN",),
    "ANTI JOIN": ("LEFT PLAN",),
    "ASOF JOIN": ("LEFT PLAN",),
    "RIGHT JOIN": ("RIGHT PLAN",),
}
# matches the values of another table of which Polars' SQL makes one list, beside each row: NOT IN
_BESIDE: Final = re.compile(r'col\("_POLARS_TMP_SQL_\d+"\)\.first\(\)')
_NAMES: Final = {
    "AGGREGATE": "an aggregate",
    "UNIQUE": "DISTINCT, or a UNION that leaves out equal rows,",
    "SORT": "a sort",
    "SLICE": "a limit",
}
# functions of which a value depends on other rows; those of one list or text do not
_OF_MANY_ROWS: Final = re.compile(
    rf"(?:{OF_COLUMN}\."
    r"(?:sum|mean|median|min|max|nan_min|nan_max|min_by|max_by|count|len|n_unique|approx_n_unique"
    r"|std|var|quantile|product|first|last|item|get|gather|gather_every|null_count|has_nulls"
    r"|arg_\w+|implode|any|all|any_ignore_nulls|all_ignore_nulls|skew|kurtosis|entropy|mode"
    r"|value_counts|unique_counts|cum_\w+|cumulative_eval|rank|reduce|over|shift|diff|pct_change"
    r"|slice|head|tail|unique|sort|sort_by|reverse|interpolate\w*|rolling\w*|ewm_\w+"
    r"|fill_null_with_strategy|pearson_correlation|spearman_rank_correlation|covariance"
    r"|is_duplicated|is_unique|is_first_distinct|is_last_distinct|top_k\w*|bottom_k\w*|filter"
    r"|drop_nulls|drop_nans|rle|rle_id|search_sorted|index_of|hist|int_range|sample|shuffle"
    r"|bitwise_(?:and|or|xor)|peak_min|peak_max|qcut|concat_expr|extend_constant)"
    r"|\.str\.concat_vertical|(?<![\w.])len)\("
)


_ALL_ROWS: Final = "it needs rows that are still to come"


class Obstacle(NamedTuple):
    """What needs other rows: its name, why it does, and what to do, where there is something."""

    what: str
    why: str = _ALL_ROWS
    way_out: str = ""


class _Node(NamedTuple):
    """A node above the source, or which of its parts the source is in; deeper ones are later."""

    indent: float
    name: str
    is_part: bool
    lines: list[str]


def needs_other_rows(frame: pl.LazyFrame, source: str) -> Obstacle | None:
    """Return what makes the rows of a source depend on each other; None where nothing does.

    ``source`` is the name of a node or of a Python source, which the query has once.
    """
    begin = re.compile(rf"RESOLVER\[name: {source},|PYTHON\[{source}\] SCAN")
    above: list[_Node] = []
    for line in frame.explain(optimized=False).replace("\0", "").splitlines():
        text = line.strip()
        if begin.match(text):
            while above and above[-1].indent >= _indent(line):
                above.pop()
            return _obstacle(above)
        found = _BEGINS.match(text)
        if found is None:
            # expressions of the node, or the rest of a text with more than one line
            if above:
                above[-1].lines.append(text)
            continue
        # parts of a node stand below it, though some are written at the same indent
        is_part = found["part"] is not None
        indent = _indent(line) + (0.5 if is_part else 0)
        while above and above[-1].indent >= indent:
            above.pop()
        name = found["node"] or found["part"] or found["other"]
        above.append(_Node(indent, name.replace("NESTED LOOP ", ""), is_part, [text]))
    return Obstacle(
        "a condition whose values come from the table that is followed",
        way_out="write it as an inner join of both tables",
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _obstacle(above: list[_Node]) -> Obstacle | None:
    for at, node in enumerate(above):
        if node.is_part:
            continue
        below = above[at + 1] if at + 1 < len(above) else None
        if node.name.endswith("JOIN"):
            sides = _SIDES.get(node.name, ())
            if below is None or below.name not in sides:
                return _of_join(node.name, sides)
        elif node.name == "UNION":
            return Obstacle(
                "a UNION ALL with rows of another table",
                "they would come again with every batch",
                "follow each table by itself",
            )
        elif node.name == "HCONCAT" and below is not None and below.name == "PLAN 0":
            # HCONCAT pairs rows by their number; in SQL, the other frame has one value for all rows
            if not any(_BESIDE.search(line) for parent in above[:at] for line in parent.lines):
                return Obstacle("a frame beside another")
        elif node.name not in _OF_ROWS:
            return Obstacle(_NAMES.get(node.name, node.name.strip()))
        elif calls(_BESIDE.sub("", " ".join(node.lines)), _OF_MANY_ROWS):
            shown = " ".join(node.lines)[:200]
            return Obstacle(f"a value that is computed of many rows ({shown})")
    return None


def _of_join(name: str, sides: tuple[str, ...]) -> Obstacle:
    way_out = "take a LEFT JOIN with the table that is followed on the left"
    if sides:
        side = "right" if sides[0] == "RIGHT PLAN" else "left"
        way_out = f"have the table that is followed on the {side}, or take an inner join"
    return Obstacle(
        f"{'an' if name[0] in 'AEIO' else 'a'} {name} (as IN and EXISTS are, too) that keeps rows"
        " of the other table",
        "rows that are still to come say which of them have a match",
        way_out,
    )

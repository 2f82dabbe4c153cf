"""SQL that Polars parses but ignores: rewritten, or refused."""

from __future__ import annotations

from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.errors import FlussError

#: The name of a table of one row, for queries without tables.
ONE_ROW = "__fluss_one_row"
# clauses that change the meaning of a query, and that Polars ignores
_IGNORED = (
    "cluster",
    "connect",
    "distribute",
    "format",
    "into",
    "match",
    "prewhere",
    "settings",
    "sort",
)


def from_one_row(tree: exp.Expr) -> bool:
    """Give each SELECT without FROM a table of one row; return whether any was changed.

    Without FROM, Polars ignores WHERE, and counts no row.
    """
    found = False
    for select in tree.find_all(exp.Select):
        if select.expressions and from_of(select) is None and not select.is_star:
            select.set("from_", exp.From(this=exp.to_table(ONE_ROW)))
            found = True
    return found


def from_of(select: exp.Select) -> exp.Expr | None:
    """Return the FROM of a query."""
    found: exp.Expr | None = select.args.get("from_") or select.args.get("from")
    return found


def refuse_what_polars_ignores(tree: exp.Expr) -> None:
    """Refuse SQL that Polars would answer wrongly, or cannot run.

    Raises FlussError with the clause, where it stands, and what to write instead where there is a
    way.
    """
    for select in tree.find_all(exp.Select):
        for name in _IGNORED:
            if select.args.get(name):
                raise FlussError(
                    f"SQL cannot be run: there is no {name.upper()} here, in:"
                    f" {select.sql(Fluss, comments=False)[:80]}"
                )
    for apart in tree.find_all(exp.DateDiff, exp.TimestampDiff, exp.DatetimeDiff):
        # PostgreSQL's dialect would write other functions, which Polars does not know
        name = "TIMESTAMPDIFF" if isinstance(apart, exp.TimestampDiff) else "DATEDIFF"
        raise FlussError(
            f"SQL cannot be run: there is no {name} here: b - a is the interval between two times,"
            " and CAST(CAST(b AS DATE) AS INT) - CAST(CAST(a AS DATE) AS INT) the days between"
            f" their dates{spot(apart)}"
        )
    for join in tree.find_all(exp.Join):
        merges = join.args.get("using") or join.method.upper() == "NATURAL"
        if merges and join.side.upper() in ("RIGHT", "FULL"):
            # Polars takes the left side's columns, which are null for rows of the right side only
            raise FlussError(
                f"SQL cannot be run: {join.sql(Fluss, comments=False).strip()[:80]}: write ON"
                " left.key = right.key, and COALESCE(left.key, right.key) for the columns of"
                f" the keys{spot(join)}"
            )
    for part in tree.find_all(exp.Placeholder, exp.Parameter):
        raise FlussError(
            f"SQL cannot be run: there is no value for the parameter {part.sql(Fluss)}"
        )
    for table in tree.find_all(exp.Table):
        if table.alias_column_names and isinstance(table.this, exp.Identifier):
            raise FlussError(
                f"SQL cannot be run: {table.sql(Fluss, comments=False)}: a table's columns cannot"
                f" be renamed there, only with AS behind SELECT{spot(table)}"
            )

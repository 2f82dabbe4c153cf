"""SQL: a field to write it in, what became of it, its result as rows, a plot and files."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import polars as pl
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.io.base.texts import for_csv
from fluss_df.metadata import DEFAULT_DATABASE
from fluss_df.ui.kept import Query
from fluss_df.ui.pages.overview import parts
from fluss_df.ui.pages.rows import shown
from fluss_df.ui.shown import plots, texts
from fluss_df.ui.state import State, asks, form_of, number, state_of

_PAGE: Final = 100
_MOST_VALUES: Final = 20_000
# seconds that a page waits, so that a quick statement has ended when it is shown
_WAIT_S: Final = 0.5
_MOST_NAMES: Final = 50
_NAMES_S: Final = 5.0
KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AS",
    "AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN",
    "ELSE", "END", "CAST", "DISTINCT", "HAVING", "UNION ALL", "WITH", "ASC", "DESC", "COUNT",
    "SUM", "AVG", "MIN", "MAX", "INSERT INTO", "VALUES", "UPDATE", "SET", "DELETE FROM",
    "CREATE TABLE", "CREATE DATABASE", "DROP TABLE", "ALTER TABLE", "SHOW TABLES",
    "SHOW DATABASES", "SHOW CREATE TABLE", "DESCRIBE", "EXPLAIN", "PRIMARY KEY", "NOT ENFORCED",
    "PARTITIONED BY",
)  # fmt: skip


@asks
def page(state: State, request: Request) -> Response:
    """Return the page to write a statement."""
    state.queries.prepare()
    return state.page(
        request,
        "sql.html",
        text=_first(request.query_params.get("table", "")),
        databases=state.admin.list_databases(),
        database=state.connection.default_database or DEFAULT_DATABASE,
        limits=state.settings.limits,
        kept=[_kept(query) for query in state.queries.all()],
        query=None,
    )


def _first(table: str) -> str:
    if not table:
        return ""
    name = ".".join("`" + part.replace("`", "``") + "`" for part in table.split("."))
    return f"SELECT *\nFROM {name}\nLIMIT 100"


def _kept(query: Query) -> dict[str, Any]:
    return {
        "id": query.id,
        "text": " ".join(texts.statement(query.text).split())[:120],
        "status": query.status,
        "rows": query.frame.height,
        "seconds": query.seconds,
    }


@asks
def run(state: State, request: Request) -> Response:
    """Begin to run a statement, and lead to its page."""
    form = form_of(request)
    text = form.get("statement", "")
    if form.get("explain"):
        text = f"EXPLAIN {text}"
    started = state.queries.start(text, form.get("database") or None)
    started.wait(_WAIT_S)
    return RedirectResponse(f"/sql/run/{started.id}", 303)


@asks
def cancel(state: State, request: Request) -> Response:
    """Cancel a statement."""
    query = state.queries.find(form_of(request).get("run", ""))
    query.cancel()
    query.wait(2.0)
    return RedirectResponse(f"/sql/run/{query.id}", 303)


@asks
def result(state: State, request: Request) -> Response:
    """Return the page about a statement that runs, or has ended."""
    query = state.queries.find(request.path_params["run"])
    asked = request.query_params
    frame = query.frame
    size = max(1, min(_PAGE, _MOST_VALUES // max(1, frame.width)))
    numbers, page_number, pages = parts(
        list(range(frame.height)), number(asked.get("page"), 1, 10**6), size
    )
    rows = frame[numbers[0] : numbers[-1] + 1] if numbers else frame
    explained = query.text.lstrip()[:8].upper().startswith("EXPLAIN")
    text = query.text.lstrip()[8:] if explained else query.text
    is_statement = frame.columns == ["statement"] and frame.height == 1
    axes = _axes(frame, asked.get("x", ""), asked.get("y", ""))
    database = query.database or state.connection.default_database or DEFAULT_DATABASE
    return state.page(
        request,
        "sql.html",
        text=text,
        databases=_databases(state, database),
        database=database,
        limits=state.settings.limits,
        kept=[],
        query=query,
        whole=_whole(_redacted(rows)) if explained or is_statement else "",
        page=page_number,
        pages=pages,
        axes=axes,
        plot=_plot(frame, axes) if axes else None,
        plan=texts.visible(query.plan),
        scans=[texts.visible(scan) for scan in query.scans],
        **shown(_redacted(rows)),
    )


def _databases(state: State, known: str) -> list[str]:
    """Return the databases, or the one that is known where no server answers."""
    try:
        return state.admin.list_databases()
    except FlussError:
        return [known]


def _whole(frame: pl.DataFrame) -> str:
    """Return the texts of a result that is a plan, or a statement, rather than rows."""
    return texts.visible("\n".join(str(v) for row in frame.rows() for v in row))


def _redacted(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the result of SHOW CREATE TABLE without the secrets in it."""
    if frame.columns != ["statement"] or frame.height != 1 or frame.dtypes != [pl.String]:
        return frame
    return pl.DataFrame({"statement": [texts.statement(frame.item() or "")]})


def progress(request: Request) -> Response:
    """Return how far a statement is, for the script of its page."""
    try:
        query = state_of(request).queries.find(request.path_params["run"])
    except FlussError:
        return JSONResponse({"status": "gone"}, 404)
    told = f"{texts.count(query.rows)} rows, {texts.size(query.fetched)} fetched, "
    told += texts.duration(query.seconds)
    return JSONResponse({"status": query.status, "told": told})


@asks
def download(state: State, request: Request) -> Response:
    """Return the rows that are kept of a result as a file."""
    query = state.queries.find(request.path_params["run"])
    name = request.path_params["file"]
    frame = _redacted(query.frame)
    made = io.BytesIO()
    if name == "result.parquet":
        frame.write_parquet(made)
        kind = "application/vnd.apache.parquet"
    elif name == "result.csv":
        frame.select(for_csv(frame.schema)).write_csv(made)
        kind = "text/csv; charset=utf-8"
    else:
        raise FlussError(f"there is no file {name[:40]!r}: there are result.parquet and result.csv")
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(made.getvalue(), media_type=kind, headers=headers)


# ---- the plot


def _axes(frame: pl.DataFrame, x: str, y: str) -> dict[str, Any] | None:
    """Return which columns are drawn, and which may be; None where there is nothing to draw."""
    numeric = [n for n, t in frame.schema.items() if t.is_numeric()]
    if not numeric or frame.height < 2:
        return None
    places = [n for n, t in frame.schema.items() if not t.is_nested() and t != pl.Binary]
    if y not in numeric:
        others = [n for n in numeric if n != places[0]]
        y = (others or numeric)[-1]
    if x not in places:
        x = next((n for n in places if n != y), y)
    return {"x": x, "y": y, "places": places, "numbers": numeric}


def _plot(frame: pl.DataFrame, axes: dict[str, Any]) -> Markup:
    x, y = axes["x"], axes["y"]
    values = frame.select(exact(y).cast(pl.Float64)).to_series().to_numpy()
    drawn = plots.Line(y, values.astype(np.float64))
    at = frame.get_column(x)
    title = f"{y} by {x}"
    if at.dtype.is_temporal() and at.dtype not in (pl.Time, pl.Duration):
        moments = frame.select(exact(x).cast(pl.Datetime("us")).dt.epoch("us")).to_series()
        seconds = moments.cast(pl.Float64).to_numpy() / 1e6
        return plots.lines(seconds, [drawn], title, moments=True)
    if at.dtype.is_numeric():
        places = frame.select(exact(x).cast(pl.Float64)).to_series()
        rising = places.is_sorted()
        return plots.lines(places.to_numpy(), [drawn], title, points=not rising)
    return plots.bars([str(name) for name in at.head(100).to_list()], drawn, title)


# ---- completion


@asks
def names(state: State, request: Request) -> Response:
    """Return what may be meant by the beginning of a word: tables, columns, keywords."""
    asked = request.query_params
    prefix = asked.get("prefix", "")[:200].strip("`")
    database = asked.get("database", "")
    mentioned = [name for name in asked.get("tables", "").split(",")[:10] if name]
    tables = _tables(state)
    found: list[tuple[str, str]] = []
    for path in tables:
        short = path.table_name if path.database_name == database else str(path)
        found.append((short, "table"))
    wanted = {name.strip("`") for name in mentioned}
    near = [
        path
        for path in tables
        if str(path) in wanted or (path.database_name == database and path.table_name in wanted)
    ]
    for path, info in state.watch.infos(near[:10]).items():
        found += [(c.name, f"{c.type} of {path.table_name}") for c in info.schema.columns]
    found += [(name, "database") for name in state.admin.list_databases()]
    found += [(word, "keyword") for word in KEYWORDS]
    return JSONResponse([{"text": t, "kind": k} for t, k in _matching(found, prefix)])


def _tables(state: State) -> list[Any]:
    """Return all tables, as they were some seconds ago."""
    at, found = state.names
    if time.monotonic() - at > _NAMES_S:
        found = state.watch.tables()
        state.names = time.monotonic(), found
    return found


def _matching(found: Iterable[tuple[str, str]], prefix: str) -> list[tuple[str, str]]:
    """Return columns first, then tables, then the others that begin so."""
    small = prefix.lower()
    rank = {"table": 1, "database": 2, "keyword": 3}
    begun = [
        (rank.get(kind, 0), text.lower(), text, kind)
        for text, kind in dict.fromkeys(found)
        if text.lower().startswith(small) or text.lower().partition(".")[2].startswith(small)
    ]
    return [(text, kind) for _, _, text, kind in sorted(begun)[:_MOST_NAMES]]

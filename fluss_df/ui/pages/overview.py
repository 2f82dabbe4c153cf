"""The first page: servers, health, and all tables."""

from __future__ import annotations

import fnmatch
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from fluss_df.client.admin.results import ClusterHealth, ClusterHealthStatus
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.ui.state import State, asks, number

#: Tables on one page.
PAGE: Final = 100
_MEANS: Final = {
    ClusterHealthStatus.GREEN: "all replicas are in sync, and all leaders are active",
    ClusterHealthStatus.YELLOW: "all leaders are active, and some replicas are not in sync",
    ClusterHealthStatus.RED: "some buckets have no active leader: they can be neither read nor"
    " written",
    ClusterHealthStatus.UNKNOWN: "the coordinator cannot tell",
}


@asks
def overview(state: State, request: Request) -> Response:
    """Return the page."""
    asked = request.query_params
    like, database = asked.get("like", "").strip(), asked.get("database", "")
    databases = state.admin.list_databases()
    everything = state.watch.tables()
    found = [
        path
        for path in everything
        if (not database or path.database_name == database) and _is_like(str(path), like)
    ]
    pages = max(1, -(-len(found) // PAGE))
    page = min(number(asked.get("page"), 1, pages) or 1, pages)
    shown = found[(page - 1) * PAGE : page * PAGE]
    infos = state.watch.infos(shown)
    rows = [
        {"path": path, "info": infos[path], "growth": state.watch.growth(path)}
        for path in shown
        if path in infos
    ]
    health, why = _health(state)
    return state.page(
        request,
        "overview.html",
        databases=databases,
        database=database,
        like=like,
        rows=rows,
        found=len(found),
        tables=len(everything),
        page=page,
        pages=pages,
        servers=state.admin.get_server_nodes(),
        health=health,
        health_text=_MEANS.get(health.status, "") if health else why,
        growth=state.watch.all_growth(everything),
        in_process=state.connection.cluster.engine is not None,
    )


def _health(state: State) -> tuple[ClusterHealth | None, str]:
    """Return how the cluster is, or why nobody can tell."""
    try:
        return state.admin.get_cluster_health(), ""
    except FlussError as error:
        if error.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return None, "servers before 1.0 do not tell"
        if error.error_code == ErrorCode.AUTHORIZATION_EXCEPTION:
            return None, "the user of this connection may not ask"
        raise


def _is_like(name: str, like: str) -> bool:
    if not like:
        return True
    if "*" in like or "?" in like:
        return fnmatch.fnmatchcase(name, like) or fnmatch.fnmatchcase(name.partition(".")[2], like)
    return like.lower() in name.lower()


def parts(rows: list[Any], page: int, size: int) -> tuple[list[Any], int, int]:
    """Return the rows of one page, its number, and how many pages there are."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(page, 1), pages)
    return rows[(page - 1) * size : page * size], page, pages

"""All pages of the console, as an application for a web server."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fluss_df.errors import FlussError
from fluss_df.ui.pages import forms, live, overview, queries, rows, runs, table
from fluss_df.ui.state import ASSETS, State, state_of

logger = logging.getLogger(__name__)


def make_app(state: State) -> Starlette:
    """Return the application; what stands before it is :class:`~fluss_df.ui.guard.Guard`."""
    one = "/table/{database}/{table}"
    app = Starlette(
        routes=[
            Route("/", overview.overview),
            Route("/sign-in", _sign_in),
            Route("/static/{name}", _static),
            Route("/favicon.ico", _static),
            Route(one, table.about),
            Route(f"{one}/growth.svg", table.growth),
            Route(f"{one}/rows", rows.rows),
            Route(f"{one}/changes", rows.changes),
            Route(f"{one}/live", live.page),
            Route(f"{one}/stream", live.stream),
            Route(f"{one}/change", forms.change_table),
            Route("/create", forms.create),
            Route("/preview", forms.preview, methods=["POST"]),
            Route("/statement", forms.run, methods=["POST"]),
            Route("/sql", queries.page),
            Route("/sql", queries.run, methods=["POST"]),
            Route("/sql/cancel", queries.cancel, methods=["POST"]),
            Route("/sql/names", queries.names),
            Route("/sql/run/{run}", queries.result),
            Route("/sql/run/{run}/state", queries.progress),
            Route("/sql/run/{run}/{file}", queries.download),
            Route("/runs", runs.runs),
        ],
        exception_handlers={HTTPException: _refused, FlussError: _failed, Exception: _broken},
    )
    app.state.console = state
    return app


def _sign_in(request: Request) -> Response:
    return state_of(request).page(request, "sign-in.html", wrong="wrong" in request.query_params)


def _static(request: Request) -> Response:
    name = request.path_params.get("name", "icon.svg")
    if name not in ASSETS:
        return PlainTextResponse("There is no such file.\n", 404)
    content, kind = ASSETS[name]
    return Response(content, media_type=kind, headers={"cache-control": "private, max-age=3600"})


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return state_of(request).page(
        request,
        "error.html",
        error.status_code,
        title="There is no such page" if error.status_code == 404 else "This did not work",
        message=error.detail,
        advice="The overview leads to everything that there is.",
    )


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, FlussError)
    return state_of(request).failed(request, error)


def _broken(request: Request, error: Exception) -> Response:
    # the error may have texts that visitors must not see: it goes to the log of the process
    logger.error("the page %s failed", request.url.path, exc_info=error)
    return state_of(request).page(
        request,
        "error.html",
        500,
        title="This is a fault of the console",
        message="The page could not be made. The terminal of fluss-df ui says why.",
        advice="Load the page again; if it stays so, report what the terminal says.",
    )

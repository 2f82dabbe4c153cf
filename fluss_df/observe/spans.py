"""Spans of OpenTelemetry, where somebody wants them: without, one look at :data:`tracer` is all.

Names and attributes are those of OpenTelemetry's conventions for databases (scans and lookups) and
for messaging (writes and micro-batches).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath

#: What makes spans; None where nobody wants them.
tracer: Any = None
#: Stands for a span where nobody wants one.
OFF: Final[contextlib.AbstractContextManager[None]] = contextlib.nullcontext()
#: The value of ``db.system.name`` and ``messaging.system``.
SYSTEM: Final = "fluss"


def set_tracer(made: Any) -> None:
    """Have spans made; None to have none."""
    global tracer
    tracer = made


def context() -> Any:
    """Return where the calling thread is in its trace, for spans that other threads begin."""
    if tracer is None:
        return None
    from opentelemetry.context import get_current

    return get_current()


def _live(parent: Any) -> Any:
    """Return a context, unless its span has ended: a query may be made once and run for days."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if parent is None:
        return Context()
    return parent if trace.get_current_span(parent).is_recording() else Context()


def table_attributes(operation: str, table: TablePath) -> dict[str, Any]:
    """Return what the spans of a table's scans and lookups have."""
    return {
        "db.system.name": SYSTEM,
        "db.namespace": table.database_name,
        "db.collection.name": table.table_name,
        "db.operation.name": operation,
    }


def log_attributes(operation: str, table: object) -> dict[str, Any]:
    """Return what the spans of writes and of micro-batches have."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": str(table),
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def begin(operation: str, table: TablePath, parent: Any) -> Any:
    """Begin the span of a scan, which other threads end; None where nobody wants it."""
    made = tracer
    if made is None:
        return None
    from opentelemetry.trace import SpanKind

    return made.start_span(
        f"{operation} {table}",
        context=_live(parent),
        kind=SpanKind.CLIENT,
        attributes=table_attributes(operation, table),
    )


def failed(span: Any, error: BaseException) -> None:
    """Note in a span why it failed: by the error's name, as its text may have rows and keys."""
    from opentelemetry.trace import Status, StatusCode

    named = error.code_name if isinstance(error, FlussError) else type(error).__qualname__
    span.set_attribute("error.type", named)
    span.add_event("exception", {"exception.type": type(error).__qualname__})
    span.set_status(Status(StatusCode.ERROR, named))


@contextlib.contextmanager
def current(name: str, kind: str, attributes: dict[str, Any]) -> Iterator[Any]:
    """Give a span that is the current one in the block; None where nobody wants it."""
    made = tracer
    if made is None:
        yield None
        return
    from opentelemetry.trace import SpanKind

    with made.start_as_current_span(
        name,
        kind=SpanKind[kind.upper()],
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except GeneratorExit:
            raise
        except BaseException as error:
            failed(span, error)
            raise

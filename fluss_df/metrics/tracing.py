"""Traces of OpenTelemetry: :func:`start_tracing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss_df.errors import FlussError
from fluss_df.observe import spans
from fluss_df.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def start_tracing(tracer_provider: TracerProvider | None = None) -> None:
    """Have scans, flushes of writers, lookups and micro-batches make spans of OpenTelemetry.

    Needs the extra ``fluss-df[otel]``, and an SDK of OpenTelemetry that takes the spans somewhere.
    Spans of flushes, lookups and micro-batches are children of the thread's current span; that of a
    query's scan is one of the span in which its frame was made by ``scan_fluss``, if that has not
    ended, as Polars reads in threads of its own. Rows and keys are never in a span.

    Parameters
    ----------
    tracer_provider
        Where spans go; by default the provider that is set for the process, now or later.

    Raises
    ------
    FlussError
        Where ``opentelemetry-api`` is not installed.

    Examples
    --------
    >>> start_tracing()
    >>> stop_tracing()
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise FlussError(
            f"traces need opentelemetry-api: pip install 'fluss-df[otel]' ({error})"
        ) from error
    spans.set_tracer(trace.get_tracer("fluss_df", __version__, tracer_provider))


def stop_tracing() -> None:
    """Make no more spans; those that are open end as they would."""
    spans.set_tracer(None)

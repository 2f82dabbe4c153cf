"""The metrics of a process for Prometheus and OpenTelemetry: counters, histograms, traces.

The counters are kept whether or not anybody asks for them, and added up when they are read. The
packages of Prometheus and of OpenTelemetry are extras: ``fluss-df[metrics]``, ``fluss-df[otel]``.
"""

from fluss_df.metrics.collector import FlussCollector
from fluss_df.metrics.http import MetricsServer, start_http_server
from fluss_df.metrics.tracing import start_tracing, stop_tracing

__all__ = ["FlussCollector", "MetricsServer", "start_http_server", "start_tracing", "stop_tracing"]

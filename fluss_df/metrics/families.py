"""The names of all exported metrics: the table that the collector, its page and tests use.

They begin with ``fluss_`` and a scope, as those of a Fluss server do, with the words of Fluss in
the manner of Prometheus: base units, and ``_total`` behind counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    ``name`` is the exported one, ``_total`` included. ``text`` explains it. ``labels`` are the
    names of its labels. ``source`` is the counter that it shows, "" for gauges.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    source: str = ""


def _counter(name: str, source: str, text: str, *labels: str) -> Family:
    return Family(f"fluss_{name}_total", "counter", text, labels, source)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"fluss_{name}", "gauge", text, labels)


def _histogram(name: str, source: str, text: str, *labels: str) -> Family:
    return Family(f"fluss_{name}_seconds", "histogram", text, labels, source)


_REQUEST: Final = "request"
_TABLE: Final = "table"
_RUN: Final = ("run", _TABLE)

CLIENT: Final = (
    _histogram(
        "client_request_duration",
        "requests",
        "From sending a request until its answer was taken, a server's wait for rows included.",
        _REQUEST,
    ),
    _counter(
        "client_request_errors",
        "requests.errors",
        "Requests that were answered by an error, or not at all.",
        _REQUEST,
    ),
    _counter("client_requests_sent", "requests", "Requests that were sent."),
    _counter("client_retries", "retries", "Requests and batches that were sent again."),
    _counter("client_errors", "errors", "Batches that were given up."),
    _counter("client_bytes_out", "bytes_sent", "Bytes of requests."),
    _counter("client_bytes_in", "bytes_received", "Bytes of responses."),
    _counter(
        "client_wait_seconds",
        "wait_seconds",
        "Seconds that callers waited for servers, in sum over threads.",
    ),
    _counter(
        "client_remote_fetch_segments", "remote_segments", "Log segments read from remote storage."
    ),
    _counter("client_remote_fetch_bytes", "remote_bytes", "Bytes read from remote storage."),
    _counter("client_sockets_opened", "connections", "Connections made to servers."),
    _counter("client_writer_records", "records_written", "Rows that were acknowledged.", _TABLE),
    _counter(
        "client_writer_bytes", "bytes_written", "Bytes of batches that were acknowledged.", _TABLE
    ),
    _counter("client_writer_batches", "batches_written", "Batches that were acknowledged.", _TABLE),
    _counter("client_writer_failed_records", "records_failed", "Rows that were given up.", _TABLE),
    _counter("client_scanner_records", "records_read", "Rows decoded, before filters.", _TABLE),
    _counter(
        "client_scanner_bytes",
        "bytes_read",
        "Bytes of rows received from servers, compressed as they travel.",
        _TABLE,
    ),
    _counter("client_scanner_batches", "batches_read", "Batches of rows decoded.", _TABLE),
    _counter("client_lookups", "lookups", "Keys, or prefixes of keys, looked up.", _TABLE),
)
CLIENT_CONNECTIONS: Final = _gauge("client_connections", "Connections (fluss_df.connect) in use.")
CLIENT_BUFFER: Final = _gauge(
    "client_writer_buffer_bytes", "Bytes of batches that are not acknowledged yet."
)
CLIENT_MEMORY: Final = _gauge(
    "client_scanner_memory_bytes", "Bytes of Arrow's memory for what is received and decoded."
)

SERVER: Final = (
    _histogram(
        "server_request_duration",
        "requests",
        "How long requests took, waiting for the disk and for rows to come included.",
        _REQUEST,
    ),
    _counter(
        "server_request_errors",
        "requests.errors",
        "Requests that were answered by an error; those of single buckets do not count.",
        _REQUEST,
    ),
    _counter("server_bytes_in", "bytes_in", "Bytes received over sockets."),
    _counter("server_bytes_out", "bytes_out", "Bytes sent over sockets."),
    _counter("server_connections_accepted", "connections_accepted", "Connections let in."),
    _counter(
        "server_connections_refused", "connections_refused", "Connections that the limits kept out."
    ),
    _counter(
        "server_logins_refused", "logins_refused", "Requests to authenticate that were refused."
    ),
    _histogram(
        "server_log_flush_duration",
        "flushes",
        "How long it took to bring what was written to the disk, by kind of table: log or kv.",
        "kind",
    ),
    _counter("server_table_messages_in", "messages_in", "Rows written by clients.", _TABLE),
    _counter("server_table_bytes_in", "bytes_in", "Bytes of rows written by clients.", _TABLE),
    _counter("server_table_bytes_out", "bytes_out", "Bytes of logs read by clients.", _TABLE),
)
SERVER_ENGINES: Final = _gauge("server_engines", "Embedded engines that are open.")
SERVER_CONNECTIONS: Final = _gauge(
    "server_connections", "Connections that are open: tcp, or unix of this machine.", "transport"
)
SERVER_MEMORY: Final = _gauge(
    "server_request_memory_bytes", "Bytes of requests and answers that are held for peers."
)
SERVER_TABLES: Final = _gauge("server_tables", "Tables that there are.")
SERVER_BUCKETS: Final = _gauge("server_open_buckets", "Buckets in use.")
SERVER_REFUSING: Final = _gauge(
    "server_failed_buckets", "Buckets that take no more writes, as their disk failed."
)
SERVER_LOG_SIZE: Final = _gauge("server_table_log_size_bytes", "Bytes of logs.", _TABLE)
SERVER_KV_SIZE: Final = _gauge(
    "server_table_kv_size_bytes", "Bytes of rows in RocksDB, of buckets in use.", _TABLE
)
SERVER_COMPACTIONS: Final = _gauge(
    "server_kv_compactions", "Compactions of RocksDB: running, or pending.", "state"
)

RUNS: Final = (
    _counter("run_batches", "batches", "Micro-batches that were committed.", *_RUN),
    _counter("run_records_read", "rows_read", "Rows of the table in these.", *_RUN),
    _counter("run_records_written", "rows_written", "Rows written for these.", *_RUN),
    _histogram(
        "run_batch_duration",
        "batch",
        "From the beginning of a micro-batch until it was committed.",
        *_RUN,
    ),
)
RUN_LAG: Final = _gauge(
    "run_lag_records", "Rows that are not in a committed batch, by the newest look.", *_RUN
)

FAMILIES: Final = (
    *CLIENT,
    CLIENT_CONNECTIONS,
    CLIENT_BUFFER,
    CLIENT_MEMORY,
    *SERVER,
    SERVER_ENGINES,
    SERVER_CONNECTIONS,
    SERVER_MEMORY,
    SERVER_TABLES,
    SERVER_BUCKETS,
    SERVER_REFUSING,
    SERVER_LOG_SIZE,
    SERVER_KV_SIZE,
    SERVER_COMPACTIONS,
    *RUNS,
    RUN_LAG,
)

"""An HTTP server for Prometheus: :func:`start_http_server`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.hooks import Closing
from fluss_df.metrics.collector import FlussCollector, metrics_core

if TYPE_CHECKING:
    import threading
    from wsgiref.simple_server import WSGIServer


class MetricsServer(Closing):
    """Answers ``GET /metrics`` until it is closed; see :func:`start_http_server`.

    Attributes
    ----------
    host, port
        Where it listens.
    """

    def __init__(self, host: str, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self._closed = False
        self._process = os.getpid()
        self.host = host
        self.port = int(server.server_port)

    @property
    def url(self) -> str:
        """Where it is asked."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Answer nothing more; a second call does nothing, and neither does one in a fork."""
        if not self._closed:
            self._closed = True
            if os.getpid() != self._process:
                # in a forked child: the thread that answers, and is waited for, is the parent's
                self._server.socket.close()
                return
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5)

    def __repr__(self) -> str:
        return f"MetricsServer({self.url!r}, {'closed' if self._closed else 'open'})"


def start_http_server(
    port: int = 0, host: str = "127.0.0.1", *, max_tables: int = 100
) -> MetricsServer:
    """Serve everything that this process counts to Prometheus, from a thread of its own.

    Needs the extra ``fluss-df[metrics]``. Whoever can reach the port sees the names of tables, and
    how much is in them: there is no password. Beside what Fluss counts, the numbers of the process
    are there, such as ``process_cpu_seconds_total``.

    Parameters
    ----------
    port
        0 for a free one, which :attr:`MetricsServer.port` says.
    host
        The address to listen on.
    max_tables
        How many tables get a label of their own, see :class:`FlussCollector`.

    Raises
    ------
    FlussError
        ``NETWORK_EXCEPTION`` where the port is taken, ``INVALID_CONFIG_EXCEPTION`` where it is no
        port, or ``host`` no address, and where ``prometheus-client`` is not installed.

    Examples
    --------
    >>> with start_http_server() as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """
    metrics_core()
    import prometheus_client

    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise FlussError(
            f"port={port!r}: expected a number from 0 to 65535", ErrorCode.INVALID_CONFIG_EXCEPTION
        )
    if not isinstance(host, str):
        raise FlussError(
            f"host={host!r}: expected an address, such as '127.0.0.1'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    # not the default registry, whose other metrics the program may export by itself
    registry = prometheus_client.CollectorRegistry()
    registry.register(FlussCollector(max_tables))
    prometheus_client.ProcessCollector(registry=registry)
    try:
        server, thread = prometheus_client.start_http_server(port, host, registry)
    except OSError as error:
        raise NetworkError(f"cannot serve metrics on {host}:{port}: {error}") from error
    except ValueError as error:
        # characters that no address has
        raise FlussError(
            f"host={host!r}: expected an address, such as '127.0.0.1': {error}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        ) from error
    return MetricsServer(host, server, thread)

"""A daemon of Spark's Python workers that has imported this library once, for all of them.

Workers are forked from a daemon, and import what they need each by itself. With
``spark.python.daemon.module=fluss_df.spark.daemon``, set when the session is made, those that run
tasks are forked from a process that has it all. (Spark plans in workers of its own daemon.)
"""

from __future__ import annotations

import socket

import pyspark.worker  # noqa: F401 - for those who are forked
from pyspark import daemon

import fluss_df.spark.queries
import fluss_df.spark.source  # noqa: F401 - for those who are forked

_work = daemon.worker


def _work_unless_dismissed(sock: socket.socket, authenticated: bool) -> int:
    """Do a task, unless Spark has closed the socket: it dismisses workers idle for a minute.

    Spark's own worker takes that for a task that broke off, and prints a traceback, since nobody
    is there to be told.
    """
    if not sock.recv(1, socket.MSG_PEEK):
        return 1
    return _work(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = _work_unless_dismissed
    daemon.manager()

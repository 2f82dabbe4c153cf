"""The parent process of a cluster's servers; a script that imports the standard library only.

It starts servers on request of its owner, the process that holds the other end of its standard
input. When that end closes, however the owner ended (``kill -9`` included), it kills the servers
and removes the folder that it was told to; or, started with ``detach``, leaves them running.

Requests and answers are lines of JSON: ``{"argv": [...], "log": path, "cwd": path, "env": {...}}``
(what of the environment differs from the supervisor's) is answered by ``{"pid": number}`` or
``{"error": text}``; ``{"remove": path}`` has no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any, NoReturn

_REAP_SECONDS = 0.5


class Supervisor:
    """Starts, reaps and finally ends the servers of one owner.

    With ``detach`` they outlive the owner.
    """

    def __init__(self, detach: bool) -> None:
        self._detach = detach
        self._servers: list[subprocess.Popen[bytes]] = []
        self._remove: list[str] = []

    def run(self, requests: int, answers: int) -> None:
        """Serve requests until their end; then end the servers."""
        try:
            self._serve(requests, answers)
        finally:
            if not self._detach:
                self._end()

    def _serve(self, requests: int, answers: int) -> None:
        pending = b""
        while True:
            readable, _, _ = select.select([requests], [], [], _REAP_SECONDS)
            self._servers = [server for server in self._servers if server.poll() is None]
            if not readable:
                continue
            received = os.read(requests, 1 << 16)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                answer = self._handle(json.loads(line))
                if answer is not None:
                    os.write(answers, json.dumps(answer).encode() + b"\n")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if "remove" in request:
            self._remove.append(request["remove"])
            return None
        try:
            with open(request["log"], "ab") as log:
                server = subprocess.Popen(
                    request["argv"],
                    cwd=request["cwd"],
                    env={**os.environ, **request.get("env", {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal is for the owner
                )
        except OSError as error:
            return {"error": str(error)}
        self._servers.append(server)
        return {"pid": server.pid}

    def _end(self) -> None:
        # Not asked to stop: without their owner, who would wait for them? Their data stands a kill.
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.kill()
        for server in self._servers:
            server.wait()
        for path in self._remove:
            shutil.rmtree(path, ignore_errors=True)


def _stop(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def main() -> None:
    """Run until standard input ends."""
    signal.signal(signal.SIGTERM, _stop)
    detach = sys.argv[1:] == ["detach"]
    with contextlib.suppress(BrokenPipeError):  # the owner is gone: nothing is left to answer
        Supervisor(detach).run(sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()

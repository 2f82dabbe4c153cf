"""Starts processes that end with this one, however it ends: the owner's side of the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluss_df.cluster.errors import ClusterError
from fluss_df.cluster.processes.processes import ProcessId, identify
from fluss_df.hooks import ForkStep, after_fork

_SCRIPT = Path(__file__).with_name("supervisor.py")


class Launcher:
    """Starts servers through a supervisor process.

    The supervisor reports its own trouble in the file ``log``. With ``detach`` the servers live on
    after :meth:`close` and after this process. Otherwise the folder ``remove`` is removed after
    they ended.
    """

    def __init__(self, log: Path, *, detach: bool, remove: Path | None = None) -> None:
        if not sys.executable:
            raise ClusterError(
                "a local cluster needs a Python interpreter: sys.executable is empty"
            )
        self._lock = threading.Lock()
        requests, self._requests = os.pipe()
        try:
            with open(log, "ab") as errors:
                self._supervisor = subprocess.Popen(
                    [sys.executable, "-I", str(_SCRIPT), "detach" if detach else "bind"],
                    stdin=requests,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
        except OSError:
            os.close(self._requests)
            raise
        finally:
            os.close(requests)
        _launchers.add(self)
        if remove is not None:
            self._send({"remove": str(remove)})

    def start(
        self, argv: Sequence[str], log: Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> ProcessId:
        """Start a process that appends its output to ``log``; return its identity."""
        request = {"argv": list(argv), "log": str(log), "cwd": str(cwd), "env": dict(env or {})}
        with self._lock:
            self._send(request)
            assert self._supervisor.stdout is not None
            line = self._supervisor.stdout.readline()
        if not line:
            raise ClusterError("the supervisor of the cluster's processes has died; start again")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterError(f"cannot run {argv[0]}: {answer['error']}")
        # A process that has died since is a zombie at most: its parent reaps it within half a
        # second, so the pid cannot be another's yet.
        return identify(answer["pid"]) or ProcessId(answer["pid"], "died at once")

    def close(self) -> None:
        """Let the supervisor end; unless detached, it kills the servers that still run."""
        with self._lock:
            if self._requests < 0:
                return
            os.close(self._requests)
            self._requests = -1
        self._supervisor.wait()
        if self._supervisor.stdout is not None:
            self._supervisor.stdout.close()
        _launchers.discard(self)

    def _send(self, request: Mapping[str, object]) -> None:
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ClusterError(
                f"the supervisor of the cluster's processes is gone: {error}"
            ) from error

    def _forget_in_child(self) -> None:
        # A forked child that kept the pipe open would keep the servers alive after their owner.
        if self._requests >= 0:
            with contextlib.suppress(OSError):
                os.close(self._requests)
            self._requests = -1
            self._supervisor.returncode = 0


_launchers: weakref.WeakSet[Launcher] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for launcher in list(_launchers):
        launcher._forget_in_child()


after_fork(ForkStep.LAUNCHERS, _after_fork_in_child)

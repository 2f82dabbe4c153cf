"""Processes by identity: a pid together with the time its process started.

A pid alone is no identity: the kernel uses it again. Whoever remembers one in a file and kills it
later may kill a stranger. Here a process counts as the remembered one only if it also started at
the remembered time.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process; its number alone may be another process's later.

    ``started`` is when it started, in a form of the operating system that is only compared.
    """

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        return identify(self.pid) == self

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal to exactly this process; return False when it is gone."""
        if sys.platform == "linux":
            # The descriptor pins the process: between check and signal the pid cannot change hands.
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return False
            except OSError:  # a kernel or sandbox without pidfd
                return self._send_by_pid(number)
            try:
                if not self.is_alive:
                    return False
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            finally:
                os.close(descriptor)
            return True
        return self._send_by_pid(number)

    def _send_by_pid(self, number: signal.Signals) -> bool:
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a running process, or None when there is none (or a zombie)."""
    if sys.platform == "linux":
        return _identify_by_proc(pid)
    return identify_by_ps(pid)


def _identify_by_proc(pid: int) -> ProcessId | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses too.
    state, *fields = stat.rpartition(")")[2].split()
    # The first thread of a killed process is a zombie while others still hold its sockets.
    if state in "Xx" or (state == "Z" and int(fields[16]) <= 1):
        return None
    # The start time counts from boot, so the boot belongs to the identity.
    return ProcessId(pid, f"{_boot_id()}/{fields[18]}")


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def identify_by_ps(pid: int) -> ProcessId | None:
    """Return the identity as ``ps`` tells it: for systems without /proc, to the second."""
    result = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = result.stdout.strip().partition(" ")
    if not state or state.startswith("Z"):
        return None
    return ProcessId(pid, " ".join(started.split()))


def wait_until_gone(processes: Iterable[ProcessId], timeout: float) -> list[ProcessId]:
    """Wait until the processes have ended; return those that run on after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    alive = [process for process in processes if process.is_alive]
    while alive and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        alive = [process for process in alive if process.is_alive]
    return alive


def end(processes: Iterable[ProcessId], patience: float) -> None:
    """End processes: ask them to stop, and kill those that still run after ``patience`` seconds."""
    processes = list(processes)
    if patience > 0:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        processes = wait_until_gone(processes, patience)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    wait_until_gone(processes, 10)

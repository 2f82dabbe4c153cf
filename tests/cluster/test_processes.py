from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fluss_df.cluster.processes.processes import (
    ProcessId,
    end,
    identify,
    identify_by_ps,
    wait_until_gone,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    found = identify(process.pid)
    assert found is not None
    return found


def test_a_process_is_alive_until_it_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    assert process.pid == sleeper.pid
    assert process.is_alive
    assert process.send_signal(signal.SIGKILL)
    assert wait_until_gone([process], 5) == []
    assert not process.send_signal(signal.SIGTERM)


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    sleeper.kill()  # and not waited for
    wait_until_gone([process], 5)
    os.kill(sleeper.pid, 0)  # the pid still exists
    assert identify(sleeper.pid) is None


def test_another_process_with_the_same_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    stale = ProcessId(sleeper.pid, "at another time")
    assert not stale.is_alive
    assert not stale.send_signal(signal.SIGKILL)
    end([stale], patience=0)
    assert sleeper.poll() is None


def test_without_pidfd_signals_reach_the_right_process_too(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unsupported, raising=False)
    assert not ProcessId(sleeper.pid, "at another time").send_signal(signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity(sleeper).send_signal(signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL


def test_ps_tells_processes_apart_as_well(sleeper: subprocess.Popen[bytes]) -> None:
    found = identify_by_ps(sleeper.pid)
    assert found is not None
    assert found.started
    assert identify_by_ps(sleeper.pid) == found
    assert identify_by_ps(os.getpid()) != found
    process = identity(sleeper)
    sleeper.kill()
    wait_until_gone([process], 5)
    assert identify_by_ps(sleeper.pid) is None


def test_a_pid_that_nobody_has_is_nobody() -> None:
    assert identify(2**30) is None
    assert identify_by_ps(2**30) is None


def test_who_does_not_stop_when_asked_is_killed() -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"ready\n"
        start = time.monotonic()
        end([identity(stubborn)], patience=0.3)
        assert stubborn.wait(5) == -signal.SIGKILL
    assert 0.3 <= time.monotonic() - start < 5


def test_who_stops_when_asked_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    end([identity(sleeper)], patience=10)
    assert sleeper.wait(5) == -signal.SIGTERM

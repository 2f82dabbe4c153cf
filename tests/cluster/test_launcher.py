from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluss_df.cluster import ClusterError
from fluss_df.cluster.processes.launcher import Launcher
from fluss_df.cluster.processes.processes import ProcessId, identify, wait_until_gone

SLEEP = ["sleep", "60"]


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=False)
    log = tmp_path / "out.log"
    log.write_text("before\n")
    process = launcher.start(["sh", "-c", "pwd; echo oops >&2"], log, tmp_path)
    wait_until_gone([process], 5)
    launcher.close()
    assert log.read_text() == f"before\n{tmp_path}\noops\n"


def test_close_kills_and_removes(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    launcher = Launcher(tmp_path / "supervisor.log", detach=False, remove=folder)
    first = launcher.start(SLEEP, folder / "log", folder)
    second = launcher.start(SLEEP, folder / "log", folder)
    assert first.is_alive
    assert second.is_alive
    launcher.close()
    launcher.close()
    assert not first.is_alive
    assert not second.is_alive
    assert not folder.exists()


def test_detached_processes_live_on(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=True)
    process = launcher.start(SLEEP, tmp_path / "log", tmp_path)
    launcher.close()
    assert process.is_alive
    assert process.send_signal(signal.SIGKILL)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=False)
    with pytest.raises(ClusterError, match=r"cannot run /no/such/java: .*No such file"):
        launcher.start(["/no/such/java"], tmp_path / "log", tmp_path)
    launcher.close()


def test_the_death_of_the_supervisor_is_an_error(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=False)
    supervisor = launcher._supervisor
    supervisor.kill()
    supervisor.wait()
    with pytest.raises(ClusterError, match="supervisor"):
        launcher.start(SLEEP, tmp_path / "log", tmp_path)
    launcher.close()


OWNER = """
import os, sys, time
from pathlib import Path
from fluss_df.cluster.processes.launcher import Launcher

folder = Path(sys.argv[1])
launcher = Launcher(folder.parent / "supervisor.log", detach=False, remove=folder)
process = launcher.start(["sleep", "60"], folder / "log", folder)
child = os.fork()
if child == 0:
    time.sleep(60)  # a child that outlives the owner must not keep the servers alive
    os._exit(0)
print(process.pid, launcher._supervisor.pid, child, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_their_owner(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        processes = [process for process in map(identify, pids) if process is not None]
        server, supervisor, child = processes
        owner.send_signal(number)
        owner.wait(10)
        assert wait_until_gone([server, supervisor], 10) == []
        assert not folder.exists()
        assert child.is_alive
        child.send_signal(signal.SIGKILL)


def test_a_supervisor_that_is_told_to_stop_takes_its_processes_along(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=False)
    process = launcher.start(SLEEP, tmp_path / "log", tmp_path)
    launcher._supervisor.terminate()
    assert wait_until_gone([process], 10) == []
    launcher.close()


def test_a_process_that_ends_at_once_has_an_identity_that_is_dead(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "supervisor.log", detach=False)
    process = launcher.start(["true"], tmp_path / "log", tmp_path)
    assert isinstance(process, ProcessId)
    assert wait_until_gone([process], 5) == []
    launcher.close()

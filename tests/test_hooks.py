"""Hooks of exit and of forked children run in one order, whatever is imported first."""

import functools
import subprocess
import sys

import pytest

from fluss_df import hooks

# in the order of their steps; the names are those of the modules
ENDS = ["server", "scanner", "threads", "live", "folder_lake"]
EXITS = ["live", "parallel", "writer", "open_clusters", "local"]
FORKS = [
    "counters", "io_thread", "lane_pool", "folders", "connection", "interrupts",
    "plans", "interrupted", "encoders",
    "remote_fs", "remote_segments", "parallel", "report", "live", "ownership",
    "folder_lake", "server", "launcher",
]  # fmt: skip

ORDER = """
import importlib, os, sys, types
from pathlib import Path
# the package itself imports all in its own order
package = types.ModuleType("fluss_df")
package.__path__ = [sys.argv[1]]
sys.modules["fluss_df"] = package
for name in sys.argv[2:]:
    importlib.import_module(name)
from fluss_df import hooks
from fluss_df.aio import scanner
from fluss_df.client.cluster import open_clusters
from fluss_df.client.fetch import parallel, remote_fs, remote_segments
from fluss_df.client.runtime import encoders, interrupts, io_thread
from fluss_df.client.transport import lane_pool
from fluss_df.client.write import writer
from fluss_df.cluster import local
from fluss_df.cluster.processes import launcher
from fluss_df.embedded import folder_lake
from fluss_df.engine.files import ownership
from fluss_df.engine.serve import server
from fluss_df.flight import server as flight_server
from fluss_df.io.scans import live
def say(text):
    def hook():
        os.write(1, (text + "\\n").encode())
    return hook
# each module's own step, with a hook that says which it is; the oldest steps come last here
owners = {step: hook for step, hook in hooks._at_exit.items()}
forked = {step: hook for step, hook in hooks._after_fork.items()}
for step, hook in sorted(owners.items()):
    hooks.at_exit(step, say("exit " + hook.__module__.rpartition(".")[2]))
for step, hook in sorted(hooks._at_end.items(), reverse=True):
    hooks.at_end(step, say("end " + hook.__module__.rpartition(".")[2]))
for step in sorted(forked, reverse=True):
    hook = forked[step]
    module = {parallel._live.clear: "parallel", folder_lake._open.clear: "folder_lake"}.get(hook)
    module = module or hook.__module__.rpartition(".")[2]
    hooks.after_fork(step, say("fork " + module))
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize(
    "first",
    [
        [],
        ["fluss_df.io.scans.live", "fluss_df.client.write.writer"],
        ["fluss_df.engine.serve.server", "fluss_df.client.fetch.parallel"],
        ["fluss_df.cluster.processes.launcher", "fluss_df.client.cluster.metadata"],
    ],
    ids=["usual", "live", "engine", "launcher"],
)
def test_hooks_run_in_the_order_of_their_steps(first: list[str]) -> None:
    import fluss_df

    done = subprocess.run(
        [sys.executable, "-c", ORDER, fluss_df.__path__[0], *first],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == [
        *(f"fork {name}" for name in FORKS),
        *(f"end {name}" for name in ENDS),
        *(f"exit {name}" for name in EXITS),
    ]


def test_all_hooks_run_whatever_one_of_them_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[hooks.ExitStep] = []

    def interrupted() -> None:
        called.append(hooks.ExitStep.WRITERS)
        raise KeyboardInterrupt

    made = {step: functools.partial(called.append, step) for step in hooks.ExitStep}
    monkeypatch.setattr(hooks, "_at_exit", made | {hooks.ExitStep.WRITERS: interrupted})
    with pytest.raises(KeyboardInterrupt):
        hooks._call(hooks._at_exit)
    assert called == list(hooks.ExitStep)

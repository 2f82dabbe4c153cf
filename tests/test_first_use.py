"""Threads that use Fluss for the first time at once: none waits for another that waits for it."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

# Each name is used in a thread of its own. Threads take turns much more often than usual, so that
# they are within each other's imports.
PROGRAM = """
import sys, threading
names = sys.argv[1:]
import polars as pl
import fluss_df
barrier = threading.Barrier(len(names))
def use(name):
    barrier.wait()
    try:
        exec(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
threads = [threading.Thread(target=use, args=(name,)) for name in names]
sys.setswitchinterval(1e-5)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
NAMES = [
    "fluss_df.scan_fluss",
    "fluss_df.run",
    "fluss_df.track_scans()",
    "fluss_df.lookup_join",
    "fluss_df.MicroBatches",
    "pl.DataFrame.write_fluss.__doc__",
    "from fluss_df.io import sink_fluss",
    "import fluss_df.io.follow",
]
SETS = {
    **{" and ".join(pair): pair for pair in itertools.combinations(NAMES[:4], 2)},
    "all of io": tuple(NAMES),
    "Config and connect": ("fluss_df.Config", "fluss_df.connect"),
    "packages": (
        *("fluss_df.aio", "fluss_df.embedded", "fluss_df.io", "fluss_df.arrow"),
        *("fluss_df.metrics", "fluss_df.lake", "fluss_df.cluster", "fluss_df.FlussAdmin"),
        *("pl.LazyFrame().fluss.run", "fluss_df.Schema", "fluss_df.LogScanner"),
    ),
}


def output_of(program: str, *arguments: str) -> str:
    # a process that has imported nothing yet
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("names", SETS.values(), ids=SETS)
def test_names_can_be_used_in_several_threads_at_once(names: tuple[str, ...]) -> None:
    assert output_of(PROGRAM, *names) == ""


@pytest.mark.parametrize(
    "first", ["import fluss_df.io.lookup_join", "fluss_df.lookup_join", "fluss_df.io.lookup_join"]
)
def test_a_name_that_a_module_has_too_is_what_users_mean(first: str) -> None:
    program = f"""
import fluss_df
{first}
from fluss_df.io import lookup_join
print(lookup_join.__name__, type(lookup_join).__name__)
print(lookup_join is fluss_df.lookup_join is fluss_df.io.lookup_join)
import sys
print(type(sys.modules["fluss_df.io.lookup_join"]).__name__)
"""
    assert output_of(program).split("\n") == ["lookup_join function", "True", "module", ""]

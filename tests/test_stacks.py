"""Scans look at the stacks of threads, which must not wait for threads that end meanwhile."""

from __future__ import annotations

import subprocess
import sys

# Garbage whose end runs Python, in which threads take turns, while others end; a deadlock is the
# end of the process, by the last line.
CHURN = """
import faulthandler, gc, sys, threading, time
from fluss_df.polars_adapter.plans import waited_for

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        sum(range(20))

def threads():
    while time.monotonic() < end:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def garbage():
    while time.monotonic() < end:
        for _ in range(50):
            Garbage()
        time.sleep(0)

faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-6)
gc.set_threshold(5)
end = time.monotonic() + 1
others = [threading.Thread(target=each) for each in (threads, threads, garbage)]
for other in others:
    other.start()
while time.monotonic() < end:
    waited_for()
for other in others:
    other.join()
assert gc.isenabled()
"""


def test_a_look_at_the_stacks_ends_whatever_threads_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHURN], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr

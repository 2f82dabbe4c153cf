"""Which tests one worker runs, and which begin first, where workers run side by side.

The pieces stand in ``pieces.py``. Also what ends a test that hangs in native code, where Python
sees no signal.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from pytest_timeout import Settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.pieces import UNKNOWN_S, piece_of, read_seconds, write_seconds
from tests.slow import is_left_out, is_slow

# Behind its timeout, a test that the signal of pytest-timeout did not end has this long; then its
# process ends, and says where its threads are.
_GRACE_S: Final = 60.0
# how many cases of each function were collected that are not slow
_CASES: Final = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that measures the pieces."""
    text = "note in tests/piece_seconds.json how long each piece took"
    parser.addoption("--write-piece-seconds", action="store_true", help=text)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, and leave what was collected out of later ones.

    Thousands of tests are a million objects, which stay. Each full collection would go through
    them: for two thirds of the time of collecting, and then again while tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _Pieces(LoadFileScheduling):  # type: ignore[misc]
    """Hands out pieces, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)

    _removing = False

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the work of a worker that ended to others, without the test in which it ended."""
        self._removing = True
        crashed: str | None = super().remove_node(node)
        self._removing = False
        if crashed is not None:
            scope = self._split_scope(crashed)
            self.workqueue[scope][crashed] = True
            if all(self.workqueue[scope].values()):
                del self.workqueue[scope]
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker more to do, or have it end.

        A worker begins with a test when it has the next one, or is told that there is none. So one
        that took the place of another needs two tests: with one it would wait for ever.
        """
        if self._removing or node not in self.registered_collections:
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Deal the tests out by pieces."""
    config.option.loadscopereorder = False
    return _Pieces(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is slow."""
    slow = is_slow(item.nodeid)
    if not slow:
        function, _, _ = item.nodeid.partition("[")
        cases = item.config.stash.setdefault(_CASES, Counter())
        slow = is_left_out(item.nodeid, cases[function])
        cases[function] += 1
    if slow:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the pieces that take longest."""
    if hasattr(config, "workerinput"):
        seconds = read_seconds()
        items.sort(key=lambda item: -seconds.get(piece_of(item.nodeid), UNKNOWN_S))


class _Seconds:
    """Adds up how long each piece takes."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._taken[piece_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        write_seconds(self._taken)


class _AtOnce:
    """Names a test when it fails, and not only when all have ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"failed ({report.when}): {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Measure the pieces, where that is asked for; workers of pytest-xdist report their tests."""
    # servers live for seconds or minutes: what compiles least is quickest
    os.environ.setdefault("FLUSS_CLUSTER_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # so do the JVMs of Spark: its launchers, drivers, masters, workers and executors
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(_AtOnce(config), "at-once")
    if config.getoption("--write-piece-seconds"):
        config.pluginmanager.register(_Seconds(), "piece-seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> None:
    """Have the process ended if the test is in native code when its time is up."""
    # the standard error of the process, which pytest keeps while it captures that of tests
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(settings.timeout + _GRACE_S, exit=True, file=stderr)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    """Let the process live on: the test is done."""
    faulthandler.cancel_dump_traceback_later()

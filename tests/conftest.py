"""Which tests one worker runs, and which begin first, where workers run side by side.

A worker has servers of its own, and keeps them to its end. So tests that need the same costly
server are one piece of work. The longest pieces come first: what begins last should be short.

Also what ends a test that hangs in native code, where Python sees no signal.
"""

from __future__ import annotations

import faulthandler
from pathlib import PurePosixPath
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from pytest_timeout import Settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# folders whose files one worker runs: they share a lake with Flink beside it, or a Spark
_TOGETHER: Final = ("tests/spark", "tests/lake")
# folders by the time that their pieces take, the longest first; others are short
_LONGEST: Final = (*_TOGETHER, "tests/faults", "tests/cluster", "tests/io", "tests/embedded")
# Behind its timeout, a test that the signal of pytest-timeout did not end has this long; then its
# process ends, and says where its threads are.
_GRACE_S: Final = 60.0


class _Pieces(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, or folders that belong together, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((folder for folder in _TOGETHER if _is_in(file, folder)), file)

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the folders that take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    return next((n for n, folder in enumerate(_LONGEST) if _is_in(nodeid, folder)), len(_LONGEST))


def _is_in(file: str, folder: str) -> bool:
    return PurePosixPath(file).is_relative_to(folder)


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
